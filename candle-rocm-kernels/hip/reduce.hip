// Sum, minimum, maximum and their indices along any set of axes.
//
// A block is a grid of `columns` outputs by `lanes` threads that share an output, columns * lanes = REDUCE_BLOCK.
// Neighbouring threads are neighbours along the reduced axes (`lanes_fast`, for rows) or along the kept ones (for
// columns); whichever is dense in memory. Each thread walks the reduced elements in steps of `lanes`, then a tree in
// LDS joins the lanes, so that a result does not depend on the wave size. A long reduction with few outputs is cut into
// `parts`, whose partial results [outputs, parts] a second launch reduces. Layouts whose elements come in packs of 16
// bytes are in reduce_packs.hip.
#include "reduce.h"

// Offset of an element; a single dimension may have more than 2^32 elements.
DEVICE_FN u64 offset_of(const Dims& dims, const Strides& strides, u64 index) {
    return dims.rank <= 1 ? index * strides.s[0] : strided_offset(dims, strides, (u32)index);
}

// What the element at `at`, the r-th of the reduced ones, begins as.
template <typename Op> DEVICE_FN typename Op::Acc lift(const Op& op, u64 at, u64 r) { return op.of(op.src[at], op.number(at, r)); }

template <typename Op> DEVICE_FN void reduce(const Plan& plan, const Op& op) {
    using Acc = typename Op::Acc;
    __shared__ Acc shared[REDUCE_BLOCK];
    const u32 columns = REDUCE_BLOCK / plan.lanes;
    const u32 t = thread_x();
    const u32 my_lane = plan.lanes_fast ? t % plan.lanes : t / columns;
    const u32 my_column = plan.lanes_fast ? t / plan.lanes : t % columns;
    const u32 next_lane = plan.lanes_fast ? 1 : columns;
    const u64 tiles = (plan.outputs + columns - 1) / columns * plan.parts;

    for (u64 tile = block_x(); tile < tiles; tile += grid_dim()) {
        const u64 part = tile % plan.parts;
        const u64 output = tile / plan.parts * columns + my_column;
        const u64 begin = part * plan.part_size;
        const u64 end = plan.reduced - begin < plan.part_size ? plan.reduced : begin + plan.part_size;
        Acc acc = op.identity();
        if (output < plan.outputs) {
            const u64 base = offset_of(plan.kept_dims, plan.kept_strides, output);
            if (begin == 0 && my_lane == 0) acc = op.start(base);
            u64 r = begin + my_lane;
            while (r < end) {
                const u64 carry_at = end - r > CARRY * plan.lanes ? r + CARRY * plan.lanes : end;
                Acc some = op.identity();
#pragma unroll 4
                for (; r < carry_at; r += plan.lanes) {
                    some = op.combine(some, lift(op, base + offset_of(plan.reduced_dims, plan.reduced_strides, r), r));
                }
                acc = op.combine(acc, some);
            }
        }
        if (plan.lanes > 1) {
            shared[t] = acc;
            for (u32 half = plan.lanes / 2; half > 0; half /= 2) {
                barrier();
                if (my_lane < half) shared[t] = acc = op.combine(acc, shared[t + half * next_lane]);
            }
            barrier();
        }
        if (my_lane == 0 && output < plan.outputs) op.finish(output * plan.parts + part, acc);
    }
}

// sum_<from>_<to>: the small floats keep their partial results in f32.
#define SUM(name, T, A, Out)                                                                                     \
    extern "C" __global__ MAX_BLOCK(REDUCE_BLOCK) void sum_##name(const T* src, Out* dst, Plan plan) {            \
        reduce(plan, SumOf<T, A, Out>{src, dst, plan.divisor});                                                                \
    }
PART(u8) SUM(u8, u8, u32, u8)
PART(u32) SUM(u32, u32, u32, u32)
PART(i16) SUM(i16, i16, u32, i16)
PART(i32) SUM(i32, i32, u32, i32)
PART(i64) SUM(i64, i64, u64, i64)
PART(f16) SUM(f16, f16, float, f16)
PART(bf16) SUM(bf16, bf16, float, bf16)
PART(f32) SUM(f32, float, float, float)
PART(f64) SUM(f64, double, double, double)
PART(f8e4m3) SUM(f8e4m3, f8e4m3, float, f8e4m3)
PART(f16) SUM(f16_f32, f16, float, float)
PART(bf16) SUM(bf16_f32, bf16, float, float)
PART(f8e4m3) SUM(f8e4m3_f32, f8e4m3, float, float)
PART(f32) SUM(f32_f16, float, float, f16)
PART(f32) SUM(f32_bf16, float, float, bf16)
PART(f32) SUM(f32_f8e4m3, float, float, f8e4m3)

#define EXTREMA(dtype, T)                                                                                        \
    extern "C" __global__ MAX_BLOCK(REDUCE_BLOCK) void min_##dtype(const T* src, T* dst, Plan plan) {             \
        reduce(plan, Extremum<true, T>{src, dst});                                                               \
    }                                                                                                            \
    extern "C" __global__ MAX_BLOCK(REDUCE_BLOCK) void max_##dtype(const T* src, T* dst, Plan plan) {             \
        reduce(plan, Extremum<false, T>{src, dst});                                                              \
    }                                                                                                            \
    extern "C" __global__ MAX_BLOCK(REDUCE_BLOCK) void argmin_##dtype(const T* src, const u32* indices,           \
                                                                      u32* dst, T* values, Plan plan) {          \
        reduce(plan, ArgExtremum<true, T>{src, indices, dst, values});                                           \
    }                                                                                                            \
    extern "C" __global__ MAX_BLOCK(REDUCE_BLOCK) void argmax_##dtype(const T* src, const u32* indices,           \
                                                                      u32* dst, T* values, Plan plan) {          \
        reduce(plan, ArgExtremum<false, T>{src, indices, dst, values});                                          \
    }
PART(u8) EXTREMA(u8, u8)
PART(u32) EXTREMA(u32, u32)
PART(i16) EXTREMA(i16, i16)
PART(i32) EXTREMA(i32, i32)
PART(i64) EXTREMA(i64, i64)
PART(f16) EXTREMA(f16, f16)
PART(bf16) EXTREMA(bf16, bf16)
PART(f32) EXTREMA(f32, float)
PART(f64) EXTREMA(f64, double)
PART(f8e4m3) EXTREMA(f8e4m3, f8e4m3)
