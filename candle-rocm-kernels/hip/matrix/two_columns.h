// The layout of mma.sync: a lane holds two rows of A, two columns of B and D, in words. Included by matrix.h.
#ifndef CANDLE_ROCM_MATRIX_TWO_COLUMNS_H
#define CANDLE_ROCM_MATRIX_TWO_COLUMNS_H

namespace device {
namespace matrix {

constexpr u32 COLUMNS = 2;
constexpr u32 APART = TILE / COLUMNS;
constexpr u32 PARTS = WAVE * COLUMNS / TILE;
constexpr bool INTERLEAVED = false;
constexpr bool CONVERTS_SLOWLY = true;

constexpr u32 K_16BIT = 16;
constexpr u32 K_8BIT = 32;

// Two words of each row or column, whatever is in them.
struct alignas(8) Words {
    u32 w[2];
};
template <typename T, typename Stored, u32 LENGTH, typename S> struct WordsFormat {
    static constexpr u32 K = LENGTH;
    using Bits = Words;
    using Element = Stored;
    using Sum = S;

    static DEVICE_FN Bits load_lane(const T* p) { return *(const Bits*)p; }
    static DEVICE_FN void set(Bits& bits, u32 i, Element v) {
        constexpr u32 PER_WORD = 4 / sizeof(T);
        bits.w[i / PER_WORD] |= (u32)v << (i % PER_WORD * 8 * sizeof(T));
    }
};
template <> struct Format<f16> : WordsFormat<f16, u16, K_16BIT, float> {};
template <> struct Format<bf16> : WordsFormat<bf16, u16, K_16BIT, float> {};
template <> struct Format<i8> : WordsFormat<i8, u8, K_8BIT, i32> {};
#if MATRIX_FLOAT8
template <> struct Format<f8e4m3> : WordsFormat<f8e4m3, u8, K_8BIT, float> {};
#endif

template <typename S, u32 COUNT> struct ValuesOf {
    struct type {
        S v[COUNT];
        DEVICE_FN S& operator[](u32 i) { return v[i]; }
        DEVICE_FN S operator[](u32 i) const { return v[i]; }
    };
};

DEVICE_FN u32 part() { return lane() % PARTS; }
DEVICE_FN u32 held(u32 c) { return lane() / PARTS + c * APART; }
// Whether the lane is the first of those that hold the same columns.
DEVICE_FN bool is_first() { return part() == 0; }
template <u32 ROWS> DEVICE_FN u32 row_of(u32 i) { return part() * 2 + i % 2 + i % ROWS / 2 * 8; }

// From mma_sync.h, or host.h for the simulator:

// The first two values of both columns, or the last two: rows are those of A that `row` has of each lane.
template <typename T> DEVICE_FN void multiply_rows(const Words& row, const Fragment<T>& columns, typename Format<T>::Sum* first, typename Format<T>::Sum* second);
// As Fragment::load, of what lies in LDS; p and the stride are multiples of 16 bytes. K is in another order than there:
// a lane has the q-th words of its halves. The registers come as the instruction wants those of the first or second
// operand, which saves moving them.
template <typename T> DEVICE_FN FragmentA<T> load_a(const T* p, u32 stride);
template <typename T> DEVICE_FN FragmentB<T> load_b(const T* p, u32 stride);
// The first operand that multiplies what `operand` gives, whose K is in the order of the rows: from K rows of LDS of 16
// contiguous elements, `stride` elements apart. p and the stride are multiples of 16 bytes.
template <typename T> DEVICE_FN FragmentA<T> load_transposing(const T* p, u32 stride);

// c += a b
template <typename T> DEVICE_FN void multiply(const FragmentA<T>& a, const FragmentB<T>& b, Accumulator<typename Format<T>::Sum>& c) {
    constexpr u32 ROWS = Accumulator<typename Format<T>::Sum>::ROWS;
    for (u32 n = 0; n < COLUMNS; ++n) multiply_rows<T>(a.bits[n], b, &c.values[2 * n], &c.values[ROWS + 2 * n]);
}

// The half of K that a fragment of load_a or load_b has, by itself.
template <typename T> DEVICE_FN Fragment<T> half_of(Fragment<T> fragment, u32 half) {
#pragma unroll
    for (u32 c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (u32 i = 0; i < 2; ++i) fragment.bits[c].w[i] &= 0u - (u32)(i == half);
    return fragment;
}
// A fragment in the order of the second operand's registers, or from it: loaded so at once, none needs to be moved.
template <typename T> DEVICE_FN Fragment<T> in_register_order(const Fragment<T>& x) {
    return Fragment<T>{{{{x.bits[0].w[0], x.bits[1].w[0]}}, {{x.bits[0].w[1], x.bits[1].w[1]}}}};
}

// Reduces over the lanes that hold values of the same column.
template <typename Op> DEVICE_FN float column_reduce(float v) {
#pragma unroll
    for (u32 mask = PARTS / 2; mask > 0; mask /= 2) v = Op::apply(v, shfl_xor(v, mask));
    return v;
}

}  // namespace matrix
}  // namespace device

#endif
