// Activation functions of values of T: each takes and gives compute_t<T>; storing rounds the last step.
#ifndef CANDLE_ROCM_ACTIVATION_H
#define CANDLE_ROCM_ACTIVATION_H

#include "narrow.h"

namespace device {

#define FUNCTION(Name, body)                                             \
    template <typename T> struct Name {                                  \
        using C = compute_t<T>;                                          \
        static DEVICE_FN C apply(C x) { body }                           \
    };

// NaN stays.
FUNCTION(Relu, return x <= C(0) ? C(0) : x;)
FUNCTION(Silu,
    if constexpr (NARROW<T>) return x * narrow::sigmoid<T>(x);
    else return x / (C(1) + math::exp(-x));)
// x (1 + erf(x / sqrt 2)) / 2, with 1 + erf(z) = erfc(-z)
FUNCTION(GeluErf,
    if constexpr (NARROW<T>) return x * narrow::normal_distribution<T>(x);
    else if constexpr (is_same<T, float>::value) return x * math::normal_distribution(x);
    else return math::erfc(x * C(-0.70710678118654752440)) * C(0.5) * x;)
// x (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x²))) / 2, with (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z))
FUNCTION(Gelu,
    if constexpr (NARROW<T>) return x * narrow::sigmoid2<T>(x * math::fma(x * x, 0.102943240f, 2.30220819f));
    else return x / (C(1) + math::exp(x * math::fma(x * x, C(-0.071354816272600253), C(-1.5957691216057307118))));)

}  // namespace device

#endif
