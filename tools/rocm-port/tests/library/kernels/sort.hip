// Sorts of a block and of warps.
#include "port/cub.h"
PORT_BEGIN

// Places of keys, one sort after the other through the same memory: ascending, descending, ascending striped, descending
// striped; by bits 3 to 8; by no bits, striped; and whether ascending keys alone are those of the first one.
template <typename Key, int X, int Y, int ITEMS> __device__ void radix(const Key* in, unsigned* out) {
    constexpr int TILE = X * Y * ITEMS;
    using Sort = cub::BlockRadixSort<Key, X, ITEMS, unsigned, 4, true, cub::BLOCK_SCAN_WARP_SCANS, 0, Y>;
    using Alone = cub::BlockRadixSort<Key, X, ITEMS, cub::NullType, 6, true, cub::BLOCK_SCAN_WARP_SCANS, 0, Y>;
    __shared__ union {
        typename Sort::TempStorage sort;
        typename Alone::TempStorage alone;
    } temp;
    const int rank = threadIdx.x + X * threadIdx.y;
    Key keys[ITEMS];
    unsigned places[ITEMS];
    auto begin = [&]() {
        for (int i = 0; i < ITEMS; ++i) keys[i] = in[rank * ITEMS + i], places[i] = rank * ITEMS + i;
        __syncthreads();
    };
    auto put = [&](int step, bool striped) {
        for (int i = 0; i < ITEMS; ++i) out[step * TILE + (striped ? i * X * Y + rank : rank * ITEMS + i)] = places[i];
    };
    begin(), Sort(temp.sort).Sort(keys, places), put(0, false);
    begin(), Sort(temp.sort).SortDescending(keys, places), put(1, false);
    begin(), Sort(temp.sort).SortBlockedToStriped(keys, places), put(2, true);
    begin(), Sort(temp.sort).SortDescendingBlockedToStriped(keys, places), put(3, true);
    begin(), Sort(temp.sort).Sort(keys, places, 3, 8), put(4, false);
    begin(), Sort(temp.sort).SortDescendingBlockedToStriped(keys, places, 5, 5), put(5, true);
    begin(), Alone(temp.alone).Sort(keys);
    for (int i = 0; i < ITEMS; ++i) {
        const Key other = in[out[rank * ITEMS + i]];
        out[6 * TILE + rank * ITEMS + i] = cub::Traits<Key>::ordered(keys[i]) == cub::Traits<Key>::ordered(other);
    }
}
extern "C" PORT_KERNEL(1024) void radix_i32(const int* in, unsigned* out) { radix<int, 96, 1, 3>(in, out); }
extern "C" PORT_KERNEL(1024) void radix_u8(const unsigned char* in, unsigned* out) { radix<unsigned char, 50, 1, 2>(in, out); }
extern "C" PORT_KERNEL(1024) void radix_i64(const long long* in, unsigned* out) { radix<long long, 16, 4, 2>(in, out); }
extern "C" PORT_KERNEL(1024) void radix_f32(const float* in, unsigned* out) { radix<float, 256, 1, 4>(in, out); }
extern "C" PORT_KERNEL(1024) void radix_f64(const double* in, unsigned* out) { radix<double, 32, 1, 1>(in, out); }
extern "C" PORT_KERNEL(1024) void radix_f16(const __half* in, unsigned* out) { radix<__half, 64, 1, 2>(in, out); }
extern "C" PORT_KERNEL(1024) void radix_bf16(const __nv_bfloat16* in, unsigned* out) { radix<__nv_bfloat16, 64, 1, 2>(in, out); }

// By the last digit alone, the larger one first.
struct LastDigit { __device__ bool operator()(int a, int b) const { return a % 10 > b % 10; } };

extern "C" PORT_KERNEL(1024) void merge(const int* in, int* out) {
    constexpr int X = 80, ITEMS = 3, TILE = X * ITEMS;
    using Sort = cub::BlockMergeSort<int, X, ITEMS, int>;
    __shared__ typename Sort::TempStorage temp;
    int keys[ITEMS], places[ITEMS];
    const int rank = threadIdx.x;
    auto begin = [&]() {
        for (int i = 0; i < ITEMS; ++i) keys[i] = in[rank * ITEMS + i], places[i] = rank * ITEMS + i;
        __syncthreads();
    };
    begin(), Sort(temp).Sort(keys, places, LastDigit());
    for (int i = 0; i < ITEMS; ++i) out[rank * ITEMS + i] = places[i];
    begin(), Sort(temp).StableSort(keys, places, LastDigit(), 100, 0);
    for (int i = 0; i < ITEMS; ++i) out[TILE + rank * ITEMS + i] = places[i];
}

struct Less { __device__ bool operator()(int a, int b) const { return a < b; } };
struct Greater { __device__ bool operator()(int a, int b) const { return a > b; } };

// Each logical warp of 8 lanes sorts 24 items of its own; every second warp sorts twice.
extern "C" PORT_KERNEL(1024) void warps(const int* in, int* out) {
    using Sort = cub::WarpMergeSort<int, 3, 8>;
    __shared__ typename Sort::TempStorage temp[12];
    int keys[3];
    for (int i = 0; i < 3; ++i) keys[i] = in[threadIdx.x * 3 + i];
    if (threadIdx.x / 32 % 2 == 1) {
        Sort(temp[threadIdx.x / 8]).Sort(keys, Greater());
        __syncwarp();
    }
    Sort(temp[threadIdx.x / 8]).Sort(keys, Less());
    for (int i = 0; i < 3; ++i) out[threadIdx.x * 3 + i] = keys[i];
}

PORT_END
