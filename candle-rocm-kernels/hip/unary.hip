// Functions of one operand. f16, bf16 and f8e4m3 are computed in float and rounded once: candle's CPU rounds after
// every elementary step, which loses up to two bits of bf16 in silu.
#include "activation.h"
#include "elementwise.h"

// exp(6.84375), a bf16, is 0.8 ulp of float away from where rounding changes: too close for the hardware's powers. A
// polynomial, by which each bf16 is rounded as it should be, is shorter than math.h's.
FUNCTION(Exp,
    if constexpr (is_same<T, bf16>::value) return narrow::exp_bf16(x);
    else if constexpr (NARROW<T>) return narrow::exp<T>(x);
    else return math::exp(x);)
FUNCTION(Log, return math::log(x);)
// Short for moderate arguments, which those of f16 and f8e4m3 are.
#define PERIODIC(Name, function, SHIFT)                                                                                        \
    template <typename T> struct Name {                                                                                        \
        using C = compute_t<T>;                                                                                                \
        static constexpr bool ALWAYS_MODERATE = NARROW<T> && !is_same<T, bf16>::value;                                         \
        static DEVICE_FN bool is_moderate(C x) { return math::abs(x) < C(math::SIN_LIMIT); }                                   \
        static DEVICE_FN C moderate(C x) {                                                                                     \
            if constexpr (NARROW<T>) return narrow::sin<SHIFT>(x);                                                             \
            else return math::sin_of_moderate<SHIFT>(x);                                                                       \
        }                                                                                                                      \
        static DEVICE_FN C apply(C x) {                                                                                        \
            if constexpr (ALWAYS_MODERATE) return moderate(x);                                                                 \
            else return math::function(x);                                                                                     \
        }                                                                                                                      \
    };
PERIODIC(Sin, sin, 0)
PERIODIC(Cos, cos, 1)
template <typename F> struct has_moderate { static constexpr bool value = false; };
template <> struct has_moderate<Sin<bf16>> { static constexpr bool value = true; };
template <> struct has_moderate<Cos<bf16>> { static constexpr bool value = true; };
template <> struct has_moderate<Sin<float>> { static constexpr bool value = true; };
template <> struct has_moderate<Cos<float>> { static constexpr bool value = true; };
FUNCTION(Tanh,
    if constexpr (NARROW<T>) return narrow::tanh<T>(x);
    else return math::tanh(x);)
FUNCTION(Neg, return -x;)
FUNCTION(Recip, return C(1) / x;)
FUNCTION(Sqr, return x * x;)
FUNCTION(Sqrt,
    if constexpr (NARROW<T>) return narrow::sqrt<T>(x);
    else return math::sqrt(x);)
FUNCTION(Erf, return math::erf(x);)
FUNCTION(Abs, return math::abs(x);)
FUNCTION(Floor, return math::floor(x);)
FUNCTION(Ceil, return math::ceil(x);)
FUNCTION(Round, return math::round(x);)
FUNCTION(Sign, return C(x > C(0)) - C(x < C(0));)
FUNCTION(Sigmoid,
    if constexpr (NARROW<T>) return narrow::sigmoid<T>(x);
    else return C(1) / (math::exp(-x) + C(1));)

// Long functions take half a pack, to bound the code that unrolling makes.
template <typename T, typename F, u32 SHARE> DEVICE_FN void unary(u64 n, const Dims& dims, const Strides& xs, const T* x, T* out) {
    constexpr u32 N = pack_length(sizeof(T)) / SHARE;
    const auto f = [](T v) -> T { return store<T>(F::apply(load(v))); };
    if constexpr (has_moderate<F>::value) {
        // One pack in many has an argument beyond what the short function is for.
        map<N>(n, dims, xs, x, out, f, [f](const Pack<T, N>& a) -> Pack<T, N> {
            Pack<T, N> r;
            bool moderate = true;
            for (u32 j = 0; j < N; j++) moderate &= F::is_moderate(load(a.v[j]));
            if (moderate) {
                for (u32 j = 0; j < N; j++) r.v[j] = store<T>(F::moderate(load(a.v[j])));
            } else {
                for (u32 j = 0; j < N; j++) r.v[j] = f(a.v[j]);
            }
            return r;
        });
    } else {
        map<N>(n, dims, xs, x, out, f);
    }
}

#define UNARY(op, Op, name, T, SHARE)                                                                                              \
    extern "C" __global__ MAX_BLOCK_OF(256, (sizeof(T) == 8 ? 4 : 8)) void op##_##name(u64 n, Dims dims, Strides xs, const T* x, T* out) {                      \
        unary<T, Op<T>, SHARE>(n, dims, xs, x, out);                                                                               \
    }

#define UNARY_FLOATS(name, T)                                   \
    UNARY(exp, Exp, name, T, 1)                                 \
    UNARY(log, Log, name, T, 2)                                 \
    UNARY(sin, Sin, name, T, (sizeof(T) <= 4 ? 1 : 2))                                 \
    UNARY(cos, Cos, name, T, (sizeof(T) <= 4 ? 1 : 2))                                 \
    UNARY(tanh, Tanh, name, T, (sizeof(T) <= 4 ? 1 : 2))             \
    UNARY(neg, Neg, name, T, 1)                                 \
    UNARY(recip, Recip, name, T, 1)                             \
    UNARY(sqr, Sqr, name, T, 1)                                 \
    UNARY(sqrt, Sqrt, name, T, 1)                               \
    UNARY(gelu, Gelu, name, T, (sizeof(T) <= 4 ? 1 : 2))             \
    UNARY(gelu_erf, GeluErf, name, T, (sizeof(T) <= 4 ? 1 : 2))      \
    UNARY(erf, Erf, name, T, 2)                                 \
    UNARY(abs, Abs, name, T, 1)                                 \
    UNARY(relu, Relu, name, T, 1)                               \
    UNARY(silu, Silu, name, T, 1)                               \
    UNARY(sigmoid, Sigmoid, name, T, 1)                         \
    UNARY(floor, Floor, name, T, 1)                             \
    UNARY(ceil, Ceil, name, T, 1)                               \
    UNARY(round, Round, name, T, 1)                             \
    UNARY(sign, Sign, name, T, 1)

PART(f16) UNARY_FLOATS(f16, f16)
PART(bf16) UNARY_FLOATS(bf16, bf16)
PART(f32) UNARY_FLOATS(f32, float)
PART(f64) UNARY_FLOATS(f64, double)
PART(f8e4m3) UNARY_FLOATS(f8e4m3, f8e4m3)

// Integers: the functions that mean something for them and are not the identity.
template <typename T> struct IntegerAbs {
    static DEVICE_FN T apply(T x) { return x < T(0) ? Arithmetic<T>::sub(0, x) : x; }
};
template <typename T> struct IntegerRelu {
    static DEVICE_FN T apply(T x) { return x < T(0) ? T(0) : x; }
};
template <typename T> struct IntegerSign {
    static DEVICE_FN T apply(T x) { return (T)((x > T(0)) - (x < T(0))); }
};

#define UNARY_SIGNED(name, T)                   \
    UNARY(abs, IntegerAbs, name, T, 1)          \
    UNARY(relu, IntegerRelu, name, T, 1)        \
    UNARY(sign, IntegerSign, name, T, 1)

PART(i16) UNARY_SIGNED(i16, i16)
PART(i32) UNARY_SIGNED(i32, i32)
PART(i64) UNARY_SIGNED(i64, i64)

#define UNARY_UNSIGNED(name, T) UNARY(sign, IntegerSign, name, T, 1)

PART(u8) UNARY_UNSIGNED(u8, u8)
PART(u32) UNARY_UNSIGNED(u32, u32)
