// Instructions of PTX as functions, for what `rocm-port port` makes of a text's `asm` statements.
//
// Operands come in PTX's own order, destinations first and by reference; memory is an address. Registers are bits, so each
// operand may have any type of its size, as in `asm`. tools/rocm-port/src/port/ptx.rs says which instruction is which
// function.
#ifndef CANDLE_ROCM_PORT_PTX_H
#define CANDLE_ROCM_PORT_PTX_H

#include "cuda.h"
#include "ptx_memory.h"

namespace cuda_port {
namespace ptx {

// Special registers.
PORT_FN unsigned sreg_laneid() { return port::lane(); }
PORT_FN unsigned sreg_warpid() { return port::linear_thread() / 32u; }
PORT_FN unsigned sreg_nwarpid() { return ((unsigned)port::threads() + 31u) / 32u; }
PORT_FN unsigned sreg_smid() { return 0; }
PORT_FN unsigned sreg_tid_x() { return threadIdx.x; }
PORT_FN unsigned sreg_tid_y() { return threadIdx.y; }
PORT_FN unsigned sreg_tid_z() { return threadIdx.z; }
PORT_FN unsigned sreg_ntid_x() { return blockDim.x; }
PORT_FN unsigned sreg_ntid_y() { return blockDim.y; }
PORT_FN unsigned sreg_ntid_z() { return blockDim.z; }
PORT_FN unsigned sreg_ctaid_x() { return blockIdx.x; }
PORT_FN unsigned sreg_ctaid_y() { return blockIdx.y; }
PORT_FN unsigned sreg_ctaid_z() { return blockIdx.z; }
PORT_FN unsigned sreg_nctaid_x() { return gridDim.x; }
PORT_FN unsigned sreg_nctaid_y() { return gridDim.y; }
PORT_FN unsigned sreg_nctaid_z() { return gridDim.z; }
PORT_FN unsigned sreg_lanemask_eq() { return 1u << port::lane(); }
PORT_FN unsigned sreg_lanemask_lt() { return (1u << port::lane()) - 1u; }
PORT_FN unsigned sreg_lanemask_le() { return (2u << port::lane()) - 1u; }
PORT_FN unsigned sreg_lanemask_gt() { return ~((2u << port::lane()) - 1u); }
PORT_FN unsigned sreg_lanemask_ge() { return ~((1u << port::lane()) - 1u); }
PORT_FN unsigned sreg_clock() { return (unsigned)clock64(); }
PORT_FN unsigned long long sreg_clock64() { return (unsigned long long)clock64(); }
PORT_FN unsigned long long sreg_globaltimer() { return port::nanoseconds(); }

// Moves: of a register, of two into one of their size, and of one into two.
template <typename W, typename D, typename S> PORT_FN void move(D& d, S s) { put(d, as<W>(s)); }
template <typename W, typename A, typename B, typename C> PORT_FN void move(A&& a, B&& b, C&& c) {
    constexpr unsigned HALF = 4u * sizeof(W);
    using H = typename bits<sizeof(W) / 2>::type;
    if constexpr (sizeof(std::remove_reference_t<A>) == sizeof(W)) {
        put(a, (W)((W)as<H>(c) << HALF | as<H>(b)));
    } else {
        const W both = as<W>(c);
        put(a, (H)both);
        put(b, (H)(both >> HALF));
    }
}

// The highest bit of nibble i of the selector repeats the sign of the byte that is picked.
PORT_FN unsigned permute(unsigned a, unsigned b, unsigned selector) {
    const unsigned picked = __byte_perm(a, b, selector);
    const unsigned signs = (selector >> 3 & 1u) | (selector >> 7 & 1u) << 8 | (selector >> 11 & 1u) << 16 | (selector >> 15 & 1u) << 24;
    const unsigned repeated = signs * 0xffu;
    return (picked & ~repeated) | ((picked >> 7 & 0x01010101u) * 0xffu & repeated);
}

// Arithmetic on T.
#define PORT_PTX(name, expression)                                                        \
    template <typename T, typename D, typename A> PORT_FN void name(D& d, A first) {      \
        const T a = as<T>(first);                                                         \
        put(d, (T)(expression));                                                          \
    }
PORT_PTX(neg, T(0) - a)
PORT_PTX(bit_not, ~a)
PORT_PTX(absolute, a < T(0) ? T(0) - a : a)
PORT_PTX(brev, sizeof(T) == 8 ? (T)__brevll((unsigned long long)a) : (T)__brev((unsigned)a))
PORT_PTX(ex2, cuda_port::exp2f(a))
PORT_PTX(lg2, __log2f(a))
PORT_PTX(rcp, T(1) / a)
PORT_PTX(square_root, cuda_port::sqrt(a))
PORT_PTX(rsqrt, cuda_port::rsqrt(a))
PORT_PTX(sine, cuda_port::sinf(a))
PORT_PTX(cosine, cuda_port::cosf(a))
PORT_PTX(tangent_hyperbolic, cuda_port::tanhf(a))
#undef PORT_PTX
// Counts are of 32 bits.
template <typename T, typename D, typename A> PORT_FN void popc(D& d, A a) { put(d, (unsigned)__popcll((unsigned long long)as<T>(a))); }
template <typename T, typename D, typename A> PORT_FN void clz(D& d, A a) {
    put(d, (unsigned)__clzll((long long)as<T>(a)) - (sizeof(T) == 8 ? 0u : 32u));
}
#define PORT_PTX(name, expression)                                                                        \
    template <typename T, typename D, typename A, typename B> PORT_FN void name(D& d, A first, B second) { \
        const T a = as<T>(first), b = as<T>(second);                                                      \
        put(d, (T)(expression));                                                                          \
    }
PORT_PTX(add, a + b)
PORT_PTX(sub, a - b)
PORT_PTX(mul_lo, a * b)
PORT_PTX(quotient, a / b)
PORT_PTX(rem, a % b)
PORT_PTX(minimum, cuda_port::min(a, b))
PORT_PTX(maximum, cuda_port::max(a, b))
PORT_PTX(bit_and, a & b)
PORT_PTX(bit_or, a | b)
PORT_PTX(bit_xor, a ^ b)
PORT_PTX(mul_hi, high_product(a, b))
#undef PORT_PTX
// A shift of the width or more leaves nothing, or the sign.
template <typename T, typename D, typename A, typename B> PORT_FN void shl(D& d, A a, B by) {
    const unsigned n = as<unsigned>(by);
    put(d, n >= 8u * sizeof(T) ? T(0) : (T)(as<T>(a) << n));
}
template <typename T, typename D, typename A, typename B> PORT_FN void shr(D& d, A a, B by) {
    const unsigned n = as<unsigned>(by), last = 8u * sizeof(T) - 1u;
    const T v = as<T>(a);
    put(d, n > last ? (v < T(0) ? (T)~T(0) : T(0)) : (T)(v >> n));
}
// Of a product of twice the size.
template <typename T, typename D, typename A, typename B> PORT_FN void mul_wide(D& d, A a, B b) {
    using W = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
    if constexpr (sizeof(T) == 4) {
        put(d, (W)as<T>(a) * (W)as<T>(b));
    } else {
        put(d, (std::conditional_t<std::is_signed_v<T>, int, unsigned>)(as<T>(a) * as<T>(b)));
    }
}
#define PORT_PTX(name, expression)                                                                                              \
    template <typename T, typename D, typename A, typename B, typename C> PORT_FN void name(D& d, A first, B second, C third) { \
        const T a = as<T>(first), b = as<T>(second), c = as<T>(third);                                                          \
        put(d, (T)(expression));                                                                                                \
    }
PORT_PTX(mad_lo, a * b + c)
PORT_PTX(mad_hi, high_product(a, b) + c)
PORT_PTX(fma, cuda_port::fma(a, b, c))
PORT_PTX(prmt, permute(a, b, c))
PORT_PTX(dp4a, __dp4a(a, b, c))
PORT_PTX(sad, c + (a < b ? b - a : a - b))
#undef PORT_PTX
// Bit i of the result is bit a_i * 4 + b_i * 2 + c_i of the table.
template <typename D, typename A, typename B, typename C> PORT_FN void lop3(D& d, A first, B second, C third, unsigned table) {
    const unsigned a = as<unsigned>(first), b = as<unsigned>(second), c = as<unsigned>(third);
    unsigned result = 0;
    for (unsigned i = 0; i < 8; ++i) {
        if (table >> i & 1u) result |= (i & 4u ? a : ~a) & (i & 2u ? b : ~b) & (i & 1u ? c : ~c);
    }
    put(d, result);
}
template <bool RIGHT, bool CLAMP, typename D, typename A, typename B, typename C> PORT_FN void shf(D& d, A low, B high, C by) {
    const unsigned l = as<unsigned>(low), h = as<unsigned>(high), n = as<unsigned>(by);
    put(d, RIGHT ? (CLAMP ? __funnelshift_rc(l, h, n) : __funnelshift_r(l, h, n)) : CLAMP ? __funnelshift_lc(l, h, n) : __funnelshift_l(l, h, n));
}
// A field of `length` bits from `position` on; of signed types its highest bit goes on.
template <typename T, typename D, typename A, typename P, typename L> PORT_FN void bfe(D& d, A a, P position, L length) {
    const T v = as<T>(a);
    constexpr unsigned BITS = 8u * sizeof(T);
    const unsigned at = as<unsigned>(position) & 0xffu, n = as<unsigned>(length) & 0xffu;
    const bool sign = v < T(0) || std::is_signed_v<T>;
    if (n == 0) return put(d, T(0));
    T field = 0;
    const unsigned top = at + n - 1u < BITS - 1u ? at + n - 1u : BITS - 1u;
    const bool fill = sign && (v >> top & T(1));
    for (unsigned i = 0; i < BITS; ++i) {
        const bool bit = i < n && at + i < BITS ? (v >> (at + i) & T(1)) != 0 : fill;
        if (bit) field |= (T)((typename bits<sizeof(T)>::type)1 << i);
    }
    put(d, field);
}
template <typename T, typename D, typename A, typename B, typename P, typename L> PORT_FN void bfi(D& d, A a, B b, P position, L length) {
    constexpr unsigned BITS = 8u * sizeof(T);
    const unsigned at = as<unsigned>(position) & 0xffu, n = as<unsigned>(length) & 0xffu;
    T field = as<T>(b);
    for (unsigned i = 0; i < n && at + i < BITS; ++i) field = (field & ~((T)1 << (at + i))) | ((as<T>(a) >> i & (T)1) << (at + i));
    put(d, field);
}

// Half precision: T is __half or __nv_bfloat16, or a pair of them.
#define PORT_PTX(name, function)                                                                               \
    template <typename T, typename D, typename A, typename B> PORT_FN void name(D& d, A a, B b) {              \
        put(d, function(as<T>(a), as<T>(b)));                                                                  \
    }
PORT_PTX(half_add, operator+)
PORT_PTX(half_sub, operator-)
PORT_PTX(half_mul, operator*)
PORT_PTX(half_min, half_least)
PORT_PTX(half_max, half_most)
#undef PORT_PTX
template <typename T, typename D, typename A, typename B, typename C> PORT_FN void half_fma(D& d, A a, B b, C c) {
    put(d, half_fused(as<T>(a), as<T>(b), as<T>(c)));
}
#define PORT_PTX(name, one)                                                                     \
    template <typename T, typename D, typename A> PORT_FN void name(D& d, A a) {                \
        put(d, each(as<T>(a), [](auto v) { return one(v); }));                                  \
    }
PORT_PTX(half_neg, __hneg)
PORT_PTX(half_abs, __habs)
PORT_PTX(half_ex2, hexp2)
PORT_PTX(half_tanh, htanh)
#undef PORT_PTX

// Conversions. Pairs have the high one first.
template <typename D, typename A> PORT_FN void cvt_f32_f16(D& d, A a) { put(d, __half2float(as<__half>(a))); }
template <typename D, typename A> PORT_FN void cvt_f32_bf16(D& d, A a) { put(d, __bfloat162float(as<__nv_bfloat16>(a))); }
template <typename T, port::rounding R, typename D, typename A> PORT_FN void cvt_half_f32(D& d, A a) {
    put(d, port::of_bits<T>(T::port_format::template narrow<R>(as<float>(a))));
}
template <typename T, port::rounding R, bool RELU, typename D, typename A, typename B> PORT_FN void cvt_halves_f32(D& d, A high, B low) {
    const T h = port::of_bits<T>(T::port_format::template narrow<R>(as<float>(high)));
    const T l = port::of_bits<T>(T::port_format::template narrow<R>(as<float>(low)));
    put(d, (unsigned)(RELU ? port::rectified(h) : h).__x << 16 | (RELU ? port::rectified(l) : l).__x);
}
template <__nv_fp8_interpretation_t K, typename D, typename A> PORT_FN void cvt_fp8x2_f16x2(D& d, A a) {
    put(d, __nv_cvt_halfraw2_to_fp8x2(as<__half2_raw>(a), __NV_SATFINITE, K));
}
template <__nv_fp8_interpretation_t K, typename D, typename A, typename B> PORT_FN void cvt_fp8x2_f32(D& d, A high, B low) {
    put(d, __nv_cvt_float2_to_fp8x2(float2{as<float>(low), as<float>(high)}, __NV_SATFINITE, K));
}
template <__nv_fp8_interpretation_t K, typename D, typename A> PORT_FN void cvt_f16x2_fp8x2(D& d, A a) {
    put(d, __nv_cvt_fp8x2_to_halfraw2(as<unsigned short>(a), K));
}
// To tf32: ten bits of mantissa, halves away from zero.
template <typename D, typename A> PORT_FN void cvt_rna_tf32_f32(D& d, A a) {
    const unsigned v = as<unsigned>(a);
    put(d, (v & 0x7f800000u) == 0x7f800000u ? v : (v + 0x1000u) & 0xffffe000u);
}
// Between numbers; floats to integers by mode, ending at the range's ends.
template <typename To, typename From, port::rounding R, bool SAT, typename D, typename A> PORT_FN void cvt(D& d, A a) {
    const From v = as<From>(a);
    if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
        put_number(d, port::to_integer<To>(port::whole<R>(v)));
    } else if constexpr (std::is_integral_v<To> && std::is_integral_v<From> && SAT) {
        const __int128 wide = v, least = std::numeric_limits<To>::lowest(), most = std::numeric_limits<To>::max();
        put_number(d, (To)(wide < least ? least : wide > most ? most : wide));
    } else if constexpr (std::is_same_v<To, float> && std::is_same_v<From, double>) {
        put_number(d, port::float_of<R>(v));
    } else if constexpr (std::is_same_v<To, float> && std::is_same_v<From, float>) {
        put_number(d, SAT ? __saturatef(v) : v);
    } else {
        put_number(d, (To)v);
    }
}
template <typename T, port::rounding R, typename D, typename A> PORT_FN void cvt_whole(D& d, A a) { put(d, port::whole<R>(as<T>(a))); }

// Predicates, choices, warps.
#define PORT_PTX(name, op)                                                                              \
    template <typename T, typename A, typename B> PORT_FN void setp_##name(bool& p, A a, B b) {         \
        p = as<T>(a) op as<T>(b);                                                                       \
    }
PORT_PTX(eq, ==)
PORT_PTX(ne, !=)
PORT_PTX(lt, <)
PORT_PTX(le, <=)
PORT_PTX(gt, >)
PORT_PTX(ge, >=)
#undef PORT_PTX
template <typename T, typename D, typename A, typename B> PORT_FN void selp(D& d, A a, B b, bool p) { put(d, p ? as<T>(a) : as<T>(b)); }

// The operand c holds the clamp and the segment's mask, as PTX has them; what is read from outside is one's own.
namespace detail {
PORT_FN unsigned width_of(unsigned c) { return 32u - (c >> 8 & 31u); }
}  // namespace detail
#define PORT_PTX(name, which)                                                                                             \
    template <typename D, typename A, typename B, typename C, typename M>                                                 \
    PORT_FN void shfl_sync_##name(D& d, A a, B b, C c, M mask) {                                                          \
        put(d, port::shuffle(as<unsigned>(mask), as<unsigned>(a), port::which(as<unsigned>(b), detail::width_of(as<unsigned>(c))))); \
    }                                                                                                                     \
    template <typename D, typename A, typename B, typename C, typename M>                                                 \
    PORT_FN void shfl_sync_##name(D& d, bool& p, A a, B b, C c, M mask) {                                                 \
        const port::target from = port::which(as<unsigned>(b), detail::width_of(as<unsigned>(c)));                        \
        p = from.inside;                                                                                                  \
        put(d, port::shuffle(as<unsigned>(mask), as<unsigned>(a), from));                                                 \
    }
PORT_PTX(bfly, shuffle_xor)
PORT_PTX(idx, shuffle_idx)
PORT_PTX(up, shuffle_up)
PORT_PTX(down, shuffle_down)
#undef PORT_PTX
template <typename D> PORT_FN void activemask(D& d) { put(d, __activemask()); }
template <typename D, typename M> PORT_FN void vote_sync_ballot(D& d, bool p, M mask) { put(d, __ballot_sync(as<unsigned>(mask), p)); }
template <typename M> PORT_FN void vote_sync_any(bool& d, bool p, M mask) { d = __any_sync(as<unsigned>(mask), p) != 0; }
template <typename M> PORT_FN void vote_sync_all(bool& d, bool p, M mask) { d = __all_sync(as<unsigned>(mask), p) != 0; }
template <typename M> PORT_FN void bar_warp_sync(M mask) { __syncwarp(as<unsigned>(mask)); }
// Of the whole block, by any number.
template <typename N> PORT_FN void bar_sync(N) { port::barrier(1); }
PORT_FN void trap() { __trap(); }
PORT_FN void nothing() {}
template <typename... A> PORT_FN void nothing(A...) {}
template <typename A> PORT_FN void nanosleep(A) { __nanosleep(0); }

}  // namespace ptx
}  // namespace cuda_port

#endif
