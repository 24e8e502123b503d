// What __half and __nv_bfloat16 have in common, as macros that float16.h uses for both. Included by cuda.h.
//
// Each operation is rounded once, as CUDA's are.
#ifndef CANDLE_ROCM_PORT_SMALL_FLOAT_H
#define CANDLE_ROCM_PORT_SMALL_FLOAT_H

namespace cuda_port {
namespace port {

// a * b + c, rounded once.
template <typename Format> PORT_FN unsigned short fused(unsigned short a, unsigned short b, unsigned short c) {
#if !defined(__HIP_SIM__)
    if constexpr (std::is_same_v<Format, format_f16>) {
        const _Float16 x = __builtin_bit_cast(_Float16, a), y = __builtin_bit_cast(_Float16, b), z = __builtin_bit_cast(_Float16, c);
        return __builtin_bit_cast(unsigned short, __builtin_elementwise_fma(x, y, z));
    }
#endif
    // The product is exact, and the sum knows what it lost.
    const double product = (double)Format::widen(a) * (double)Format::widen(b);
    return Format::template narrow<NEAREST>(to_odd(odd_sum(product, (double)Format::widen(c))));
}

// Sums and products: floats have so many digits that rounding twice is rounding once.
#if defined(__HIP_SIM__)
#define PORT_NATIVE(op)
#else
#define PORT_NATIVE(op)                                                                                                  \
    if constexpr (std::is_same_v<Format, format_f16>) {                                                                  \
        const _Float16 x = __builtin_bit_cast(_Float16, a), y = __builtin_bit_cast(_Float16, b);                         \
        return __builtin_bit_cast(unsigned short, (_Float16)(x op y));                                                   \
    }
#endif
template <typename Format> PORT_FN unsigned short sum(unsigned short a, unsigned short b) {
    PORT_NATIVE(+)
    return Format::template narrow<NEAREST>(Format::widen(a) + Format::widen(b));
}
template <typename Format> PORT_FN unsigned short difference(unsigned short a, unsigned short b) {
    PORT_NATIVE(-)
    return Format::template narrow<NEAREST>(Format::widen(a) - Format::widen(b));
}
template <typename Format> PORT_FN unsigned short product(unsigned short a, unsigned short b) {
    PORT_NATIVE(*)
    return Format::template narrow<NEAREST>(Format::widen(a) * Format::widen(b));
}
#undef PORT_NATIVE
template <typename Format> PORT_FN unsigned short quotient(unsigned short a, unsigned short b) {
    return Format::template narrow<NEAREST>(Format::widen(a) / Format::widen(b));
}

template <typename T> PORT_FN T of_bits(unsigned short b) {
    T v;
    v.__x = b;
    return v;
}
template <typename T> PORT_FN float widened(T v) { return T::port_format::widen(v.__x); }
template <typename T> PORT_FN T narrowed(float x) { return of_bits<T>(T::port_format::template narrow<NEAREST>(x)); }
template <typename T> PORT_FN bool small_is_nan(T v) { return (v.__x & 0x7fffu) > T::port_format::INF; }
// By value; a NaN gives way, or, with KEEP, does not. -0 is less than 0.
template <bool KEEP, typename T> PORT_FN T lesser(T a, T b) {
    if (small_is_nan(a)) return KEEP || small_is_nan(b) ? of_bits<T>(T::port_format::NAN_BITS) : b;
    if (small_is_nan(b)) return KEEP ? of_bits<T>(T::port_format::NAN_BITS) : a;
    const float x = widened(a), y = widened(b);
    return x < y || (x == y && (a.__x & 0x8000u)) ? a : b;
}
template <bool KEEP, typename T> PORT_FN T greater(T a, T b) {
    if (small_is_nan(a)) return KEEP || small_is_nan(b) ? of_bits<T>(T::port_format::NAN_BITS) : b;
    if (small_is_nan(b)) return KEEP ? of_bits<T>(T::port_format::NAN_BITS) : a;
    const float x = widened(a), y = widened(b);
    return x > y || (x == y && !(a.__x & 0x8000u)) ? a : b;
}
// Into [0, 1], NaN to 0; and from below to 0, NaN staying.
template <typename T> PORT_FN T saturated(T v) {
    const float x = widened(v);
    return !(x > 0.0f) ? of_bits<T>(0) : x > 1.0f ? of_bits<T>(T::port_format::ONE) : v;
}
template <typename T> PORT_FN T rectified(T v) { return small_is_nan(v) ? of_bits<T>(T::port_format::NAN_BITS) : v.__x & 0x8000u ? of_bits<T>(0) : v; }

}  // namespace port

#define PORT_SMALL_INTEGERS(use)                                                                                       \
    use(char) use(signed char) use(unsigned char) use(short) use(unsigned short) use(int) use(unsigned) use(long)      \
    use(unsigned long) use(long long) use(unsigned long long)

// The type. Numbers convert to it by value, whatever they are, and it converts to them.
#define PORT_FROM_INTEGER(I) \
    PORT_FN PORT_SELF(I v) : __x(port_format::template narrow<port::NEAREST>(port::to_odd(v))) {}
#define PORT_TO_INTEGER(I) \
    PORT_FN operator I() const { return port::to_integer<I>(port::device::math::trunc(port_format::widen(__x))); }
#define PORT_SMALL_FLOAT(NAME, RAW, FORMAT)                                                            \
    struct RAW {                                                                                       \
        unsigned short x;                                                                              \
    };                                                                                                 \
    struct __attribute__((aligned(2))) NAME {                                                          \
        using port_raw = RAW;                                                                          \
        using port_format = port::FORMAT;                                                              \
        unsigned short __x;                                                                            \
        NAME() = default;                                                                              \
        constexpr __device__ NAME(const RAW& raw) : __x(raw.x) {}                                      \
        PORT_FN NAME(float v) : __x(port_format::narrow<port::NEAREST>(v)) {}                          \
        PORT_FN NAME(double v) : __x(port_format::narrow<port::NEAREST>(port::to_odd(v))) {}           \
        PORT_FN NAME(bool v) : __x(v ? port_format::ONE : (unsigned short)0) {}                        \
        PORT_SMALL_INTEGERS(PORT_FROM_INTEGER)                                                         \
        PORT_FN operator RAW() const { return RAW{__x}; }                                              \
        PORT_FN operator float() const { return port_format::widen(__x); }                             \
        PORT_FN operator bool() const { return (__x & 0x7fffu) != 0; }                                 \
        PORT_SMALL_INTEGERS(PORT_TO_INTEGER)                                                           \
    };

#define PORT_SMALL_UNARY(T, name, body)       \
    PORT_FN T name(T v) {                     \
        const float x = port::widened(v);     \
        return port::narrowed<T>(body);       \
    }
// Its functions.
#define PORT_SMALL_FUNCTIONS(T)                                                                                       \
    PORT_FN T __hadd(T a, T b) { return port::of_bits<T>(port::sum<T::port_format>(a.__x, b.__x)); }                  \
    PORT_FN T __hsub(T a, T b) { return port::of_bits<T>(port::difference<T::port_format>(a.__x, b.__x)); }           \
    PORT_FN T __hmul(T a, T b) { return port::of_bits<T>(port::product<T::port_format>(a.__x, b.__x)); }              \
    PORT_FN T __hdiv(T a, T b) { return port::of_bits<T>(port::quotient<T::port_format>(a.__x, b.__x)); }             \
    PORT_FN T __hfma(T a, T b, T c) { return port::of_bits<T>(port::fused<T::port_format>(a.__x, b.__x, c.__x)); }    \
    PORT_FN T __hadd_rn(T a, T b) { return __hadd(a, b); }                                                            \
    PORT_FN T __hsub_rn(T a, T b) { return __hsub(a, b); }                                                            \
    PORT_FN T __hmul_rn(T a, T b) { return __hmul(a, b); }                                                            \
    PORT_FN T __hadd_sat(T a, T b) { return port::saturated(__hadd(a, b)); }                                          \
    PORT_FN T __hsub_sat(T a, T b) { return port::saturated(__hsub(a, b)); }                                          \
    PORT_FN T __hmul_sat(T a, T b) { return port::saturated(__hmul(a, b)); }                                          \
    PORT_FN T __hfma_sat(T a, T b, T c) { return port::saturated(__hfma(a, b, c)); }                                  \
    PORT_FN T __hfma_relu(T a, T b, T c) { return port::rectified(__hfma(a, b, c)); }                                 \
    PORT_FN T __hneg(T v) { return port::of_bits<T>((unsigned short)(v.__x ^ 0x8000u)); }                             \
    PORT_FN T __habs(T v) { return port::of_bits<T>((unsigned short)(v.__x & 0x7fffu)); }                             \
    PORT_FN bool __hisnan(T v) { return port::small_is_nan(v); }                                                      \
    PORT_FN int __hisinf(T v) { return (v.__x & 0x7fffu) != T::port_format::INF ? 0 : v.__x & 0x8000u ? -1 : 1; }     \
    PORT_FN T __hmin(T a, T b) { return port::lesser<false>(a, b); }                                                  \
    PORT_FN T __hmax(T a, T b) { return port::greater<false>(a, b); }                                                 \
    PORT_FN T __hmin_nan(T a, T b) { return port::lesser<true>(a, b); }                                               \
    PORT_FN T __hmax_nan(T a, T b) { return port::greater<true>(a, b); }                                              \
    PORT_SMALL_COMPARE(T, eq, ==)                                                                                     \
    PORT_SMALL_COMPARE(T, ne, !=)                                                                                     \
    PORT_SMALL_COMPARE(T, lt, <)                                                                                      \
    PORT_SMALL_COMPARE(T, le, <=)                                                                                     \
    PORT_SMALL_COMPARE(T, gt, >)                                                                                      \
    PORT_SMALL_COMPARE(T, ge, >=)                                                                                     \
    PORT_SMALL_UNARY(T, hsqrt, sqrtf(x))                                                                              \
    PORT_SMALL_UNARY(T, hrsqrt, (float)rsqrt((double)x))                                                              \
    PORT_SMALL_UNARY(T, hrcp, 1.0f / x)                                                                               \
    PORT_SMALL_UNARY(T, hexp, expf(x))                                                                                \
    PORT_SMALL_UNARY(T, hexp2, exp2f(x))                                                                              \
    PORT_SMALL_UNARY(T, hexp10, exp10f(x))                                                                            \
    PORT_SMALL_UNARY(T, hlog, logf(x))                                                                                \
    PORT_SMALL_UNARY(T, hlog2, log2f(x))                                                                              \
    PORT_SMALL_UNARY(T, hlog10, log10f(x))                                                                            \
    PORT_SMALL_UNARY(T, hsin, sinf(x))                                                                                \
    PORT_SMALL_UNARY(T, hcos, cosf(x))                                                                                \
    PORT_SMALL_UNARY(T, htanh, tanhf(x))                                                                              \
    PORT_SMALL_UNARY(T, htanh_approx, tanhf(x))                                                                       \
    PORT_SMALL_UNARY(T, hfloor, floorf(x))                                                                            \
    PORT_SMALL_UNARY(T, hceil, ceilf(x))                                                                              \
    PORT_SMALL_UNARY(T, htrunc, truncf(x))                                                                            \
    PORT_SMALL_UNARY(T, hrint, rintf(x))                                                                              \
    PORT_SMALL_OPERATOR(T, +, __hadd)                                                                                 \
    PORT_SMALL_OPERATOR(T, -, __hsub)                                                                                 \
    PORT_SMALL_OPERATOR(T, *, __hmul)                                                                                 \
    PORT_SMALL_OPERATOR(T, /, __hdiv)                                                                                 \
    PORT_FN T operator+(const T& v) { return v; }                                                                     \
    PORT_FN T operator-(const T& v) { return __hneg(v); }                                                             \
    PORT_FN T& operator++(T& v) { return v = __hadd(v, T(1)); }                                                       \
    PORT_FN T& operator--(T& v) { return v = __hsub(v, T(1)); }                                                       \
    PORT_FN T operator++(T& v, int) {                                                                                 \
        const T old = v;                                                                                              \
        ++v;                                                                                                          \
        return old;                                                                                                   \
    }                                                                                                                 \
    PORT_FN T operator--(T& v, int) {                                                                                 \
        const T old = v;                                                                                              \
        --v;                                                                                                          \
        return old;                                                                                                   \
    }                                                                                                                 \
    PORT_SMALL_ATOMICS(T, , DEVICE)                                                                                   \
    PORT_SMALL_ATOMICS(T, _block, BLOCK)                                                                              \
    PORT_SMALL_ATOMICS(T, _system, SYSTEM)
#define PORT_SMALL_OPERATOR(T, op, function)                                        \
    PORT_FN T operator op(const T& a, const T& b) { return function(a, b); }        \
    PORT_FN T& operator op##=(T& a, const T& b) { return a = function(a, b); }
// Ordered, and true if one is NaN.
#define PORT_SMALL_COMPARE(T, name, op)                                                                            \
    PORT_FN bool __h##name(T a, T b) {                                                                             \
        return !port::small_is_nan(a) && !port::small_is_nan(b) && port::widened(a) op port::widened(b);           \
    }                                                                                                              \
    PORT_FN bool __h##name##u(T a, T b) {                                                                          \
        return port::small_is_nan(a) || port::small_is_nan(b) || port::widened(a) op port::widened(b);             \
    }                                                                                                              \
    PORT_FN bool operator op(const T& a, const T& b) { return port::widened(a) op port::widened(b); }
#define PORT_SMALL_ATOMICS(T, suffix, S)                                                                           \
    PORT_FN T atomicAdd##suffix(T* p, T v) { return port::update<port::S>(p, [=](T old) { return __hadd(old, v); }); }

// Its conversions by name, of which N is the type's part (half, bfloat16).
#define PORT_SMALL_MODE(T, N, mode, R)                                                                                            \
    PORT_FN T __float2##N##mode(float x) { return port::of_bits<T>(T::port_format::narrow<port::R>(x)); }                         \
    PORT_FN T __short2##N##mode(short x) { return __float2##N##mode(port::to_odd(x)); }                                           \
    PORT_FN T __ushort2##N##mode(unsigned short x) { return __float2##N##mode(port::to_odd(x)); }                                 \
    PORT_FN T __int2##N##mode(int x) { return __float2##N##mode(port::to_odd(x)); }                                               \
    PORT_FN T __uint2##N##mode(unsigned x) { return __float2##N##mode(port::to_odd(x)); }                                         \
    PORT_FN T __ll2##N##mode(long long x) { return __float2##N##mode(port::to_odd(x)); }                                          \
    PORT_FN T __ull2##N##mode(unsigned long long x) { return __float2##N##mode(port::to_odd(x)); }                                \
    PORT_FN short __##N##2short##mode(T v) { return port::to_integer<short>(port::whole<port::R>(port::widened(v))); }            \
    PORT_FN unsigned short __##N##2ushort##mode(T v) { return port::to_integer<unsigned short>(port::whole<port::R>(port::widened(v))); } \
    PORT_FN int __##N##2int##mode(T v) { return port::to_integer<int>(port::whole<port::R>(port::widened(v))); }                  \
    PORT_FN unsigned __##N##2uint##mode(T v) { return port::to_integer<unsigned>(port::whole<port::R>(port::widened(v))); }       \
    PORT_FN long long __##N##2ll##mode(T v) { return port::to_integer<long long>(port::whole<port::R>(port::widened(v))); }       \
    PORT_FN unsigned long long __##N##2ull##mode(T v) { return port::to_integer<unsigned long long>(port::whole<port::R>(port::widened(v))); }
#define PORT_SMALL_CONVERSIONS(T, N)                                                                  \
    PORT_SMALL_MODE(T, N, _rn, NEAREST)                                                               \
    PORT_SMALL_MODE(T, N, _rz, ZERO)                                                                  \
    PORT_SMALL_MODE(T, N, _ru, UP)                                                                    \
    PORT_SMALL_MODE(T, N, _rd, DOWN)                                                                  \
    PORT_FN T __float2##N(float x) { return __float2##N##_rn(x); }                                    \
    PORT_FN T __double2##N(double x) { return __float2##N##_rn(port::to_odd(x)); }                    \
    PORT_FN float __##N##2float(T v) { return port::widened(v); }                                     \
    PORT_FN signed char __##N##2char_rz(T v) { return (signed char)v; }                               \
    PORT_FN unsigned char __##N##2uchar_rz(T v) { return (unsigned char)v; }                          \
    PORT_FN short __##N##_as_short(T v) { return (short)v.__x; }                                      \
    PORT_FN unsigned short __##N##_as_ushort(T v) { return v.__x; }                                   \
    PORT_FN T __short_as_##N(short b) { return port::of_bits<T>((unsigned short)b); }                 \
    PORT_FN T __ushort_as_##N(unsigned short b) { return port::of_bits<T>(b); }

}  // namespace cuda_port

#endif
