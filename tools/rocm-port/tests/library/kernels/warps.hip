// Warps and parts of them, in blocks whose last wave is not whole and whose warps do not do the same.
#include "port/cub.h"
PORT_BEGIN

struct Affine { unsigned factor, offset; };
struct Then {
    __device__ Affine operator()(const Affine& a, const Affine& b) const { return Affine{a.factor * b.factor, b.factor * a.offset + b.offset}; }
};

// Of logical warps of LANES: total, total of the first `valid`, inclusive, exclusive with and without a first value, the
// totals that scans say, segments by heads and by tails, and the value of lane 1. Where a result is undefined, ~0.
template <int LANES> __device__ void logical(const Affine* in, const int* numbers, Affine* out) {
    using Reduce = cub::WarpReduce<Affine, LANES>;
    using Scan = cub::WarpScan<Affine, LANES>;
    __shared__ typename Reduce::TempStorage reduce[16];
    __shared__ typename Scan::TempStorage scan[16];
    const int i = threadIdx.x, n = blockDim.x, lane = i % 32 % LANES;
    const Affine v = in[i], none = {~0u, ~0u};
    const int valid = numbers[0], flag = numbers[1 + i];
    Then then;
    const Affine total = Reduce(reduce[0]).Reduce(v, then);
    out[i] = lane == 0 ? total : none;
    const Affine part = Reduce(reduce[0]).Reduce(v, then, valid < LANES ? valid : LANES);
    out[n + i] = lane == 0 ? part : none;
    Affine inclusive, exclusive = none, sum;
    Scan(scan[0]).InclusiveScan(v, inclusive, then, sum);
    out[2 * n + i] = inclusive;
    out[3 * n + i] = sum;
    Scan(scan[0]).ExclusiveScan(v, exclusive, then);
    out[4 * n + i] = lane == 0 ? none : exclusive;
    Scan(scan[0]).ExclusiveScan(v, exclusive, in[0], then, sum);
    out[5 * n + i] = exclusive;
    out[6 * n + i] = sum;
    const Affine head = Reduce(reduce[0]).HeadSegmentedReduce(v, flag, then);
    out[7 * n + i] = lane == 0 || flag ? head : none;
    const Affine tail = Reduce(reduce[0]).TailSegmentedReduce(v, flag, then);
    const int before = lane == 0 ? 1 : numbers[i];
    out[8 * n + i] = before ? tail : none;
    out[9 * n + i] = Scan(scan[0]).Broadcast(v, 1);
}
#define LOGICAL(name, LANES) \
    extern "C" PORT_KERNEL(1024) void name(const Affine* in, const int* numbers, Affine* out) { logical<LANES>(in, numbers, out); }
LOGICAL(logical_2, 2)
LOGICAL(logical_4, 4)
LOGICAL(logical_8, 8)
LOGICAL(logical_16, 16)
LOGICAL(logical_32, 32)

// Every warp reduces as often as its number says, while others are at the barrier already; then the first one sums up.
extern "C" PORT_KERNEL(1024) void uneven(const int* in, int* out) {
    using Reduce = cub::WarpReduce<int>;
    __shared__ typename Reduce::TempStorage temp[8];
    __shared__ int sums[8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int v = in[threadIdx.x];
    for (int i = 0; i < warp; ++i) {
        const int sum = Reduce(temp[warp]).Sum(v);
        v = cub::ShuffleIndex<32>(sum, 0, 0xffffffffu) - v;
    }
    const int sum = Reduce(temp[warp]).Sum(v);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        const int all = Reduce(temp[0]).Sum(lane < 8 ? sums[lane] : 0);
        if (lane == 0) out[0] = all;
    }
    __syncthreads();
    out[1 + threadIdx.x] = v;
}

extern "C" PORT_KERNEL(1024) void shuffles(const int* in, int* out) {
    const int i = threadIdx.x, n = blockDim.x;
    struct Odd { unsigned char bytes[7]; };
    Odd odd;
    for (int b = 0; b < 7; ++b) odd.bytes[b] = (unsigned char)(in[i] + b);
    odd = cub::ShuffleIndex<16>(odd, 3, 0xffffffffu);
    out[i] = odd.bytes[0] | odd.bytes[6] << 8;
    out[n + i] = cub::ShuffleUp<8>(in[i], 3, 0, 0xffffffffu);
    out[2 * n + i] = cub::ShuffleDown<8>(in[i], 3, 7, 0xffffffffu);
    out[3 * n + i] = cub::LaneId() + 100 * cub::WarpId();
    cub::KeyValuePair<int, float> pair(i, (float)(in[i] % 5));
    using Reduce = cub::WarpReduce<cub::KeyValuePair<int, float>>;
    __shared__ typename Reduce::TempStorage temp[8];
    const auto best = Reduce(temp[i / 32]).Reduce(pair, cub::ArgMax());
    out[4 * n + i] = i % 32 == 0 ? best.key : 0;
}

PORT_END
