// nvcuda::wmma: where elements lie in the lanes, and the products. Included by wmma.h.
#ifndef CANDLE_ROCM_PORT_WMMA_MULTIPLY_H
#define CANDLE_ROCM_PORT_WMMA_MULTIPLY_H

#include "library.h"

namespace cuda_port {
namespace nvcuda {
namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

namespace detail {

#if !CANDLE_ROCM_NO_MATRIX && defined(__GFX11__)
constexpr bool INTERLEAVED = true;
#else
constexpr bool INTERLEAVED = false;
#endif

template <typename T> struct Element { using type = T; };
template <> struct Element<precision::tf32> { using type = float; };
template <typename T> struct Sum { using type = float; };
template <> struct Sum<signed char> { using type = int; };
template <> struct Sum<unsigned char> { using type = int; };
template <> struct Sum<double> { using type = double; };
template <typename T> constexpr bool is_byte = sizeof(T) == 1;

// LINES rows or columns, of DEPTH elements each.
template <int LINES, int DEPTH> struct Lines {
    static_assert(32 % LINES == 0 && DEPTH % (32 / LINES) == 0, "no shape of wmma");
    static constexpr int PARTS = 32 / LINES, ELEMENTS = DEPTH / PARTS;
    static PORT_FN int line() { return port::library::warp_lane() % LINES; }
    static PORT_FN int part() { return port::library::warp_lane() / LINES; }
    static PORT_FN int begin() { return part() * ELEMENTS; }
    static PORT_FN int row(int i) { return INTERLEAVED ? i * PARTS + part() : begin() + i; }
};
template <typename Use, int M, int N, int K> struct Shape;
template <int M, int N, int K> struct Shape<matrix_a, M, N, K> : Lines<M, K> {};
template <int M, int N, int K> struct Shape<matrix_b, M, N, K> : Lines<N, K> {};
template <int M, int N, int K> struct Shape<accumulator, M, N, K> : Lines<N, M> {};

// A run of a line, whose elements are neighbours in memory (ALONG) or `stride` apart. CUDA asks for addresses and strides
// that are multiples of 16 bytes.
template <bool ALONG, int COUNT, typename T, typename Memory> PORT_FN void load(T (&to)[COUNT], const Memory* from, int line, int begin, unsigned stride) {
    if constexpr (ALONG && COUNT * sizeof(Memory) % 16 == 0 && sizeof(T) == sizeof(Memory)) {
        __builtin_memcpy(to, __builtin_assume_aligned(from + (unsigned)line * stride + begin, 16), sizeof(to));
    } else {
        for (int i = 0; i < COUNT; ++i) {
            to[i] = from[ALONG ? (unsigned)line * stride + (unsigned)(begin + i) : (unsigned)(begin + i) * stride + (unsigned)line];
        }
    }
    __syncwarp();
}

// The whole line that lanes `first`, `first` + LINES, … have in parts.
template <int LINES, int DEPTH, typename T> PORT_FN void whole_line(T (&to)[DEPTH], const T (&part)[Lines<LINES, DEPTH>::ELEMENTS], int first) {
    constexpr int WORDS = sizeof(part) / 4;
    static_assert(sizeof(part) % 4 == 0, "parts of whole words");
    unsigned own[WORDS], words[WORDS * Lines<LINES, DEPTH>::PARTS];
    __builtin_memcpy(own, part, sizeof(part));
    for (int p = 0; p < Lines<LINES, DEPTH>::PARTS; ++p) {
        for (int w = 0; w < WORDS; ++w) words[p * WORDS + w] = __shfl_sync(~0u, own[w], first + p * LINES, 32);
    }
    __builtin_memcpy(to, words, sizeof(to));
}

PORT_FN float add_product(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PORT_FN double add_product(double a, double b, double c) { return __builtin_fma(a, b, c); }
PORT_FN int add_product(int a, int b, int c) { return a * b + c; }

PORT_FN int saturated_sum(int a, int b) {
    const long long sum = (long long)a + b;
    return (int)(sum > 0x7fffffffll ? 0x7fffffffll : sum < -0x80000000ll ? -0x80000000ll : sum);
}
template <typename S> PORT_FN S saturated_sum(S a, S b) { return a + b; }
template <typename D, typename S> PORT_FN S finite(S x) {
    const S limit = sizeof(D) == 2 ? S(65504) : sizeof(D) == 4 ? S(0x1.fffffep+127f) : S(__DBL_MAX__);
    if (x != x) return S(0);
    return x > limit ? limit : x < -limit ? -limit : x;
}

template <int M, int N, int K, typename S, int COUNT, typename T, int A, int B>
PORT_FN void multiply_by_shuffles(S (&sums)[COUNT], const T (&a)[A], const T (&b)[B]) {
    T column[K];
    whole_line<N, K>(column, b, Lines<N, K>::line());
    for (int i = 0; i < COUNT; ++i) {
        T row[K];
        whole_line<M, K>(row, a, Lines<N, M>::row(i));
        for (int k = 0; k < K; ++k) sums[i] = add_product((S)row[k], (S)column[k], sums[i]);
    }
}

#if !CANDLE_ROCM_NO_MATRIX && (defined(__GFX11__) || defined(__GFX12__))
typedef float f32x8 __attribute__((vector_size(32)));
typedef int i32x8 __attribute__((vector_size(32)));
#if defined(__GFX11__)
// A lane has a whole line, the same in both halves of the wave.
constexpr int DEPTH = 16;
#else
constexpr int DEPTH = 8;
#endif
typedef port::device::f16_register f16_line __attribute__((vector_size(2 * DEPTH)));
typedef port::device::bf16_register bf16_line __attribute__((vector_size(2 * DEPTH)));
typedef int byte_line __attribute__((vector_size(DEPTH)));

template <typename Line, typename T> PORT_FN Line line_of(const T (&part)[8]) {
    T line[DEPTH];
#if defined(__GFX11__)
    whole_line<16, 16>(line, part, port::library::warp_lane() % 16);
#else
    __builtin_memcpy(line, part, sizeof(line));
#endif
    return __builtin_bit_cast(Line, line);
}
template <typename Values, typename S, typename F> PORT_FN void into(S (&sums)[8], F product) {
    const Values result = product(__builtin_bit_cast(Values, sums));
    __builtin_memcpy(sums, &result, sizeof(sums));
}
template <typename T> PORT_FN void multiply_16(float (&sums)[8], const T (&a)[8], const T (&b)[8]) {
    if constexpr (port::library::same<T, __half>) {
        const f16_line x = line_of<f16_line>(a), y = line_of<f16_line>(b);
#if defined(__GFX11__)
        into<f32x8>(sums, [&](f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, c); });
#else
        into<f32x8>(sums, [&](f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, c); });
#endif
    } else {
        const bf16_line x = line_of<bf16_line>(a), y = line_of<bf16_line>(b);
#if defined(__GFX11__)
        into<f32x8>(sums, [&](f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, c); });
#else
        into<f32x8>(sums, [&](f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, c); });
#endif
    }
}
template <typename T> PORT_FN void multiply_16(int (&sums)[8], const T (&a)[8], const T (&b)[8]) {
    constexpr bool SIGNED = T(-1) < T(0);
    const byte_line x = line_of<byte_line>(a), y = line_of<byte_line>(b);
#if defined(__GFX11__)
    into<i32x8>(sums, [&](i32x8 c) { return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(SIGNED, x, SIGNED, y, c, false); });
#else
    into<i32x8>(sums, [&](i32x8 c) { return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(SIGNED, x, SIGNED, y, c, false); });
#endif
}
template <typename T, int M, int N, int K>
constexpr bool BY_INSTRUCTION =
    M == 16 && N == 16 && K == 16 && (port::library::same<T, __half> || port::library::same<T, __nv_bfloat16> || is_byte<T>);
#endif

template <int M, int N, int K, typename S, int COUNT, typename T, int A, int B> PORT_FN void multiply(S (&sums)[COUNT], const T (&a)[A], const T (&b)[B]) {
#if !CANDLE_ROCM_NO_MATRIX && (defined(__GFX11__) || defined(__GFX12__))
    if constexpr (BY_INSTRUCTION<T, M, N, K>) {
        multiply_16(sums, a, b);
        return;
    }
#endif
    multiply_by_shuffles<M, N, K>(sums, a, b);
}

}  // namespace detail
}  // namespace wmma
}  // namespace nvcuda
}  // namespace cuda_port

#endif
