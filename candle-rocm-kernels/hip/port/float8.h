// 8-bit floats, OCP's e4m3 and e5m2, and their pairs and fours. Included by cuda.h.
//
// By integers: the instructions of gfx942 mean floats of another bias.
#ifndef CANDLE_ROCM_PORT_FLOAT8_H
#define CANDLE_ROCM_PORT_FLOAT8_H

namespace cuda_port {

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
// What becomes of values that are too large: infinity or NaN, or the largest there is.
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace port {

// To nearest even. A float that was rounded to odd gives what its origin would.
PORT_FN unsigned char narrow_fp8(float x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) {
    const bool wide = kind == __NV_E5M2;
    const unsigned bits = bits_of(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (unsigned char)(sign | (wide ? 0x7eu : 0x7fu));
    // Of e4m3 three bits of mantissa and a bias of 7, of e5m2 two and 15.
    const unsigned mantissa = wide ? 2 : 3, bias = wide ? 15 : 7;
    const unsigned top = wide ? 0x7bu : 0x7eu, beyond = saturate == __NV_SATFINITE ? top : wide ? 0x7cu : 0x7fu;
    if (magnitude >= 0x7f800000u) return (unsigned char)(sign | beyond);
    const int exponent = (int)(magnitude >> 23) - 127;
    const int least = 1 - (int)bias;
    unsigned code;
    if (exponent < least) {
        // In units of the least there is, 2^(least - mantissa): adding 1.5 * 2^23 of them rounds.
        const float unit = m::ldexp(1.5f, 23 + least - (int)mantissa);
        code = bits_of(from_bits<float>(magnitude) + unit) - bits_of(unit);
    } else {
        const unsigned drop = 23u - mantissa;
        const unsigned rounded = magnitude + ((1u << (drop - 1u)) - 1u) + (magnitude >> drop & 1u);
        code = (rounded >> drop) - ((127u - bias) << mantissa);
    }
    return (unsigned char)(sign | (code > top ? beyond : code));
}
PORT_FN __half widen_fp8(unsigned char v, __nv_fp8_interpretation_t kind) {
    if (kind == __NV_E5M2) {
        const unsigned short bits = (unsigned short)(v << 8);
        return of_bits<__half>((bits & 0x7fffu) > 0x7c00u ? (unsigned short)0x7fff : bits);
    }
    const unsigned short sign = (unsigned short)((v & 0x80u) << 8);
    if ((v & 0x7fu) == 0x7fu) return of_bits<__half>(0x7fff);
    return of_bits<__half>((unsigned short)(sign | port::device::float_to_f16(port::device::f8e4m3_to_float((unsigned char)(v & 0x7fu)))));
}

}  // namespace port

PORT_FN __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t s, __nv_fp8_interpretation_t k) { return port::narrow_fp8(x, s, k); }
PORT_FN __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return port::narrow_fp8(port::to_odd(x), s, k);
}
PORT_FN __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return port::narrow_fp8(port::format_f16::widen(x.x), s, k);
}
PORT_FN __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return port::narrow_fp8(port::format_bf16::widen(x.x), s, k);
}
PORT_FN __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return (__nv_fp8x2_storage_t)(port::narrow_fp8(v.x, s, k) | port::narrow_fp8(v.y, s, k) << 8);
}
PORT_FN __nv_fp8x2_storage_t __nv_cvt_double2_to_fp8x2(double2 v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return __nv_cvt_float2_to_fp8x2(float2{port::to_odd(v.x), port::to_odd(v.y)}, s, k);
}
PORT_FN __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(__half2_raw v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return __nv_cvt_float2_to_fp8x2(float2{port::format_f16::widen(v.x), port::format_f16::widen(v.y)}, s, k);
}
PORT_FN __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw v, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
    return __nv_cvt_float2_to_fp8x2(float2{port::format_bf16::widen(v.x), port::format_bf16::widen(v.y)}, s, k);
}
PORT_FN __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t k) { return port::widen_fp8(v, k); }
PORT_FN __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t k) {
    return __half2_raw{port::widen_fp8((unsigned char)v, k).__x, port::widen_fp8((unsigned char)(v >> 8), k).__x};
}

// Numbers convert to the types by constructors that have to be called, and the types to numbers on their own.
#define PORT_FP8_FROM(I) \
    explicit PORT_FN PORT_SELF(I v) : __x(port::narrow_fp8(port::to_odd(v), __NV_SATFINITE, PORT_KIND)) {}
#define PORT_FP8_TO(I) \
    explicit PORT_FN operator I() const { return (I)port::widen_fp8(__x, PORT_KIND); }
#define PORT_FP8(NAME, KIND)                                                                                             \
    struct NAME {                                                                                                        \
        __nv_fp8_storage_t __x;                                                                                          \
        NAME() = default;                                                                                                \
        explicit PORT_FN NAME(float v) : __x(port::narrow_fp8(v, __NV_SATFINITE, KIND)) {}                               \
        explicit PORT_FN NAME(double v) : __x(port::narrow_fp8(port::to_odd(v), __NV_SATFINITE, KIND)) {}                \
        explicit PORT_FN NAME(__half v) : __x(port::narrow_fp8(port::widened(v), __NV_SATFINITE, KIND)) {}               \
        explicit PORT_FN NAME(__nv_bfloat16 v) : __x(port::narrow_fp8(port::widened(v), __NV_SATFINITE, KIND)) {}        \
        PORT_SMALL_INTEGERS(PORT_FP8_FROM)                                                                               \
        explicit PORT_FN operator __half() const { return port::widen_fp8(__x, KIND); }                                  \
        explicit PORT_FN operator __nv_bfloat16() const { return __nv_bfloat16(port::widened(port::widen_fp8(__x, KIND))); } \
        explicit PORT_FN operator float() const { return port::widened(port::widen_fp8(__x, KIND)); }                    \
        explicit PORT_FN operator double() const { return port::widened(port::widen_fp8(__x, KIND)); }                   \
        explicit PORT_FN operator bool() const { return (__x & 0x7fu) != 0; }                                            \
        PORT_SMALL_INTEGERS(PORT_FP8_TO)                                                                                 \
    };
#define PORT_SELF __nv_fp8_e4m3
#define PORT_KIND __NV_E4M3
PORT_FP8(__nv_fp8_e4m3, __NV_E4M3)
#undef PORT_SELF
#undef PORT_KIND
#define PORT_SELF __nv_fp8_e5m2
#define PORT_KIND __NV_E5M2
PORT_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef PORT_SELF
#undef PORT_KIND
#undef PORT_FP8
#undef PORT_FP8_FROM
#undef PORT_FP8_TO

#define PORT_FP8_VECTORS(NAME2, NAME4, KIND)                                                                             \
    struct NAME2 {                                                                                                       \
        __nv_fp8x2_storage_t __x;                                                                                        \
        NAME2() = default;                                                                                               \
        explicit PORT_FN NAME2(float2 v) : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, KIND)) {}                     \
        explicit PORT_FN NAME2(double2 v) : __x(__nv_cvt_double2_to_fp8x2(v, __NV_SATFINITE, KIND)) {}                   \
        explicit PORT_FN NAME2(__half2 v) : __x(__nv_cvt_halfraw2_to_fp8x2(v, __NV_SATFINITE, KIND)) {}                  \
        explicit PORT_FN NAME2(__nv_bfloat162 v) : __x(__nv_cvt_bfloat16raw2_to_fp8x2(v, __NV_SATFINITE, KIND)) {}       \
        explicit PORT_FN operator __half2() const { return __half2(__nv_cvt_fp8x2_to_halfraw2(__x, KIND)); }             \
        explicit PORT_FN operator float2() const { return __half22float2(__half2(*this)); }                              \
    };                                                                                                                   \
    struct NAME4 {                                                                                                       \
        __nv_fp8x4_storage_t __x;                                                                                        \
        NAME4() = default;                                                                                               \
        explicit PORT_FN NAME4(__half2 low, __half2 high) : __x(NAME2(low).__x | (unsigned)NAME2(high).__x << 16) {}     \
        explicit PORT_FN NAME4(__nv_bfloat162 low, __nv_bfloat162 high)                                                  \
            : __x(NAME2(low).__x | (unsigned)NAME2(high).__x << 16) {}                                                   \
        explicit PORT_FN NAME4(float4 v) : __x(NAME2(float2{v.x, v.y}).__x | (unsigned)NAME2(float2{v.z, v.w}).__x << 16) {} \
        explicit PORT_FN NAME4(double4 v) : __x(NAME2(double2{v.x, v.y}).__x | (unsigned)NAME2(double2{v.z, v.w}).__x << 16) {} \
        explicit PORT_FN operator float4() const {                                                                       \
            const float2 low = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)__x, KIND)));     \
            const float2 high = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(__x >> 16), KIND))); \
            return float4{low.x, low.y, high.x, high.y};                                                                 \
        }                                                                                                                \
    };
PORT_FP8_VECTORS(__nv_fp8x2_e4m3, __nv_fp8x4_e4m3, __NV_E4M3)
PORT_FP8_VECTORS(__nv_fp8x2_e5m2, __nv_fp8x4_e5m2, __NV_E5M2)
#undef PORT_FP8_VECTORS

}  // namespace cuda_port

#endif
