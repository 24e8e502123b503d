// The target nvptx, for measuring on NVIDIA GPUs: nvrtc behind hip-sim's CUDA back end, in waves of 32. device.h says
// what all of this is.
#ifndef CANDLE_ROCM_TARGET_NVPTX_H
#define CANDLE_ROCM_TARGET_NVPTX_H

#define DEVICE_FN __device__ __forceinline__

#define MAX_BLOCK(threads) __launch_bounds__(threads)
#define MAX_BLOCK_OF(threads, blocks) __launch_bounds__(threads, blocks)
#define BATCHING_BLOCK(threads) __launch_bounds__(threads, 1024 / threads)
// nvrtc contracts by itself, but not across loops; multiply_add says where.
#define CONTRACT
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define ROLLED _Pragma("unroll 2")
#else
#define ROLLED
#endif

namespace device {
namespace target {

constexpr bool ANY_ALIGNMENT = false;
constexpr bool APPROXIMATES = true;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr bool COPIES_AHEAD = true;
DEVICE_FN void copy_ahead(void* to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(exists ? 16u : 0u) : "memory");
}
DEVICE_FN void copies_arrive() { asm volatile("cp.async.wait_all;" ::: "memory"); }
DEVICE_FN u32 load_word(const u32* from) {
    u32 word;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(word) : "l"(from));
    return word;
}
#else
constexpr bool COPIES_AHEAD = false;
#endif
constexpr bool HAS_BF16 = true;
constexpr bool HAS_DOT4 = true;
constexpr bool HAS_SMALL_ATOMICS = false;

DEVICE_FN u16 float_to_bf16(float x) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
DEVICE_FN i32 dot4(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }

// In two halves, for x in [1, 2) or so and |k| <= 252: where the result is normal, neither rounds, and below that only
// the second one does.
DEVICE_FN float ldexp(float x, i32 k) {
    const i32 half = k >> 1;
    return x * __builtin_bit_cast(float, (u32)(127 + half) << 23) * __builtin_bit_cast(float, (u32)(127 + k - half) << 23);
}
DEVICE_FN double ldexp(double x, i32 k) {
    k = k < -2044 ? -2044 : k > 2044 ? 2044 : k;
    const i32 half = k >> 1;
    return x * __builtin_bit_cast(double, (u64)(1023 + half) << 52) * __builtin_bit_cast(double, (u64)(1023 + k - half) << 52);
}

}  // namespace target

struct alignas(16) u32x4 {
    u32 v[4];
    DEVICE_FN u32& operator[](u32 i) { return v[i]; }
    DEVICE_FN u32 operator[](u32 i) const { return v[i]; }
};
#define LANEWISE(op)                                                                  \
    DEVICE_FN u32x4 operator op(u32x4 a, u32 b) {                                      \
        return u32x4{{a.v[0] op b, a.v[1] op b, a.v[2] op b, a.v[3] op b}};            \
    }                                                                                 \
    DEVICE_FN u32x4 operator op(u32x4 a, u32x4 b) {                                    \
        return u32x4{{a.v[0] op b.v[0], a.v[1] op b.v[1], a.v[2] op b.v[2], a.v[3] op b.v[3]}}; \
    }                                                                                 \
    DEVICE_FN u32x4& operator op##=(u32x4& a, u32x4 b) { return a = a op b; }
LANEWISE(+)
LANEWISE(-)
LANEWISE(&)
LANEWISE(|)
LANEWISE(^)
LANEWISE(<<)
LANEWISE(>>)
#undef LANEWISE

// ---------------------------------------------------------------- indices, blocks and waves

DEVICE_FN u32 thread_x() { return threadIdx.x; }
DEVICE_FN u32 block_x() { return blockIdx.x; }
DEVICE_FN u32 block_dim() { return blockDim.x; }
DEVICE_FN u32 grid_dim() { return gridDim.x; }
DEVICE_FN u64 global_size() { return (u64)grid_dim() * block_dim(); }

constexpr u32 WAVE = 32;
using Mask = MaskOf<WAVE>::type;

DEVICE_FN void barrier() { __syncthreads(); }
DEVICE_FN void wave_sync() { __syncwarp(); }
DEVICE_FN u32 lane() { return threadIdx.x % WAVE; }
DEVICE_FN u32 shfl(u32 v, u32 source) { return __shfl_sync(~0u, v, (int)(source % WAVE)); }
DEVICE_FN u64 shfl(u64 v, u32 source) { return (u64)shfl((u32)(v >> 32), source) << 32 | shfl((u32)v, source); }
template <u32 MASK> DEVICE_FN u32 word_across(u32 v) { return shfl(v, lane() ^ MASK); }
DEVICE_FN u32 other_half(u32 v) { return shfl(v, lane() ^ 16u); }
DEVICE_FN Mask ballot(bool v) { return __ballot_sync(~0u, v); }
DEVICE_FN bool any_lane(bool v) { return __any_sync(~0u, v) != 0; }
DEVICE_FN u32 lowest(u32 mask) { return (u32)__ffs((int)mask) - 1; }
DEVICE_FN u32 lowest(u64 mask) { return (u32)__ffsll((i64)mask) - 1; }
DEVICE_FN u32 uniform(u32 v) { return v; }

// ---------------------------------------------------------------- atomics

template <typename Word, typename F> DEVICE_FN void atomic_update(Word* p, F f) {
    Word seen = *(volatile Word*)p;
    for (Word expected = ~seen; expected != seen;) {
        expected = seen;
        seen = atomicCAS(p, expected, (Word)f(expected));
    }
}
DEVICE_FN void atomic_add(float* p, float v) { atomicAdd(p, v); }
DEVICE_FN void atomic_add(double* p, double v) { atomicAdd(p, v); }
DEVICE_FN void atomic_add(u32* p, u32 v) { atomicAdd(p, v); }
DEVICE_FN void atomic_add(u64* p, u64 v) { atomicAdd(p, v); }
DEVICE_FN u32 count_up(u32* counter, u32 by) { return atomicAdd(counter, by); }

// ---------------------------------------------------------------- conversions, bytes and functions

DEVICE_FN float f16_to_float(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
DEVICE_FN u16 float_to_f16(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
DEVICE_FN u32 permute_bytes(u32 high, u32 low, u32 selector) {
    // Its selectors are nibbles.
    const u32 pairs = selector | selector >> 4;
    return __byte_perm(low, high, (pairs & 0xffu) | (pairs >> 8 & 0xff00u));
}
DEVICE_FN u32 low_halves(u32 first, u32 second) { return (first & 0xffffu) | second << 16; }
DEVICE_FN u32 high_halves(u32 first, u32 second) { return first >> 16 | (second & 0xffff0000u); }
template <typename T> DEVICE_FN u32 narrow_pair(float low, float high) {
    u32 pair;
    if constexpr (is_same<T, f16>::value) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

DEVICE_FN float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
DEVICE_FN float exp2_whole(float x) {
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
DEVICE_FN float reciprocal_fast(float x) {
    float quotient;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(x));
    return quotient;
}
DEVICE_FN float sqrt_fast(float x) {
    float root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}
DEVICE_FN float rsqrt_fast(float x) {
    float root;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}
DEVICE_FN float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// ---------------------------------------------------------------- memory, and what the compiler may know

template <typename T> struct __attribute__((packed)) Unaligned { T value; };
template <typename T> DEVICE_FN T load_unaligned(const u8* at) {
    // Words only load from multiples of their size: the aligned words that hold a value, shifted into place. Nobody
    // writes them meanwhile.
    constexpr u32 WORDS = sizeof(T) / 4;
    if constexpr (WORDS == 1 || WORDS == 2 || WORDS == 4) {
        struct alignas(alignof(T) > 4 ? alignof(T) : 4) {
            u32 w[WORDS];
        } value;
        const u64 address = (u64)at;
        if constexpr (WORDS == 4) {
            if (address % 16 == 0) return __builtin_bit_cast(T, __ldg((const uint4*)address));
        }
        const u32* const words = (const u32*)(address & ~3ull);
        const u32 shift = (u32)(address & 3u) * 8u;
        // The last byte's word: reads nothing that the value does not touch.
        const u32 end = (u32)((address & 3u) + sizeof(T) - 1u) / 4u;
        u32 word = __ldg(words);
        for (u32 i = 0; i < WORDS; ++i) {
            const u32 next = __ldg(words + (i + 1 < WORDS ? i + 1 : end));
            value.w[i] = __funnelshift_r(word, next, shift);
            word = next;
        }
        return __builtin_bit_cast(T, value);
    } else if constexpr (sizeof(T) == 2) {
        if ((u64)at % 2 == 0) return *(const T*)at;
    }
    return ((const Unaligned<T>*)at)->value;
}

DEVICE_FN u32 anew(u32 bits) {
    asm volatile("" : "+r"(bits));
    return bits;
}
template <typename T> DEVICE_FN T opaque(T x) { return x; }
template <typename T> DEVICE_FN T opaque_uniform(T x) { return x; }

}  // namespace device

#endif
