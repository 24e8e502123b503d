//! Names that device code may use although the file did not use them before.

/// Keywords and types of the language that computing needs.
const LANGUAGE: &str = "auto bool break case char const constexpr continue default do double else false float for if \
    int long nullptr return short signed sizeof static_cast reinterpret_cast switch true typename unsigned void while \
    template class static volatile __shared__ __device__ __forceinline__ __restrict__ inline struct";

/// Keywords that may not become more: what they do is not computing, or cannot be seen through.
pub(super) const RESTRICTED: &[&str] = &[
    "asm",
    "__asm",
    "__asm__",
    "_Pragma",
    "__attribute__",
    "__attribute",
    "__declspec",
    "goto",
    "new",
    "delete",
    "try",
    "catch",
    "throw",
    "using",
    "namespace",
    "friend",
    "extern",
    "typedef",
    "union",
    "virtual",
    "typeid",
    "dynamic_cast",
    "const_cast",
    "co_await",
    "co_yield",
    "co_return",
    "thread_local",
    "operator",
    "decltype",
    "__typeof__",
    "typeof",
    "alignas",
    "__global__",
    "__host__",
    "__constant__",
    "__managed__",
    "__launch_bounds__",
    "__noinline__",
    "__builtin_trap",
    "__trap",
    "assert",
    "printf",
    "export",
    "import",
    "module",
    "register",
    "mutable",
    "static_assert",
    "private",
    "protected",
    "this",
    "__extension__",
];

/// Texts that may not appear more often, not even in comments: they say what the file is compiled for, or belong to the
/// simulator. Mentioning `__HIP_SIM__` alone changes what the simulator hands to a file.
pub(super) const TARGET: &[&str] = &[
    "HIP_SIM",
    "hip_sim",
    "__gfx",
    "__GFX",
    "__AMDGCN",
    "__amdgcn",
    "__NVPTX",
    "__CUDA_ARCH__",
    "__CUDACC",
    "__HIP",
    "__GNUC__",
    "__clang__",
    "__has_",
    "__COUNTER__",
    "__LINE__",
    "__FILE__",
    "__TIME__",
    "__DATE__",
];

/// Types that CUDA and HIP give to kernels, and those of `<stdint.h>`.
const TYPES: &str = "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t uint uchar ushort ulong \
    half half2 __half __half2 nv_bfloat16 __nv_bfloat16 nv_bfloat162 __nv_bfloat162 hip_bfloat16 __hip_bfloat16 \
    char2 char3 char4 uchar2 uchar3 uchar4 short2 short3 short4 ushort2 ushort3 ushort4 int2 int3 int4 uint2 uint3 \
    uint4 long2 ulong2 longlong2 ulonglong2 float2 float3 float4 double2 dim3 u8 u16 u32 u64 i8 i16 i32 i64";

/// Indices, constants of the language and the parts of vectors.
const VALUES: &str = "threadIdx blockIdx blockDim gridDim warpSize WAVE x y z w INFINITY NAN FLT_MAX FLT_MIN DBL_MAX \
    INT_MAX INT_MIN UINT_MAX FLT_EPSILON";

/// Functions of CUDA, HIP and C's mathematics that compute, move between lanes, or order memory.
const FUNCTIONS: &str = "__syncthreads __syncthreads_count __syncthreads_and __syncthreads_or __syncwarp \
    __threadfence __threadfence_block __shfl __shfl_up __shfl_down __shfl_xor __shfl_sync __shfl_up_sync \
    __shfl_down_sync __shfl_xor_sync __ballot __ballot_sync __any __any_sync __all __all_sync __activemask \
    __match_any_sync __match_all_sync __reduce_add_sync __reduce_min_sync __reduce_max_sync __reduce_and_sync \
    __reduce_or_sync __reduce_xor_sync __popc __popcll __clz __clzll __ffs __ffsll __brev __brevll __byte_perm \
    __funnelshift_l __funnelshift_r __dp4a __mul24 __umul24 __mulhi __umulhi __mul64hi __umul64hi __sad __usad \
    __ldg __ldcs __ldcg __ldca __stcs __stcg __float_as_int __int_as_float __float_as_uint __uint_as_float \
    __double_as_longlong __longlong_as_double __float2half __half2float __float2half_rn __float22half2_rn \
    __half22float2 __floats2half2_rn __halves2half2 __low2half __high2half __low2float __high2float __half2half2 \
    __float2bfloat16 __bfloat162float __float2bfloat16_rn __float22bfloat162_rn __bfloat1622float2 __hadd __hsub \
    __hmul __hdiv __hfma __hneg __habs __hmax __hmin __hadd2 __hsub2 __hmul2 __hfma2 __hmax2 __hmin2 __hgt __hlt \
    __hge __hle __heq __hne __hisnan __float2int_rn __float2int_rz __float2uint_rn __float2uint_rz __int2float_rn \
    __uint2float_rn __half2int_rn __int2half_rn __fadd_rn __fsub_rn __fmul_rn __fmaf_rn __fdiv_rn __frcp_rn \
    __fsqrt_rn __frsqrt_rn __fdividef __expf __exp10f __logf __log2f __log10f __powf __sinf __cosf __tanf __saturatef \
    atomicAdd atomicSub atomicMin atomicMax atomicAnd atomicOr atomicXor atomicExch atomicCAS atomicInc atomicDec \
    min max abs fabs fabsf fmin fminf fmax fmaxf fma fmaf sqrt sqrtf rsqrt rsqrtf cbrt cbrtf exp expf exp2 exp2f \
    exp10 exp10f expm1 expm1f log logf log2 log2f log10 log10f log1p log1pf pow powf sin sinf cos cosf tan tanf asin \
    asinf acos acosf atan atanf atan2 atan2f sinh sinhf cosh coshf tanh tanhf asinh asinhf acosh acoshf atanh atanhf \
    erf erff erfc erfcf lgamma lgammaf tgamma tgammaf floor floorf ceil ceilf trunc truncf round roundf rint rintf \
    nearbyint nearbyintf fmod fmodf remainder remainderf ldexp ldexpf copysign copysignf isnan isinf isfinite signbit \
    hypot hypotf normcdf normcdff sincosf sincos hexp hlog hsqrt hrsqrt hrcp h2exp make_char2 make_char4 make_uchar2 \
    make_uchar4 make_short2 make_short4 make_ushort2 make_ushort4 make_int2 make_int3 make_int4 make_uint2 make_uint3 \
    make_uint4 make_float2 make_float3 make_float4 make_double2 make_half2 make_longlong2 thread_x block_x block_dim \
    grid_dim global_index global_size barrier wave_sync lane shfl ballot any_lane";

/// The beginning of the names of functions that an answer adds. No library has such names, so that a call of one can
/// mean nothing else.
pub const ADDED: &str = "fix_";

/// Whether a name may be called that the file did not call before.
pub(super) fn may_call(name: &str) -> bool {
    name.starts_with(ADDED)
        || FUNCTIONS.split_whitespace().any(|known| known == name)
        || is_type(name)
}

/// Whether it names a type.
pub(super) fn is_type(name: &str) -> bool {
    TYPES.split_whitespace().any(|known| known == name)
}

/// Whether it may be used without being declared in the file.
pub(super) fn is_known(name: &str) -> bool {
    may_call(name)
        || [LANGUAGE, VALUES]
            .iter()
            .any(|list| list.split_whitespace().any(|known| known == name))
}
