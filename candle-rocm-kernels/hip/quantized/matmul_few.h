// Quantized matrix times up to 32 columns of 8-bit activations by matrix instructions: between one pass (matvec.h),
// which unpacks the matrix for each column anew, and tiles (matmul.h), which are too few for a GPU where columns are.
//
// A block computes 16 rows. Its waves take the steps of K_STEP elements in turn: each unpacks the rows to signed bytes
// in LDS of its own, reads the columns where they lie, as caches hold them, and meets the others for the sums at the
// end only, which are added in the order of the waves.
#ifndef CANDLE_ROCM_MATMUL_FEW_H
#define CANDLE_ROCM_MATMUL_FEW_H

#include "matmul_step.h"
#include "matrix.h"

#if MATRIX
namespace device {

// A wave's step. TILES are those of 16 columns.
template <typename Format, u32 TILES> struct FewStep {
    static constexpr u32 ROWS = matrix::TILE, COLUMNS = TILES * matrix::TILE, GROUPS = K_STEP / Format::GROUP;
    // Rows are apart by so much that the lanes that load at a time meet different banks.
    static constexpr u32 PITCH = HALVES_PER_STEP + (matrix::Fragment<i8>::ELEMENTS < 16 ? 2 : 1);
    u32x4 weights[ROWS][PITCH];
    float scale[GROUPS][ROWS];
    float offset[Format::HAS_MIN ? GROUPS : 1][ROWS];
    float d[K_STEP / 32][COLUMNS];
    // d times the sum of the group's quants, what an offset is multiplied with
    float sum[Format::HAS_MIN ? GROUPS : 1][COLUMNS];
};
template <typename Format, u32 TILES> union FewPlace {
    FewStep<Format, TILES> step;
    float results[TILES * matrix::TILE * matrix::TILE];
};

template <typename Format, u32 TILES> struct FewSums {
    using Step = FewStep<Format, TILES>;
    using Fragment = matrix::Fragment<i8>;
    using Dot = matrix::Accumulator<i32>;
    static constexpr u32 K = matrix::K<i8>, PER_LANE = Dot::VALUES, HELD = matrix::COLUMNS;

    float v[TILES][PER_LANE];
    // Where the lane's part of its columns begins; those beyond the last repeat it.
    const i8* columns[TILES][HELD];

    DEVICE_FN FewSums(const Activations& x) {
        for (u32 t = 0; t < TILES; ++t) {
            for (u32 i = 0; i < PER_LANE; ++i) v[t][i] = 0;
            for (u32 h = 0; h < HELD; ++h) {
                const u32 column = t * matrix::TILE + Fragment::index(h), last = x.columns - 1;
                columns[t][h] = (const i8*)x.quants + (u64)(column < last ? column : last) * x.stride + Fragment::k(0);
            }
        }
    }

    // The wave's rows of the step, as signed bytes and scales.
    static DEVICE_FN void unpack(const Matmul& m, u32 first_row, u32 step, Step& own) {
        constexpr u32 PER_STEP = K_STEP / quants::UNIT<Format>, PER_BLOCK = quants::UNITS_PER_BLOCK<Format>, UNITS = Step::ROWS * PER_STEP;
        for (u32 i = 0; i < (UNITS + WAVE - 1) / WAVE; ++i) {
            const u32 task = lane() + i * WAVE;
            if (UNITS % WAVE != 0 && task >= UNITS) break;
            const u32 r = task / PER_STEP, in_step = task % PER_STEP, index = step * PER_STEP + in_step, row = first_row + r;
            quants::Unit<Format::HALVES> unit = {};
            if (row < m.rows && index < m.units) Format::read(m.weights + row * m.row_bytes + (u64)(index / PER_BLOCK) * Format::BYTES, index % PER_BLOCK, unit);
            for (u32 h = 0; h < Format::HALVES; ++h) {
                const u32 at = in_step / PER_BLOCK * Format::ELEMENTS + Format::place(in_step % PER_BLOCK, h);
                own.weights[r][at / 16] = bytes_less<Format::ZERO>(unit.q[h]);
                if (at % Format::GROUP == 0) {
                    own.scale[at / Format::GROUP][r] = unit.scale[h];
                    if (Format::HAS_MIN) own.offset[at / Format::GROUP][r] = unit.offset[h];
                }
            }
        }
    }

    // The scales of the columns' step.
    static DEVICE_FN void scales(const Activations& x, u32 step, Step& own) {
        constexpr u32 SCALES = Step::COLUMNS * (K_STEP / 32);
        for (u32 i = 0; i < (SCALES + WAVE - 1) / WAVE; ++i) {
            const u32 task = lane() + i * WAVE;
            if (SCALES % WAVE != 0 && task >= SCALES) break;
            const u32 column = task % Step::COLUMNS, block = task / Step::COLUMNS, last = x.columns - 1;
            const ActivationScale by = scale_at(x, column < last ? column : last, step * K_STEP + block * 32);
            own.d[block][column] = by.d;
            if (Format::HAS_MIN && Format::GROUP == 32) own.sum[block][column] = by.d * (float)(by.sum[0] + by.sum[1]);
            if (Format::HAS_MIN && Format::GROUP == 16) {
                for (u32 h = 0; h < 2; ++h) own.sum[block * 2 + h][column] = by.d * (float)by.sum[h];
            }
        }
    }

    // Of K elements, those of a group alone where an instruction spans two.
    static DEVICE_FN Fragment of_group(const Fragment& fragment, u32 g) {
        if constexpr (K > Format::GROUP) {
            static_assert(K == 2 * Format::GROUP, "two groups at most");
            return Fragment::k(0) / Format::GROUP == g % 2 ? fragment : Fragment::zero();
        }
        return fragment;
    }

    DEVICE_FN void add(u32 step, const Step& own) {
        CONTRACT
        constexpr u32 INSTRUCTIONS = Format::GROUP > K ? Format::GROUP / K : 1;
        for (u32 g = 0; g < Step::GROUPS; ++g) {
            Dot dot[TILES];
            for (u32 t = 0; t < TILES; ++t) dot[t] = Dot::small();
            for (u32 s = 0; s < INSTRUCTIONS; ++s) {
                const u32 k = g * Format::GROUP / K * K + s * K;
                const Fragment rows = Fragment::load((const i8*)own.weights + k, Step::PITCH * 16);
                for (u32 t = 0; t < TILES; ++t) {
                    Fragment quants;
                    for (u32 h = 0; h < HELD; ++h) quants.bits[h] = Fragment::load_lane(columns[t][h] + (u64)step * K_STEP + k);
                    matrix::multiply<i8>(of_group(quants, g), rows, dot[t]);
                }
            }
            float scale[HELD], offset[HELD];
            for (u32 h = 0; h < HELD; ++h) {
                const u32 at = matrix::held(h);
                scale[h] = own.scale[g][at], offset[h] = Format::HAS_MIN ? own.offset[g][at] : 0;
            }
            for (u32 t = 0; t < TILES; ++t) {
                for (u32 i = 0; i < PER_LANE; ++i) {
                    const u32 c = t * matrix::TILE + Dot::row(i), h = i / Dot::ROWS;
                    v[t][i] = multiply_add(scale[h] * own.d[g * Format::GROUP / 32][c], dot[t].small_value(i), v[t][i]);
                    if (Format::HAS_MIN) v[t][i] = multiply_add(offset[h], own.sum[g][c], v[t][i]);
                }
            }
        }
    }
};

template <typename Format, u32 TILES> DEVICE_FN void matmul_few(const Matmul& m, const Activations& x, const Output& output) {
    constexpr u32 ROWS = matrix::TILE, OUTPUTS = TILES * matrix::TILE * ROWS;
    __shared__ FewPlace<Format, TILES> places[FEW_WAVES];
    const u32 wave = thread_x() / WAVE;
    FewPlace<Format, TILES>& own = places[wave];
    const u32 steps = x.stride / K_STEP, row_tiles = (m.rows + ROWS - 1) / ROWS;
    for (u64 tile = block_x(); tile < row_tiles; tile += grid_dim()) {
        const u32 first_row = (u32)tile * ROWS;
        FewSums<Format, TILES> sums(x);
        for (u32 step = wave; step < steps; step += FEW_WAVES) {
            sums.unpack(m, first_row, step, own.step);
            sums.scales(x, step, own.step);
            wave_sync();
            sums.add(step, own.step);
            wave_sync();
        }
        for (u32 t = 0; t < TILES; ++t) {
            for (u32 i = 0; i < sums.PER_LANE; ++i) {
                using Dot = matrix::Accumulator<i32>;
                own.results[(t * matrix::TILE + Dot::row(i)) * ROWS + Dot::column(i)] = sums.v[t][i];
            }
        }
        barrier();
        for (u32 i = thread_x(); i < OUTPUTS; i += FEW_WAVES * WAVE) {
            const u32 row = first_row + i % ROWS, column = i / ROWS;
            if (row >= m.rows || column >= x.columns) continue;
            float sum = places[0].results[i];
            for (u32 w = 1; w < FEW_WAVES; ++w) sum += places[w].results[i];
            finish(output, (u64)column * m.rows + row, row, sum);
        }
        barrier();
    }
}

}  // namespace device

// On nvptx, three blocks at once on a multiprocessor.
#define MATMUL_FEW_OF(FORMAT, COLUMNS)                                                                                             \
    extern "C" __global__ MAX_BLOCK_OF(FEW_WAVES * WAVE, 3) void matmul_few_##COLUMNS##_##FORMAT(Matmul m, Activations x, Output output) { \
        matmul_few<quants::FORMAT, COLUMNS / 16>(m, x, output);                                                                    \
    }
#define MATMUL_FEW(FORMAT)     \
    MATMUL_FEW_OF(FORMAT, 16)  \
    MATMUL_FEW_OF(FORMAT, 32)
#else
#define MATMUL_FEW(FORMAT)
#endif

#endif
