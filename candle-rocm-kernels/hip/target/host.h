// The target host: a C++ compiler as hip-sim drives it, whose prelude gives threadIdx and friends, the width of a wave,
// and the macros and matrix instructions of the arch that it pretends to be. device.h says what all of this is.
#ifndef CANDLE_ROCM_TARGET_HOST_H
#define CANDLE_ROCM_TARGET_HOST_H

#define DEVICE_FN inline

#define MAX_BLOCK(threads)
#define MAX_BLOCK_OF(threads, blocks)
#define BATCHING_BLOCK(threads)
#define CONTRACT
#define ROLLED

namespace device {
namespace target {

constexpr bool ANY_ALIGNMENT = !CANDLE_ROCM_PLAIN_LOADS;
constexpr bool APPROXIMATES = false;
// As nvptx has it, so that what uses it is tested.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr bool COPIES_AHEAD = true;
DEVICE_FN void copy_ahead(void* to, const void* from, bool exists) {
    for (u32 i = 0; i < 4; ++i) ((u32*)to)[i] = exists ? ((const u32*)from)[i] : 0u;
}
DEVICE_FN void copies_arrive() {}
DEVICE_FN u32 load_word(const u32* from) { return *from; }
#else
constexpr bool COPIES_AHEAD = false;
#endif
constexpr bool HAS_BF16 = false;
constexpr bool HAS_DOT4 = false;
constexpr bool HAS_SMALL_ATOMICS = true;

template <typename F, typename Bits, u32 MANTISSA, i32 BIAS> DEVICE_FN F scale_in_steps(F x, i32 k) {
    // Three factors reach from the largest to the smallest value; each is a normal power of two, so at most the last
    // one rounds.
    for (u32 step = 0; step < 2; step++) {
        const i32 part = k > BIAS ? BIAS : k < 1 - BIAS ? 1 - BIAS : k;
        x *= __builtin_bit_cast(F, (Bits)(BIAS + part) << MANTISSA);
        k -= part;
    }
    const i32 part = k > BIAS ? BIAS : k < 1 - BIAS ? 1 - BIAS : k;
    return x * __builtin_bit_cast(F, (Bits)(BIAS + part) << MANTISSA);
}
DEVICE_FN float ldexp(float x, i32 k) { return scale_in_steps<float, u32, 23, 127>(x, k); }
DEVICE_FN double ldexp(double x, i32 k) { return scale_in_steps<double, u64, 52, 1023>(x, k); }

}  // namespace target

typedef u32 u32x4 __attribute__((vector_size(16)));
// Their bits: there need not be a _Float16 or __bf16 here.
using f16_register = short;
using bf16_register = short;

// ---------------------------------------------------------------- indices, blocks and waves

DEVICE_FN u32 thread_x() { return threadIdx.x; }
DEVICE_FN u32 block_x() { return blockIdx.x; }
DEVICE_FN u32 block_dim() { return blockDim.x; }
DEVICE_FN u32 grid_dim() { return gridDim.x; }
DEVICE_FN u64 global_size() { return (u64)grid_dim() * block_dim(); }

constexpr u32 WAVE = HIP_SIM_WAVE;
using Mask = MaskOf<WAVE>::type;

DEVICE_FN void barrier() { __syncthreads(); }
// Unless the simulator is to get this wrong, as with the lanes that are read below.
DEVICE_FN void wave_sync() {
    if (CANDLE_ROCM_PLAIN_LDS || !hip_sim_stale_lds()) hip_sim_wave_exchange(0);
}
DEVICE_FN u32 lane() { return hip_sim_lane(); }
DEVICE_FN u32 shfl(u32 v, u32 source) { return (u32)hip_sim_wave_exchange(v)[source % WAVE]; }
DEVICE_FN u64 shfl(u64 v, u32 source) { return hip_sim_wave_exchange(v)[source % WAVE]; }
DEVICE_FN u32 flipped_lane() { return CANDLE_ROCM_PLAIN_LANES ? 0u : hip_sim_flipped_lane(); }
template <u32 MASK> DEVICE_FN u32 word_across(u32 v) { return shfl(v, lane() ^ MASK ^ flipped_lane()); }
DEVICE_FN u32 other_half(u32 v) { return shfl(v, lane() ^ 16u ^ flipped_lane()); }
DEVICE_FN Mask ballot(bool v) {
    const unsigned long long* votes = hip_sim_wave_exchange(v);
    Mask mask = 0;
    for (u32 i = 0; i < WAVE; ++i) mask |= (Mask)(votes[i] & 1u) << i;
    return mask;
}
DEVICE_FN bool any_lane(bool v) {
    const unsigned long long* votes = hip_sim_wave_exchange(v);
    bool any = false;
    for (u32 i = 0; i < WAVE; ++i) any |= votes[i] == 1;
    return any;
}
DEVICE_FN u32 lowest(u32 mask) { return (u32)__builtin_ctz(mask); }
DEVICE_FN u32 lowest(u64 mask) { return (u32)__builtin_ctzll(mask); }
DEVICE_FN u32 uniform(u32 v) { return v; }

// ---------------------------------------------------------------- atomics

template <typename Word, typename F> DEVICE_FN void atomic_update(Word* p, F f) {
    Word seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &seen, f(seen), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
DEVICE_FN void atomic_add(float* p, float v) {
    atomic_update((u32*)p, [=](u32 old) -> u32 { return __builtin_bit_cast(u32, __builtin_bit_cast(float, old) + v); });
}
DEVICE_FN void atomic_add(double* p, double v) {
    atomic_update((u64*)p, [=](u64 old) -> u64 { return __builtin_bit_cast(u64, __builtin_bit_cast(double, old) + v); });
}
DEVICE_FN void atomic_add(u32* p, u32 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEVICE_FN void atomic_add(u64* p, u64 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEVICE_FN u32 count_up(u32* counter, u32 by) { return __atomic_fetch_add(counter, by, __ATOMIC_RELAXED); }

// ---------------------------------------------------------------- conversions, bytes and functions

DEVICE_FN float f16_to_float(u16 h) {
    const u32 sign = (u32)(h & 0x8000u) << 16;
    const u32 magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return __builtin_bit_cast(float, sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | (magnitude > 0x7c00u ? 0x400000u : 0u));
    }
    // Scaling by 2^112 rebiases normals and normalises subnormals in one exact multiplication.
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude << 13) * 0x1p112f));
}
DEVICE_FN u16 float_to_f16(float x) {
    const u32 bits = __builtin_bit_cast(u32, x);
    const u32 sign = (bits >> 16) & 0x8000u;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (u16)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (u16)(sign | 0x7c00u);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
        // Below the smallest normal: adding 0.5 leaves the multiple of 2^-24 nearest to x in the low mantissa bits.
        return (u16)(sign | (__builtin_bit_cast(u32, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u));
    }
    const u32 rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (u16)(sign | ((rounded >> 13) - (112u << 10)));
}
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

DEVICE_FN float exp2_fast(float x) { return __builtin_exp2f(x); }
DEVICE_FN float exp2_whole(float x) { return __builtin_exp2f(x); }
DEVICE_FN float reciprocal_fast(float x) { return 1.0f / x; }
DEVICE_FN float sqrt_fast(float x) { return __builtin_sqrtf(x); }
DEVICE_FN float rsqrt_fast(float x) { return 1.0f / __builtin_sqrtf(x); }
DEVICE_FN float multiply_add(float a, float b, float c) { return a * b + c; }

// ---------------------------------------------------------------- memory, and what the compiler may know

template <typename T> struct __attribute__((packed)) Unaligned { T value; };
template <typename T> DEVICE_FN T load_unaligned(const u8* at) { return ((const Unaligned<T>*)at)->value; }

DEVICE_FN u32 anew(u32 bits) { return bits; }
template <typename T> DEVICE_FN T opaque(T x) { return x; }
template <typename T> DEVICE_FN T opaque_uniform(T x) { return x; }

}  // namespace device

#endif
