// Quantized matrix times many columns of 8-bit activations, in tiles: integer products by matrix instructions where the
// arch has them, else by dot products, and one scaling per GROUP of elements.
//
// A block computes ROWS rows of the matrix times COLUMNS columns. In steps of K_STEP elements, it unpacks the rows to
// signed bytes in LDS beside the columns' bytes, while the next step's loads are on their way: on nvptx, of columns
// into a second place in LDS without registers. The columns may be those of one expert of a mixture (Experts).
#ifndef CANDLE_ROCM_MATMUL_H
#define CANDLE_ROCM_MATMUL_H

#include "matmul_step.h"
#include "matrix.h"

namespace device {

#if MATRIX
// A wave's outputs: fragments of 16 columns by 16 rows. Columns are the instruction's rows: neighbouring lanes hold
// neighbouring rows of the matrix, which lie side by side in the output.
template <typename Format, bool WIDE> struct Sums {
    using T = Tiling<WIDE>;
    using Shared = Step<Format, WIDE>;
    using Fragment = matrix::Fragment<i8>;
    static constexpr u32 TILE = matrix::TILE, K = matrix::K<i8>;
    // Waves lie two by two in a wide tile and side by side in a narrow one.
    static constexpr u32 WAVES_ACROSS = 2;
    static constexpr u32 ACROSS = T::ROWS / TILE / WAVES_ACROSS, DOWN = T::COLUMNS / TILE / (T::WAVES / WAVES_ACROSS);
    using Dot = matrix::Accumulator<i32>;
    static constexpr u32 PER_LANE = Dot::VALUES;

    float v[DOWN][ACROSS][PER_LANE];

    static DEVICE_FN u32 row(u32 a) { return (thread_x() / WAVE % WAVES_ACROSS * ACROSS + a) * TILE; }
    static DEVICE_FN u32 column(u32 d) { return (thread_x() / WAVE / WAVES_ACROSS * DOWN + d) * TILE; }

    DEVICE_FN void clear() {
        for (u32 d = 0; d < DOWN; ++d) {
            for (u32 a = 0; a < ACROSS; ++a) {
                for (u32 i = 0; i < PER_LANE; ++i) v[d][a][i] = 0;
            }
        }
    }

    // 16 columns in LDS from element k on. Of an instruction that spans two groups, only those of the group keep their
    // part.
    static DEVICE_FN Fragment load_columns(const u32x4 (*columns)[PITCH], u32 k, u32 group) {
        const Fragment fragment = matrix::load_a((const i8*)columns + k, PITCH * 16);
        if constexpr (K > Format::GROUP) {
            static_assert(K == 2 * Format::GROUP, "two groups at most");
            return matrix::half_of(fragment, group);
        }
        return fragment;
    }

    DEVICE_FN void add(const Shared& shared) {
        CONTRACT
        ROLLED
        for (u32 g = 0; g < Shared::GROUPS; ++g) {
            Dot dot[DOWN][ACROSS];
            for (u32 d = 0; d < DOWN; ++d) {
                for (u32 a = 0; a < ACROSS; ++a) dot[d][a] = Dot::small();
            }
            const u32 first = g * Format::GROUP / K * K;
            constexpr u32 INSTRUCTIONS = Format::GROUP > K ? Format::GROUP / K : 1;
            for (u32 s = 0; s < INSTRUCTIONS; ++s) {
                Fragment columns[DOWN], rows[ACROSS];
                for (u32 d = 0; d < DOWN; ++d) columns[d] = load_columns(shared.columns + column(d), first + s * K, g * Format::GROUP % K / Format::GROUP);
                for (u32 a = 0; a < ACROSS; ++a) rows[a] = matrix::load_b((const i8*)(shared.weights + row(a)) + first + s * K, PITCH * 16);
                for (u32 d = 0; d < DOWN; ++d) {
                    for (u32 a = 0; a < ACROSS; ++a) matrix::multiply<i8>(columns[d], rows[a], dot[d][a]);
                }
            }
            for (u32 a = 0; a < ACROSS; ++a) {
                float scale[matrix::COLUMNS], offset[matrix::COLUMNS];
                for (u32 n = 0; n < matrix::COLUMNS; ++n) {
                    const u32 at = row(a) + matrix::held(n);
                    scale[n] = shared.scale[g][at], offset[n] = Format::HAS_MIN ? shared.offset[g][at] : 0;
                }
                for (u32 d = 0; d < DOWN; ++d) {
                    for (u32 i = 0; i < PER_LANE; ++i) {
                        const u32 c = column(d) + Dot::row(i), n = i / Dot::ROWS;
                        v[d][a][i] = multiply_add(scale[n] * shared.d[g * Format::GROUP / 32][c], dot[d][a].small_value(i), v[d][a][i]);
                        if (Format::HAS_MIN) v[d][a][i] = multiply_add(offset[n], shared.sum[g][c], v[d][a][i]);
                    }
                }
            }
        }
    }

    // f(row, column, sum) for each output of the thread.
    template <typename F> DEVICE_FN void each(F f) const {
        for (u32 d = 0; d < DOWN; ++d) {
            for (u32 a = 0; a < ACROSS; ++a) {
                for (u32 i = 0; i < PER_LANE; ++i) {
                    f(row(a) + Dot::column(i), column(d) + Dot::row(i), v[d][a][i]);
                }
            }
        }
    }
};
#else
// A thread's outputs: every 16th row by every (THREADS / 16)-th column.
template <typename Format, bool WIDE> struct Sums {
    using T = Tiling<WIDE>;
    using Shared = Step<Format, WIDE>;
    static constexpr u32 ACROSS = T::ROWS / 16, STRIDE = T::THREADS / 16, DOWN = T::COLUMNS / STRIDE;

    float v[DOWN][ACROSS];

    static DEVICE_FN u32 row(u32 a) { return thread_x() % 16 + a * 16; }
    static DEVICE_FN u32 column(u32 d) { return thread_x() / 16 + d * STRIDE; }

    DEVICE_FN void clear() {
        for (u32 d = 0; d < DOWN; ++d) {
            for (u32 a = 0; a < ACROSS; ++a) v[d][a] = 0;
        }
    }

    DEVICE_FN void add(const Shared& shared) {
        CONTRACT
        ROLLED
        for (u32 g = 0; g < Shared::GROUPS; ++g) {
            i32 dot[DOWN][ACROSS] = {};
            for (u32 s = 0; s < Format::GROUP / 16; ++s) {
                const u32 half = g * (Format::GROUP / 16) + s;
                u32x4 rows[ACROSS];
                for (u32 a = 0; a < ACROSS; ++a) rows[a] = shared.weights[row(a)][half];
                for (u32 d = 0; d < DOWN; ++d) {
                    const u32x4 columns = shared.columns[column(d)][half];
                    for (u32 a = 0; a < ACROSS; ++a) dot[d][a] = dot16(columns, rows[a], dot[d][a]);
                }
            }
            for (u32 a = 0; a < ACROSS; ++a) {
                const float scale = shared.scale[g][row(a)], offset = Format::HAS_MIN ? shared.offset[g][row(a)] : 0;
                for (u32 d = 0; d < DOWN; ++d) {
                    v[d][a] = multiply_add(scale * shared.d[g * Format::GROUP / 32][column(d)], (float)dot[d][a], v[d][a]);
                    if (Format::HAS_MIN) v[d][a] = multiply_add(offset, shared.sum[g][column(d)], v[d][a]);
                }
            }
        }
    }

    template <typename F> DEVICE_FN void each(F f) const {
        for (u32 d = 0; d < DOWN; ++d) {
            for (u32 a = 0; a < ACROSS; ++a) f(row(a), column(d), v[d][a]);
        }
    }
};
#endif

// y[column][row] = the product of row and column, for each output that a tile has.
template <typename Format, bool WIDE> DEVICE_FN void matmul(const Matmul& m, const Activations& x, const Experts& experts, const Output& output) {
    using T = Tiling<WIDE>;
#if MATRIX_MMA
    // More than the 48 KiB that a block has without being asked: `shared_bytes` of ops/quantized/matmul.rs.
    extern __shared__ u32x4 dynamic_lds[];
    static_assert(sizeof(Place<Format, WIDE>) <= T::SHARED_BYTES, "the host knows");
    Place<Format, WIDE>& place = *(Place<Format, WIDE>*)dynamic_lds;
#else
    __shared__ Place<Format, WIDE> place;
#endif
    u32* const source = place.steps[0].source;
    const u32 column_tiles = experts.tiles ? *(const u32*)experts.tiles : m.column_tiles;
    const u32 row_tiles = (m.rows + T::ROWS - 1) / T::ROWS;
    const u32 steps = x.stride / K_STEP;
    // Neighbouring blocks share rows, the larger part of the traffic.
    for (u64 tile = block_x(); tile < (u64)row_tiles * column_tiles; tile += grid_dim()) {
        const u32 row_tile = (u32)(tile / column_tiles), column_tile = (u32)(tile - (u64)row_tile * column_tiles);
        const u32 first_row = row_tile * T::ROWS;
        const u8* weights = m.weights;
        const u32* order = nullptr;
        u32 first = column_tile * T::COLUMNS, count = x.columns - first;
        if (experts.tiles) {
            const ExpertTile of = experts.tiles[1 + column_tile];
            weights += of.expert * experts.matrix_bytes;
            first = of.first, count = of.count;
            order = experts.order;
        }
        // Columns beyond the last repeat it.
        for (u32 c = thread_x(); c < T::COLUMNS; c += T::THREADS) {
            const u32 at = first + (c < count ? c : count - 1);
            source[c] = order ? order[at] / experts.outputs_per_input : at;
        }
        barrier();
        Sums<Format, WIDE> sums;
        sums.clear();
        Carried<Format, WIDE> carried;
        if (steps > 0) carried.load(m, weights, first_row, x, source, place.steps[0], 0);
        for (u32 step = 0; step < steps; ++step) {
            Step<Format, WIDE>& now = place.steps[step % PLACES];
            carried.store(m, weights, first_row, step, now);
            barrier();
            if (step + 1 < steps) carried.load(m, weights, first_row, x, source, place.steps[(step + 1) % PLACES], step + 1);
            if (!T::IDLE || sums.column(0) < count) sums.add(now);
            // With two places, who is slow reads another than the next step writes.
            if (PLACES == 1 || step + 1 == steps) barrier();
        }
        // By way of LDS: one copy of the code that finishes an output, and stores of whole rows.
        sums.each([&](u32 row, u32 column, float sum) { place.results[column * T::ROWS + row] = sum; });
        barrier();
        for (u32 i = thread_x(); i < T::ROWS * T::COLUMNS; i += T::THREADS) {
            const u32 row = first_row + i % T::ROWS, column = i / T::ROWS;
            if (row >= m.rows || column >= count) continue;
            const u32 to = order ? order[first + column] : first + column;
            finish(output, (u64)to * m.rows + row, row, place.results[i]);
        }
        barrier();
    }
}

}  // namespace device

#define MATMUL_OF(FORMAT, NAME, WIDE)                                                                                       \
    extern "C" __global__ MAX_BLOCK_OF(Tiling<WIDE>::THREADS, Tiling<WIDE>::BLOCKS) void matmul_##NAME##_##FORMAT(           \
        Matmul m, Activations x, Experts experts, Output output) {                                                         \
        matmul<quants::FORMAT, WIDE>(m, x, experts, output);                                                                \
    }
#define MATMUL(FORMAT)               \
    MATMUL_OF(FORMAT, wide, true)    \
    MATMUL_OF(FORMAT, narrow, false)

#endif
