//! Names that a compiler has declared before the shim, as hiprtc does with HIP's: they neither clash with the shim's nor
//! take their place.

use crate::units::unit;
use rocm_port::check::{Check, Targets};

/// What hiprtc's built-in header has at global scope, in short: types, objects, functions and macros of the same names,
/// with other contents. (`poison` cannot be compiled, so that whoever gets it knows.)
const BEFORE: &str = r#"
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define INFINITY __builtin_huge_valf()
#define NULL 0
#define assert(condition) ((condition) ? void(0) : __assert_fail())
#define __syncthreads_and wrong
extern "C" __device__ void __assert_fail();
template <typename T> struct poison { static_assert(sizeof(T) == 0, "HIP's, not the shim's"); };
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
typedef unsigned long long size_t;
template <typename T, unsigned N> struct HIP_vector_type { T data[N]; };
typedef HIP_vector_type<float, 2> float2;
typedef HIP_vector_type<float, 4> float4;
typedef HIP_vector_type<unsigned, 4> uint4;
struct uint3 { unsigned a, b, c; };
struct dim3 { unsigned a, b, c; };
struct __half_raw { _Float16 data; };
struct __half { _Float16 data; };
struct __half2 { _Float16 data[2]; };
struct __hip_bfloat16 { unsigned short data; };
typedef __half half;
typedef __half2 half2;
template <typename A, typename B> __device__ poison<A> operator+(A, B);
struct __HIP_ThreadIdx { unsigned x; };
__device__ static const __HIP_ThreadIdx threadIdx{}, blockIdx{}, blockDim{}, gridDim{};
struct __HIP_WarpSize { __device__ constexpr operator int() const { return 64; } };
__device__ static const __HIP_WarpSize warpSize{};
__device__ poison<float> expf(float);
__device__ poison<float> fabsf(float);
__device__ poison<float> __expf(float);
__device__ poison<float> __fdividef(float, float);
__device__ poison<int> min(int, int);
__device__ poison<int> max(int, int);
__device__ poison<double> exp(double);
__device__ poison<float> atomicAdd(float*, float);
__device__ poison<int> atomicCAS(int*, int, int);
__device__ poison<float> __half2float(__half);
__device__ __half __float2half(float);
__device__ __half __hadd(__half, __half);
__device__ poison<unsigned> __popc(unsigned);
__device__ poison<int> __float_as_int(float);
__device__ void __syncthreads();
__device__ void __syncwarp();
__device__ void __threadfence();
__device__ unsigned long long __ballot(int);
__device__ unsigned long long __activemask();
template <typename M, typename T> __device__ poison<T> __shfl_sync(M, T, int, int = 64);
template <typename M, typename T> __device__ poison<T> __shfl_xor_sync(M, T, int, int = 64);
template <typename M> __device__ unsigned long long __ballot_sync(M, int);
template <typename T> __device__ poison<T> __ldg(const T*);
__device__ long long clock64();
__device__ int printf(const char*, ...);
__device__ bool isnan(float);
namespace std {
template <typename A, typename B> struct is_same { static constexpr bool value = false; };
template <typename T> struct numeric_limits {};
}
"#;

const TEXT: &str = r#"
template <typename T> __device__ T warp_sum(T v) {
    for (int s = warpSize / 2; s > 0; s /= 2) v += __shfl_xor_sync(0xffffffff, v, s);
    return v;
}
__device__ float max(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }
__global__ void __launch_bounds__(256) all(const __half* __restrict__ x, float* __restrict__ y, int* __restrict__ lock, int n) {
    __shared__ float part[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x + blockIdx.y * gridDim.z;
    assert(n > 0);
    half h = i < n ? __ldg(x + i) : __float2half(0.0f);
    h = __hadd(h, half(1.0f)) * h;
    half2 h2 = __halves2half2(h, h) + __float2half2_rn(0.5f);
    float v = __half2float(h2.x) + __expf(-1.0f) + fabsf((float)h) + (float)exp(0.5) + __fdividef(1.0f, 3.0f);
    static_assert(std::is_same<uint64_t, unsigned long>::value && std::numeric_limits<int>::max() == 2147483647, "the shim's");
    static_assert(sizeof(float4) == 16 && alignof(uint4) == 16, "the shim's");
    const float4 f = make_float4(v, 2.0f, 3.0f, INFINITY);
    v = warp_sum(max(f)) + (float)min(3, n);
    if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = v;
    __syncthreads();
    const unsigned b = __ballot_sync(__activemask(), isnan(v)) | __popc(__float_as_int(v));
    if (atomicCAS(lock, 0, 1) == 0) atomicAdd(y, part[0] + (float)b + (float)(clock64() & 1));
    __threadfence();
    if (__syncthreads_and(v > 0)) printf("%f", v);
    const dim3 d(1, 2);
    y[1] = (float)d.z;
}
"#;

#[test]
fn names_of_hip_do_not_clash() {
    let mut unit = unit(TEXT, &[("all", 4)]);
    unit.source = format!("{BEFORE}{}", unit.source);
    let report = Check::new(&unit)
        .compile_for(Targets::Only(vec!["gfx942".into(), "gfx1100".into()]))
        .run()
        .unwrap();
    assert!(report.is_clean(), "{report}");
    // Without a compiler for AMD nothing has been seen.
    assert!(report.json().contains("gfx1100"), "{report}");
}
