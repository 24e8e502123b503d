// Functions for results of 16 bits or fewer: from the hardware's 2^x, reciprocal and root, which are good to an ulp of float (2^x on NVIDIA: two).
//
// Each function is within six ulp of float of the exact value, so that a result of f16 rounds to its neighbour once in several thousand, one of
// the others more rarely. Infinities, NaN and denormal results are as from math.h.
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
    const float correction = __builtin_fmaxf(__builtin_fminf(rest, 0.5f), -0.5f);
    return exp2<T>(power) * math::fma(correction, 0x1.62e430p-1f, 1.0f);
}

// 1 / (1 + exp(-x)); the exponential's argument is not positive, so nothing overflows on the way.
template <typename T> DEVICE_FN float sigmoid(float x) {
    const float power = exp<T>(-math::abs(x));
    const float whole = 1.0f + power;
    const float quotient = reciprocal_fast(whole);
    // One step of Newton's.
    const float share = math::fma(quotient, math::fma(-whole, quotient, 1.0f), quotient);
    return x < 0.0f ? power * share : share;
}

template <typename T> DEVICE_FN float tanh(float x) {
    const float square = x * x;
    const float power = exp<T>(-2.0f * math::abs(x));
    const float magnitude = (1.0f - power) * reciprocal_fast(1.0f + power);
    // The difference cancels around 0; there it is Taylor's series.
    const float series = math::polynomial(square, -1.0f / 3, 2.0f / 15, -17.0f / 315, 62.0f / 2835);
    return square < 0.0625f ? math::fma(x * square, series, x) : math::copysign(magnitude, x);
}

// (1 + erf(x / sqrt 2)) / 2, for an x whose square float holds exactly.
template <typename T> DEVICE_FN float normal_distribution(float x) {
    const float a = math::abs(x);
    // erfc(a / sqrt 2) exp(a² / 2) / 2 over (a - 5/2) / (a + 5/2)
    const float u = math::fma(reciprocal_fast(a + 2.5f), -5.0f, 1.0f);
    const float scaled = math::polynomial(u, 0.141331345f, -0.228069827f, 0.113135092f, -0.0245479215f, -0.00511792907f, 0.00294154021f,
                                          0.000800501206f, -0.000329979928f, -0.000155220492f);
    const float tail = exp<T>(-0.5f * a * a) * scaled;
    return x > 0.0f ? 1.0f - tail : tail;
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
