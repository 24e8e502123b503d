// Reductions and scans of a block, tile after tile through the same shared memory.
#include "port/cub.h"
PORT_BEGIN

// x -> factor x + offset, one after the other: associative, but not commutative.
struct Affine { unsigned factor, offset; };
struct Then {
    __device__ Affine operator()(const Affine& a, const Affine& b) const { return Affine{a.factor * b.factor, b.factor * a.offset + b.offset}; }
};
template <typename T> struct Wide { T low, middle, high; };
struct AddWide {
    template <typename T> __device__ T operator()(const T& a, const T& b) const {
        T sum;
        sum.low = a.low + b.low, sum.middle = a.middle + b.middle, sum.high = a.high + b.high;
        return sum;
    }
};

template <typename T, typename Op> struct Running {
    T before;
    Op op;
    __device__ T operator()(const T& tile) {
        const T old = before;
        before = op(before, tile);
        return old;
    }
};

// Of each of two tiles: the total, the total of the first `valid` threads, the total that the scan says; inclusive,
// exclusive from the first input on, exclusive over all tiles; and with ITEMS items a thread both scans again.
template <typename T, typename Op, int X, int Y, int Z, int ITEMS> __device__ void tiles(const T* in, const int* valid, T* out) {
    constexpr int THREADS = X * Y * Z;
    using Reduce = cub::BlockReduce<T, X, cub::BLOCK_REDUCE_WARP_REDUCTIONS, Y, Z>;
    using Scan = cub::BlockScan<T, X, cub::BLOCK_SCAN_WARP_SCANS, Y, Z>;
    __shared__ union {
        typename Reduce::TempStorage reduce;
        typename Scan::TempStorage scan;
    } temp;
    const int rank = threadIdx.x + X * (threadIdx.y + Y * threadIdx.z);
    Op op;
    const T initial = in[0];
    Running<T, Op> running = {initial, op};
    for (int tile = 0; tile < 2; ++tile) {
        T items[ITEMS];
        for (int i = 0; i < ITEMS; ++i) items[i] = in[(tile * THREADS + rank) * ITEMS + i];
        T* const to = out + tile * (3 + 3 * THREADS + 2 * THREADS * ITEMS);
        const T total = Reduce(temp.reduce).Reduce(items, op);
        if (rank == 0) to[0] = total;
        __syncthreads();
        const T part = Reduce(temp.reduce).Reduce(items[0], op, *valid);
        if (rank == 0) to[1] = part;
        __syncthreads();
        T inclusive, exclusive, over_all, sum;
        Scan(temp.scan).InclusiveScan(items[0], inclusive, op, sum);
        if (rank == THREADS - 1) to[2] = sum;
        __syncthreads();
        Scan(temp.scan).ExclusiveScan(items[0], exclusive, initial, op);
        __syncthreads();
        Scan(temp.scan).ExclusiveScan(items[0], over_all, op, running);
        __syncthreads();
        to[3 + rank] = inclusive;
        to[3 + THREADS + rank] = exclusive;
        to[3 + 2 * THREADS + rank] = over_all;
        T scanned[ITEMS];
        Scan(temp.scan).InclusiveScan(items, scanned, op);
        __syncthreads();
        for (int i = 0; i < ITEMS; ++i) to[3 + 3 * THREADS + rank * ITEMS + i] = scanned[i];
        Scan(temp.scan).ExclusiveScan(items, items, initial, op);
        __syncthreads();
        for (int i = 0; i < ITEMS; ++i) to[3 + 3 * THREADS + (THREADS + rank) * ITEMS + i] = items[i];
    }
}

#define TILES(name, T, Op, X, Y, Z, ITEMS) \
    extern "C" PORT_KERNEL(1024) void name(const T* in, const int* valid, T* out) { tiles<T, Op, X, Y, Z, ITEMS>(in, valid, out); }
TILES(affine_96, Affine, Then, 96, 1, 1, 3)
TILES(affine_80, Affine, Then, 80, 1, 1, 1)
TILES(affine_8x6x3, Affine, Then, 8, 6, 3, 2)
TILES(affine_7, Affine, Then, 7, 1, 1, 2)
TILES(float_1024, float, cub::Sum, 1024, 1, 1, 1)
TILES(half_64, __half, cub::Max, 64, 1, 1, 2)
TILES(wide_128, Wide<unsigned short>, AddWide, 128, 1, 1, 1)

// With private storage, and sums by name: of threads, of the first 33, inclusive, exclusive, and their totals.
extern "C" PORT_KERNEL(1024) void sums_50(const int* in, int* out) {
    const int i = threadIdx.x;
    const int all = cub::BlockReduce<int, 50>().Sum(in[i]);
    const int some = cub::BlockReduce<int, 50, cub::BLOCK_REDUCE_RAKING>().Sum(in[i], 33);
    int inclusive, exclusive, total;
    cub::BlockScan<int, 50>().InclusiveSum(in[i], inclusive);
    __syncthreads();
    cub::BlockScan<int, 50>().ExclusiveSum(in[i], exclusive, total);
    if (i == 0) out[0] = all, out[1] = some;
    out[2 + i] = inclusive;
    out[52 + i] = exclusive;
    out[102 + i] = total;
}

PORT_END
