// Functions for results of 16 bits or fewer: from the hardware's 2^x, reciprocal and root, which are good to an ulp of
// float (2^x on NVIDIA: two).
//
// Each function is within six ulp of float of the exact value, so that a result of f16 rounds to its neighbour once in
// several thousand, one of the others more rarely; both GELUs, below -3, within as many ulp as their logarithm.
// Infinities, NaN and denormal results are as from math.h.
#ifndef CANDLE_ROCM_NARROW_H
#define CANDLE_ROCM_NARROW_H

#include "device.h"

namespace device {

template <typename T> constexpr bool NARROW = is_float<T>::value && sizeof(T) <= 2;

namespace narrow {

// 2^x. What is below float's normal values is a result of bf16 and none of the others.
template <typename T> DEVICE_FN float exp2(float x) {
    if constexpr (is_same<T, bf16>::value) return exp2_whole(x);
    return exp2_fast(x);
}

template <typename T> DEVICE_FN float exp(float x) {
    // x log2 e as a rounded product and what rounding took from it, which is no number where the product is none.
    const float power = x * 0x1.715476p+0f;
    const float rest = math::fma(x, 0x1.4ae0cp-26f, math::fma(x, 0x1.715476p+0f, -power));
    float correction = __builtin_fminf(rest, 0.5f);
    // Where the product overflows, which it does for bf16 only, so does what is missing of it.
    if constexpr (is_same<T, bf16>::value) correction = __builtin_fmaxf(correction, -0.5f);
    return exp2<T>(power) * math::fma(correction, 0x1.62e430p-1f, 1.0f);
}

// Rounds to the right bf16 for each one (tried), -0 to 1.
DEVICE_FN float exp_bf16(float x) {
    x = x < -120.0f ? -120.0f : x > 120.0f ? 120.0f : x;
    const float shifted = math::fma(x, 0x1.715476p+0f, 0x1.8p+23f);
    const float k = shifted - 0x1.8p+23f;
    const float r = math::fma(-k, -0x1.05c610p-29f, math::fma(-k, 0x1.62e430p-1f, x));
    const float power = math::polynomial(r, 1.00000012f, 0.999999702f, 0.499988943f, 0.166675746f, 0.0419153832f, 0.0082976548f);
    return math::ldexp(power, bit_cast<i32>(shifted) - 0x4b400000);
}

// 1 / (1 + power), or power / (1 + power) for bf16, for which the reciprocal of a large power is lost; power being of
// -|x| then.
template <typename T> DEVICE_FN float share(float power, float x) {
    const float quotient = reciprocal_fast(1.0f + power);
    if constexpr (is_same<T, bf16>::value) return x < 0.0f ? power * quotient : quotient;
    return quotient;
}
template <typename T> DEVICE_FN float share_exponent(float x) { return is_same<T, bf16>::value ? -math::abs(x) : -x; }

// 1 / (1 + exp(-x))
template <typename T> DEVICE_FN float sigmoid(float x) { return share<T>(exp<T>(share_exponent<T>(x)), x); }
// 1 / (1 + 2^-x)
template <typename T> DEVICE_FN float sigmoid2(float x) { return share<T>(exp2<T>(share_exponent<T>(x)), x); }

template <typename T> DEVICE_FN float tanh(float x) {
    const float square = x * x;
    const float power = exp2_fast(-2.88539008f * math::abs(x));
    const float magnitude = (1.0f - power) * reciprocal_fast(1.0f + power);
    // The difference cancels around 0.
    const float series = math::polynomial(square, -0.33333239f, 0.133242369f, -0.0514300279f);
    return square < 0.0625f ? math::fma(x * square, series, x) : math::copysign(magnitude, x);
}

// (1 + erf(x / sqrt 2)) / 2, for an x whose square float holds exactly.
template <typename T> DEVICE_FN float normal_distribution(float x) {
    const float a = math::abs(x);
    // erfc(a / sqrt 2) exp(a² / 2) / 2 over (a - 5/2) / (a + 5/2)
    const float u = math::fma(reciprocal_fast(a + 2.5f), -5.0f, 1.0f);
    const float scaled = math::polynomial(u, 0.141331345f, -0.228069827f, 0.113135092f, -0.0245479215f, -0.00511792907f, 0.00294154021f,
                                          0.000800501206f, -0.000329979928f, -0.000155220492f);
    const float tail = exp2<T>(a * a * -0.721347520f) * scaled;
    return x > 0.0f ? 1.0f - tail : tail;
}

// sin(x + SHIFT pi/2) for |x| < SIN_LIMIT
template <u32 SHIFT> DEVICE_FN float sin(float x) {
    const auto angle = math::half_turns<SHIFT>(x);
    const float z = angle.r * angle.r;
    return math::signed_sine(angle, math::polynomial(z, 1.0f, -0.166666597f, 0.00833306555f, -0.000198095222f, 2.60559023e-06f));
}

// a / b for f16 and f8e4m3, whose quotients lie well within float's normal numbers: within an ulp. No quotient of two
// of them is as near to where rounding changes, other than on it, where this is exact.
DEVICE_FN float quotient(float a, float b) {
    const float inverse = reciprocal_fast(b);
    const float near = a * inverse;
    const float rest = math::fma(-b, near, a);
    // Infinities leave no number, and zeros keep their sign.
    return math::abs(rest) > 0.0f ? math::fma(rest, inverse, near) : near;
}

// a / b for bf16, as near as it takes to round like the quotient; false where quotient or reciprocal may not be normal
// numbers.
DEVICE_FN bool quotient_bf16(float a, float b, float& quotient) {
    quotient = a * reciprocal_fast(b);
    return math::abs(math::fma(-b, quotient, a)) <= math::abs(a) * 0x1p-20f;
}

// Of the narrow types, only bf16 has values that are denormal in float.
template <typename T> DEVICE_FN float sqrt(float x) {
    if constexpr (is_same<T, bf16>::value) {
        const bool small = x < 0x1p-100f;
        return sqrt_fast(small ? x * 0x1p96f : x) * (small ? 0x1p-48f : 1.0f);
    }
    return sqrt_fast(x);
}

}  // namespace narrow

}  // namespace device

#endif
