// The reductions of reduce.hip where elements lie in packs of 16 bytes: along dense rows, and across the rows of a
// matrix for columns, of which a thread then has a pack. A thread asks for several packs before it uses the first.
//
// A block is a grid of `columns` outputs, or packs of them, by `lanes` threads that share them, columns * lanes =
// REDUCE_BLOCK. Parts are as in reduce.hip, and so is the order in which the tree joins the lanes.
#include "reduce.h"

constexpr u32 REDUCE_BLOCK_LOG2 = 8;
static_assert(1 << REDUCE_BLOCK_LOG2 == REDUCE_BLOCK, "a block is a power of two");
// Lanes that exchange their results in registers: a group within waves of any size.
constexpr u32 SHUFFLED = 32;

// Which outputs and which of their elements a tile has.
struct Tile {
    u64 group;
    u64 part;
    u64 begin;
    u64 end;
    DEVICE_FN Tile(const PacksPlan& plan, u64 tile) : group(plan.parts == 1 ? tile : tile / plan.parts), part(tile - group * plan.parts), begin(part * plan.part_size),
        end(plan.reduced - begin < plan.part_size ? plan.reduced : begin + plan.part_size) {}
};

template <typename Op> DEVICE_FN void reduce_rows(const PacksPlan& plan, const Op& op) {
    using Acc = typename Op::Acc;
    using Element = typename Op::Element;
    constexpr u32 N = PACK<Element>;
    // A pack of bytes has as many elements as four packs of words.
    constexpr u32 BATCH = sizeof(Element) == 1 ? 1 : Op::ROW_BATCH;
    using Pack = Neighbours<N, Element>;
    __shared__ Acc shared[REDUCE_BLOCK];
    const u32 lanes = 1u << plan.lanes_log2;
    const u32 step = lanes * N;
    const u32 t = thread_x();
    const u32 my_lane = t & (lanes - 1);
    const u32 my_row = t >> plan.lanes_log2;

    for (u64 i = block_x(); i < plan.tiles; i += grid_dim()) {
        const Tile tile(plan, i);
        const u64 output = (tile.group << (REDUCE_BLOCK_LOG2 - plan.lanes_log2)) + my_row;
        Acc acc = op.identity();
        if (output < plan.outputs) {
            const u64 base = output * plan.row_stride;
            if (tile.begin == 0 && my_lane == 0) acc = op.start(base);
            const Element* const at = op.src + base;
            u64 packs_end = tile.begin;
            if (Pack::are_aligned(at + tile.begin)) packs_end += (tile.end - tile.begin) / N * N;
            for (u64 r = tile.begin + my_lane * N; r < packs_end;) {
                const u64 carry_at = packs_end - r > CARRY * lanes ? r + CARRY * lanes : packs_end;
                Acc some = op.identity();
                for (; r + (BATCH - 1) * step < carry_at; r += BATCH * step) {
                    Pack packs[BATCH];
#pragma unroll
                    for (u32 b = 0; b < BATCH; ++b) packs[b] = copy_from_aligned<N>(at + r + b * step);
#pragma unroll
                    for (u32 b = 0; b < BATCH; ++b) {
                        for (u32 j = 0; j < N; ++j) some = op.append(some, packs[b].v[j], r + b * step + j);
                    }
                }
#pragma unroll 1
                for (; r < carry_at; r += step) {
                    const Pack pack = copy_from_aligned<N>(at + r);
                    for (u32 j = 0; j < N; ++j) some = op.append(some, pack.v[j], r + j);
                }
                acc = op.combine(acc, some);
            }
            for (u64 r = packs_end + my_lane; r < tile.end;) {
                const u64 carry_at = tile.end - r > CARRY * lanes ? r + CARRY * lanes : tile.end;
                Acc some = op.identity();
#pragma unroll 2
                for (; r < carry_at; r += lanes) some = op.append(some, at[r], r);
                acc = op.combine(acc, some);
            }
        }
        if (lanes > SHUFFLED) {
            shared[t] = acc;
            for (u32 half = lanes / 2; half >= SHUFFLED; half /= 2) {
                barrier();
                if (my_lane < half) shared[t] = acc = op.combine(acc, shared[t + half]);
            }
            barrier();
        }
        for (u32 half = (lanes < SHUFFLED ? lanes : SHUFFLED) / 2; half > 0; half /= 2) acc = op.combine(acc, shfl(acc, lane() + half));
        if (my_lane == 0 && output < plan.outputs) op.finish(output * plan.parts + tile.part, acc);
    }
}

template <typename Op> DEVICE_FN void reduce_columns(const PacksPlan& plan, const Op& op) {
    using Acc = typename Op::Acc;
    using Element = typename Op::Element;
    constexpr u32 BATCH = sizeof(Element) == 1 ? 2 : 4;
    constexpr u32 N = PACK<Element> < Op::MOST_COLUMNS ? PACK<Element> : Op::MOST_COLUMNS;
    using Pack = Neighbours<N, Element>;
    __shared__ Acc shared[REDUCE_BLOCK * N];
    const u32 lanes = 1u << plan.lanes_log2;
    const u32 columns_log2 = REDUCE_BLOCK_LOG2 - plan.lanes_log2;
    const u32 width = N << columns_log2;
    const u32 t = thread_x();
    const u32 my_lane = t >> columns_log2;
    const u32 my_column = (t & ((1u << columns_log2) - 1)) * N;

    for (u64 i = block_x(); i < plan.tiles; i += grid_dim()) {
        const Tile tile(plan, i);
        const u64 first = tile.group * width;
        const u64 output = first + my_column;
        Acc acc[N];
        for (u32 j = 0; j < N; ++j) acc[j] = op.identity();
        if (output < plan.outputs) {
            const u64 matrix = plan.matrix_columns == plan.outputs ? 0 : output / plan.matrix_columns;
            const u64 base = matrix * plan.matrix_stride + (output - matrix * plan.matrix_columns);
            if (tile.begin == 0 && my_lane == 0) {
                for (u32 j = 0; j < N; ++j) acc[j] = op.start(base + j);
            }
            const Element* const at = op.src + base;
            for (u64 r = tile.begin + my_lane; r < tile.end;) {
                const u64 carry_at = tile.end - r > CARRY * lanes ? r + CARRY * lanes : tile.end;
                Acc some[N];
                for (u32 j = 0; j < N; ++j) some[j] = op.identity();
                for (; r + (BATCH - 1) * lanes < carry_at; r += BATCH * lanes) {
                    Pack packs[BATCH];
#pragma unroll
                    for (u32 b = 0; b < BATCH; ++b) packs[b] = copy_from_aligned<N>(at + (r + b * lanes) * plan.row_stride);
#pragma unroll
                    for (u32 b = 0; b < BATCH; ++b) {
                        for (u32 j = 0; j < N; ++j) some[j] = op.combine(some[j], op.of(packs[b].v[j], r + b * lanes));
                    }
                }
#pragma unroll 1
                for (; r < carry_at; r += lanes) {
                    const Pack pack = copy_from_aligned<N>(at + r * plan.row_stride);
                    for (u32 j = 0; j < N; ++j) some[j] = op.combine(some[j], op.of(pack.v[j], r));
                }
                for (u32 j = 0; j < N; ++j) acc[j] = op.combine(acc[j], some[j]);
            }
        }
        for (u32 j = 0; j < N; ++j) shared[my_lane * width + my_column + j] = acc[j];
        for (u32 half = lanes / 2; half > 0; half /= 2) {
            barrier();
            for (u32 at = t; at < half * width; at += REDUCE_BLOCK) shared[at] = op.combine(shared[at], shared[at + half * width]);
        }
        barrier();
        for (u32 at = t; at < width; at += REDUCE_BLOCK) {
            if (first + at < plan.outputs) op.finish((first + at) * plan.parts + tile.part, shared[at]);
        }
        barrier();
    }
}

// sum_rows_<from>_<to> and the like: the small floats keep their partial results in f32.
#define SUM(name, way, T, A, Out)                                                                                            \
    extern "C" __global__ BATCHING_BLOCK(REDUCE_BLOCK) void sum_##way##_##name(const T* src, Out* dst, PacksPlan plan) {     \
        reduce_##way(plan, SumOf<T, A, Out>{src, dst, plan.divisor});                                                                      \
    }
#define SUMS(name, T, A, Out)          \
    SUM(name, rows, T, A, Out)         \
    SUM(name, columns, T, A, Out)
PART(u8) SUMS(u8, u8, u32, u8)
PART(u32) SUMS(u32, u32, u32, u32)
PART(i16) SUMS(i16, i16, u32, i16)
PART(i32) SUMS(i32, i32, u32, i32)
PART(i64) SUMS(i64, i64, u64, i64)
PART(f16) SUMS(f16, f16, float, f16)
PART(bf16) SUMS(bf16, bf16, float, bf16)
PART(f32) SUMS(f32, float, float, float)
PART(f64) SUMS(f64, double, double, double)
PART(f8e4m3) SUMS(f8e4m3, f8e4m3, float, f8e4m3)
PART(f16) SUMS(f16_f32, f16, float, float)
PART(bf16) SUMS(bf16_f32, bf16, float, float)
PART(f8e4m3) SUMS(f8e4m3_f32, f8e4m3, float, float)
// Partial results are rows.
PART(f32) SUM(f32_f16, rows, float, float, f16)
PART(f32) SUM(f32_bf16, rows, float, float, bf16)
PART(f32) SUM(f32_f8e4m3, rows, float, float, f8e4m3)

#define EXTREMUM(way, op, MIN, dtype, T)                                                                                     \
    extern "C" __global__ BATCHING_BLOCK(REDUCE_BLOCK) void op##_##way##_##dtype(const T* src, T* dst, PacksPlan plan) {     \
        reduce_##way(plan, Extremum<MIN, T>{src, dst});                                                                      \
    }                                                                                                                        \
    extern "C" __global__ BATCHING_BLOCK(REDUCE_BLOCK) void arg##op##_##way##_##dtype(const T* src, u32* dst, T* values,     \
                                                                                PacksPlan plan) {                            \
        reduce_##way(plan, ArgExtremum<MIN, T>{src, nullptr, dst, values});                                                  \
    }
#define EXTREMA(dtype, T)                     \
    EXTREMUM(rows, min, true, dtype, T)       \
    EXTREMUM(rows, max, false, dtype, T)      \
    EXTREMUM(columns, min, true, dtype, T)    \
    EXTREMUM(columns, max, false, dtype, T)
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
