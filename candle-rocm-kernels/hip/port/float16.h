// __half and __nv_bfloat16, their pairs, and what CUDA has for them. Included by cuda.h.
#ifndef CANDLE_ROCM_PORT_FLOAT16_H
#define CANDLE_ROCM_PORT_FLOAT16_H

#include "small_float.h"
#include "small_float2.h"

namespace cuda_port {

#define PORT_SELF __half
PORT_SMALL_FLOAT(__half, __half_raw, format_f16)
#undef PORT_SELF
#define PORT_SELF __nv_bfloat16
PORT_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat16_raw, format_bf16)
#undef PORT_SELF
PORT_SMALL_FUNCTIONS(__half)
PORT_SMALL_FUNCTIONS(__nv_bfloat16)
PORT_SMALL_CONVERSIONS(__half, half)
PORT_SMALL_CONVERSIONS(__nv_bfloat16, bfloat16)

PORT_PAIR(__half2, __half, __half2_raw)
PORT_PAIR(__nv_bfloat162, __nv_bfloat16, __nv_bfloat162_raw)
PORT_PAIR_FUNCTIONS(__half2, __half)
PORT_PAIR_FUNCTIONS(__nv_bfloat162, __nv_bfloat16)
PORT_PAIR_CONVERSIONS(__half2, __half, half, half2)
PORT_PAIR_CONVERSIONS(__nv_bfloat162, __nv_bfloat16, bfloat16, bfloat162)

typedef __half half;
typedef __half2 half2;
typedef __half nv_half;
typedef __half2 nv_half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

namespace std {
template <typename T> struct port_small_limits {
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false, is_bounded = true;
    static constexpr bool has_infinity = true, has_quiet_NaN = true, is_iec559 = true;
    static constexpr int radix = 2;
    static constexpr __device__ T infinity() { return T(typename T::port_raw{T::port_format::INF}); }
    static constexpr __device__ T quiet_NaN() { return T(typename T::port_raw{T::port_format::NAN_BITS}); }
};
template <> struct numeric_limits<__half> : port_small_limits<__half> {
    static constexpr int digits = 11, digits10 = 3, max_exponent = 16, min_exponent = -13;
    static constexpr __device__ __half min() { return __half(__half_raw{0x0400}); }
    static constexpr __device__ __half max() { return __half(__half_raw{0x7bff}); }
    static constexpr __device__ __half lowest() { return __half(__half_raw{0xfbff}); }
    static constexpr __device__ __half epsilon() { return __half(__half_raw{0x1400}); }
    static constexpr __device__ __half denorm_min() { return __half(__half_raw{0x0001}); }
};
template <> struct numeric_limits<__nv_bfloat16> : port_small_limits<__nv_bfloat16> {
    static constexpr int digits = 8, digits10 = 2, max_exponent = 128, min_exponent = -125;
    static constexpr __device__ __nv_bfloat16 min() { return __nv_bfloat16(__nv_bfloat16_raw{0x0080}); }
    static constexpr __device__ __nv_bfloat16 max() { return __nv_bfloat16(__nv_bfloat16_raw{0x7f7f}); }
    static constexpr __device__ __nv_bfloat16 lowest() { return __nv_bfloat16(__nv_bfloat16_raw{0xff7f}); }
    static constexpr __device__ __nv_bfloat16 epsilon() { return __nv_bfloat16(__nv_bfloat16_raw{0x3c00}); }
    static constexpr __device__ __nv_bfloat16 denorm_min() { return __nv_bfloat16(__nv_bfloat16_raw{0x0001}); }
};
}  // namespace std

}  // namespace cuda_port

#define CUDART_INF_FP16 (cuda_port::__ushort_as_half(0x7c00))
#define CUDART_NAN_FP16 (cuda_port::__ushort_as_half(0x7fff))
#define CUDART_MAX_NORMAL_FP16 (cuda_port::__ushort_as_half(0x7bff))
#define CUDART_MIN_DENORM_FP16 (cuda_port::__ushort_as_half(0x0001))
#define CUDART_NEG_ZERO_FP16 (cuda_port::__ushort_as_half(0x8000))
#define CUDART_ZERO_FP16 (cuda_port::__ushort_as_half(0x0000))
#define CUDART_ONE_FP16 (cuda_port::__ushort_as_half(0x3c00))
#define CUDART_INF_BF16 (cuda_port::__ushort_as_bfloat16(0x7f80))
#define CUDART_NAN_BF16 (cuda_port::__ushort_as_bfloat16(0x7fff))
#define CUDART_MAX_NORMAL_BF16 (cuda_port::__ushort_as_bfloat16(0x7f7f))
#define CUDART_MIN_DENORM_BF16 (cuda_port::__ushort_as_bfloat16(0x0001))
#define CUDART_NEG_ZERO_BF16 (cuda_port::__ushort_as_bfloat16(0x8000))
#define CUDART_ZERO_BF16 (cuda_port::__ushort_as_bfloat16(0x0000))
#define CUDART_ONE_BF16 (cuda_port::__ushort_as_bfloat16(0x3f80))

#endif
