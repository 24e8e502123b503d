// Items of a block: loads and stores in every arrangement, exchanges, neighbours, histograms.
#include "port/cub.h"
PORT_BEGIN

// Items of the first `valid` from memory to registers and back, by each pair of algorithms; what is behind is 77.
template <typename T, cub::BlockLoadAlgorithm LOAD, cub::BlockStoreAlgorithm STORE, int X, int Y, int ITEMS>
__device__ void copy(const T* in, const int* valid, T* out) {
    constexpr int TILE = X * Y * ITEMS;
    using Load = cub::BlockLoad<T, X, ITEMS, LOAD, Y>;
    using Store = cub::BlockStore<T, X, ITEMS, STORE, Y>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
    } temp;
    const int rank = threadIdx.x + X * threadIdx.y;
    T items[ITEMS];
    Load(temp.load).Load(in, items, *valid, T(77));
    __syncthreads();
    // Blocked items, one by one, and as they are stored.
    for (int i = 0; i < ITEMS; ++i) out[rank * ITEMS + i] = items[i];
    for (int i = rank; i < TILE; i += X * Y) out[TILE + i] = T(0);
    __syncthreads();
    Store(temp.store).Store(out + TILE, items, *valid);
    __syncthreads();
    Load(temp.load).Load(in, items);
    __syncthreads();
    Store(temp.store).Store(out + 2 * TILE, items);
}
#define COPY(name, T, X, Y, ITEMS, KIND)                                                            \
    extern "C" PORT_KERNEL(1024) void name(const T* in, const int* valid, T* out) {                 \
        copy<T, cub::BLOCK_LOAD_##KIND, cub::BLOCK_STORE_##KIND, X, Y, ITEMS>(in, valid, out);      \
    }
COPY(copy_direct, float, 50, 1, 3, DIRECT)
COPY(copy_vectorize, unsigned short, 64, 1, 4, VECTORIZE)
COPY(copy_transpose, double, 10, 5, 3, TRANSPOSE)
COPY(copy_warp_transpose, unsigned char, 64, 1, 8, WARP_TRANSPOSE)
COPY(copy_timesliced, __half, 32, 3, 5, WARP_TRANSPOSE_TIMESLICED)
extern "C" PORT_KERNEL(1024) void copy_striped(const int* in, const int* valid, int* out) {
    constexpr int X = 96, ITEMS = 3;
    using Load = cub::BlockLoad<int, X, ITEMS, cub::BLOCK_LOAD_STRIPED>;
    using Store = cub::BlockStore<int, X, ITEMS, cub::BLOCK_STORE_STRIPED>;
    int items[ITEMS];
    Load().Load(in, items, *valid, 77);
    for (int i = 0; i < ITEMS; ++i) out[threadIdx.x + i * X] = items[i];
    for (int i = 0; i < ITEMS; ++i) out[X * ITEMS + threadIdx.x + i * X] = 0;
    __syncthreads();
    Store().Store(out + X * ITEMS, items, *valid);
    Load().Load(in, items);
    Store().Store(out + 2 * X * ITEMS, items);
}

// The same for logical warps, each with a tile of its own; `valid` is that of each tile.
template <typename T, cub::WarpLoadAlgorithm LOAD, cub::WarpStoreAlgorithm STORE, int LANES, int ITEMS>
__device__ void copy_by_warps(const T* in, const int* valid, T* out) {
    constexpr int TILE = LANES * ITEMS;
    using Load = cub::WarpLoad<T, ITEMS, LOAD, LANES>;
    using Store = cub::WarpStore<T, ITEMS, STORE, LANES>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
    } temp[16];
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    auto& own = temp[warp];
    in += warp * TILE, out += warp * 3 * TILE;
    T items[ITEMS];
    Load(own.load).Load(in, items, *valid, T(77));
    __syncwarp();
    const bool striped = LOAD == cub::WARP_LOAD_STRIPED;
    for (int i = 0; i < ITEMS; ++i) out[striped ? i * LANES + lane : lane * ITEMS + i] = items[i];
    for (int i = 0; i < ITEMS; ++i) out[TILE + lane * ITEMS + i] = T(0);
    __syncwarp();
    Store(own.store).Store(out + TILE, items, *valid);
    __syncwarp();
    Load(own.load).Load(in, items);
    __syncwarp();
    Store(own.store).Store(out + 2 * TILE, items);
}
#define COPY_BY_WARPS(name, T, LANES, ITEMS, KIND)                                                  \
    extern "C" PORT_KERNEL(1024) void name(const T* in, const int* valid, T* out) {                 \
        copy_by_warps<T, cub::WARP_LOAD_##KIND, cub::WARP_STORE_##KIND, LANES, ITEMS>(in, valid, out); \
    }
COPY_BY_WARPS(warps_direct, float, 8, 3, DIRECT)
COPY_BY_WARPS(warps_striped, unsigned short, 32, 2, STRIPED)
COPY_BY_WARPS(warps_transpose, double, 16, 5, TRANSPOSE)

// Of 64 threads with 3 items each that are numbered as they lie in memory: what each exchange makes of them.
extern "C" PORT_KERNEL(1024) void exchanges(const int* ranks, int* out) {
    constexpr int X = 64, ITEMS = 3, TILE = X * ITEMS;
    using Exchange = cub::BlockExchange<int, X, ITEMS>;
    __shared__ typename Exchange::TempStorage temp;
    int items[ITEMS], to[ITEMS], flags[ITEMS];
    const int rank = threadIdx.x;
    auto put = [&](int step) {
        for (int i = 0; i < ITEMS; ++i) out[step * TILE + rank * ITEMS + i] = items[i];
        for (int i = 0; i < ITEMS; ++i) items[i] = rank * ITEMS + i;
        __syncthreads();
    };
    for (int i = 0; i < ITEMS; ++i) items[i] = rank * ITEMS + i, to[i] = ranks[rank * ITEMS + i];
    Exchange(temp).StripedToBlocked(items), put(0);
    Exchange(temp).BlockedToStriped(items), put(1);
    Exchange(temp).WarpStripedToBlocked(items), put(2);
    Exchange(temp).BlockedToWarpStriped(items), put(3);
    Exchange(temp).ScatterToBlocked(items, to), put(4);
    Exchange(temp).ScatterToStriped(items, to), put(5);
    // Every other item stays away: the places that are not written keep what was there, which is not looked at.
    for (int i = 0; i < ITEMS; ++i) flags[i] = items[i] % 2 == 0;
    Exchange(temp).ScatterToStripedFlagged(items, items, to, flags), put(6);
    for (int i = 0; i < ITEMS; ++i) to[i] = items[i] % 2 == 0 ? to[i] : -1;
    Exchange(temp).ScatterToStripedGuarded(items, items, to), put(7);
}

struct Differ { __device__ bool operator()(int a, int b) const { return a != b; } };
// Sees the index, too: every tenth item begins something new.
struct DifferAt { __device__ bool operator()(int a, int b, int at) const { return a != b || at % 10 == 0; } };
struct Difference { __device__ int operator()(int a, int b) const { return a - b; } };

extern "C" PORT_KERNEL(1024) void neighbours(const int* in, int* out) {
    constexpr int X = 80, ITEMS = 2, TILE = X * ITEMS;
    using Discontinuity = cub::BlockDiscontinuity<int, X>;
    using Adjacent = cub::BlockAdjacentDifference<int, X>;
    using Shuffle = cub::BlockShuffle<int, X>;
    __shared__ union {
        typename Discontinuity::TempStorage discontinuity;
        typename Adjacent::TempStorage adjacent;
        typename Shuffle::TempStorage shuffle;
    } temp;
    const int rank = threadIdx.x;
    int items[ITEMS], a[ITEMS] = {}, b[ITEMS] = {};
    for (int i = 0; i < ITEMS; ++i) items[i] = in[rank * ITEMS + i];
    auto put = [&](int step, const int* values) {
        for (int i = 0; i < ITEMS; ++i) out[step * TILE + rank * ITEMS + i] = values[i];
        __syncthreads();
    };
    Discontinuity(temp.discontinuity).FlagHeads(a, items, Differ()), put(0, a);
    Discontinuity(temp.discontinuity).FlagHeads(a, items, DifferAt(), in[0]), put(1, a);
    Discontinuity(temp.discontinuity).FlagTails(a, items, Differ()), put(2, a);
    Discontinuity(temp.discontinuity).FlagHeadsAndTails(a, in[0], b, in[TILE - 1], items, Differ()), put(3, a), put(4, b);
    Adjacent(temp.adjacent).SubtractLeft(items, a, Difference()), put(5, a);
    Adjacent(temp.adjacent).SubtractLeft(items, a, Difference(), 1000), put(6, a);
    Adjacent(temp.adjacent).SubtractRight(items, a, Difference()), put(7, a);
    Adjacent(temp.adjacent).SubtractLeftPartialTile(items, a, Difference(), 101), put(8, a);
    Adjacent(temp.adjacent).SubtractRightPartialTile(items, a, Difference(), 101), put(9, a);
    int one = -1, suffix = 0;
    Shuffle(temp.shuffle).Offset(items[0], one, -3), a[0] = one, one = -1;
    __syncthreads();
    Shuffle(temp.shuffle).Rotate(items[0], one, 5), a[1] = one, put(10, a);
    a[0] = a[1] = -1;
    Shuffle(temp.shuffle).Up(items, a, suffix), put(11, a);
    if (rank == 0) out[14 * TILE] = suffix;
    a[0] = a[1] = -1;
    Shuffle(temp.shuffle).Down(items, a), put(12, a);
    __shared__ int histogram[16];
    for (int i = 0; i < ITEMS; ++i) a[i] = items[i] & 15;
    cub::BlockHistogram<int, X, ITEMS, 16>().Histogram(a, histogram);
    __syncthreads();
    for (int i = 0; i < ITEMS; ++i) a[i] = histogram[(rank * ITEMS + i) % 16];
    put(13, a);
}

PORT_END
