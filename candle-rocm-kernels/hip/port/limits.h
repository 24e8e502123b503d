// <limits>, <climits>, <cfloat> and the constants of <cmath> and math_constants.h. Included by standard.h.
#ifndef CANDLE_ROCM_PORT_LIMITS_H
#define CANDLE_ROCM_PORT_LIMITS_H

#undef CHAR_BIT
#undef SCHAR_MIN
#undef SCHAR_MAX
#undef UCHAR_MAX
#undef CHAR_MIN
#undef CHAR_MAX
#undef SHRT_MIN
#undef SHRT_MAX
#undef USHRT_MAX
#undef INT_MIN
#undef INT_MAX
#undef UINT_MAX
#undef LONG_MIN
#undef LONG_MAX
#undef ULONG_MAX
#undef LLONG_MIN
#undef LLONG_MAX
#undef ULLONG_MAX
#undef INT8_MIN
#undef INT8_MAX
#undef UINT8_MAX
#undef INT16_MIN
#undef INT16_MAX
#undef UINT16_MAX
#undef INT32_MIN
#undef INT32_MAX
#undef UINT32_MAX
#undef INT64_MIN
#undef INT64_MAX
#undef UINT64_MAX
#undef SIZE_MAX
#undef FLT_RADIX
#undef FLT_MANT_DIG
#undef FLT_DIG
#undef FLT_MIN
#undef FLT_MAX
#undef FLT_EPSILON
#undef FLT_TRUE_MIN
#undef DBL_MANT_DIG
#undef DBL_DIG
#undef DBL_MIN
#undef DBL_MAX
#undef DBL_EPSILON
#undef DBL_TRUE_MIN
#undef M_E
#undef M_LOG2E
#undef M_LOG10E
#undef M_LN2
#undef M_LN10
#undef M_PI
#undef M_PI_2
#undef M_PI_4
#undef M_1_PI
#undef M_2_PI
#undef M_2_SQRTPI
#undef M_SQRT2
#undef M_SQRT1_2
#undef CUDART_INF_F
#undef CUDART_NAN_F
#undef CUDART_INF
#undef CUDART_NAN
#undef CUDART_MIN_DENORM_F
#undef CUDART_MAX_NORMAL_F
#undef CUDART_NEG_ZERO_F
#undef CUDART_ZERO_F
#undef CUDART_ONE_F
#undef CUDART_PI_F
#undef CUDART_PI
#undef CUDART_PIO2_F
#undef CUDART_PIO4_F
#undef CUDART_2_OVER_PI_F
#undef CUDART_SQRT_2OVERPI_F
#undef CUDART_SQRT_HALF_F
#undef CUDART_SQRT_TWO_F
#undef CUDART_L2E_F
#undef CUDART_L2T_F
#undef CUDART_LG2_F
#undef CUDART_LGE_F
#undef CUDART_LN2_F
#undef CUDART_LNT_F
#undef FP_NAN
#undef FP_INFINITE
#undef FP_ZERO
#undef FP_SUBNORMAL
#undef FP_NORMAL
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN (-128)
#define CHAR_MAX 127
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define LONG_MIN (-9223372036854775807l - 1)
#define LONG_MAX 9223372036854775807l
#define ULONG_MAX 18446744073709551615ul
#define LLONG_MIN (-9223372036854775807ll - 1)
#define LLONG_MAX 9223372036854775807ll
#define ULLONG_MAX 18446744073709551615ull
#define INT8_MIN SCHAR_MIN
#define INT8_MAX SCHAR_MAX
#define UINT8_MAX UCHAR_MAX
#define INT16_MIN SHRT_MIN
#define INT16_MAX SHRT_MAX
#define UINT16_MAX USHRT_MAX
#define INT32_MIN INT_MIN
#define INT32_MAX INT_MAX
#define UINT32_MAX UINT_MAX
#define INT64_MIN LONG_MIN
#define INT64_MAX LONG_MAX
#define UINT64_MAX ULONG_MAX
#define SIZE_MAX ULONG_MAX
#define FLT_RADIX 2
#define FLT_MANT_DIG 24
#define FLT_DIG 6
#define FLT_MIN 0x1p-126f
#define FLT_MAX 0x1.fffffep+127f
#define FLT_EPSILON 0x1p-23f
#define FLT_TRUE_MIN 0x1p-149f
#define DBL_MANT_DIG 53
#define DBL_DIG 15
#define DBL_MIN 0x1p-1022
#define DBL_MAX 0x1.fffffffffffffp+1023
#define DBL_EPSILON 0x1p-52
#define DBL_TRUE_MIN 0x1p-1074
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_MIN_DENORM_F 0x1p-149f
#define CUDART_MAX_NORMAL_F 0x1.fffffep+127f
#define CUDART_NEG_ZERO_F (-0.0f)
#define CUDART_ZERO_F 0.0f
#define CUDART_ONE_F 1.0f
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.14159265358979323846
#define CUDART_PIO2_F 1.570796327f
#define CUDART_PIO4_F 0.785398163f
#define CUDART_2_OVER_PI_F 0.636619772f
#define CUDART_SQRT_2OVERPI_F 0.797884561f
#define CUDART_SQRT_HALF_F 0.707106781f
#define CUDART_SQRT_TWO_F 1.414213562f
#define CUDART_L2E_F 1.442695041f
#define CUDART_L2T_F 3.321928094f
#define CUDART_LG2_F 0.301029996f
#define CUDART_LGE_F 0.434294482f
#define CUDART_LN2_F 0.693147181f
#define CUDART_LNT_F 2.302585093f
#define FP_NAN 0
#define FP_INFINITE 1
#define FP_ZERO 2
#define FP_SUBNORMAL 3
#define FP_NORMAL 4

namespace cuda_port {
namespace std {

enum float_denorm_style { denorm_indeterminate = -1, denorm_absent = 0, denorm_present = 1 };

// Of what is no number, all is 0.
template <typename T> struct numeric_limits {
    static constexpr bool is_specialized = false;
    static constexpr __device__ T min() { return T(); }
    static constexpr __device__ T max() { return T(); }
    static constexpr __device__ T lowest() { return T(); }
};
template <typename T> struct numeric_limits<const T> : numeric_limits<T> {};

#define PORT_INTEGER(T, SMALLEST, LARGEST, SIGNED, DIGITS)                              \
    template <> struct numeric_limits<T> {                                              \
        static constexpr bool is_specialized = true, is_signed = SIGNED;                \
        static constexpr bool is_integer = true, is_exact = true, is_bounded = true;    \
        static constexpr bool has_infinity = false, has_quiet_NaN = false;              \
        static constexpr int digits = DIGITS, digits10 = DIGITS * 643 / 2136, radix = 2; \
        static constexpr __device__ T min() { return SMALLEST; }                        \
        static constexpr __device__ T max() { return LARGEST; }                         \
        static constexpr __device__ T lowest() { return SMALLEST; }                     \
    };
PORT_INTEGER(bool, false, true, false, 1)
PORT_INTEGER(char, CHAR_MIN, CHAR_MAX, true, 7)
PORT_INTEGER(signed char, SCHAR_MIN, SCHAR_MAX, true, 7)
PORT_INTEGER(unsigned char, 0, UCHAR_MAX, false, 8)
PORT_INTEGER(short, SHRT_MIN, SHRT_MAX, true, 15)
PORT_INTEGER(unsigned short, 0, USHRT_MAX, false, 16)
PORT_INTEGER(int, INT_MIN, INT_MAX, true, 31)
PORT_INTEGER(unsigned, 0, UINT_MAX, false, 32)
PORT_INTEGER(long, LONG_MIN, LONG_MAX, true, 63)
PORT_INTEGER(unsigned long, 0, ULONG_MAX, false, 64)
PORT_INTEGER(long long, LLONG_MIN, LLONG_MAX, true, 63)
PORT_INTEGER(unsigned long long, 0, ULLONG_MAX, false, 64)
#undef PORT_INTEGER

#define PORT_FLOAT(T, NAME, suffix, EXPONENT)                                                   \
    template <> struct numeric_limits<T> {                                                      \
        static constexpr bool is_specialized = true, is_signed = true;                          \
        static constexpr bool is_integer = false, is_exact = false, is_bounded = true;          \
        static constexpr bool has_infinity = true, has_quiet_NaN = true, is_iec559 = true;      \
        static constexpr float_denorm_style has_denorm = denorm_present;                        \
        static constexpr int digits = NAME##_MANT_DIG, digits10 = NAME##_DIG, radix = 2;        \
        static constexpr int max_exponent = EXPONENT, min_exponent = 3 - EXPONENT;              \
        static constexpr __device__ T min() { return NAME##_MIN; }                              \
        static constexpr __device__ T max() { return NAME##_MAX; }                              \
        static constexpr __device__ T lowest() { return -NAME##_MAX; }                          \
        static constexpr __device__ T epsilon() { return NAME##_EPSILON; }                      \
        static constexpr __device__ T round_error() { return T(0.5); }                          \
        static constexpr __device__ T denorm_min() { return NAME##_TRUE_MIN; }                  \
        static constexpr __device__ T infinity() { return __builtin_inf##suffix(); }            \
        static constexpr __device__ T quiet_NaN() { return __builtin_nan##suffix(""); }         \
        static constexpr __device__ T signaling_NaN() { return __builtin_nans##suffix(""); }    \
    };
PORT_FLOAT(float, FLT, f, 128)
PORT_FLOAT(double, DBL, , 1024)
#undef PORT_FLOAT

}  // namespace std
}  // namespace cuda_port

#endif
