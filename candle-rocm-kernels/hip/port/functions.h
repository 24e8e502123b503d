// CUDA's mathematics at global scope and in std::, for float and double, and for integers, which become double. Included
// by cuda.h. What device.h has is within three units in the last place; what is made of it here, within a few more.
#ifndef CANDLE_ROCM_PORT_FUNCTIONS_H
#define CANDLE_ROCM_PORT_FUNCTIONS_H

#include "elementary.h"
#include "special.h"

// Macros of a compiler's <math.h>.
#undef isnan
#undef isinf
#undef isfinite
#undef isnormal
#undef signbit
#undef fpclassify

namespace cuda_port {

// A function of one number: `namef` of float, `name` of float, double, and by way of double of integers.
#define PORT_UNARY(name, body)                                                                            \
    PORT_FN float name##f(float x) { return body; }                                                       \
    PORT_FN float name(float x) { return body; }                                                          \
    PORT_FN double name(double x) { return body; }                                                        \
    template <typename T> PORT_FN std::enable_if_t<std::is_integral_v<T>, double> name(T x) { return name((double)x); }
#define PORT_BINARY(name, body)                                                                           \
    PORT_FN float name##f(float x, float y) { return body; }                                              \
    PORT_FN float name(float x, float y) { return body; }                                                 \
    PORT_FN double name(double x, double y) { return body; }                                              \
    template <typename A, typename B>                                                                     \
    PORT_FN std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && !std::is_same_v<A, B>, double> name(A x, B y) { \
        return name((double)x, (double)y);                                                                \
    }                                                                                                     \
    template <typename T> PORT_FN std::enable_if_t<std::is_integral_v<T>, double> name(T x, T y) { return name((double)x, (double)y); }

PORT_UNARY(sqrt, port::device::math::sqrt(x))
PORT_UNARY(rsqrt, port::device::math::rsqrt(x))
PORT_UNARY(cbrt, port::cbrt(x))
PORT_UNARY(rcbrt, 1 / port::cbrt(x))
PORT_UNARY(floor, port::device::math::floor(x))
PORT_UNARY(ceil, port::device::math::ceil(x))
PORT_UNARY(trunc, port::device::math::trunc(x))
PORT_UNARY(round, port::device::math::round(x))
PORT_UNARY(rint, port::device::math::rint(x))
PORT_UNARY(nearbyint, port::device::math::rint(x))
PORT_UNARY(exp, port::device::math::exp(x))
PORT_UNARY(exp2, port::exp2(x))
PORT_UNARY(exp10, port::exp10(x))
PORT_UNARY(expm1, port::device::math::expm1(x))
PORT_UNARY(log, port::device::math::log(x))
PORT_UNARY(log2, port::log2(x))
PORT_UNARY(log10, port::log10(x))
PORT_UNARY(log1p, port::log1p(x))
PORT_UNARY(logb, port::logb(x))
PORT_UNARY(sin, port::device::math::sin(x))
PORT_UNARY(cos, port::device::math::cos(x))
PORT_UNARY(tan, port::tan(x))
PORT_UNARY(sinpi, port::sinpi(x))
PORT_UNARY(cospi, port::cospi(x))
PORT_UNARY(asin, port::asin(x))
PORT_UNARY(acos, port::acos(x))
PORT_UNARY(atan, port::atan(x))
PORT_UNARY(sinh, port::sinh(x))
PORT_UNARY(cosh, port::cosh(x))
PORT_UNARY(tanh, port::device::math::tanh(x))
PORT_UNARY(asinh, port::asinh(x))
PORT_UNARY(acosh, port::acosh(x))
PORT_UNARY(atanh, port::atanh(x))
PORT_UNARY(erf, port::device::math::erf(x))
PORT_UNARY(erfc, port::device::math::erfc(x))
PORT_UNARY(erfcx, port::erfcx(x))
PORT_UNARY(erfinv, port::erfinv(x))
PORT_UNARY(erfcinv, port::erfcinv(x))
PORT_UNARY(normcdf, port::normcdf(x))
PORT_UNARY(normcdfinv, port::normcdfinv(x))
PORT_UNARY(tgamma, port::tgamma(x))
PORT_UNARY(lgamma, port::lgamma(x))
PORT_BINARY(pow, port::device::math::pow(x, y))
PORT_BINARY(fmod, port::fmod(x, y))
PORT_BINARY(remainder, port::remainder(x, y, nullptr))
PORT_BINARY(atan2, port::atan2(x, y))
PORT_BINARY(hypot, port::hypot(x, y))
PORT_BINARY(rhypot, 1 / port::hypot(x, y))
PORT_BINARY(copysign, port::device::math::copysign(x, y))
PORT_BINARY(fdim, port::is_nan(x) || port::is_nan(y) ? x + y : x > y ? x - y : 0)
// A NaN gives way to a number.
PORT_BINARY(fmax, port::larger(x, y))
PORT_BINARY(fmin, port::smaller(x, y))
PORT_BINARY(nextafter, port::nextafter(x, y))
#undef PORT_UNARY
#undef PORT_BINARY

PORT_FN float fabsf(float x) { return __builtin_fabsf(x); }
PORT_FN float fabs(float x) { return __builtin_fabsf(x); }
PORT_FN double fabs(double x) { return __builtin_fabs(x); }
template <typename T> PORT_FN std::enable_if_t<std::is_integral_v<T>, double> fabs(T x) { return __builtin_fabs((double)x); }
PORT_FN float abs(float x) { return __builtin_fabsf(x); }
PORT_FN double abs(double x) { return __builtin_fabs(x); }
PORT_FN int abs(int x) { return x < 0 ? (int)-(unsigned)x : x; }
PORT_FN long abs(long x) { return x < 0 ? (long)-(unsigned long)x : x; }
PORT_FN long long abs(long long x) { return x < 0 ? (long long)-(unsigned long long)x : x; }
PORT_FN long labs(long x) { return abs(x); }
PORT_FN long long llabs(long long x) { return abs(x); }

PORT_FN float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
PORT_FN float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
PORT_FN double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
PORT_FN float fdividef(float x, float y) { return x / y; }
PORT_FN float powif(float x, int n) { return powf(x, (float)n); }
PORT_FN double powi(double x, int n) { return pow(x, (double)n); }
PORT_FN float remquof(float x, float y, int* quotient) { return port::remainder(x, y, quotient); }
PORT_FN float remquo(float x, float y, int* quotient) { return port::remainder(x, y, quotient); }
PORT_FN double remquo(double x, double y, int* quotient) { return port::remainder(x, y, quotient); }

#define PORT_SCALED(name, N)                                                       \
    PORT_FN float name##f(float x, N n) { return port::scale(x, n); }              \
    PORT_FN float name(float x, N n) { return port::scale(x, n); }                 \
    PORT_FN double name(double x, N n) { return port::scale(x, n); }
PORT_SCALED(ldexp, int)
PORT_SCALED(scalbn, int)
PORT_SCALED(scalbln, long)
#undef PORT_SCALED
PORT_FN float frexpf(float x, int* exponent) { return port::frexp(x, exponent); }
PORT_FN float frexp(float x, int* exponent) { return port::frexp(x, exponent); }
PORT_FN double frexp(double x, int* exponent) { return port::frexp(x, exponent); }
PORT_FN float modff(float x, float* whole) { return port::modf(x, whole); }
PORT_FN float modf(float x, float* whole) { return port::modf(x, whole); }
PORT_FN double modf(double x, double* whole) { return port::modf(x, whole); }
PORT_FN int ilogbf(float x) { return port::ilogb(x); }
PORT_FN int ilogb(float x) { return port::ilogb(x); }
PORT_FN int ilogb(double x) { return port::ilogb(x); }
PORT_FN float nanf(const char*) { return __builtin_nanf(""); }
PORT_FN double nan(const char*) { return __builtin_nan(""); }

PORT_FN long lrintf(float x) { return port::to_integer<long>(port::device::math::rint(x)); }
PORT_FN long lrint(float x) { return lrintf(x); }
PORT_FN long lrint(double x) { return port::to_integer<long>(port::device::math::rint(x)); }
PORT_FN long long llrintf(float x) { return lrintf(x); }
PORT_FN long long llrint(float x) { return lrintf(x); }
PORT_FN long long llrint(double x) { return lrint(x); }
PORT_FN long lroundf(float x) { return port::to_integer<long>(port::device::math::round(x)); }
PORT_FN long lround(float x) { return lroundf(x); }
PORT_FN long lround(double x) { return port::to_integer<long>(port::device::math::round(x)); }
PORT_FN long long llroundf(float x) { return lroundf(x); }
PORT_FN long long llround(float x) { return lroundf(x); }
PORT_FN long long llround(double x) { return lround(x); }

#define PORT_BOTH(name, R, out)                                                                         \
    PORT_FN void name##f(float x, float* sine, float* cosine) { *sine = R##sin##out(x), *cosine = R##cos##out(x); } \
    PORT_FN void name(float x, float* sine, float* cosine) { *sine = R##sin##out(x), *cosine = R##cos##out(x); }    \
    PORT_FN void name(double x, double* sine, double* cosine) { *sine = R##sin##out(x), *cosine = R##cos##out(x); }
PORT_BOTH(sincos, , )
PORT_BOTH(sincospi, , pi)
#undef PORT_BOTH

// Of three and of four numbers, and of n.
PORT_FN float norm3df(float a, float b, float c) { return (float)port::device::math::sqrt((double)a * a + (double)b * b + (double)c * c); }
PORT_FN double norm3d(double a, double b, double c) { return port::hypot(port::hypot(a, b), c); }
PORT_FN float norm4df(float a, float b, float c, float d) {
    return (float)port::device::math::sqrt((double)a * a + (double)b * b + (double)c * c + (double)d * d);
}
PORT_FN double norm4d(double a, double b, double c, double d) { return port::hypot(port::hypot(a, b), port::hypot(c, d)); }
PORT_FN float rnorm3df(float a, float b, float c) { return 1.0f / norm3df(a, b, c); }
PORT_FN double rnorm3d(double a, double b, double c) { return 1.0 / norm3d(a, b, c); }
PORT_FN float rnorm4df(float a, float b, float c, float d) { return 1.0f / norm4df(a, b, c, d); }
PORT_FN double rnorm4d(double a, double b, double c, double d) { return 1.0 / norm4d(a, b, c, d); }

#define PORT_CLASS(T)                                                                                   \
    PORT_FN bool isnan(T x) { return port::is_nan(x); }                                                 \
    PORT_FN bool isinf(T x) { return port::is_infinite(x); }                                            \
    PORT_FN bool isfinite(T x) { return !port::is_nan(x) && !port::is_infinite(x); }                    \
    PORT_FN bool signbit(T x) { return port::sign_of(x); }                                              \
    PORT_FN bool isnormal(T x) { return isfinite(x) && fabs(x) >= std::numeric_limits<T>::min(); }      \
    PORT_FN int fpclassify(T x) {                                                                       \
        return isnan(x) ? FP_NAN : isinf(x) ? FP_INFINITE : x == 0 ? FP_ZERO : isnormal(x) ? FP_NORMAL : FP_SUBNORMAL; \
    }
PORT_CLASS(float)
PORT_CLASS(double)
#undef PORT_CLASS
template <typename T> PORT_FN std::enable_if_t<std::is_integral_v<T>, bool> isnan(T) { return false; }
template <typename T> PORT_FN std::enable_if_t<std::is_integral_v<T>, bool> isinf(T) { return false; }
template <typename T> PORT_FN std::enable_if_t<std::is_integral_v<T>, bool> isfinite(T) { return true; }

// min and max: of integers in the type that C's arithmetic gives both, of floats as fmin and fmax.
template <typename A, typename B>
constexpr PORT_FN std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B>, decltype(A() + B())> min(A a, B b) {
    using T = decltype(a + b);
    return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B>
constexpr PORT_FN std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B>, decltype(A() + B())> max(A a, B b) {
    using T = decltype(a + b);
    return (T)a < (T)b ? (T)b : (T)a;
}
template <typename A, typename B>
PORT_FN std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && !(std::is_integral_v<A> && std::is_integral_v<B>), decltype(A() + B())>
min(A a, B b) {
    using T = decltype(a + b);
    return port::smaller((T)a, (T)b);
}
template <typename A, typename B>
PORT_FN std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && !(std::is_integral_v<A> && std::is_integral_v<B>), decltype(A() + B())>
max(A a, B b) {
    using T = decltype(a + b);
    return port::larger((T)a, (T)b);
}
PORT_FN unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
PORT_FN unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
PORT_FN long long llmin(long long a, long long b) { return a < b ? a : b; }
PORT_FN long long llmax(long long a, long long b) { return a < b ? b : a; }
PORT_FN unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
PORT_FN unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a < b ? b : a; }

// What CUDA computes roughly, and the compiler option -use_fast_math. The last places are other ones than there.
PORT_FN float __expf(float x) { return port::device::exp2_fast(x * 0x1.715476p+0f); }
PORT_FN float __exp10f(float x) { return port::device::exp2_fast(x * 0x1.a934f0p+1f); }
PORT_FN float __log2f(float x) { return port::log2(x); }
PORT_FN float __logf(float x) { return port::log2(x) * 0x1.62e430p-1f; }
PORT_FN float __log10f(float x) { return port::log2(x) * 0x1.344136p-2f; }
PORT_FN float __sinf(float x) { return port::device::math::sin(x); }
PORT_FN float __cosf(float x) { return port::device::math::cos(x); }
PORT_FN float __tanf(float x) { return port::tan(x); }
PORT_FN float __tanhf(float x) { return port::device::math::tanh(x); }
PORT_FN void __sincosf(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }
PORT_FN float __powf(float x, float y) { return port::device::exp2_fast(y * port::log2(x)); }
PORT_FN float __fdividef(float x, float y) { return x * port::device::reciprocal_fast(y); }
PORT_FN float __saturatef(float x) { return port::is_nan(x) ? 0.0f : x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }

namespace std {
#define PORT_NAMES(use)                                                                                                        \
    use(sqrt) use(cbrt) use(floor) use(ceil) use(trunc) use(round) use(rint) use(nearbyint) use(exp) use(exp2) use(expm1) use(log) \
    use(log2) use(log10) use(log1p) use(logb) use(sin) use(cos) use(tan) use(asin) use(acos) use(atan) use(atan2) use(sinh)       \
    use(cosh) use(tanh) use(asinh) use(acosh) use(atanh) use(erf) use(erfc) use(tgamma) use(lgamma) use(pow) use(fmod)            \
    use(remainder) use(remquo) use(hypot) use(copysign) use(fdim) use(fmax) use(fmin) use(nextafter) use(fabs) use(abs) use(fma)  \
    use(ldexp) use(scalbn) use(scalbln) use(frexp) use(modf) use(ilogb) use(lrint) use(llrint) use(lround) use(llround)           \
    use(isnan) use(isinf) use(isfinite) use(isnormal) use(signbit) use(fpclassify) use(nan)
#define PORT_USING(name) using cuda_port::name;
PORT_NAMES(PORT_USING)
#undef PORT_USING
#undef PORT_NAMES
}  // namespace std
}  // namespace cuda_port

#endif
