// Functions that device.h's mathematics lacks: parts of numbers, remainders, powers of other bases, inverses of the
// trigonometric and hyperbolic functions. Included by functions.h, which gives them their names.
#ifndef CANDLE_ROCM_PORT_ELEMENTARY_H
#define CANDLE_ROCM_PORT_ELEMENTARY_H

namespace cuda_port {
namespace port {

namespace m = device::math;

// What a float is made of.
template <typename F> struct layout;
template <> struct layout<float> {
    using bits = unsigned;
    static constexpr int MANTISSA = 23, BIAS = 127, TOP = 255;
};
template <> struct layout<double> {
    using bits = unsigned long long;
    static constexpr int MANTISSA = 52, BIAS = 1023, TOP = 2047;
};
template <typename F> PORT_FN typename layout<F>::bits bits_of(F x) { return __builtin_bit_cast(typename layout<F>::bits, x); }
template <typename F> PORT_FN F from_bits(typename layout<F>::bits b) { return __builtin_bit_cast(F, b); }
template <typename F> PORT_FN typename layout<F>::bits magnitude_bits(F x) { return bits_of(x) & ~((typename layout<F>::bits)1 << (8 * sizeof(F) - 1)); }
template <typename F> PORT_FN bool sign_of(F x) { return bits_of(x) >> (8 * sizeof(F) - 1); }
template <typename F> PORT_FN bool is_nan(F x) { return magnitude_bits(x) > (typename layout<F>::bits)layout<F>::TOP << layout<F>::MANTISSA; }
template <typename F> PORT_FN bool is_infinite(F x) { return magnitude_bits(x) == (typename layout<F>::bits)layout<F>::TOP << layout<F>::MANTISSA; }

PORT_FN float larger(float x, float y) { return __builtin_fmaxf(x, y); }
PORT_FN double larger(double x, double y) { return __builtin_fmax(x, y); }
PORT_FN float smaller(float x, float y) { return __builtin_fminf(x, y); }
PORT_FN double smaller(double x, double y) { return __builtin_fmin(x, y); }

// The integer that a whole number is, at the end of the range if it lies beyond; of NaN the smallest of signed 64 bits,
// and 0 of others, as CUDA has it.
template <typename I, typename F> PORT_FN I to_integer(F x) {
    constexpr I LOWEST = std::numeric_limits<I>::lowest(), LARGEST = std::numeric_limits<I>::max();
    if (is_nan(x)) return sizeof(I) == 8 || sizeof(F) == 8 ? (std::is_signed_v<I> ? LOWEST : (I)((I)1 << (8 * sizeof(I) - 1))) : 0;
    if (x <= (F)LOWEST) return LOWEST;
    // Of the largest, the float may be the number behind it.
    if (x >= (F)LARGEST) return LARGEST;
    return (I)x;
}

// x * 2^n
template <typename F> PORT_FN F scale(F x, long n) { return m::ldexp(x, n < -5000 ? -5000 : n > 5000 ? 5000 : (int)n); }

// x = f * 2^e with f in [1/2, 1)
template <typename F> PORT_FN F frexp(F x, int* exponent) {
    using L = layout<F>;
    *exponent = 0;
    if (x == 0 || is_nan(x) || is_infinite(x)) return x;
    const bool denormal = magnitude_bits(x) < (typename L::bits)1 << L::MANTISSA;
    const F normal = denormal ? x * from_bits<F>((typename L::bits)(L::BIAS + L::MANTISSA + 1) << L::MANTISSA) : x;
    const typename L::bits bits = bits_of(normal);
    *exponent = (int)(bits >> L::MANTISSA & L::TOP) - (L::BIAS - 1) - (denormal ? L::MANTISSA + 1 : 0);
    const typename L::bits field = (typename L::bits)L::TOP << L::MANTISSA;
    return from_bits<F>((bits & ~field) | (typename L::bits)(L::BIAS - 1) << L::MANTISSA);
}
template <typename F> PORT_FN int ilogb(F x) {
    if (x == 0 || is_nan(x)) return -2147483647 - 1;
    if (is_infinite(x)) return 2147483647;
    int exponent;
    frexp(x, &exponent);
    return exponent - 1;
}
template <typename F> PORT_FN F logb(F x) {
    if (is_nan(x) || is_infinite(x)) return x * x;
    return x == 0 ? -m::infinity(x) : (F)ilogb(x);
}
template <typename F> PORT_FN F modf(F x, F* whole) {
    *whole = m::trunc(x);
    return m::copysign(is_infinite(x) ? F(0) : x - *whole, x);
}
template <typename F> PORT_FN F nextafter(F x, F y) {
    using B = typename layout<F>::bits;
    if (is_nan(x) || is_nan(y)) return x + y;
    if (x == y) return y;
    if (x == 0) return m::copysign(from_bits<F>(1), y);
    return from_bits<F>((x < y) == (x > 0) ? bits_of(x) + (B)1 : bits_of(x) - (B)1);
}

// The remainder of |x| by |y|, exactly, and the last bits of the quotient: long division of the mantissas.
template <typename F> PORT_FN F long_division(F x, F y, unsigned* quotient) {
    using L = layout<F>;
    using B = typename L::bits;
    const auto split = [](F v, int* exponent) {
        const B bits = magnitude_bits(v);
        const int e = (int)(bits >> L::MANTISSA);
        const B mantissa = bits & (((B)1 << L::MANTISSA) - 1u);
        *exponent = e == 0 ? 1 : e;
        return e == 0 ? mantissa : mantissa | (B)1 << L::MANTISSA;
    };
    int ex, ey;
    B mx = split(x, &ex);
    const B my = split(y, &ey);
    *quotient = 0;
    if (ex < ey) return m::abs(x);
    for (int step = ex - ey;; --step) {
        *quotient <<= 1;
        if (mx >= my) {
            mx -= my;
            *quotient |= 1u;
        }
        if (step == 0) break;
        mx <<= 1;
    }
    // mx < 2^(MANTISSA + 1), in units of 2^(ey - BIAS - MANTISSA).
    return m::ldexp((F)mx, ey - L::BIAS - L::MANTISSA);
}
template <typename F> PORT_FN F fmod(F x, F y) {
    if (is_nan(x) || is_nan(y) || is_infinite(x) || y == 0) return m::nan(x);
    if (is_infinite(y) || x == 0) return x;
    unsigned quotient;
    return m::copysign(long_division(x, y, &quotient), x);
}
// By the nearest quotient, of two the even one; `quotient`, if wanted, gets its sign and last bits.
template <typename F> PORT_FN F remainder(F x, F y, int* quotient) {
    if (quotient) *quotient = 0;
    if (is_nan(x) || is_nan(y) || is_infinite(x) || y == 0) return m::nan(x);
    if (is_infinite(y) || x == 0) return x;
    unsigned q;
    F rest = long_division(x, y, &q);
    const F divisor = m::abs(y), beyond = divisor - rest;
    if (rest > beyond || (rest == beyond && (q & 1u))) {
        rest = -beyond;
        ++q;
    }
    if (quotient) *quotient = (sign_of(x) != sign_of(y) ? -1 : 1) * (int)(q & 0x7fffffffu);
    return sign_of(x) ? -rest : rest;
}

PORT_FN float exp2(float x) { return port::device::exp2_whole(x); }
PORT_FN double exp2(double x) {
    if (!(m::abs(x) < 1100.0)) return is_nan(x) ? x : x > 0 ? m::infinity(x) : 0.0;
    const double k = m::rint(x);
    return m::ldexp(m::exp((x - k) * 0x1.62e42fefa39efp-1), (int)k);
}
PORT_FN double exp10(double x) {
    if (!(m::abs(x) < 400.0)) return is_nan(x) ? x : x > 0 ? m::infinity(x) : 0.0;
    // k log10(2) from x, of which the head has 40 bits.
    const double k = m::rint(x * 0x1.a934f0979a371p+1);
    const double r = m::fma(k, -0x1.9fef311f12b36p-42, m::fma(k, -0x1.34413509f6p-2, x));
    return m::ldexp(m::exp(r * 0x1.26bb1bbb55516p+1), (int)k);
}
PORT_FN float exp10(float x) { return (float)exp10((double)x); }

PORT_FN float log2(float x) { return __builtin_log2f(x); }
PORT_FN double log2(double x) {
    if (!(x > 0.0) || is_infinite(x)) return m::log(x);
    const m::SplitD s = m::log_split(x);
    const double l = m::log(s.m);
    return s.k + m::fma(l, 0x1.71547652b82fep+0, l * 0x1.777d0ffda0d24p-56);
}
PORT_FN double log10(double x) {
    if (!(x > 0.0) || is_infinite(x)) return m::log(x);
    const m::SplitD s = m::log_split(x);
    const double l = m::log(s.m);
    return m::fma(s.k, 0x1.34413509f6p-2, m::fma(s.k, 0x1.9fef311f12b36p-42, l * 0x1.bcb7b1526e50ep-2));
}
PORT_FN float log10(float x) { return (float)log10((double)x); }
template <typename F> PORT_FN F log1p(F x) {
    if (is_infinite(x) && x > 0) return x;
    const F whole = F(1) + x;
    // What rounding took from 1 + x is put right to first order.
    return whole == F(1) ? x : whole > F(0) ? m::log(whole) + (x - (whole - F(1))) / whole : m::log(whole);
}

template <typename F> PORT_FN F tan(F x) {
    if (x == F(0)) return x;
    const auto a = m::angle(x);
    const F sine = m::sin_in_quadrant(a.r), cosine = m::cos_in_quadrant(a.r);
    return a.quadrant & 1u ? -cosine / sine : sine / cosine;
}
// Of x times pi: a half turn more or less changes only the sign.
template <typename F> PORT_FN F sinpi(F x) {
    if (is_nan(x) || is_infinite(x)) return m::nan(x);
    if (m::abs(x) >= F(sizeof(F) == 4 ? 0x1p23 : 0x1p52)) return m::copysign(F(0), x);
    const F halves = m::rint(F(2) * x);
    const F r = (x - F(0.5) * halves) * F(0x1.921fb54442d18p+1);
    const unsigned quadrant = (unsigned)(long long)halves & 3u;
    const F magnitude = quadrant & 1u ? m::cos_in_quadrant(r) : m::sin_in_quadrant(r);
    return magnitude == F(0) ? m::copysign(F(0), x) : quadrant & 2u ? -magnitude : magnitude;
}
template <typename F> PORT_FN F cospi(F x) {
    if (is_nan(x) || is_infinite(x)) return m::nan(x);
    if (m::abs(x) >= F(sizeof(F) == 4 ? 0x1p24 : 0x1p53)) return F(1);
    const F halves = m::rint(F(2) * x);
    const F r = (x - F(0.5) * halves) * F(0x1.921fb54442d18p+1);
    const unsigned quadrant = (unsigned)(long long)halves & 3u;
    const F magnitude = quadrant & 1u ? m::sin_in_quadrant(r) : m::cos_in_quadrant(r);
    return magnitude == F(0) ? F(0) : (quadrant + 1u) & 2u ? -magnitude : magnitude;
}

// atan(x) for x in [0, 1]: the nearest eighth's, and that of (x - c) / (1 + x c), which is at most 1/16, by its series.
template <typename F> PORT_FN F atan_to_one(F x) {
    static constexpr double EIGHTHS[] = {0.0, 0x1.fd5ba9aac2f6ep-4, 0x1.f5b75f92c80ddp-3, 0x1.6f61941e4def1p-2, 0x1.dac670561bb4fp-2,
                                         0x1.1e00babdefeb4p-1, 0x1.4978fa3269ee1p-1, 0x1.700a7c5784634p-1, 0x1.921fb54442d18p-1};
    const int k = (int)(x * F(8) + F(0.5));
    const F c = F(k) * F(0.125);
    const F t = (x - c) / (F(1) + x * c);
    const F z = t * t;
    const F tail = sizeof(F) == 4 ? m::polynomial(z, F(-1.0 / 3), F(1.0 / 5), F(-1.0 / 7))
                                  : m::polynomial(z, F(-1.0 / 3), F(1.0 / 5), F(-1.0 / 7), F(1.0 / 9), F(-1.0 / 11), F(1.0 / 13), F(-1.0 / 15));
    return F(EIGHTHS[k]) + m::fma(t * z, tail, t);
}
template <typename F> PORT_FN F atan(F x) {
    const F a = m::abs(x);
    if (is_nan(x)) return x;
    return m::copysign(a > F(1) ? F(0x1.921fb54442d18p+0) - atan_to_one(F(1) / a) : atan_to_one(a), x);
}
template <typename F> PORT_FN F atan2(F y, F x) {
    if (is_nan(x) || is_nan(y)) return x + y;
    const F a = m::abs(x), b = m::abs(y);
    const F least = a < b ? a : b, most = a < b ? b : a;
    // Of equals, infinities too, an eighth of a turn.
    const F ratio = least == most ? (most == F(0) ? F(0) : F(1)) : least / most;
    F angle = atan_to_one(ratio);
    if (b > a) angle = F(0x1.921fb54442d18p+0) - angle;
    if (sign_of(x)) angle = F(0x1.921fb54442d18p+1) - angle;
    return m::copysign(angle, y);
}
// (1 - x) (1 + x) is exact enough where 1 - x² is not.
template <typename F> PORT_FN F asin(F x) { return m::abs(x) > F(1) ? m::nan(x) : atan2(x, m::sqrt((F(1) - x) * (F(1) + x))); }
template <typename F> PORT_FN F acos(F x) { return m::abs(x) > F(1) ? m::nan(x) : atan2(m::sqrt((F(1) - x) * (F(1) + x)), x); }

template <typename F> PORT_FN F sinh(F x) {
    const F a = m::abs(x);
    // Beyond, exp(a) overflows before sinh does.
    if (a > F(sizeof(F) == 4 ? 88.0 : 709.0)) {
        const F half = m::exp(F(0.5) * a);
        return m::copysign(F(0.5) * half * half, x);
    }
    const F less = m::expm1(a);
    return m::copysign(F(0.5) * (less + less / (less + F(1))), x);
}
template <typename F> PORT_FN F cosh(F x) {
    const F a = m::abs(x);
    const F half = m::exp(F(0.5) * a);
    if (a > F(sizeof(F) == 4 ? 88.0 : 709.0)) return F(0.5) * half * half;
    const F power = m::exp(a);
    return F(0.5) * power + F(0.5) / power;
}
template <typename F> PORT_FN F asinh(F x) {
    const F a = m::abs(x);
    if (!(a < F(sizeof(F) == 4 ? 0x1p30 : 0x1p60))) return is_nan(x) ? x : m::copysign(m::log(a) + F(0x1.62e42fefa39efp-1), x);
    const F square = a * a;
    return m::copysign(log1p(a + square / (F(1) + m::sqrt(F(1) + square))), x);
}
template <typename F> PORT_FN F acosh(F x) {
    if (!(x >= F(1))) return m::nan(x);
    if (x > F(sizeof(F) == 4 ? 0x1p30 : 0x1p60)) return m::log(x) + F(0x1.62e42fefa39efp-1);
    const F t = x - F(1);
    return log1p(t + m::sqrt(F(2) * t + t * t));
}
template <typename F> PORT_FN F atanh(F x) {
    const F a = m::abs(x);
    if (!(a <= F(1))) return m::nan(x);
    if (a == F(1)) return m::copysign(m::infinity(x), x);
    return m::copysign(F(0.5) * log1p(F(2) * a / (F(1) - a)), x);
}

PORT_FN double cbrt(double x) {
    if (x == 0 || is_nan(x) || is_infinite(x)) return x;
    const double a = m::abs(x);
    double y = m::exp(m::log(a) * (1.0 / 3));
    // One step of Newton's puts the last places right; the cube is near a, so nothing overflows.
    y -= m::fma(y * y, y, -a) / (3.0 * y * y);
    return m::copysign(y, x);
}
PORT_FN float cbrt(float x) { return (float)cbrt((double)x); }
PORT_FN float hypot(float x, float y) {
    if (is_infinite(x) || is_infinite(y)) return m::infinity(x);
    return (float)m::sqrt((double)x * x + (double)y * y);
}
PORT_FN double hypot(double x, double y) {
    if (is_infinite(x) || is_infinite(y)) return m::infinity(x);
    const double a = larger(m::abs(x), m::abs(y)), b = smaller(m::abs(x), m::abs(y));
    if (is_nan(x) || is_nan(y)) return x + y;
    if (a == 0) return 0;
    // Scaled, so that squares neither overflow nor vanish.
    int exponent;
    frexp(a, &exponent);
    const double p = m::ldexp(a, -exponent), q = m::ldexp(b, -exponent);
    return m::ldexp(m::sqrt(m::fma(p, p, q * q)), exponent);
}

}  // namespace port
}  // namespace cuda_port

#endif
