// x * mul + add, x to the power e, and ELU.
#include "elementwise.h"

template <typename T> DEVICE_FN void affine(u64 n, const Dims& dims, const Strides& xs, const T* x, T* out, T mul, T add) {
    map<pack_length(sizeof(T))>(n, dims, xs, x, out, [=](T v) -> T { return Arithmetic<T>::add(Arithmetic<T>::mul(v, mul), add); });
}

// The exponent is not rounded to the dtype of small floats.
template <typename T> DEVICE_FN void powf(u64 n, const Dims& dims, const Strides& xs, const T* x, T* out, double exponent) {
    const auto e = (compute_t<T>)exponent;
    // A power is long: half a pack bounds the code that unrolling makes.
    map<pack_length(sizeof(T)) / 2>(n, dims, xs, x, out, [=](T v) -> T { return store<T>(math::pow(load(v), e)); });
}

// The sign bit decides, as on candle's CPU, so -0 and NaN with a sign go through exp. Rounded once, as powf is.
template <typename T> DEVICE_FN void elu(u64 n, const Dims& dims, const Strides& xs, const T* x, T* out, double factor) {
    using C = compute_t<T>;
    const auto alpha = (C)factor;
    map<pack_length(sizeof(T))>(n, dims, xs, x, out, [=](T v) -> T {
        if (math::copysign(C(1), load(v)) > C(0)) return v;
        return store<T>(math::expm1(load(v)) * alpha);
    });
}

#define AFFINE(name, T)                                                                                                                  \
    extern "C" __global__ MAX_BLOCK(256) void affine_##name(u64 n, Dims dims, Strides xs, const T* x, T* out, T mul, T add) {            \
        affine<T>(n, dims, xs, x, out, mul, add);                                                                                        \
    }
#define POWF_ELU(name, T)                                                                                                                \
    extern "C" __global__ MAX_BLOCK(256) void powf_##name(u64 n, Dims dims, Strides xs, const T* x, T* out, double e) {                  \
        powf<T>(n, dims, xs, x, out, e);                                                                                                 \
    }                                                                                                                                    \
    extern "C" __global__ MAX_BLOCK(256) void elu_##name(u64 n, Dims dims, Strides xs, const T* x, T* out, double alpha) {               \
        elu<T>(n, dims, xs, x, out, alpha);                                                                                              \
    }

AFFINE(u8, u8)
AFFINE(u32, u32)
AFFINE(i16, i16)
AFFINE(i32, i32)
AFFINE(i64, i64)
AFFINE(f16, f16)
AFFINE(bf16, bf16)
AFFINE(f32, float)
AFFINE(f64, double)
AFFINE(f8e4m3, f8e4m3)
POWF_ELU(f16, f16)
POWF_ELU(bf16, bf16)
POWF_ELU(f32, float)
POWF_ELU(f64, double)
POWF_ELU(f8e4m3, f8e4m3)
