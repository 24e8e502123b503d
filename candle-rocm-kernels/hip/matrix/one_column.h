// The layout of MFMA and WMMA: a lane holds one row of A, one column of B and D, as vectors that the compiler's
// builtins take. Included by matrix.h.
#ifndef CANDLE_ROCM_MATRIX_ONE_COLUMN_H
#define CANDLE_ROCM_MATRIX_ONE_COLUMN_H

namespace device {
namespace matrix {

constexpr u32 COLUMNS = 1;
constexpr u32 APART = TILE / COLUMNS;
constexpr bool CONVERTS_SLOWLY = false;

// Registers is what the compiler's builtins take of A and B, Bits the same bytes as unsigned integers.
template <typename T, typename Stored, u32 LENGTH, typename S> struct VectorFormat {
    static constexpr u32 K = LENGTH;
    typedef Stored Bits __attribute__((vector_size(LENGTH / PARTS * sizeof(Stored))));
    using Element = Stored;
    using Sum = S;

    static DEVICE_FN Bits load_lane(const T* p) {
        typedef Bits __attribute__((aligned(Fragment<T>::ALIGNMENT), may_alias)) Vector;
        return *(const Vector*)p;
    }
    static DEVICE_FN void set(Bits& bits, u32 i, Element v) { bits[i] = v; }
};
template <> struct Format<f16> : VectorFormat<f16, u16, K_16BIT, float> {
    typedef f16_register Registers __attribute__((vector_size(2 * K_16BIT / PARTS)));
};
template <> struct Format<bf16> : VectorFormat<bf16, u16, K_16BIT, float> {
    typedef bf16_register Registers __attribute__((vector_size(2 * K_16BIT / PARTS)));
};
template <> struct Format<i8> : VectorFormat<i8, u8, K_8BIT, i32> {
    using Registers = i8_registers;
};
#if MATRIX_FLOAT8
template <> struct Format<f8e4m3> : VectorFormat<f8e4m3, u8, K_8BIT, float> {
    using Registers = i8_registers;
};
#endif

template <typename S, u32 COUNT> struct ValuesOf {
    typedef S type __attribute__((vector_size(COUNT * sizeof(S))));
};

DEVICE_FN u32 part() { return PARTS == 1 ? 0u : lane() / TILE; }
DEVICE_FN u32 held(u32) { return lane() % TILE; }
// Whether the lane is the first of those that hold the same columns.
DEVICE_FN bool is_first() { return lane() < TILE; }
template <u32 ROWS> DEVICE_FN u32 row_of(u32 i) { return INTERLEAVED ? lane() / TILE + 2 * i : lane() / TILE * ROWS + i; }

// c += a b
template <typename T> DEVICE_FN void multiply(const FragmentA<T>& a, const FragmentB<T>& b, Accumulator<typename Format<T>::Sum>& c) {
    using Registers = typename Format<T>::Registers;
    c.values = multiply_registers<T>(bit_cast<Registers>(a.bits[0]), bit_cast<Registers>(b.bits[0]), c.values);
}

// As Fragment::load, of what lies in LDS; p and the stride are multiples of 16 bytes.
template <typename T> DEVICE_FN FragmentA<T> load_a(const T* p, u32 stride) { return FragmentA<T>::load(p, stride); }
template <typename T> DEVICE_FN FragmentB<T> load_b(const T* p, u32 stride) { return FragmentB<T>::load(p, stride); }
// The half of K that a fragment has, by itself.
template <typename T> DEVICE_FN Fragment<T> half_of(const Fragment<T>& fragment, u32 half) {
    return Fragment<T>::k(0) / (Format<T>::K / 2) == half ? fragment : Fragment<T>::zero();
}
// A fragment in the order of the second operand's registers, or from it: loaded so at once, none needs to be moved.
template <typename T> DEVICE_FN Fragment<T> in_register_order(const Fragment<T>& x) { return x; }

// Reduces over the lanes that hold values of the same column.
template <typename Op> DEVICE_FN float column_reduce(float v) {
    v = Op::apply(v, bit_cast<float>(other_half(bit_cast<u32>(v))));
    if constexpr (WAVE == 64) v = Op::apply(v, shfl_xor(v, 2 * TILE));
    return v;
}

}  // namespace matrix
}  // namespace device

#endif
