// nvcuda::wmma: tiles that a warp holds together and multiplies. On gfx11 and gfx12 by their matrix instructions where the
// tile is 16 x 16 x 16 of 16-bit floats or bytes; elsewhere by shuffles and fused multiply-adds, which is right on every
// GPU, with a warp in each half of a wave of 64, but not fast.
//
// Which elements a lane has is ours to choose. Of the rows of A, and the columns of B and of sums, each lane has one, with
// PARTS lanes sharing it: part p of A and B has the p-th run of K. Of a sum's column, part p has the p-th run of rows, or,
// as gfx11 has it, every PARTS-th row.
#ifndef CANDLE_ROCM_PORT_WMMA_H
#define CANDLE_ROCM_PORT_WMMA_H

#include "wmma_multiply.h"

namespace cuda_port {

// To the eleven bits that a tensor core looks at: nearest, halves away from zero.
PORT_FN float __float_to_tf32(float x) {
    const unsigned bits = __builtin_bit_cast(unsigned, x);
    if ((bits & 0x7f800000u) == 0x7f800000u) return x;
    return __builtin_bit_cast(float, (bits + 0x1000u) & ~0x1fffu);
}

namespace nvcuda {
namespace wmma {

// A fragment is uninitialised until it is filled, loaded or multiplied into.
template <typename Use, int M, int N, int K, typename T, typename Layout = void> class fragment {
    using Shape = detail::Shape<Use, M, N, K>;

  public:
    using element_type = typename detail::Element<T>::type;
    using storage_element_type = element_type;
    static constexpr int num_elements = Shape::ELEMENTS;
    static constexpr int num_storage_elements = num_elements;
    element_type x[num_elements];
};

template <typename Fragment, typename V> PORT_FN void fill_fragment(Fragment& to, const V& value) {
    for (int i = 0; i < Fragment::num_elements; ++i) to.x[i] = (typename Fragment::element_type)value;
}

// `stride` is the number of elements from one row to the next, or from one column to the next.
template <int M, int N, int K, typename T, typename Layout, typename Memory>
PORT_FN void load_matrix_sync(fragment<matrix_a, M, N, K, T, Layout>& to, const Memory* from, unsigned stride) {
    using Shape = detail::Shape<matrix_a, M, N, K>;
    detail::load<port::library::same<Layout, row_major>, Shape::ELEMENTS>(to.x, from, Shape::line(), Shape::begin(), stride);
}
template <int M, int N, int K, typename T, typename Layout, typename Memory>
PORT_FN void load_matrix_sync(fragment<matrix_b, M, N, K, T, Layout>& to, const Memory* from, unsigned stride) {
    using Shape = detail::Shape<matrix_b, M, N, K>;
    detail::load<port::library::same<Layout, col_major>, Shape::ELEMENTS>(to.x, from, Shape::line(), Shape::begin(), stride);
}
template <int M, int N, int K, typename T, typename Memory>
PORT_FN void load_matrix_sync(fragment<accumulator, M, N, K, T>& to, const Memory* from, unsigned stride, layout_t layout) {
    using Shape = detail::Shape<accumulator, M, N, K>;
    for (int i = 0; i < Shape::ELEMENTS; ++i) {
        const unsigned row = (unsigned)Shape::row(i), column = (unsigned)Shape::line();
        to.x[i] = from[layout == mem_row_major ? row * stride + column : column * stride + row];
    }
    __syncwarp();
}
template <int M, int N, int K, typename T, typename Memory>
PORT_FN void store_matrix_sync(Memory* to, const fragment<accumulator, M, N, K, T>& from, unsigned stride, layout_t layout) {
    using Shape = detail::Shape<accumulator, M, N, K>;
    __syncwarp();
    for (int i = 0; i < Shape::ELEMENTS; ++i) {
        const unsigned row = (unsigned)Shape::row(i), column = (unsigned)Shape::line();
        to[layout == mem_row_major ? row * stride + column : column * stride + row] = from.x[i];
    }
    __syncwarp();
}

// d = a b + c. Sums are made in f32, i32 or f64, also those that are kept in binary16. With `saturate` they stay finite:
// integers at the ends of their range, floats at the largest of D, and NaN is 0.
template <int M, int N, int K, typename D, typename A, typename LayoutA, typename B, typename LayoutB, typename C>
PORT_FN void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LayoutA>& a, const fragment<matrix_b, M, N, K, B, LayoutB>& b,
                      const fragment<accumulator, M, N, K, C>& c, bool saturate = false) {
    static_assert(port::library::same<A, B>, "both operands are of one type");
    using Sum = typename detail::Sum<A>::type;
    constexpr int COUNT = detail::Shape<accumulator, M, N, K>::ELEMENTS;
    // Products of bytes are far from the ends; their sum with c is made where it cannot overflow.
    const bool apart = saturate && port::library::same<Sum, int>;
    Sum sums[COUNT];
    for (int i = 0; i < COUNT; ++i) sums[i] = apart ? Sum(0) : (Sum)c.x[i];
    detail::multiply<M, N, K>(sums, a.x, b.x);
    for (int i = 0; i < COUNT; ++i) {
        if (apart) sums[i] = detail::saturated_sum(sums[i], (Sum)c.x[i]);
        else if (saturate) sums[i] = detail::finite<D>(sums[i]);
        d.x[i] = (D)sums[i];
    }
}

}  // namespace wmma
}  // namespace nvcuda
}  // namespace cuda_port

#endif
