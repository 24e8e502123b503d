// The target amdgcn, the product: clang or hiprtc, by compiler builtins alone. device.h says what all of this is.
#ifndef CANDLE_ROCM_TARGET_AMDGCN_H
#define CANDLE_ROCM_TARGET_AMDGCN_H

#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif
#ifndef __constant__
#define __constant__ __attribute__((constant))
#endif
// One rounding per written operation on every target: fused operations only where math::fma or CONTRACT says so.
#pragma STDC FP_CONTRACT OFF
#define DEVICE_FN __attribute__((device, always_inline)) inline

#define MAX_BLOCK(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define MAX_BLOCK_OF(threads, blocks) MAX_BLOCK(threads)
#define BATCHING_BLOCK(threads) MAX_BLOCK(threads)
#define CONTRACT _Pragma("clang fp contract(fast)")
#define ROLLED _Pragma("clang loop unroll(disable)")

namespace device {
namespace target {

constexpr bool ANY_ALIGNMENT = !CANDLE_ROCM_PLAIN_LOADS;
constexpr bool APPROXIMATES = true;
constexpr bool COPIES_AHEAD = false;
constexpr bool HAS_BF16 = false;
constexpr bool HAS_SMALL_ATOMICS = false;
// All but gfx900 and gfx1010.
#if CANDLE_ROCM_PLAIN_DOT
constexpr bool HAS_DOT4 = false;
#elif defined(__GFX11__) || defined(__GFX12__) || defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) ||     \
    defined(__gfx950__) || defined(__gfx9_4_generic__) || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) ||             \
    defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) ||                   \
    defined(__gfx1036__) || defined(__gfx10_3_generic__)
constexpr bool HAS_DOT4 = true;
DEVICE_FN i32 dot4(u32 a, u32 b, i32 sum) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, sum, false);
#else
    return __builtin_amdgcn_sdot4((i32)a, (i32)b, sum, false);
#endif
}
#else
constexpr bool HAS_DOT4 = false;
#endif

DEVICE_FN float ldexp(float x, i32 k) { return __builtin_ldexpf(x, k); }
DEVICE_FN double ldexp(double x, i32 k) { return __builtin_ldexp(x, k); }

}  // namespace target

typedef u32 u32x4 __attribute__((vector_size(16)));
using f16_register = _Float16;
#ifdef __gfx950__
using bf16_register = __bf16;
#else
using bf16_register = short;
#endif

// ---------------------------------------------------------------- indices, blocks and waves

DEVICE_FN u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE_FN u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE_FN u32 block_dim() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE_FN u32 grid_dim() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
DEVICE_FN u64 global_size() { return __builtin_amdgcn_grid_size_x(); }

#ifdef __GFX9__
constexpr u32 WAVE = 64;
#else
constexpr u32 WAVE = 32;
#endif
using Mask = MaskOf<WAVE>::type;

DEVICE_FN void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE_FN void wave_sync() {
#if CANDLE_ROCM_PLAIN_LDS
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#else
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#endif
}
DEVICE_FN u32 lane() {
    const u32 below = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    return WAVE == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, below) : below;
}
DEVICE_FN u32 shfl(u32 v, u32 source) { return (u32)__builtin_amdgcn_ds_bpermute((int)((source % WAVE) * 4u), (int)v); }
DEVICE_FN u64 shfl(u64 v, u32 source) { return (u64)shfl((u32)(v >> 32), source) << 32 | shfl((u32)v, source); }
template <u32 MASK> DEVICE_FN u32 word_across(u32 v) {
    // Rows of 16 lanes have instructions of their own, which neither go through LDS nor need an address: quad_perm,
    // row_half_mirror, row_ror.
    constexpr int CONTROL = CANDLE_ROCM_PLAIN_LANES ? 0 : MASK == 1 ? 0xb1 : MASK == 2 ? 0x4e : MASK == 7 ? 0x141 : MASK == 8 ? 0x128 : 0;
    if constexpr (CONTROL != 0) {
        return (u32)__builtin_amdgcn_update_dpp(0, (int)v, CONTROL, 0xf, 0xf, true);
    } else if constexpr (MASK == 16 && !CANDLE_ROCM_PLAIN_LANES) {
        return (u32)__builtin_amdgcn_ds_swizzle((int)v, MASK << 10 | 31);
    } else {
        return shfl(v, lane() ^ MASK);
    }
}
#if defined(__GFX9__) || CANDLE_ROCM_PLAIN_LANES
DEVICE_FN u32 other_half(u32 v) { return shfl(v, lane() ^ 16u); }
#else
DEVICE_FN u32 other_half(u32 v) { return __builtin_amdgcn_permlanex16(v, v, 0x76543210u, 0xfedcba98u, false, false); }
#endif
#ifdef __GFX9__
DEVICE_FN Mask ballot(bool v) { return __builtin_amdgcn_ballot_w64(v); }
#else
DEVICE_FN Mask ballot(bool v) { return __builtin_amdgcn_ballot_w32(v); }
#endif
DEVICE_FN bool any_lane(bool v) { return ballot(v) != 0; }
DEVICE_FN u32 lowest(u32 mask) { return (u32)__builtin_ctz(mask); }
DEVICE_FN u32 lowest(u64 mask) { return (u32)__builtin_ctzll(mask); }
DEVICE_FN u32 uniform(u32 v) { return (u32)__builtin_amdgcn_readfirstlane((int)v); }

// ---------------------------------------------------------------- atomics

template <typename Word, typename F> DEVICE_FN void atomic_update(Word* p, F f) {
    Word seen = __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    while (!__hip_atomic_compare_exchange_weak(p, &seen, f(seen), __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) {
    }
}
// One instruction where the arch has it for the type, a loop elsewhere.
DEVICE_FN void atomic_add(float* p, float v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN void atomic_add(double* p, double v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN void atomic_add(u32* p, u32 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN void atomic_add(u64* p, u64 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN u32 count_up(u32* counter, u32 by) { return __hip_atomic_fetch_add(counter, by, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP); }

// ---------------------------------------------------------------- conversions, bytes and functions

DEVICE_FN float f16_to_float(u16 h) { return (float)__builtin_bit_cast(_Float16, h); }
DEVICE_FN u16 float_to_f16(float x) { return __builtin_bit_cast(u16, (_Float16)x); }

#if CANDLE_ROCM_PLAIN_BYTES
DEVICE_FN u32 permute_bytes(u32 high, u32 low, u32 selector) {
    const u64 bytes = (u64)high << 32 | low;
    u32 picked = 0;
    for (u32 i = 0; i < 32; i += 8) picked |= (u32)(u8)(bytes >> (8u * (selector >> i & 7u))) << i;
    return picked;
}
DEVICE_FN u32 low_halves(u32 first, u32 second) { return (first & 0xffffu) | second << 16; }
DEVICE_FN u32 high_halves(u32 first, u32 second) { return first >> 16 | (second & 0xffff0000u); }
// `store` comes later, with T.
template <typename T, typename C> DEVICE_FN T store(C v);
template <typename T> DEVICE_FN u32 narrow_pair(float low, float high) { return store<T>(low).bits | (u32)store<T>(high).bits << 16; }
#else
DEVICE_FN u32 permute_bytes(u32 high, u32 low, u32 selector) { return __builtin_amdgcn_perm(high, low, selector); }
DEVICE_FN u32 low_halves(u32 first, u32 second) { return __builtin_amdgcn_perm(second, first, 0x05040100u); }
DEVICE_FN u32 high_halves(u32 first, u32 second) { return __builtin_amdgcn_perm(second, first, 0x07060302u); }
// Made of 32-bit operations, of which it takes three.
template <typename T> DEVICE_FN u32 narrow_pair(float low, float high) {
    const u32 x = __builtin_bit_cast(u32, low), y = __builtin_bit_cast(u32, high);
    if constexpr (is_same<T, f16>::value) {
        const u32 half = 0x1000u;
        return __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pkrtz(__builtin_bit_cast(float, x + half), __builtin_bit_cast(float, y + half)));
    } else {
        const u32 half = 0x8000u;
        return high_halves(x + half, y + half);
    }
}
#endif

DEVICE_FN float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
DEVICE_FN float exp2_whole(float x) { return __builtin_exp2f(x); }
DEVICE_FN float reciprocal_fast(float x) { return __builtin_amdgcn_rcpf(x); }
DEVICE_FN float sqrt_fast(float x) { return __builtin_amdgcn_sqrtf(x); }
DEVICE_FN float rsqrt_fast(float x) { return __builtin_amdgcn_rsqf(x); }
DEVICE_FN float multiply_add(float a, float b, float c) {
    CONTRACT
    return a * b + c;
}

// ---------------------------------------------------------------- memory, and what the compiler may know

template <typename T> struct __attribute__((packed)) Unaligned { T value; };
template <typename T> DEVICE_FN T load_unaligned(const u8* at) {
    if constexpr (CANDLE_ROCM_PLAIN_LOADS) {
        struct {
            u8 b[sizeof(T)];
        } bytes;
        // Each by itself: a compiler that may would join them.
        for (u32 i = 0; i < sizeof(T); ++i) bytes.b[i] = *(const volatile u8*)(at + i);
        return __builtin_bit_cast(T, bytes);
    } else {
        return ((const Unaligned<T>*)at)->value;
    }
}

DEVICE_FN u32 anew(u32 bits) {
    asm volatile("" : "+v"(bits));
    return bits;
}
template <typename T> DEVICE_FN T opaque(T x) {
    asm volatile("" : "+v"(x));
    return x;
}
template <typename T> DEVICE_FN T opaque_uniform(T x) {
    asm volatile("" : "+s"(x));
    return x;
}

}  // namespace device

#endif
