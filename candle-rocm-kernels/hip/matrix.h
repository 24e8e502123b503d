// Matrix instructions: one wave computes D[16 x 16] += A[16 x K] B[K x 16], with sums in f32 (f16, bf16) or i32 (i8).
//
// MATRIX is 1 where the arch has them and does them right (plain.h): MFMA on gfx90a, gfx942 and gfx950 (waves of 64),
// WMMA on gfx11 and gfx12 (waves of 32), mma.sync on nvptx from sm_80 on (waves of 32); code that uses what stands here
// lies in `#if MATRIX`. All lanes of the wave must be active.
//
// A lane's share of A is a row, of B a column, or COLUMNS of them; both are laid out alike, so one type serves as
// either. With i = lane % 16 and g = lane / 16 (ISA documents "AMD Instinct MI200", "AMD Instinct MI300", "CDNA4",
// "RDNA3", "RDNA4", chapters on matrix operations), for nvptx with n = lane / 4 and q = lane % 4 ("PTX ISA", fragments
// of mma.m16n8k16 and m16n8k32, whose A is our B so that a lane has whole columns of D):
//
//                        row of A, column of B    elements of K                column of D    rows of D
//     MFMA               i                        the g-th quarter             i              4 g + (0..4)
//     WMMA, gfx11        i                        all, the same for g = 0, 1   i              g + 2 (0..8)
//     WMMA, gfx12        i                        the g-th half                i              8 g + (0..8)
//     mma.sync           n and n + 8              the q-th quarter             n and n + 8    2 q + (0, 1, 8, 9)
//
// The order of K only has to be the same in A and B.
//
// MATRIX_FLOAT8 is 1 where there are instructions on 8-bit floats (f8e4m3), too: on gfx942, gfx950, gfx12, and on nvptx
// from sm_89 on. gfx942 reads e4m3 with another bias (FNUZ: "AMD Instinct MI300", section on FP8): the same bits are
// half the value there, the bits of -0 are its only NaN, and those of NaN are numbers. FLOAT8_UNIT is what makes up for
// the first in one operand; bits are as they should be for the others.
#ifndef CANDLE_ROCM_MATRIX_H
#define CANDLE_ROCM_MATRIX_H

#include "device.h"

#if CANDLE_ROCM_NO_MATRIX
#define MATRIX 0
#elif defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
#define MATRIX 1
#define MATRIX_MFMA 1
#elif defined(__GFX11__)
#define MATRIX 1
#define MATRIX_WMMA11 1
#elif defined(__GFX12__)
#define MATRIX 1
#define MATRIX_WMMA12 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MATRIX 1
#define MATRIX_MMA 1
#else
#define MATRIX 0
#endif

#if MATRIX_MFMA && (defined(__gfx942__) || defined(__gfx950__)) || MATRIX_WMMA12 || MATRIX_MMA && __CUDA_ARCH__ >= 890
#define MATRIX_FLOAT8 1
#else
#define MATRIX_FLOAT8 0
#endif

#if MATRIX
namespace device {
namespace matrix {

// Rows of A and D, columns of B and D.
constexpr u32 TILE = 16;

template <typename T> struct Format;
template <typename T> struct Fragment;
template <typename S> struct Accumulator;
#if MATRIX_FLOAT8 && defined(__gfx942__)
constexpr float FLOAT8_UNIT = 2.0f;
#else
constexpr float FLOAT8_UNIT = 1.0f;
#endif

// Names for what a fragment is used as.
template <typename T> using FragmentA = Fragment<T>;
template <typename T> using FragmentB = Fragment<T>;

}  // namespace matrix
}  // namespace device

// The instructions: K_16BIT and K_8BIT, the inner dimension by the size of elements; PARTS, the lanes that hold
// different parts of K of the same row or column. The layouts: COLUMNS of D, and with them rows of A and columns of B,
// that a lane holds, and how far APART; Format, what a lane has of one of them; part() and held(c), which they are; and
// what depends on it: multiply, load_a, load_b, half_of, in_register_order and column_reduce.
#if MATRIX_MMA
#include "matrix/two_columns.h"
#ifdef __HIP_SIM__
#include "matrix/host.h"
#else
#include "matrix/mma_sync.h"
#endif
#else
#if MATRIX_MFMA
#include "matrix/mfma.h"
#elif MATRIX_WMMA11
#include "matrix/wmma11.h"
#else
#include "matrix/wmma12.h"
#endif
#include "matrix/one_column.h"
#endif

namespace device {
namespace matrix {

// The inner dimension of one instruction on T.
template <typename T> constexpr u32 K = Format<T>::K;

// A lane's share of a 16 x K tile of A, or of a K x 16 tile of B.
template <typename T> struct Fragment {
    // Elements per lane of each row or column: consecutive ones of K, from k(0).
    static constexpr u32 ELEMENTS = Format<T>::K / PARTS;
    // What load needs p and the stride, in bytes, to be multiples of.
    static constexpr u32 ALIGNMENT = ELEMENTS * sizeof(T) < 16 ? ELEMENTS * sizeof(T) : 16;

    using Bits = typename Format<T>::Bits;
    Bits bits[COLUMNS];

    // The c-th row of A or column of B that the lane holds, and the position in K of its i-th element.
    static DEVICE_FN u32 index(u32 c) { return held(c); }
    static DEVICE_FN u32 k(u32 i) { return part() * ELEMENTS + i; }

    static DEVICE_FN Fragment zero() { return Fragment{}; }

    // From 16 rows of A, or 16 columns of B, of K contiguous elements each, `stride` elements apart.
    static DEVICE_FN Fragment load(const T* p, u32 stride) {
        return load_from([=](u32 index) { return p + index * stride; });
    }

    // From where start(index) says that the K elements of a row or column begin.
    template <typename F> static DEVICE_FN Fragment load_from(F start) {
        Fragment fragment;
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c) fragment.bits[c] = load_lane(start(index(c)) + k(0));
        return fragment;
    }

    // The lane's elements of a row or column from where they lie contiguously; p is as aligned as above.
    static DEVICE_FN Bits load_lane(const T* p) { return Format<T>::load_lane(p); }

    // From K rows of 16 contiguous elements, `stride` elements apart: A with its columns, or B with its rows in memory
    // order.
    static DEVICE_FN Fragment load_transposed(const T* p, u32 stride) {
        Fragment fragment = zero();
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (u32 i = 0; i < ELEMENTS; ++i) fragment.set(c, i, p[k(i) * stride + index(c)]);
        return fragment;
    }

    // The i-th element of the c-th row or column, which was zero.
    DEVICE_FN void set(u32 c, u32 i, T v) { Format<T>::set(bits[c], i, bit_cast<typename Format<T>::Element>(v)); }
};

// A lane's share of a 16 x 16 tile of C and D; S is float or i32.
template <typename S> struct Accumulator {
    static constexpr u32 VALUES = TILE * TILE / WAVE;
    // Values of each column, which follow each other.
    static constexpr u32 ROWS = VALUES / COLUMNS;
    typedef typename ValuesOf<S, VALUES>::type Registers;
    Registers values;

    // Column and row of the i-th value.
    static DEVICE_FN u32 column(u32 i) { return held(i / ROWS); }
    static DEVICE_FN u32 row(u32 i) { return row_of<ROWS>(i); }

    static DEVICE_FN Accumulator zero() { return Accumulator{Registers{}}; }

    // For sums of integers below 2^22 that become floats, which some convert at half their rate: their bits on top of
    // those of a number whose last bit is 1, and the difference.
    static constexpr float BASE = 0x1.8p23f;
    static DEVICE_FN Accumulator small() {
        if constexpr (CONVERTS_SLOWLY) {
            Accumulator sums;
#pragma unroll
            for (u32 i = 0; i < VALUES; ++i) sums.values[i] = bit_cast<S>(BASE);
            return sums;
        } else {
            return zero();
        }
    }
    DEVICE_FN float small_value(u32 i) const {
        if constexpr (CONVERTS_SLOWLY) {
            return bit_cast<float>(values[i]) - BASE;
        } else {
            return (float)values[i];
        }
    }

    // Multiplies the values of the c-th column.
    DEVICE_FN void scale(u32 c, S by) {
        if constexpr (COLUMNS == 1) {
            values *= by;
        } else {
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) values[c * ROWS + i] *= by;
        }
    }
};

// ---------------------------------------------------------------- sums as operands

// A product S[16 n x 16] becomes the second operand of the next one without leaving its lanes, if its rows are computed
// in the right order: tile t of a group of TILES takes as its row r the row operand_row(t, r) of the K that the group
// has.
template <typename T> constexpr u32 TILES = K<T> / TILE;
template <typename T> DEVICE_FN u32 operand_row(u32 tile, u32 row) {
    static_assert(TILES<T> <= 2, "groups of one tile or two");
    return TILES<T> == 1 ? row : row / 4 * 8 + tile * 4 + row % 4;
}
template <typename T> DEVICE_FN FragmentB<T> operand(const Accumulator<float>* tiles) {
    constexpr u32 PAIRS = Accumulator<float>::ROWS / 2;
    if constexpr (COLUMNS == 2) {
        FragmentB<T> fragment;
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (u32 i = 0; i < PAIRS; ++i) fragment.bits[c].w[i] = narrow_pair<T>(tiles->values[4 * c + 2 * i], tiles->values[4 * c + 2 * i + 1]);
        return fragment;
    } else {
        struct {
            u32 w[FragmentB<T>::ELEMENTS / 2];
        } words;
        if constexpr (INTERLEAVED) {
            // Both halves of the wave need all rows.
            const bool upper = lane() >= TILE;
#pragma unroll
            for (u32 i = 0; i < PAIRS; ++i) {
                const u32 own = narrow_pair<T>(tiles->values[2 * i], tiles->values[2 * i + 1]);
                const u32 other = other_half(own);
                const u32 even = upper ? other : own;
                const u32 odd = upper ? own : other;
                words.w[2 * i] = low_halves(even, odd);
                words.w[2 * i + 1] = high_halves(even, odd);
            }
        } else {
#pragma unroll
            for (u32 t = 0; t < TILES<T>; ++t)
#pragma unroll
                for (u32 i = 0; i < PAIRS; ++i) words.w[t * PAIRS + i] = narrow_pair<T>(tiles[t].values[2 * i], tiles[t].values[2 * i + 1]);
        }
        return FragmentB<T>{{bit_cast<typename Format<T>::Bits>(words)}};
    }
}

}  // namespace matrix
}  // namespace device
#endif

#endif
