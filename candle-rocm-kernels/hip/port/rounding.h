// Conversions in all rounding modes: between integers, float and double, and to the 16-bit floats. Included by cuda.h.
#ifndef CANDLE_ROCM_PORT_ROUNDING_H
#define CANDLE_ROCM_PORT_ROUNDING_H

namespace cuda_port {
namespace port {

enum rounding { NEAREST, ZERO, UP, DOWN };

// The float next to x toward zero, with its last bit set if x is none: whatever rounds it to less digits gets what it
// would get from x.
PORT_FN float to_odd(double x) {
    const float head = (float)x;
    if (is_nan(x) || (double)head == x) return head;
    const unsigned long long magnitude = magnitude_bits(x);
    const unsigned bits = magnitude_bits((double)head) > magnitude ? bits_of(head) - 1u : bits_of(head);
    return from_bits<float>(bits | 1u);
}
template <typename I> PORT_FN float to_odd(I x) {
    static_assert(std::is_integral_v<I>, "of integers");
    const bool negative = x < I(0);
    const unsigned long long magnitude = negative ? 0ull - (unsigned long long)x : (unsigned long long)x;
    const int excess = 40 - (magnitude ? __builtin_clzll(magnitude) : 64);
    float head = (float)magnitude;
    if (excess > 0) {
        const unsigned long long lost = magnitude & ((1ull << excess) - 1ull);
        head = m::ldexp((float)((unsigned)(magnitude >> excess) | (lost ? 1u : 0u)), excess);
    }
    return negative ? -head : head;
}

// a + b, or a b + c, in double with the same property, for what is then rounded to a float or less.
PORT_FN double odd_sum(double a, double b) {
    const double sum = a + b;
    if (is_nan(sum) || is_infinite(sum)) return sum;
    const double part = sum - a;
    const double lost = (a - (sum - part)) + (b - part);
    if (lost == 0 || (bits_of(sum) & 1u)) return sum;
    // One toward what was lost.
    return from_bits<double>((lost > 0) == (sum > 0) ? bits_of(sum) + 1u : bits_of(sum) - 1u);
}

// From magnitudes: what is cut off, and the part of it that is lost.
struct cut {
    unsigned code;
    bool inexact;
};
PORT_FN cut cut_f16(unsigned magnitude) {
    if (magnitude >= 0x7f800000u) return {0x7c00u, false};
    if (magnitude >= 0x47800000u) return {0x7bffu, true};
    if (magnitude >= 0x38800000u) return {(magnitude >> 13) - (112u << 10), (magnitude & 0x1fffu) != 0};
    const unsigned exponent = magnitude >> 23;
    const unsigned shift = 126u - exponent, mantissa = (magnitude & 0x7fffffu) | (exponent ? 0x800000u : 0u);
    return shift > 24u ? cut{0, magnitude != 0} : cut{mantissa >> shift, (mantissa & ((1u << shift) - 1u)) != 0};
}
PORT_FN cut cut_bf16(unsigned magnitude) { return {magnitude >> 16, (magnitude & 0xffffu) != 0}; }

template <rounding R> PORT_FN unsigned short directed(float x, cut c) {
    const bool negative = sign_of(x);
    const bool away = R == UP ? !negative : R == DOWN ? negative : false;
    return (unsigned short)((negative ? 0x8000u : 0u) | (c.code + (away && c.inexact ? 1u : 0u)));
}
// The formats of 16 bits: to and from float.
struct format_f16 {
    static constexpr unsigned short INF = 0x7c00, NAN_BITS = 0x7fff, ONE = 0x3c00;
    static PORT_FN float widen(unsigned short b) { return port::device::f16_to_float(b); }
    template <rounding R> static PORT_FN unsigned short narrow(float x) {
        if (R == NEAREST) return port::device::float_to_f16(x);
        return is_nan(x) ? NAN_BITS : directed<R>(x, cut_f16(magnitude_bits(x)));
    }
};
struct format_bf16 {
    static constexpr unsigned short INF = 0x7f80, NAN_BITS = 0x7fff, ONE = 0x3f80;
    static PORT_FN float widen(unsigned short b) { return __builtin_bit_cast(float, (unsigned)b << 16); }
    template <rounding R> static PORT_FN unsigned short narrow(float x) {
        if (R == NEAREST) return port::device::float_to_bf16(x);
        return is_nan(x) ? NAN_BITS : directed<R>(x, cut_bf16(magnitude_bits(x)));
    }
};

// A whole number of a float, by mode.
template <rounding R, typename F> PORT_FN F whole(F x) {
    return R == NEAREST ? m::rint(x) : R == UP ? m::ceil(x) : R == DOWN ? m::floor(x) : m::trunc(x);
}
// A float by mode from one rounded to odd, and from numbers.
template <rounding R> PORT_FN float float_of(double x) {
    const float nearest = (float)x;
    if (R == NEAREST || is_nan(x) || (double)nearest == x) return nearest;
    const bool above = (double)nearest > x;
    const bool want_above = R == UP || (R == ZERO && sign_of(x));
    if (above == want_above) return nearest;
    const bool larger_magnitude = want_above != sign_of(x);
    // From zero, too: its neighbour has the sign of x.
    const unsigned bits = nearest == 0 ? (sign_of(x) ? 0x80000000u : 0u) : bits_of(nearest);
    return from_bits<float>(larger_magnitude ? bits + 1u : bits - 1u);
}
template <rounding R, typename I> PORT_FN float float_of_integer(I x) {
    if (R == NEAREST) return (float)x;
    // Rounded to odd it has 24 digits that may not all be right: the neighbours of the exact number decide.
    const float nearest = (float)x;
    const bool saturated = nearest >= m::ldexp(1.0f, 63 + (std::is_unsigned_v<I> ? 1 : 0));
    const bool above = saturated || (I)nearest > x;
    const bool exact = !saturated && (I)nearest == x;
    const bool want_above = R == UP || (R == ZERO && x < I(0));
    if (exact || above == want_above) return nearest;
    return from_bits<float>(want_above != (nearest < 0) ? bits_of(nearest) + 1u : bits_of(nearest) - 1u);
}
template <rounding R> PORT_FN float add(float x, float y) { return R == NEAREST ? x + y : float_of<R>(odd_sum(x, y)); }
template <rounding R> PORT_FN float multiply(float x, float y) { return R == NEAREST ? x * y : float_of<R>((double)x * y); }
template <rounding R> PORT_FN float multiply_add(float x, float y, float z) {
    return R == NEAREST ? m::fma(x, y, z) : float_of<R>(odd_sum((double)x * y, z));
}
template <rounding R, typename I> PORT_FN double double_of_integer(I x) {
    const double nearest = (double)x;
    if (R == NEAREST) return nearest;
    const bool saturated = nearest >= m::ldexp(1.0, 63 + (std::is_unsigned_v<I> ? 1 : 0));
    const bool above = saturated || (I)nearest > x;
    const bool exact = !saturated && (I)nearest == x;
    const bool want_above = R == UP || (R == ZERO && x < I(0));
    if (exact || above == want_above) return nearest;
    return from_bits<double>(want_above != (nearest < 0) ? bits_of(nearest) + 1ull : bits_of(nearest) - 1ull);
}

}  // namespace port

#define PORT_MODES(one) one(_rn, NEAREST) one(_rz, ZERO) one(_ru, UP) one(_rd, DOWN)
#define PORT_TO_INTEGERS(mode, R)                                                                                          \
    PORT_FN int __float2int##mode(float x) { return port::to_integer<int>(port::whole<port::R>(x)); }                      \
    PORT_FN unsigned __float2uint##mode(float x) { return port::to_integer<unsigned>(port::whole<port::R>(x)); }           \
    PORT_FN long long __float2ll##mode(float x) { return port::to_integer<long long>(port::whole<port::R>(x)); }           \
    PORT_FN unsigned long long __float2ull##mode(float x) { return port::to_integer<unsigned long long>(port::whole<port::R>(x)); } \
    PORT_FN int __double2int##mode(double x) { return port::to_integer<int>(port::whole<port::R>(x)); }                    \
    PORT_FN unsigned __double2uint##mode(double x) { return port::to_integer<unsigned>(port::whole<port::R>(x)); }         \
    PORT_FN long long __double2ll##mode(double x) { return port::to_integer<long long>(port::whole<port::R>(x)); }         \
    PORT_FN unsigned long long __double2ull##mode(double x) { return port::to_integer<unsigned long long>(port::whole<port::R>(x)); } \
    PORT_FN float __double2float##mode(double x) { return port::float_of<port::R>(x); }                                    \
    PORT_FN float __int2float##mode(int x) { return port::float_of<port::R>((double)x); }                                  \
    PORT_FN float __uint2float##mode(unsigned x) { return port::float_of<port::R>((double)x); }                            \
    PORT_FN float __ll2float##mode(long long x) { return port::float_of_integer<port::R>(x); }                             \
    PORT_FN float __ull2float##mode(unsigned long long x) { return port::float_of_integer<port::R>(x); }                   \
    PORT_FN double __ll2double##mode(long long x) { return port::double_of_integer<port::R>(x); }                          \
    PORT_FN double __ull2double##mode(unsigned long long x) { return port::double_of_integer<port::R>(x); }                \
    PORT_FN float __fadd##mode(float x, float y) { return port::add<port::R>(x, y); }                                      \
    PORT_FN float __fsub##mode(float x, float y) { return port::add<port::R>(x, -y); }                                     \
    PORT_FN float __fmul##mode(float x, float y) { return port::multiply<port::R>(x, y); }                                 \
    PORT_FN float __fmaf##mode(float x, float y, float z) { return port::multiply_add<port::R>(x, y, z); }
PORT_MODES(PORT_TO_INTEGERS)
#undef PORT_TO_INTEGERS
PORT_FN double __int2double_rn(int x) { return x; }
PORT_FN double __uint2double_rn(unsigned x) { return x; }

// Quotients and roots: what the nearest one misses says on which side it lies.
namespace port {
template <rounding R> PORT_FN float stepped(float nearest, double missing) {
    if (R == NEAREST || missing == 0 || is_nan(nearest) || is_infinite(nearest)) return nearest;
    const bool above = missing < 0;
    const bool want_above = R == UP || (R == ZERO && sign_of(nearest));
    if (above == want_above) return nearest;
    return from_bits<float>(want_above != sign_of(nearest) ? bits_of(nearest) + 1u : bits_of(nearest) - 1u);
}
template <rounding R> PORT_FN float divide(float x, float y) {
    const float q = x / y;
    // x - q y, exactly; its sign against that of y is the sign of what q misses.
    const double rest = m::fma(-(double)q, (double)y, (double)x);
    return stepped<R>(q, y < 0 ? -rest : rest);
}
template <rounding R> PORT_FN float root(float x) {
    const float r = m::sqrt(x);
    return stepped<R>(r, m::fma(-(double)r, (double)r, (double)x));
}
}  // namespace port
#define PORT_QUOTIENTS(mode, R)                                                            \
    PORT_FN float __fdiv##mode(float x, float y) { return port::divide<port::R>(x, y); }   \
    PORT_FN float __frcp##mode(float x) { return port::divide<port::R>(1.0f, x); }         \
    PORT_FN float __fsqrt##mode(float x) { return port::root<port::R>(x); }
PORT_MODES(PORT_QUOTIENTS)
#undef PORT_QUOTIENTS
// The nearest; of double, other modes are not there.
PORT_FN float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
PORT_FN float __fmaf_ieee_rn(float x, float y, float z) { return fmaf(x, y, z); }
PORT_FN double __dadd_rn(double x, double y) { return x + y; }
PORT_FN double __dsub_rn(double x, double y) { return x - y; }
PORT_FN double __dmul_rn(double x, double y) { return x * y; }
PORT_FN double __ddiv_rn(double x, double y) { return x / y; }
PORT_FN double __drcp_rn(double x) { return 1.0 / x; }
PORT_FN double __dsqrt_rn(double x) { return sqrt(x); }
PORT_FN double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

}  // namespace cuda_port

#endif
