// The part of HIP's device library that kernels written for plain HIP use.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct uint3 : hip_sim_index {};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(hip_sim_index i) : x(i.x), y(i.y), z(i.z) {}
};
#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z

#define HIP_SIM_VECTOR(T, name)                                                                                                \
    struct name##1 { T x; };                                                                                                   \
    struct __attribute__((aligned(2 * sizeof(T)))) name##2 { T x, y; };                                                        \
    struct name##3 { T x, y, z; };                                                                                             \
    struct __attribute__((aligned(sizeof(T) < 8 ? 4 * sizeof(T) : 16))) name##4 { T x, y, z, w; };                             \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                          \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                                  \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HIP_SIM_VECTOR(float, float)
HIP_SIM_VECTOR(double, double)
HIP_SIM_VECTOR(int, int)
HIP_SIM_VECTOR(short, short)
HIP_SIM_VECTOR(unsigned short, ushort)
HIP_SIM_VECTOR(unsigned char, uchar)
HIP_SIM_VECTOR(long long, longlong)
struct __attribute__((aligned(8))) uint2 { unsigned x, y; };
struct __attribute__((aligned(16))) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class A, class B> static inline auto min(A a, B b) -> decltype(a + b) { return b < a ? b : a; }
template <class A, class B> static inline auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }
// glibc declares these names, so they cannot be functions here.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

template <class To, class From> static inline To hip_sim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit casts keep the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
static inline int __float_as_int(float x) { return hip_sim_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return hip_sim_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return hip_sim_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return hip_sim_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return hip_sim_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return hip_sim_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline long long clock64() { return (long long)__builtin_readcyclecounter(); }
static inline long long wall_clock64() { return (long long)__builtin_amdgcn_s_memrealtime(); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Compare-and-swap loop on the bits, for operations and types that have no builtin. Returns the old value.
template <class T, class F> static inline T hip_sim_atomic(T *address, F next) {
    T old;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    for (;;) {
        T desired = next(old);
        if (__atomic_compare_exchange(address, &old, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
    }
}
template <class T> static inline T atomicAdd(T *p, T v) { return hip_sim_atomic(p, [v](T old) { return (T)(old + v); }); }
template <class T> static inline T atomicSub(T *p, T v) { return hip_sim_atomic(p, [v](T old) { return (T)(old - v); }); }
template <class T> static inline T atomicMin(T *p, T v) { return hip_sim_atomic(p, [v](T old) { return v < old ? v : old; }); }
template <class T> static inline T atomicMax(T *p, T v) { return hip_sim_atomic(p, [v](T old) { return old < v ? v : old; }); }
template <class T> static inline T atomicAnd(T *p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicOr(T *p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicXor(T *p, T v) { return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicExch(T *p, T v) { return hip_sim_atomic(p, [v](T) { return v; }); }
template <class T> static inline T atomicCAS(T *p, T compare, T v) {
    __atomic_compare_exchange(p, &compare, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
template <class T> static inline T atomicAdd_system(T *p, T v) { return atomicAdd(p, v); }
template <class T> static inline T atomicExch_system(T *p, T v) { return atomicExch(p, v); }
template <class T> static inline T atomicCAS_system(T *p, T compare, T v) { return atomicCAS(p, compare, v); }
static inline unsigned atomicInc(unsigned *p, unsigned limit) {
    return hip_sim_atomic(p, [limit](unsigned old) { return old >= limit ? 0u : old + 1u; });
}

// Shuffles read the value of another lane of a segment of `width` lanes; a source outside the segment gives the own value.
template <class T> static inline T hip_sim_from_lane(T value, int source, int width) {
    static_assert(sizeof(T) <= 8, "shuffles move at most eight bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    unsigned long long *values = hip_sim_wave_exchange(bits);
    int lane = (int)hip_sim_lane(), first = lane & ~(width - 1);
    if (source < first || source >= first + width) return value;
    T result;
    __builtin_memcpy(&result, &values[source], sizeof(T));
    return result;
}
template <class T> static inline T __shfl(T v, int source, int width = HIP_SIM_WAVE) {
    return hip_sim_from_lane(v, ((int)hip_sim_lane() & ~(width - 1)) + (source & (width - 1)), width);
}
template <class T> static inline T __shfl_down(T v, unsigned delta, int width = HIP_SIM_WAVE) {
    return hip_sim_from_lane(v, (int)(hip_sim_lane() + delta), width);
}
template <class T> static inline T __shfl_up(T v, unsigned delta, int width = HIP_SIM_WAVE) {
    return hip_sim_from_lane(v, (int)hip_sim_lane() - (int)delta, width);
}
template <class T> static inline T __shfl_xor(T v, int mask, int width = HIP_SIM_WAVE) {
    return hip_sim_from_lane(v, (int)hip_sim_lane() ^ mask, width);
}
template <class M, class T> static inline T __shfl_sync(M, T v, int source, int width = HIP_SIM_WAVE) { return __shfl(v, source, width); }
template <class M, class T> static inline T __shfl_down_sync(M, T v, unsigned d, int width = HIP_SIM_WAVE) { return __shfl_down(v, d, width); }
template <class M, class T> static inline T __shfl_up_sync(M, T v, unsigned d, int width = HIP_SIM_WAVE) { return __shfl_up(v, d, width); }
template <class M, class T> static inline T __shfl_xor_sync(M, T v, int mask, int width = HIP_SIM_WAVE) { return __shfl_xor(v, mask, width); }
static inline unsigned long long __ballot(int predicate) {
    unsigned long long *values = hip_sim_wave_exchange(predicate != 0), mask = hip_sim_wave_mask(), result = 0;
    for (int lane = 0; lane < HIP_SIM_WAVE; ++lane) result |= (mask >> lane & values[lane] & 1) << lane;
    return result;
}
static inline int __any(int predicate) { return __ballot(predicate) != 0; }
static inline int __all(int predicate) { return __ballot(!predicate) == 0; }
static inline unsigned long long __activemask() { return hip_sim_wave_mask(); }
static inline unsigned __lane_id() { return hip_sim_lane(); }
#define __syncwarp(...) ((void)hip_sim_wave_exchange(0))
