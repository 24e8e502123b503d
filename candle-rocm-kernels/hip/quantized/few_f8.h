// Matrix of 8-bit floats times up to 32 columns of floats by matrix instructions: between one pass (matvec_f8.h), which
// reads each column for every few rows anew, and tiles (matmul_f8.h), which are too few for a GPU where columns are.
//
// A block computes F8_FEW_ROWS rows. Its waves take the blocks of 64 elements in turn: a lane has the same run of a block
// in its rows and in its columns, of which it makes its part of one instruction after the other. So nothing goes through
// LDS but the waves' sums, which are added in their order.
#ifndef CANDLE_ROCM_FEW_F8_H
#define CANDLE_ROCM_FEW_F8_H

#include "f8.h"
#include "matrix.h"
#include "output.h"
#include "shared/f8.h"

#if MATRIX
namespace device {

// What instructions multiply for activations of T, in PLANES products.
template <typename T> struct F8Operands {
    using Element = T;
    static constexpr u32 PLANES = 1;
};
template <> struct F8Operands<float> {
    using Element = bf16;
    static constexpr u32 PLANES = 2;
};

template <typename T, u32 TILES> struct F8Few {
    using Element = typename F8Operands<T>::Element;
    using Fragment = matrix::Fragment<Element>;
    using Lane = matrix::Accumulator<float>;
    static constexpr u32 PLANES = F8Operands<T>::PLANES, HELD = matrix::COLUMNS, PER_LANE = Lane::VALUES;
    // Elements of a block that a lane has, and instructions for a block.
    static constexpr u32 RUN = f8::ELEMENTS / matrix::PARTS, STEPS = f8::ELEMENTS / matrix::K<Element>;
    // Words with a fragment's weights, and with its pairs of elements.
    static constexpr u32 WORDS = Fragment::ELEMENTS / 4, PAIRS = Fragment::ELEMENTS / 2;
    struct Pairs {
        u32 w[PAIRS];
    };

    float v[TILES][PER_LANE];
    const u8* rows[HELD];
    const T* columns[TILES][HELD];

    // Rows and columns beyond the last repeat it.
    DEVICE_FN F8Few(const Matmul& m, u32 first_row, const Vectors& x) {
        for (u32 h = 0; h < HELD; ++h) {
            const u32 row = first_row + matrix::held(h);
            rows[h] = m.weights + (row < m.rows ? row : m.rows - 1) * m.row_bytes;
        }
        for (u32 t = 0; t < TILES; ++t) {
            for (u32 i = 0; i < PER_LANE; ++i) v[t][i] = 0;
            for (u32 h = 0; h < HELD; ++h) {
                const u32 column = t * matrix::TILE + matrix::held(h), last = x.columns - 1;
                columns[t][h] = (const T*)x.x + (u64)(column < last ? column : last) * x.stride + matrix::part() * RUN;
            }
        }
    }

    // The pairs of an instruction's part of a column.
    static DEVICE_FN void read(const T* at, Pairs (&planes)[PLANES]) {
        if constexpr (PLANES == 1) {
            planes[0] = *(const Pairs*)at;
        } else {
            for (u32 p = 0; p < PAIRS; p += 2) {
                const u32x4 bits = *(const u32x4*)(at + 2 * p);
                for (u32 i = 0; i < 2; ++i) {
                    const f8::Split split = f8::split(bit_cast<float>(bits[2 * i]), bit_cast<float>(bits[2 * i + 1]));
                    planes[0].w[p + i] = split.high, planes[1].w[p + i] = split.low;
                }
            }
        }
    }

    DEVICE_FN void add(u32 block) {
        CONTRACT
        u32 bytes[HELD][RUN / 4];
        float scale[HELD];
        for (u32 h = 0; h < HELD; ++h) {
            const u8* const at = rows[h] + (u64)block * f8::BYTES;
            scale[h] = f8::scale(at);
            for (u32 p = 0; p < RUN / 16; ++p) {
                const u32x4 pack = load_unaligned<u32x4>(at + f8::HEAD + matrix::part() * RUN + p * 16);
                for (u32 i = 0; i < 4; ++i) bytes[h][4 * p + i] = pack[i];
            }
        }
        Lane part[TILES];
        for (u32 t = 0; t < TILES; ++t) part[t] = Lane::zero();
#pragma unroll
        for (u32 s = 0; s < STEPS; ++s) {
            Fragment weights;
            for (u32 h = 0; h < HELD; ++h) {
                Pairs pairs;
                for (u32 p = 0; p < PAIRS; ++p) pairs.w[p] = f8::pair<Element>(bytes[h][s * WORDS + p / 2], p % 2);
                weights.bits[h] = bit_cast<typename Fragment::Bits>(pairs);
            }
            for (u32 t = 0; t < TILES; ++t) {
                Fragment values[PLANES];
                for (u32 h = 0; h < HELD; ++h) {
                    Pairs planes[PLANES];
                    read(columns[t][h] + (u64)block * f8::ELEMENTS + s * Fragment::ELEMENTS, planes);
                    for (u32 p = 0; p < PLANES; ++p) values[p].bits[h] = bit_cast<typename Fragment::Bits>(planes[p]);
                }
                for (u32 p = 0; p < PLANES; ++p) matrix::multiply<Element>(values[p], weights, part[t]);
            }
        }
        for (u32 t = 0; t < TILES; ++t) {
            for (u32 i = 0; i < PER_LANE; ++i) v[t][i] = multiply_add(scale[i / Lane::ROWS], part[t].values[i], v[t][i]);
        }
    }
};

template <typename T, u32 TILES> DEVICE_FN void few_f8(const Matmul& m, const Vectors& x, const Output& output) {
    using Few = F8Few<T, TILES>;
    using Lane = typename Few::Lane;
    static_assert(F8_FEW_ROWS == matrix::TILE, "rows of an instruction");
    constexpr u32 ROWS = F8_FEW_ROWS, OUTPUTS = TILES * matrix::TILE * ROWS;
    __shared__ float results[F8_FEW_WAVES][OUTPUTS];
    const u32 wave = thread_x() / WAVE;
    const u32 blocks = x.stride / f8::ELEMENTS, row_tiles = (m.rows + ROWS - 1) / ROWS;
    for (u64 tile = block_x(); tile < row_tiles; tile += grid_dim()) {
        const u32 first_row = (u32)tile * ROWS;
        Few sums(m, first_row, x);
        for (u32 block = wave; block < blocks; block += F8_FEW_WAVES) sums.add(block);
        for (u32 t = 0; t < TILES; ++t) {
            for (u32 i = 0; i < Few::PER_LANE; ++i) results[wave][(t * matrix::TILE + Lane::row(i)) * ROWS + Lane::column(i)] = sums.v[t][i];
        }
        barrier();
        for (u32 i = thread_x(); i < OUTPUTS; i += F8_FEW_WAVES * WAVE) {
            const u32 row = first_row + i % ROWS, column = i / ROWS;
            if (row >= m.rows || column >= x.columns) continue;
            float sum = results[0][i];
            for (u32 w = 1; w < F8_FEW_WAVES; ++w) sum += results[w][i];
            finish(output, (u64)column * m.rows + row, row, sum * f8::UNIT<typename Few::Element>);
        }
        barrier();
    }
}

}  // namespace device

#define FEW_F8_OF(dtype, T, COLUMNS)                                                                                                          \
    extern "C" __global__ MAX_BLOCK(F8_FEW_WAVES * WAVE) void matmul_few_##COLUMNS##_f8_e4m3_##dtype(Matmul m, Vectors x, Output output) { \
        few_f8<T, COLUMNS / 16>(m, x, output);                                                                                                \
    }
#define FEW_F8(dtype, T)      \
    FEW_F8_OF(dtype, T, 16)   \
    FEW_F8_OF(dtype, T, 32)
#else
#define FEW_F8(dtype, T)
#endif

#endif
