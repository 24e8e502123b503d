// Quantized matrix times many columns of 8-bit activations, in tiles: integer products by matrix instructions where the arch has them, else by
// dot products, and one scaling per GROUP of elements.
//
// A block computes ROWS rows of the matrix times COLUMNS columns. In steps of K_STEP elements, it unpacks the rows to signed bytes in LDS beside
// the columns' bytes, while the next step's loads are on their way: on nvptx, of columns into a second place in LDS without registers. The columns may be
// those of one expert of a mixture (Experts).
#ifndef CANDLE_ROCM_MATMUL_H
#define CANDLE_ROCM_MATMUL_H

#include "matrix.h"
#include "output.h"
#include "q8_1.h"
#include "quants.h"

namespace device {

// Halves, of 16 elements, of a row of LDS; one is padding, so that neighbouring rows start in different banks.
constexpr u32 HALVES_PER_STEP = K_STEP / 16, PITCH = HALVES_PER_STEP + 1;

// Wide tiles, or narrow ones for few columns.
template <bool WIDE> struct Tiling {
#if MATRIX_MMA
    static constexpr u32 COLUMNS = WIDE ? MMA_WIDE_COLUMNS : NARROW_COLUMNS, WAVES = WIDE ? MMA_WIDE_WAVES : NARROW_WAVES;
#else
    static constexpr u32 COLUMNS = WIDE ? WIDE_COLUMNS : NARROW_COLUMNS, WAVES = WIDE ? WIDE_WAVES : NARROW_WAVES;
#endif
    static constexpr u32 ROWS = WIDE ? WIDE_ROWS : NARROW_ROWS, THREADS = WAVES * WAVE;
    // What a block may have of LDS on nvptx.
    static constexpr u32 SHARED_BYTES = WIDE ? MMA_WIDE_BYTES : MMA_NARROW_BYTES;
    // Whether waves that have no columns leave the products to the others.
    static constexpr bool IDLE = COLUMNS > 64;
    // At once on a multiprocessor of nvptx: as many as leave 128 registers.
    static constexpr u32 BLOCKS = 512 / THREADS;
};

// The step's unpacked weights and activations. The scales of neighbouring rows and columns are neighbours.
template <typename Format, bool WIDE> struct Step {
    using T = Tiling<WIDE>;
    static constexpr u32 GROUPS = K_STEP / Format::GROUP;
    u32x4 weights[T::ROWS][PITCH];
    u32x4 columns[T::COLUMNS][PITCH];
    float scale[GROUPS][T::ROWS];
    float offset[Format::HAS_MIN ? GROUPS : 1][T::ROWS];
    float d[K_STEP / 32][T::COLUMNS];
    // d times the sum of the group's quants, what an offset is multiplied with
    float sum[Format::HAS_MIN ? GROUPS : 1][T::COLUMNS];
    // Each column's row of the activations
    u32 source[T::COLUMNS];
#if MATRIX_MMA
    // What nobody reads
    u32 words[WAVE];
#endif
};

// Steps take turns with the places; results come when the last step is done.
#if MATRIX_MMA
constexpr u32 PLACES = 2;
#else
constexpr u32 PLACES = 1;
#endif
template <typename Format, bool WIDE> union Place {
    Step<Format, WIDE> steps[PLACES];
    float results[Tiling<WIDE>::COLUMNS * Tiling<WIDE>::ROWS];
};

// What one thread carries from global memory to LDS in a step.
template <typename Format, bool WIDE> struct Carried {
    using T = Tiling<WIDE>;
    using Shared = Step<Format, WIDE>;
    static constexpr u32 UNITS_PER_STEP = K_STEP / quants::UNIT<Format>;
    static constexpr u32 UNITS = T::ROWS * UNITS_PER_STEP, HALVES = T::COLUMNS * HALVES_PER_STEP, SCALES = T::COLUMNS * (K_STEP / 32);
    static constexpr u32 share(u32 count) { return (count + T::THREADS - 1) / T::THREADS; }

#if MATRIX_MMA
    // nvrtc takes apart what it loads at once, and so waits for it: rows stay in memory, but come into the nearest cache a step ahead, by a word of each
    // sector of 32 bytes; scales stay as they come.
    static constexpr u32 SPAN = (K_STEP + Format::ELEMENTS - 1) / Format::ELEMENTS * Format::BYTES, SECTORS = (SPAN + 62) / 32, WORDS = T::ROWS * SECTORS;
    u32 word[share(WORDS)];
    u64 scale[share(SCALES)];
#else
    quants::Unit<Format::HALVES> unit[share(UNITS)];
    u32x4 half[share(HALVES)];
    ActivationScale scale[share(SCALES)];
#endif

    static DEVICE_FN void read(const Matmul& m, const u8* weights, u32 first_row, u32 step, u32 task, quants::Unit<Format::HALVES>& unit) {
        const u32 row = first_row + task / UNITS_PER_STEP, index = step * UNITS_PER_STEP + task % UNITS_PER_STEP;
        if (row < m.rows && index < m.units) {
            Format::read(weights + row * m.row_bytes + (u64)(index / quants::UNITS_PER_BLOCK<Format>) * Format::BYTES,
                         index % quants::UNITS_PER_BLOCK<Format>, unit);
        } else {
            unit = {};
        }
    }

    // `source` has each column's row of the activations, `next` is where the step's columns go if not by way of registers.
    DEVICE_FN void load(const Matmul& m, const u8* weights, u32 first_row, const Activations& x, const u32* source, Shared& next, u32 step) {
#if MATRIX_MMA
        for (u32 i = 0; i < share(WORDS); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            const u32 row = first_row + task / SECTORS;
            const u64 start = (u64)weights + row * m.row_bytes, end = start + m.row_bytes;
            const u64 first = (start + (u64)step * K_STEP / Format::ELEMENTS * Format::BYTES) & ~3ull;
            const u64 at = task % SECTORS == 0 ? first : (first & ~31ull) + task % SECTORS * 32;
            word[i] = 0;
            if (task < WORDS && row < m.rows && at < end) word[i] = matrix::load_word((const u32*)at);
        }
#else
        for (u32 i = 0; i < share(UNITS); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (UNITS % T::THREADS != 0 && task >= UNITS) break;
            read(m, weights, first_row, step, task, unit[i]);
        }
#endif
        for (u32 i = 0; i < share(HALVES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (HALVES % T::THREADS != 0 && task >= HALVES) break;
            const u32 column = task / HALVES_PER_STEP, part = task % HALVES_PER_STEP;
#if MATRIX_MMA
            matrix::copy_ahead(&next.columns[column][part], x.quants + ((u64)source[column] * x.stride + step * K_STEP) / 16 + part, true);
#else
            half[i] = quants_at(x, source[column], step * K_STEP + part * 16);
#endif
        }
        for (u32 i = 0; i < share(SCALES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (SCALES % T::THREADS != 0 && task >= SCALES) break;
            const u32 column = source[task % T::COLUMNS], k = step * K_STEP + task / T::COLUMNS * 32;
#if MATRIX_MMA
            scale[i] = *(const u64*)(x.scales + ((u64)column * x.stride + k) / 32);
#else
            scale[i] = scale_at(x, column, k);
#endif
        }
    }

    DEVICE_FN void store(const Matmul& m, const u8* weights, u32 first_row, u32 step, Shared& shared) const {
#if MATRIX_MMA
        // A load whose word nobody wants would not be made.
        u32 words = 0;
        for (u32 i = 0; i < share(WORDS); ++i) words ^= word[i];
        shared.words[thread_x() % WAVE] = words;
#endif
        for (u32 i = 0; i < share(UNITS); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (UNITS % T::THREADS != 0 && task >= UNITS) break;
            const u32 row = task / UNITS_PER_STEP, index = task % UNITS_PER_STEP;
#if MATRIX_MMA
            quants::Unit<Format::HALVES> of;
            read(m, weights, first_row, step, task, of);
#else
            const quants::Unit<Format::HALVES>& of = unit[i];
#endif
            for (u32 h = 0; h < Format::HALVES; ++h) {
                const u32 at = index / quants::UNITS_PER_BLOCK<Format> * Format::ELEMENTS + Format::place(index % quants::UNITS_PER_BLOCK<Format>, h);
                shared.weights[row][at / 16] = bytes_less<Format::ZERO>(of.q[h]);
                if (at % Format::GROUP == 0) {
                    shared.scale[at / Format::GROUP][row] = of.scale[h];
                    if (Format::HAS_MIN) shared.offset[at / Format::GROUP][row] = of.offset[h];
                }
            }
        }
#if !MATRIX_MMA
        for (u32 i = 0; i < share(HALVES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (HALVES % T::THREADS != 0 && task >= HALVES) break;
            shared.columns[task / HALVES_PER_STEP][task % HALVES_PER_STEP] = half[i];
        }
#endif
        for (u32 i = 0; i < share(SCALES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (SCALES % T::THREADS != 0 && task >= SCALES) break;
            const u32 column = task % T::COLUMNS, block = task / T::COLUMNS;
            const ActivationScale by = bit_cast<ActivationScale>(scale[i]);
            shared.d[block][column] = by.d;
            if (Format::HAS_MIN && Format::GROUP == 32) shared.sum[block][column] = by.d * (float)(by.sum[0] + by.sum[1]);
            if (Format::HAS_MIN && Format::GROUP == 16) {
                for (u32 h = 0; h < 2; ++h) shared.sum[block * 2 + h][column] = by.d * (float)by.sum[h];
            }
        }
    }
};

#if MATRIX
// A wave's outputs: fragments of 16 columns by 16 rows. Columns are the instruction's rows: neighbouring lanes hold neighbouring rows of the matrix,
// which lie side by side in the output.
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

    // 16 columns in LDS from element k on. Of an instruction that spans two groups, only those of the group keep their part.
    static DEVICE_FN Fragment load_columns(const u32x4 (*columns)[PITCH], u32 k, u32 group) {
        const Fragment fragment = matrix::load_a((const i8*)columns + k, PITCH * 16);
        if constexpr (K > Format::GROUP) {
            static_assert(K == 2 * Format::GROUP, "two groups at most");
            return matrix::half_of(fragment, group);
        }
        return fragment;
    }

    DEVICE_FN void add(const Shared& shared) {
#if MATRIX_MMA
#pragma unroll 2
#elif !defined(__HIP_SIM__)
#pragma clang fp contract(fast)
#pragma clang loop unroll(disable)
#endif
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
#ifndef __HIP_SIM__
#pragma clang fp contract(fast)
#pragma clang loop unroll(disable)
#endif
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
#if MATRIX_MMA
            matrix::copies_arrive();
#endif
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
