// Cumulative sums along one axis of a contiguous tensor [outer, reduced, columns], forwards or from the end.
//
// A block is a grid of `width` neighbouring lines along the axis by `lanes` threads that share one, width * lanes =
// SCAN_BLOCK. A thread has SCAN_ITEMS elements in a row of its line, and adds them up; the lanes' sums become sums of
// all lanes before in LDS; and the block goes on with the next lanes * SCAN_ITEMS elements until its part of the line
// ends. Where there are too few lines to fill a GPU they are cut into `parts`, whose sums are made first, and a block
// begins with the sum of the parts before its own. An element comes into no sum but those from its own place on, so that
// inf and NaN do not spread backwards; and no sum depends on the GPU or on the wave size.
#include "device.h"
#include "shared/scan.h"

// What a thread has of a tile, which is a part of `width` lines.
struct Work {
    u32 lane;
    u32 part;
    bool exists;
    u64 line;
    u64 first;  // element of the line
    u64 begin;
    u64 end;

    DEVICE_FN Work(const Scan& plan, u64 tile) {
        const u32 width = SCAN_BLOCK >> plan.lanes_log2;
        const u64 group = tile / plan.parts;
        part = (u32)(tile - group * plan.parts);
        lane = thread_x() / width;
        line = group * width + thread_x() % width;
        exists = line < plan.lines;
        const u64 outer = line / plan.columns;
        first = outer * plan.reduced * plan.columns + (line - outer * plan.columns);
        begin = part * plan.part_size;
        end = plan.reduced - begin < plan.part_size ? plan.reduced : begin + plan.part_size;
    }
    // The offset of the r-th element to be added.
    DEVICE_FN u64 at(const Scan& plan, u64 r) const { return first + (plan.reversed ? plan.reduced - 1 - r : r) * plan.columns; }
};

// totals[line, part] = the sum of the part.
template <typename T, typename A> DEVICE_FN void scan_totals(const T* src, A* totals, const Scan& plan) {
    __shared__ A shared[SCAN_BLOCK];
    const u32 lanes = 1u << plan.lanes_log2;
    const u32 width = SCAN_BLOCK >> plan.lanes_log2;
    for (u64 tile = block_x(); tile < plan.tiles; tile += grid_dim()) {
        const Work work(plan, tile);
        A sum = A(0);
        if (work.exists) {
#pragma unroll 4
            for (u64 r = work.begin + work.lane; r < work.end; r += lanes) sum += (A)load(src[work.at(plan, r)]);
        }
        shared[thread_x()] = sum;
        for (u32 half = lanes / 2; half > 0; half /= 2) {
            barrier();
            if (work.lane < half) shared[thread_x()] = sum = sum + shared[thread_x() + half * width];
        }
        if (work.lane == 0 && work.exists) totals[work.line * plan.parts + work.part] = sum;
        barrier();
    }
}

// `totals` has the sums of parts, and is null if there is one.
template <typename T, typename A> DEVICE_FN void cumsum(const T* src, const A* totals, T* dst, const Scan& plan) {
    __shared__ A shared[SCAN_BLOCK];
    const u32 lanes = 1u << plan.lanes_log2;
    const u32 width = SCAN_BLOCK >> plan.lanes_log2;
    const u32 t = thread_x();
    for (u64 tile = block_x(); tile < plan.tiles; tile += grid_dim()) {
        const Work work(plan, tile);
        // The sum of all that comes before this part.
        A carry = A(0);
        if (plan.parts > 1) {
            if (work.exists) {
                for (u32 p = work.lane; p < work.part; p += lanes) carry += totals[work.line * plan.parts + p];
            }
            shared[t] = carry;
            for (u32 half = lanes / 2; half > 0; half /= 2) {
                barrier();
                if (work.lane < half) shared[t] += shared[t + half * width];
            }
            barrier();
            carry = shared[t % width];
            barrier();
        }
        for (u64 begin = work.begin; begin < work.end; begin += lanes * SCAN_ITEMS) {
            const u64 mine = begin + work.lane * SCAN_ITEMS;
            A sums[SCAN_ITEMS];
            A sum = A(0);
#pragma unroll
            for (u32 k = 0; k < SCAN_ITEMS; ++k) {
                if (work.exists && mine + k < work.end) sum += (A)load(src[work.at(plan, mine + k)]);
                sums[k] = sum;
            }
            shared[t] = sum;
            barrier();
            // After each step a lane has the sum of twice as many lanes, up to its own.
            for (u32 step = width; step < SCAN_BLOCK; step *= 2) {
                const bool adds = t >= step;
                const A before = adds ? shared[t - step] : A(0);
                barrier();
                if (adds) shared[t] = before + shared[t];
                barrier();
            }
            const A base = work.lane > 0 ? carry + shared[t - width] : carry;
#pragma unroll
            for (u32 k = 0; k < SCAN_ITEMS; ++k) {
                if (work.exists && mine + k < work.end) dst[work.at(plan, mine + k)] = store<T>(base + sums[k]);
            }
            carry += shared[SCAN_BLOCK - width + t % width];
            barrier();
        }
    }
}

// Integers add up in the unsigned type, where overflow wraps.
#define CUMSUM(name, T, A)                                                                                                     \
    extern "C" __global__ MAX_BLOCK(SCAN_BLOCK) void cumsum_totals_##name(const T* src, A* totals, Scan plan) {                \
        scan_totals<T, A>(src, totals, plan);                                                                                  \
    }                                                                                                                          \
    extern "C" __global__ MAX_BLOCK(SCAN_BLOCK) void cumsum_##name(const T* src, const A* totals, T* dst, Scan plan) {         \
        cumsum<T, A>(src, totals, dst, plan);                                                                                  \
    }
PART(u8) CUMSUM(u8, u8, u32)
PART(u32) CUMSUM(u32, u32, u32)
PART(i16) CUMSUM(i16, i16, u32)
PART(i32) CUMSUM(i32, i32, u32)
PART(i64) CUMSUM(i64, i64, u64)
PART(f16) CUMSUM(f16, f16, float)
PART(bf16) CUMSUM(bf16, bf16, float)
PART(f32) CUMSUM(f32, float, float)
PART(f64) CUMSUM(f64, double, double)
PART(f8e4m3) CUMSUM(f8e4m3, f8e4m3, float)
