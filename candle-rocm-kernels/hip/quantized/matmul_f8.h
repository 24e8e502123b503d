// Matrix of 8-bit floats times many columns of floats, in tiles: by matrix instructions on 16-bit floats where the arch
// has them, else by each thread's own multiplications, with one scaling for each block of 64 elements.
//
// A block of threads computes F8_TILE_ROWS rows of the matrix times COLUMNS columns. In steps of a block of elements, it
// unpacks the rows to LDS beside the columns, while the next step's loads are on their way. Weights are exact there, and
// so are activations of 16 bits; those of f32 become two numbers of bf16 each, which leave less than a 2^16th part. The
// columns may be those of one expert of a mixture (Experts).
#ifndef CANDLE_ROCM_MATMUL_F8_H
#define CANDLE_ROCM_MATMUL_F8_H

#include "few_f8.h"

namespace device {

template <typename T> constexpr u32 F8_WIDE_COLUMNS_OF = is_same<T, float>::value ? F8_WIDE_COLUMNS_F32 : F8_WIDE_COLUMNS;

template <typename T, u32 COLUMNS> struct F8Tile {
#if MATRIX
    using Weight = typename F8Operands<T>::Element;
    using Value = Weight;
    static constexpr u32 PLANES = F8Operands<T>::PLANES;
    static constexpr float UNIT = f8::UNIT<Weight>;
#else
    // As registers take them: multiplications read binary16 in place.
    template <bool IS_F16, typename A, typename B> struct Either { using type = A; };
    template <typename A, typename B> struct Either<false, A, B> { using type = B; };
    using Weight = f16;
    using Value = typename Either<is_same<T, f16>::value, f16, float>::type;
    static constexpr u32 PLANES = 1;
    static constexpr float UNIT = f8::UNIT_OF_HALVES;
#endif
    static constexpr u32 ROWS = F8_TILE_ROWS, THREADS = F8_TILE_THREADS, STEP = f8::ELEMENTS;
    // 16 bytes more than a row's elements, so that neighbouring rows start in different banks.
    static constexpr u32 WEIGHTS_PITCH = STEP + 16 / sizeof(Weight), VALUES_PITCH = STEP + 16 / sizeof(Value);

    struct alignas(16) Step {
        Weight weights[ROWS][WEIGHTS_PITCH];
        Value values[PLANES][COLUMNS][VALUES_PITCH];
        float scale[ROWS];
        // Each column's vector.
        u32 source[COLUMNS];
    };
    union Place {
        Step step;
        float results[COLUMNS * ROWS];
    };

    // What one thread carries from global memory to LDS in a step, in packs of 16 bytes.
    struct Carried {
        static constexpr u32 N = 16 / sizeof(T), PER_ROW = STEP / 16, PER_COLUMN = STEP / N;
        static constexpr u32 WEIGHTS = ROWS * PER_ROW / THREADS, ALL_VALUES = COLUMNS * PER_COLUMN, VALUES = (ALL_VALUES + THREADS - 1) / THREADS;
        static_assert(ROWS * PER_ROW % THREADS == 0 && ROWS <= THREADS, "whole packs for each thread");
        u32x4 weights[WEIGHTS], values[VALUES];
        float scale;

        static DEVICE_FN u32 pack(u32 i) { return thread_x() + i * THREADS; }
        static DEVICE_FN bool has_value(u32 i) { return ALL_VALUES % THREADS == 0 || pack(i) < ALL_VALUES; }

        // Rows beyond the last repeat it; `source` is that of the place.
        DEVICE_FN void load(const Matmul& m, const u8* matrix, u32 first_row, const Vectors& x, const u32* source, u32 step) {
            const auto row_at = [&](u32 row) { return matrix + (first_row + row < m.rows ? first_row + row : m.rows - 1) * m.row_bytes + (u64)step * f8::BYTES; };
#pragma unroll
            for (u32 i = 0; i < WEIGHTS; ++i) weights[i] = load_unaligned<u32x4>(row_at(pack(i) / PER_ROW) + f8::HEAD + pack(i) % PER_ROW * 16);
            if (thread_x() < ROWS) scale = f8::scale(row_at(thread_x()));
#pragma unroll
            for (u32 i = 0; i < VALUES; ++i) {
                if (!has_value(i)) break;
                const T* const column = (const T*)x.x + (u64)source[pack(i) / PER_COLUMN] * x.stride + (u64)step * STEP;
                values[i] = *(const u32x4*)(column + pack(i) % PER_COLUMN * N);
            }
        }

        DEVICE_FN void store(Step& to) const {
#pragma unroll
            for (u32 i = 0; i < WEIGHTS; ++i) {
                u32x4* const at = (u32x4*)(to.weights[pack(i) / PER_ROW] + pack(i) % PER_ROW * 16);
                for (u32 half = 0; half < 2; ++half) {
                    u32x4 pairs;
                    for (u32 p = 0; p < 4; ++p) pairs[p] = pair(weights[i][2 * half + p / 2], p % 2);
                    at[half] = pairs;
                }
            }
            if (thread_x() < ROWS) to.scale[thread_x()] = scale;
#pragma unroll
            for (u32 i = 0; i < VALUES; ++i) {
                if (has_value(i)) put(to, pack(i) / PER_COLUMN, pack(i) % PER_COLUMN * N, values[i]);
            }
        }

        static DEVICE_FN u32 pair(u32 bits, u32 i) {
#if MATRIX
            return f8::pair<Weight>(bits, i);
#else
            return f8::small_halves(bits, i);
#endif
        }
        // N elements of a column.
        static DEVICE_FN void put(Step& to, u32 column, u32 k, u32x4 bits) {
            if constexpr (sizeof(T) == sizeof(Value)) {
                *(u32x4*)(to.values[0][column] + k) = bits;
            } else if constexpr (PLANES == 2) {
                u32 pairs[2][2];
                for (u32 p = 0; p < 2; ++p) {
                    const f8::Split split = f8::split(bit_cast<float>(bits[2 * p]), bit_cast<float>(bits[2 * p + 1]));
                    pairs[0][p] = split.high, pairs[1][p] = split.low;
                }
                for (u32 plane = 0; plane < 2; ++plane) *(u64*)(to.values[plane][column] + k) = (u64)pairs[plane][1] << 32 | pairs[plane][0];
            } else {
                for (u32 half = 0; half < 2; ++half) {
                    u32x4 floats;
                    for (u32 i = 0; i < 4; ++i) floats[i] = bit_cast<u32>(device::load(T{(u16)(bits[2 * half + i / 2] >> i % 2 * 16)}));
                    ((u32x4*)(to.values[0][column] + k))[half] = floats;
                }
            }
        }
    };

#if MATRIX
    // A wave's outputs: fragments of 16 columns by 16 rows. Columns are the instruction's rows: neighbouring lanes hold
    // neighbouring rows of the matrix, which lie side by side in the output.
    struct Sums {
        using Lane = matrix::Accumulator<float>;
        using Fragment = matrix::Fragment<Weight>;
        static constexpr u32 TILE = matrix::TILE, WAVES = THREADS / WAVE, WAVES_DOWN = COLUMNS >= 2 * TILE ? 2 : 1, WAVES_ACROSS = WAVES / WAVES_DOWN;
        static constexpr u32 ACROSS = ROWS / TILE / WAVES_ACROSS, DOWN = COLUMNS / TILE / WAVES_DOWN;
        float v[DOWN][ACROSS][Lane::VALUES];

        DEVICE_FN Sums() {
            for (auto& down : v)
                for (auto& across : down)
                    for (float& sum : across) sum = 0;
        }
        static DEVICE_FN u32 row(u32 a) { return (thread_x() / WAVE % WAVES_ACROSS * ACROSS + a) * TILE; }
        static DEVICE_FN u32 column(u32 d) { return (thread_x() / WAVE / WAVES_ACROSS * DOWN + d) * TILE; }

        DEVICE_FN void add(const Step& step) {
            CONTRACT
            Lane part[DOWN][ACROSS];
#pragma unroll
            for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                for (u32 a = 0; a < ACROSS; ++a) part[d][a] = Lane::zero();
#pragma unroll
            for (u32 k = 0; k < STEP; k += matrix::K<Weight>) {
                Fragment rows[ACROSS];
#pragma unroll
                for (u32 a = 0; a < ACROSS; ++a) rows[a] = matrix::load_b(step.weights[row(a)] + k, WEIGHTS_PITCH);
#pragma unroll
                for (u32 d = 0; d < DOWN; ++d) {
#pragma unroll
                    for (u32 p = 0; p < PLANES; ++p) {
                        const Fragment values = matrix::load_a(step.values[p][column(d)] + k, VALUES_PITCH);
#pragma unroll
                        for (u32 a = 0; a < ACROSS; ++a) matrix::multiply<Weight>(values, rows[a], part[d][a]);
                    }
                }
            }
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                float scale[matrix::COLUMNS];
                for (u32 n = 0; n < matrix::COLUMNS; ++n) scale[n] = step.scale[row(a) + matrix::held(n)];
#pragma unroll
                for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                    for (u32 i = 0; i < Lane::VALUES; ++i) v[d][a][i] = multiply_add(scale[i / Lane::ROWS], part[d][a].values[i], v[d][a][i]);
            }
        }

        // f(row, column, sum) for each output of the thread.
        template <typename F> DEVICE_FN void each(F f) const {
#pragma unroll
            for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                for (u32 a = 0; a < ACROSS; ++a)
#pragma unroll
                    for (u32 i = 0; i < Lane::VALUES; ++i) f(row(a) + Lane::column(i), column(d) + Lane::row(i), v[d][a][i]);
        }
    };
#else
    // A thread's outputs: every 16th row by every 16th column.
    struct Sums {
        static constexpr u32 SIDE = 16, ACROSS = ROWS / SIDE, DOWN = COLUMNS / SIDE;
        static_assert(SIDE * SIDE == THREADS, "a thread for each of both");
        float v[DOWN][ACROSS];

        DEVICE_FN Sums() {
            for (auto& down : v)
                for (float& sum : down) sum = 0;
        }
        static DEVICE_FN u32 row(u32 a) { return thread_x() % SIDE + a * SIDE; }
        static DEVICE_FN u32 column(u32 d) { return thread_x() / SIDE + d * SIDE; }

        // Four neighbours in LDS.
        static DEVICE_FN f8::Four four(const f16* at) {
            const u64 bits = *(const u64*)at;
            const auto value = [=](u32 i) { return f16_to_float((u16)(bits >> (16 * i))); };
            return {{{{value(0), value(1)}}, {{value(2), value(3)}}}};
        }
        static DEVICE_FN f8::Four four(const float* at) {
            const u32x4 bits = *(const u32x4*)at;
            return {{{{bit_cast<float>(bits[0]), bit_cast<float>(bits[1])}}, {{bit_cast<float>(bits[2]), bit_cast<float>(bits[3])}}}};
        }

        DEVICE_FN void add(const Step& step) {
            float part[DOWN][ACROSS] = {};
#pragma unroll 2
            for (u32 k = 0; k < STEP; k += 4) {
                f8::Four weights[ACROSS];
#pragma unroll
                for (u32 a = 0; a < ACROSS; ++a) weights[a] = four(step.weights[row(a)] + k);
#pragma unroll
                for (u32 d = 0; d < DOWN; ++d) {
                    const f8::Four values = four(step.values[0][column(d)] + k);
#pragma unroll
                    for (u32 a = 0; a < ACROSS; ++a)
#pragma unroll
                        for (u32 i = 0; i < 4; ++i) part[d][a] = multiply_add(weights[a].v[i / 2].v[i % 2], values.v[i / 2].v[i % 2], part[d][a]);
                }
            }
#pragma unroll
            for (u32 a = 0; a < ACROSS; ++a) {
                const float scale = step.scale[row(a)];
#pragma unroll
                for (u32 d = 0; d < DOWN; ++d) v[d][a] = multiply_add(scale, part[d][a], v[d][a]);
            }
        }

        template <typename F> DEVICE_FN void each(F f) const {
#pragma unroll
            for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                for (u32 a = 0; a < ACROSS; ++a) f(row(a), column(d), v[d][a]);
        }
    };
#endif
};

// y[column][row] = the product of row and column, for each output that a tile has.
template <typename T, u32 COLUMNS> DEVICE_FN void matmul_f8(const Matmul& m, const Vectors& x, const Experts& experts, const Output& output) {
    using Tile = F8Tile<T, COLUMNS>;
    constexpr u32 ROWS = Tile::ROWS, THREADS = Tile::THREADS;
    __shared__ typename Tile::Place place;
    u32* const source = place.step.source;
    const u32 column_tiles = experts.tiles ? *(const u32*)experts.tiles : m.column_tiles;
    const u32 row_tiles = (m.rows + ROWS - 1) / ROWS;
    const u32 steps = x.stride / Tile::STEP;
    // Neighbouring blocks share rows, the larger part of the traffic.
    for (u64 tile = block_x(); tile < (u64)row_tiles * column_tiles; tile += grid_dim()) {
        const u32 row_tile = (u32)(tile / column_tiles), column_tile = (u32)(tile - (u64)row_tile * column_tiles);
        const u32 first_row = row_tile * ROWS;
        const u8* weights = m.weights;
        const u32* order = nullptr;
        u32 first = column_tile * COLUMNS, count = x.columns - first;
        if (experts.tiles) {
            const ExpertTile of = experts.tiles[1 + column_tile];
            weights += of.expert * experts.matrix_bytes;
            first = of.first, count = of.count;
            order = experts.order;
        }
        // Columns beyond the last repeat it.
        if (thread_x() < COLUMNS) {
            const u32 at = first + (thread_x() < count ? thread_x() : count - 1);
            source[thread_x()] = order ? order[at] / experts.outputs_per_input : at;
        }
        barrier();
        typename Tile::Sums sums;
        typename Tile::Carried carried;
        if (steps > 0) carried.load(m, weights, first_row, x, source, 0);
        for (u32 step = 0; step < steps; ++step) {
            carried.store(place.step);
            barrier();
            if (step + 1 < steps) carried.load(m, weights, first_row, x, source, step + 1);
            sums.add(place.step);
            barrier();
        }
        // By way of LDS: one copy of the code that finishes an output, and stores of whole rows.
        sums.each([&](u32 row, u32 column, float sum) { place.results[column * ROWS + row] = sum; });
        barrier();
        for (u32 i = thread_x(); i < ROWS * COLUMNS; i += THREADS) {
            const u32 row = first_row + i % ROWS, column = i / ROWS;
            if (row >= m.rows || column >= count) continue;
            const u32 to = order ? order[first + column] : first + column;
            finish(output, (u64)to * m.rows + row, row, place.results[i] * Tile::UNIT);
        }
        barrier();
    }
}

}  // namespace device

#define MATMUL_F8_OF(dtype, T, NAME, COLUMNS)                                                                                                     \
    extern "C" __global__ MAX_BLOCK(F8_TILE_THREADS) void matmul_##NAME##_f8_e4m3_##dtype(Matmul m, Vectors x, Experts experts, Output output) { \
        matmul_f8<T, COLUMNS>(m, x, experts, output);                                                                                             \
    }
#define MATMUL_F8(dtype, T)                              \
    MATMUL_F8_OF(dtype, T, wide, F8_WIDE_COLUMNS_OF<T>)  \
    MATMUL_F8_OF(dtype, T, narrow, F8_NARROW_COLUMNS)    \
    FEW_F8(dtype, T)

#endif
