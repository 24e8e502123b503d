// What every kernel is written on: types, indices, barriers, wave operations, atomics and mathematics.
//
// The same text compiles for amdgcn (clang or hiprtc: compiler builtins only, no header) and, under hip-sim, for the host
// (__HIP_SIM__; the simulator's prelude gives threadIdx and friends). Everything lives in namespace `device`, which kernels see
// through a using-directive; mathematics is reached as `math::exp(x)`, so that nothing can clash with a runtime's own header.
#ifndef CANDLE_ROCM_DEVICE_H
#define CANDLE_ROCM_DEVICE_H

#ifdef __HIP_SIM__
#define DEVICE_FN inline
#else
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
// One rounding per written operation on every target: fused operations only where math::fma says so.
#pragma STDC FP_CONTRACT OFF
#define DEVICE_FN __attribute__((device, always_inline)) inline
#endif

// The largest block a kernel is launched with; lets the compiler use more registers than the default of 1024 threads allows.
#ifdef __HIP_SIM__
#define MAX_BLOCK(threads)
#else
#define MAX_BLOCK(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#endif

namespace device {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(void*) == 8, "64-bit targets only");

template <typename To, typename From>
DEVICE_FN To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between sizes");
    return __builtin_bit_cast(To, from);
}

template <typename A, typename B> struct is_same { static constexpr bool value = false; };
template <typename A> struct is_same<A, A> { static constexpr bool value = true; };

// ---------------------------------------------------------------- storage types

// IEEE binary16, bfloat16 and OCP float8 e4m3 (no infinity; 0x7f is NaN) as they lie in memory.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3 { u8 bits; };

DEVICE_FN bool is_nan(float x) { return (bit_cast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
DEVICE_FN bool is_nan(double x) { return (bit_cast<u64>(x) & ~(1ull << 63)) > 0x7ff0000000000000ull; }

// The type in which arithmetic on T is done: float for the small floats, T itself otherwise.
template <typename T> struct compute { using type = T; };
template <> struct compute<f16> { using type = float; };
template <> struct compute<bf16> { using type = float; };
template <> struct compute<f8e4m3> { using type = float; };
template <typename T> using compute_t = typename compute<T>::type;

template <typename T> struct is_float { static constexpr bool value = false; };
template <> struct is_float<f16> { static constexpr bool value = true; };
template <> struct is_float<bf16> { static constexpr bool value = true; };
template <> struct is_float<f8e4m3> { static constexpr bool value = true; };
template <> struct is_float<float> { static constexpr bool value = true; };
template <> struct is_float<double> { static constexpr bool value = true; };

#ifdef __HIP_SIM__
DEVICE_FN float f16_to_float(u16 h) {
    const u32 sign = (u32)(h & 0x8000u) << 16;
    const u32 magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | (magnitude > 0x7c00u ? 0x400000u : 0u));
    // Scaling by 2^112 rebiases normals and normalises subnormals in one exact multiplication.
    return bit_cast<float>(sign | bit_cast<u32>(bit_cast<float>(magnitude << 13) * 0x1p112f));
}
DEVICE_FN u16 float_to_f16(float x) {
    const u32 bits = bit_cast<u32>(x);
    const u32 sign = (bits >> 16) & 0x8000u;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (u16)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (u16)(sign | 0x7c00u);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
        // Below the smallest normal: adding 0.5 leaves the multiple of 2^-24 nearest to x in the low mantissa bits.
        return (u16)(sign | (bit_cast<u32>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
    }
    const u32 rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (u16)(sign | ((rounded >> 13) - (112u << 10)));
}
#else
DEVICE_FN float f16_to_float(u16 h) { return (float)bit_cast<_Float16>(h); }
DEVICE_FN u16 float_to_f16(float x) { return bit_cast<u16>((_Float16)x); }
#endif

DEVICE_FN u16 float_to_bf16(float x) {
    const u32 bits = bit_cast<u32>(x);
    if (is_nan(x)) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

DEVICE_FN float f8e4m3_to_float(u8 b) {
    const u32 sign = (u32)(b & 0x80u) << 24;
    const u32 magnitude = b & 0x7fu;
    if (magnitude == 0x7fu) return bit_cast<float>(0x7fffe000u);
    // As for f16: 2^120 rebiases from 7 to 127 and normalises subnormals exactly.
    return bit_cast<float>(sign | bit_cast<u32>(bit_cast<float>(magnitude << 20) * 0x1p120f));
}

// Round to nearest even; beyond 464 (and at infinity) saturate at 448; NaN keeps its sign.
DEVICE_FN u8 float_to_f8e4m3(float x) {
    const u32 bits = bit_cast<u32>(x);
    const u32 sign = (bits >> 24) & 0x80u;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (u8)(sign | 0x7fu);
    if (magnitude > 0x43e80000u) return (u8)(sign | 0x7eu);
    if (magnitude < 0x3c800000u) {
        // Below 2^-6: adding 2^14 leaves the multiple of 2^-9 nearest to x in the low mantissa bits.
        return (u8)(sign | (bit_cast<u32>(bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u));
    }
    const u32 rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    const u32 code = (rounded >> 20) - (120u << 3);
    return (u8)(sign | (code > 0x7eu ? 0x7eu : code));
}

// load: storage to compute type.
DEVICE_FN float load(f16 v) { return f16_to_float(v.bits); }
DEVICE_FN float load(bf16 v) { return bit_cast<float>((u32)v.bits << 16); }
DEVICE_FN float load(f8e4m3 v) { return f8e4m3_to_float(v.bits); }
template <typename T> DEVICE_FN T load(T v) { return v; }

// store<T>: compute type to storage, rounding to nearest even. From double the results are those of Rust's `half` on x86 (f16 by way
// of float; bf16 from the upper 32 bits in one rounding) and `float8` (one rounding).
template <typename T, typename C> struct Store {
    static DEVICE_FN T from(C v) { return (T)v; }
};
template <> struct Store<f16, float> {
    static DEVICE_FN f16 from(float v) { return f16{float_to_f16(v)}; }
};
template <> struct Store<f16, double> {
    static DEVICE_FN f16 from(double v) { return f16{float_to_f16((float)v)}; }
};
template <> struct Store<bf16, float> {
    static DEVICE_FN bf16 from(float v) { return bf16{float_to_bf16(v)}; }
};
template <> struct Store<bf16, double> {
    static DEVICE_FN bf16 from(double v) {
        if (is_nan(v)) return bf16{float_to_bf16((float)v)};
        const double head = bit_cast<double>(bit_cast<u64>(v) & ~0xffffffffull);
        const double magnitude = bit_cast<double>(bit_cast<u64>(head) & ~(1ull << 63));
        if (magnitude >= 0x1p-126) return bf16{float_to_bf16((float)head)};
        // A subnormal of float would round twice; in units of 2^-133 one rounding gives the bits.
        const u32 units = (u32)__builtin_rint(magnitude * 0x1p133);
        return bf16{(u16)(units | (u32)(bit_cast<u64>(v) >> 48 & 0x8000u))};
    }
};
template <> struct Store<f8e4m3, float> {
    static DEVICE_FN f8e4m3 from(float v) { return f8e4m3{float_to_f8e4m3(v)}; }
};
template <> struct Store<f8e4m3, double> {
    static DEVICE_FN f8e4m3 from(double v) {
        // Round to odd first: a float with the sticky bit kept rounds to 4 bits as the double itself would.
        const float head = (float)v;
        if (is_nan(v) || (double)head == v) return f8e4m3{float_to_f8e4m3(head)};
        const u64 magnitude = bit_cast<u64>(v) & ~(1ull << 63);
        const float toward_zero = (bit_cast<u64>((double)head) & ~(1ull << 63)) > magnitude ? bit_cast<float>(bit_cast<u32>(head) - 1u) : head;
        return f8e4m3{float_to_f8e4m3(bit_cast<float>(bit_cast<u32>(toward_zero) | 1u))};
    }
};
template <typename T, typename C> DEVICE_FN T store(C v) { return Store<T, C>::from(v); }

// ---------------------------------------------------------------- indices

#ifdef __HIP_SIM__
DEVICE_FN u32 thread_x() { return threadIdx.x; }
DEVICE_FN u32 block_x() { return blockIdx.x; }
DEVICE_FN u32 block_dim() { return blockDim.x; }
DEVICE_FN u32 grid_dim() { return gridDim.x; }
#else
DEVICE_FN u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE_FN u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE_FN u32 block_dim() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE_FN u32 grid_dim() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
#endif
// The thread's index in the grid and the number of threads in it: for (u64 i = global_index(); i < n; i += global_size()).
DEVICE_FN u64 global_index() { return (u64)block_x() * block_dim() + thread_x(); }
#ifdef __HIP_SIM__
DEVICE_FN u64 global_size() { return (u64)grid_dim() * block_dim(); }
#else
DEVICE_FN u64 global_size() { return __builtin_amdgcn_grid_size_x(); }
#endif

constexpr u32 MAX_RANK = 8;
// Shapes and strides in elements, outermost dimension first, by value in the kernel's arguments.
struct Dims {
    u32 rank;
    u32 size[MAX_RANK];
};
struct Strides {
    u32 s[MAX_RANK];
};

// Offset of the element with the given row-major index.
DEVICE_FN u32 strided_offset(const Dims& dims, const Strides& strides, u32 index) {
    u32 offset = 0;
    for (u32 d = dims.rank; d-- > 1;) {
        const u32 next = index / dims.size[d];
        offset += (index - next * dims.size[d]) * strides.s[d];
        index = next;
    }
    return dims.rank == 0 ? 0 : offset + index * strides.s[0];
}

// ---------------------------------------------------------------- blocks and waves

#ifdef __HIP_SIM__
constexpr u32 WAVE = HIP_SIM_WAVE;
DEVICE_FN void barrier() { __syncthreads(); }
DEVICE_FN u32 lane() { return hip_sim_lane(); }
DEVICE_FN u32 shfl(u32 v, u32 source) { return (u32)hip_sim_wave_exchange(v)[source % WAVE]; }
#else
#ifdef __GFX9__
constexpr u32 WAVE = 64;
#else
constexpr u32 WAVE = 32;
#endif
// All threads of the block arrive, and each sees what the others wrote to LDS and to global memory before.
DEVICE_FN void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE_FN u32 lane() {
    const u32 below = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    return WAVE == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, below) : below;
}
DEVICE_FN u32 shfl(u32 v, u32 source) { return (u32)__builtin_amdgcn_ds_bpermute((int)((source % WAVE) * 4u), (int)v); }
#endif

// The value that lane `source` holds. All lanes of the wave must arrive.
DEVICE_FN u64 shfl(u64 v, u32 source) {
#ifdef __HIP_SIM__
    return hip_sim_wave_exchange(v)[source % WAVE];
#else
    return (u64)shfl((u32)(v >> 32), source) << 32 | shfl((u32)v, source);
#endif
}
DEVICE_FN i32 shfl(i32 v, u32 source) { return (i32)shfl((u32)v, source); }
DEVICE_FN i64 shfl(i64 v, u32 source) { return (i64)shfl((u64)v, source); }
DEVICE_FN float shfl(float v, u32 source) { return bit_cast<float>(shfl(bit_cast<u32>(v), source)); }
DEVICE_FN double shfl(double v, u32 source) { return bit_cast<double>(shfl(bit_cast<u64>(v), source)); }
DEVICE_FN u8 shfl(u8 v, u32 source) { return (u8)shfl((u32)v, source); }
DEVICE_FN i16 shfl(i16 v, u32 source) { return (i16)shfl((i32)v, source); }

template <typename T> DEVICE_FN T shfl_xor(T v, u32 mask) { return shfl(v, lane() ^ mask); }
// The value of lane + delta; lanes whose partner lies outside the wave keep their own.
template <typename T> DEVICE_FN T shfl_down(T v, u32 delta) {
    const u32 source = lane() + delta;
    return shfl(v, source < WAVE ? source : lane());
}

// An Op is a struct with `template <typename T> static DEVICE_FN T apply(T a, T b)` and `template <typename T> static DEVICE_FN T identity()`.
// Result in every lane. All lanes of the wave must be active.
template <typename Op, typename T> DEVICE_FN T wave_reduce(T v) {
    for (u32 mask = WAVE / 2; mask > 0; mask /= 2) v = Op::apply(v, shfl_xor(v, mask));
    return v;
}

// Elements of LDS scratch that block_reduce needs: one per wave of the largest block.
constexpr u32 MAX_WAVES = 1024 / WAVE;

// Result in every thread. The block must be a multiple of WAVE; scratch is `__shared__ T scratch[MAX_WAVES]` and may be used again at once.
template <typename Op, typename T> DEVICE_FN T block_reduce(T v, T* scratch) {
    v = wave_reduce<Op>(v);
    const u32 waves = block_dim() / WAVE;
    if (waves == 1) return v;
    if (lane() == 0) scratch[thread_x() / WAVE] = v;
    barrier();
    v = lane() < waves ? scratch[lane()] : Op::template identity<T>();
    v = wave_reduce<Op>(v);
    barrier();
    return v;
}

struct Sum {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a + b; }
    template <typename T> static DEVICE_FN T identity() { return T(0); }
};

// ---------------------------------------------------------------- atomics

// Replaces *p by f(*p) atomically, over the bits of T (4 or 8 bytes; the host has them for 1 and 2 bytes as well).
template <typename Word, typename F> DEVICE_FN void atomic_update(Word* p, F f) {
#ifdef __HIP_SIM__
    Word seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &seen, f(seen), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
#else
    Word seen = __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    while (!__hip_atomic_compare_exchange_weak(p, &seen, f(seen), __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) {
    }
#endif
}

// The same for 1- and 2-byte values, which the hardware only exchanges as part of an aligned 32-bit word.
template <typename Bits, typename F> DEVICE_FN void atomic_update_small(Bits* p, F f) {
#ifdef __HIP_SIM__
    atomic_update(p, f);
#else
    const u64 address = (u64)p;
    const u32 shift = (u32)(address & 3u) * 8u;
    const u32 mask = ((1u << (8u * sizeof(Bits))) - 1u) << shift;
    atomic_update((u32*)(address & ~3ull), [=](u32 word) -> u32 {
        return (word & ~mask) | ((u32)f((Bits)((word & mask) >> shift)) << shift);
    });
#endif
}

DEVICE_FN void atomic_add(float* p, float v) {
    atomic_update((u32*)p, [=](u32 old) -> u32 { return bit_cast<u32>(bit_cast<float>(old) + v); });
}
DEVICE_FN void atomic_add(double* p, double v) {
    atomic_update((u64*)p, [=](u64 old) -> u64 { return bit_cast<u64>(bit_cast<double>(old) + v); });
}
DEVICE_FN void atomic_add(f16* p, float v) {
    atomic_update_small(&p->bits, [=](u16 old) -> u16 { return store<f16>(load(f16{old}) + v).bits; });
}
DEVICE_FN void atomic_add(bf16* p, float v) {
    atomic_update_small(&p->bits, [=](u16 old) -> u16 { return store<bf16>(load(bf16{old}) + v).bits; });
}
DEVICE_FN void atomic_add(f8e4m3* p, float v) {
    atomic_update_small(&p->bits, [=](u8 old) -> u8 { return store<f8e4m3>(load(f8e4m3{old}) + v).bits; });
}
DEVICE_FN void atomic_add(u8* p, u8 v) {
    atomic_update_small(p, [=](u8 old) -> u8 { return (u8)(old + v); });
}
DEVICE_FN void atomic_add(i16* p, i16 v) {
    atomic_update_small((u16*)p, [=](u16 old) -> u16 { return (u16)(old + (u16)v); });
}
#ifdef __HIP_SIM__
DEVICE_FN void atomic_add(u32* p, u32 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEVICE_FN void atomic_add(u64* p, u64 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
#else
DEVICE_FN void atomic_add(u32* p, u32 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN void atomic_add(u64* p, u64 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
#endif
DEVICE_FN void atomic_add(i32* p, i32 v) { atomic_add((u32*)p, (u32)v); }
DEVICE_FN void atomic_add(i64* p, i64 v) { atomic_add((u64*)p, (u64)v); }

// ---------------------------------------------------------------- mathematics
//
// For float and double, within a few units in the last place over the whole range: denormals, infinities, NaN and huge arguments as IEEE 754
// and C say. Polynomials are Chebyshev fits of the function named beside them (mpmath, 60 digits).
namespace math {

DEVICE_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
DEVICE_FN float sqrt(float x) { return __builtin_sqrtf(x); }
DEVICE_FN double sqrt(double x) { return __builtin_sqrt(x); }
template <typename F> DEVICE_FN F rsqrt(F x) { return F(1) / sqrt(x); }
DEVICE_FN float floor(float x) { return __builtin_floorf(x); }
DEVICE_FN double floor(double x) { return __builtin_floor(x); }
DEVICE_FN float ceil(float x) { return __builtin_ceilf(x); }
DEVICE_FN double ceil(double x) { return __builtin_ceil(x); }
DEVICE_FN float trunc(float x) { return __builtin_truncf(x); }
DEVICE_FN double trunc(double x) { return __builtin_trunc(x); }
// Halfway cases away from zero, as Rust's round.
DEVICE_FN float round(float x) { return __builtin_roundf(x); }
DEVICE_FN double round(double x) { return __builtin_round(x); }
// Halfway cases to even.
DEVICE_FN float rint(float x) { return __builtin_rintf(x); }
DEVICE_FN double rint(double x) { return __builtin_rint(x); }
DEVICE_FN float abs(float x) { return __builtin_fabsf(x); }
DEVICE_FN double abs(double x) { return __builtin_fabs(x); }
DEVICE_FN float copysign(float x, float sign) { return __builtin_copysignf(x, sign); }
DEVICE_FN double copysign(double x, double sign) { return __builtin_copysign(x, sign); }

DEVICE_FN float infinity(float) { return __builtin_inff(); }
DEVICE_FN double infinity(double) { return __builtin_inf(); }
DEVICE_FN float nan(float) { return __builtin_nanf(""); }
DEVICE_FN double nan(double) { return __builtin_nan(""); }

// x * 2^k
#ifdef __HIP_SIM__
template <typename F, typename Bits, u32 MANTISSA, i32 BIAS> DEVICE_FN F scale_in_steps(F x, i32 k) {
    // Three factors reach from the largest to the smallest value; each is a normal power of two, so at most the last one rounds.
    for (u32 step = 0; step < 2; step++) {
        const i32 part = k > BIAS ? BIAS : k < 1 - BIAS ? 1 - BIAS : k;
        x *= bit_cast<F>((Bits)(BIAS + part) << MANTISSA);
        k -= part;
    }
    const i32 part = k > BIAS ? BIAS : k < 1 - BIAS ? 1 - BIAS : k;
    return x * bit_cast<F>((Bits)(BIAS + part) << MANTISSA);
}
DEVICE_FN float ldexp(float x, i32 k) { return scale_in_steps<float, u32, 23, 127>(x, k); }
DEVICE_FN double ldexp(double x, i32 k) { return scale_in_steps<double, u64, 52, 1023>(x, k); }
#else
DEVICE_FN float ldexp(float x, i32 k) { return __builtin_ldexpf(x, k); }
DEVICE_FN double ldexp(double x, i32 k) { return __builtin_ldexp(x, k); }
#endif

template <typename F> DEVICE_FN F polynomial(F, F c) { return c; }
// c0 + x (c1 + x (c2 + …)), fused.
template <typename F, typename... Rest> DEVICE_FN F polynomial(F x, F c, Rest... rest) { return fma(x, polynomial(x, rest...), c); }

// x = k ln 2 + r with |r| <= ln 2 / 2, and expm1(r). Arguments beyond what ldexp can still tell apart are clamped, NaN is not.
struct ExpF { i32 k; float m1; };
DEVICE_FN ExpF exp_reduce(float x) {
    x = x < -200.0f ? -200.0f : x > 200.0f ? 200.0f : x;
    const float k = rint(x * 0x1.715476p+0f);
    const float r = fma(-k, -0x1.05c610p-29f, fma(-k, 0x1.62e430p-1f, x));
    const float tail = polynomial(r, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040);
    return {is_nan(x) ? 0 : (i32)k, fma(r * r, tail, r)};
}
struct ExpD { i32 k; double m1; };
DEVICE_FN ExpD exp_reduce(double x) {
    x = x < -1500.0 ? -1500.0 : x > 1500.0 ? 1500.0 : x;
    const double k = rint(x * 0x1.71547652b82fep+0);
    const double r = fma(-k, 0x1.abc9e3b39803fp-56, fma(-k, 0x1.62e42fefa39efp-1, x));
    const double tail = polynomial(r, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800,
                                   1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800);
    return {is_nan(x) ? 0 : (i32)k, fma(r * r, tail, r)};
}
template <typename F> DEVICE_FN F exp(F x) {
    const auto e = exp_reduce(x);
    return ldexp(F(1) + e.m1, e.k);
}
// exp(x) - 1 without cancellation near zero.
template <typename F> DEVICE_FN F expm1(F x) {
    const auto e = exp_reduce(x);
    const F power = ldexp(F(1), e.k);
    return power == infinity(x) ? ldexp(F(1) + e.m1, e.k) : fma(power, e.m1, power - F(1));
}
template <typename F> DEVICE_FN F tanh(F x) {
    // expm1(-2|x|) lies in (-1, 0]: no overflow, and the quotient keeps small arguments exact.
    const F m1 = expm1(F(-2) * abs(x));
    return copysign(-m1 / (m1 + F(2)), x);
}

// x = 2^k m with m in [sqrt(1/2), sqrt(2)), for positive finite x.
struct SplitF { float k, m; };
DEVICE_FN SplitF log_split(float x) {
    const bool denormal = x < 0x1p-126f;
    const u32 bits = bit_cast<u32>(denormal ? x * 0x1p25f : x) + (0x3f800000u - 0x3f3504f3u);
    return {(float)((i32)(bits >> 23) - 127 - (denormal ? 25 : 0)), bit_cast<float>((bits & 0x7fffffu) + 0x3f3504f3u)};
}
struct SplitD { double k, m; };
DEVICE_FN SplitD log_split(double x) {
    const bool denormal = x < 0x1p-1022;
    const u64 bits = bit_cast<u64>(denormal ? x * 0x1p54 : x) + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
    return {(double)((i32)(bits >> 52) - 1023 - (denormal ? 54 : 0)),
            bit_cast<double>((bits & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull)};
}
// (log((1+s)/(1-s))/s - 2) / z with z = s^2 <= 0.0295
DEVICE_FN float log_tail(float z) { return polynomial(z, 0.666666687f, 0.400001228f, 0.285508066f, 0.2333083f); }
DEVICE_FN double log_tail(double z) {
    return polynomial(z, 0.6666666666666666, 0.4000000000000088, 0.28571428570802404, 0.22222222391987728, 0.18181795610879042,
                      0.15386241293734357, 0.13268730539100895, 0.1308707158006738);
}
DEVICE_FN float ln2_low(float) { return -0x1.05c610p-29f; }
DEVICE_FN double ln2_low(double) { return 0x1.abc9e3b39803fp-56; }
template <typename F> DEVICE_FN F log(F x) {
    if (!(x > F(0))) return x == F(0) ? -infinity(x) : nan(x);
    if (x == infinity(x)) return x;
    const auto split = log_split(x);
    // With f = m - 1 (exact) and s = f/(2+f): log m = f - f²/2 + s (f²/2 + s² tail), so the large term f carries no error.
    const F f = split.m - F(1);
    const F s = f / (F(2) + f);
    const F z = s * s;
    const F half_square = F(0.5) * f * f;
    const F correction = fma(s, fma(z, log_tail(z), half_square), split.k * ln2_low(x));
    const F log_m = f - (half_square - correction);
    return split.k == F(0) ? log_m : fma(split.k, F(sizeof(F) == 4 ? 0x1.62e430p-1 : 0x1.62e42fefa39efp-1), log_m);
}

// 2/pi in binary after 64 zero bits; 1280 bits serve the largest double.
DEVICE_FN u64 two_over_pi(u32 word) {
    static constexpr u64 WORDS[] = {
        0x0000000000000000ull, 0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull, 0xdb6295993c439041ull, 0xfe5163abdebbc561ull,
        0xb7246e3a424dd2e0ull, 0x06492eea09d1921cull, 0xfe1deb1cb129a73eull, 0xe88235f52ebb4484ull, 0xe99c7026b45f7e41ull,
        0x3991d639835339f4ull, 0x9c845f8bbdf9283bull, 0x1ff897ffde05980full, 0xef2f118b5a0a6d1full, 0x6d367ecf27cb09b7ull,
        0x4f463f669e5fea2dull, 0x7527bac7ebe5f17bull, 0x3d0739f78a5292eaull, 0x6bfb5fb11f8d5d08ull, 0x56033046fc7b6babull,
        0xf0cfbc209af4361dull};
    return WORDS[word];
}
// 64 of those bits from `position` on.
DEVICE_FN u64 two_over_pi_bits(u32 position) {
    const u32 shift = position % 64;
    const u64 high = two_over_pi(position / 64) << shift;
    return shift == 0 ? high : high | two_over_pi(position / 64 + 1) >> (64 - shift);
}
DEVICE_FN u64 multiply_high(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }

// x = n pi/2 + r with |r| <= pi/4; the quadrant is n mod 4.
struct AngleF { u32 quadrant; float r; };
struct AngleD { u32 quadrant; double r; };

// Payne and Hanek: of the product x 2/pi only the bits below weight 4 matter, so a window of 2/pi that starts there, times the mantissa, modulo
// the window's size, gives quadrant and fraction in fixed point.
DEVICE_FN AngleF angle_of_huge(float x) {
    const u32 bits = bit_cast<u32>(abs(x));
    const u64 mantissa = (bits & 0x7fffffu) | 0x800000u;
    const u32 position = (bits >> 23) - 150 + 62;
    const u64 product = mantissa * two_over_pi_bits(position) + multiply_high(mantissa, two_over_pi_bits(position + 64));
    const u32 quadrant = (u32)((product + (1ull << 61)) >> 62);
    const float r = (float)(i64)(product << 2) * (float)(0x1.921fb54442d18p+0 * 0x1p-64);
    return x < 0.0f ? AngleF{(0u - quadrant) & 3u, -r} : AngleF{quadrant & 3u, r};
}
DEVICE_FN AngleD angle_of_huge(double x) {
    const u64 bits = bit_cast<u64>(abs(x));
    const u64 mantissa = (bits & 0xfffffffffffffull) | 1ull << 52;
    const u32 position = (u32)(bits >> 52) - 1075 + 62;
    const u64 middle = two_over_pi_bits(position + 64);
    u64 low = mantissa * middle;
    u64 high = mantissa * two_over_pi_bits(position) + multiply_high(mantissa, middle);
    const u64 carry_in = multiply_high(mantissa, two_over_pi_bits(position + 128));
    low += carry_in;
    high += low < carry_in ? 1 : 0;
    const u32 quadrant = (u32)((high + (1ull << 61)) >> 62);
    const i64 head = (i64)(high << 2 | low >> 62);
    const double fraction = (double)(head & ~0x7ffll) * 0x1p-64 + ((double)(head & 0x7ff) + (double)(low << 2) * 0x1p-64) * 0x1p-64;
    const double r = fraction * 0x1.921fb54442d18p+0;
    return x < 0.0 ? AngleD{(0u - quadrant) & 3u, -r} : AngleD{quadrant & 3u, r};
}
// Cody and Waite in three steps: x - k head(pi/2) is exact while k is small enough, the rest of pi/2 follows with one rounding each.
DEVICE_FN AngleF angle(float x) {
    if (!(abs(x) < 65536.0f)) return x - x == 0.0f ? angle_of_huge(x) : AngleF{0, x - x};
    const float k = rint(x * 0x1.45f306p-1f);
    const float r = fma(-k, -0x1.ee59dap-50f, fma(-k, -0x1.777a5cp-25f, fma(-k, 0x1.921fb6p+0f, x)));
    return {(u32)(i32)k & 3u, r};
}
DEVICE_FN AngleD angle(double x) {
    if (!(abs(x) < 0x1p27)) return x - x == 0.0 ? angle_of_huge(x) : AngleD{0, x - x};
    const double k = rint(x * 0x1.45f306dc9c883p-1);
    const double r = fma(-k, -0x1.f1976b7ed8fbcp-110, fma(-k, 0x1.1a62633145c07p-54, fma(-k, 0x1.921fb54442d18p+0, x)));
    return {(u32)(i32)k & 3u, r};
}
// Taylor: the first omitted term is below a quarter ulp on [-pi/4, pi/4].
DEVICE_FN float sin_in_quadrant(float r) {
    const float z = r * r;
    return fma(r * z, polynomial(z, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880), r);
}
DEVICE_FN float cos_in_quadrant(float r) {
    const float z = r * r;
    return polynomial(z, 1.0f, -1.0f / 2, 1.0f / 24, -1.0f / 720, 1.0f / 40320, -1.0f / 3628800);
}
DEVICE_FN double sin_in_quadrant(double r) {
    const double z = r * r;
    return fma(r * z, polynomial(z, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000), r);
}
DEVICE_FN double cos_in_quadrant(double r) {
    const double z = r * r;
    return polynomial(z, 1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200,
                      1.0 / 20922789888000);
}
template <typename F> DEVICE_FN F sin(F x) {
    const auto a = angle(x);
    const F magnitude = a.quadrant & 1u ? cos_in_quadrant(a.r) : sin_in_quadrant(a.r);
    return a.quadrant & 2u ? -magnitude : magnitude;
}
template <typename F> DEVICE_FN F cos(F x) {
    const auto a = angle(x);
    const F magnitude = a.quadrant & 1u ? sin_in_quadrant(a.r) : cos_in_quadrant(a.r);
    return (a.quadrant + 1u) & 2u ? -magnitude : magnitude;
}

// erf(x)/x over z = x² in [0, 1]
DEVICE_FN float erf_small(float z) {
    return polynomial(z, 1.12837911f, -0.37612626f, 0.112835944f, -0.0268542115f, 0.00518908724f, -0.00080168643f, 7.87587487e-5f);
}
DEVICE_FN double erf_small(double z) {
    return polynomial(z, 1.1283791670955126, -0.37612638903183543, 0.11283791670945006, -0.02686617064323777, 0.0052239776071164225,
                      -0.0008548325975389692, 0.00012055294904839707, -1.492473690741966e-05, 1.6447424703317362e-06, -1.6208483801871705e-07,
                      1.3720064546777686e-08, -7.795898827002142e-10);
}
// erfc(x) exp(x²) over u = (x-2)/(x+2), x in [1, 4] and [1, 6]: beyond them erf rounds to 1.
DEVICE_FN float erfc_scaled(float u) {
    return polynomial(u, 0.255395681f, -0.427185833f, 0.241658211f, -0.0789785236f, 0.00373214134f, 0.00699485559f, -0.000836589956f,
                      -0.000944159634f);
}
DEVICE_FN double erfc_scaled(double u) {
    return polynomial(u, 0.25539567631050575, -0.4271858474139584, 0.24165819424246646, -0.07897858101573213, 0.003732892404327764,
                      0.006997461739200444, -0.0008471432509203844, -0.000981977026567889, 4.355560219515472e-05, 0.00017436116545392264,
                      2.7525480361206068e-05, -2.7579864674305787e-05, -1.396807230177146e-05, 1.392621183618803e-06, 3.789215643758464e-06,
                      1.1780775215625583e-06, -5.322696855655786e-07, -4.215301054238321e-07);
}
template <typename F> DEVICE_FN F erf(F x) {
    const F a = abs(x);
    if (!(a > F(1))) return x * erf_small(x * x);
    if (a > F(sizeof(F) == 4 ? 4 : 6)) return copysign(F(1), x);
    return copysign(F(1) - exp(-a * a) * erfc_scaled((a - F(2)) / (a + F(2))), x);
}

// A value as an unevaluated sum, |low| <= ulp(high)/2.
struct Pair { double high, low; };
DEVICE_FN Pair quick_sum(double a, double b) {
    const double high = a + b;
    return {high, b - (high - a)};
}
DEVICE_FN Pair product(double a, double b) {
    const double high = a * b;
    return {high, fma(a, b, -high)};
}
DEVICE_FN Pair product(Pair a, Pair b) {
    const Pair p = product(a.high, b.high);
    return quick_sum(p.high, p.low + (a.high * b.low + a.low * b.high));
}
// Natural logarithm of a positive finite x to about 2^-66 relative.
DEVICE_FN Pair log_pair(double x) {
    const SplitD split = log_split(x);
    const double f = split.m - 1.0;
    const double d = split.m + 1.0;
    const double d_low = split.m - (d - 1.0);
    const double s = f / d;
    const Pair s_pair = quick_sum(s, (fma(-s, d, f) - s * d_low) / d);
    const Pair z = product(s_pair, s_pair);
    // log m = 2 s + s³ (2/3 + z rest(z))
    const double rest = polynomial(z.high, 0.4, 0.2857142857142937, 0.22222222221655138, 0.18181818335562422, 0.1538459494439715,
                                   0.13334805679298412, 0.11706209953550312, 0.11723454509771844);
    const Pair tail = product(product(s_pair, z), quick_sum(0x1.5555555555555p-1, fma(z.high, rest, 0x1.5555555555555p-55)));
    const Pair log_m = quick_sum(2.0 * s_pair.high, tail.high);
    const double log_m_low = log_m.low + (2.0 * s_pair.low + tail.low);
    // The head of ln 2 has 42 bits, so k times it is exact.
    const Pair sum = quick_sum(split.k * 0x1.62e42fefa38p-1, log_m.high);
    const Pair whole = split.k == 0.0 ? Pair{log_m.high, 0.0} : sum;
    return quick_sum(whole.high, whole.low + fma(split.k, 0x1.ef35793c7673p-45, log_m_low));
}

// |x|^y for positive finite |x| and finite y.
DEVICE_FN double pow_positive(double x, double y) {
    const Pair l = log_pair(x);
    const double e = l.high * y;
    if (!(abs(e) < 800.0)) return e > 0.0 ? __builtin_inf() : 0.0;
    const double e_low = fma(l.high, y, -e) + l.low * y;
    const ExpD r = exp_reduce(e);
    return ldexp(fma(1.0 + r.m1, e_low, 1.0 + r.m1), r.k);
}
DEVICE_FN float pow_positive(float x, float y) {
    return (float)exp(log((double)x) * (double)y);
}
template <typename F> DEVICE_FN F pow(F x, F y) {
    if (y == F(0) || x == F(1)) return F(1);
    if (is_nan(x) || is_nan(y)) return x + y;
    const F a = abs(x);
    if (abs(y) == infinity(y)) {
        if (a == F(1)) return F(1);
        return (a > F(1)) == (y > F(0)) ? infinity(x) : F(0);
    }
    const bool integer = trunc(y) == y;
    // An odd y has an odd last bit; halving an even one leaves an integer.
    const bool odd = integer && trunc(y * F(0.5)) != y * F(0.5);
    const F sign = odd ? copysign(F(1), x) : F(1);
    if (a == F(0)) return y > F(0) ? sign * F(0) : sign * infinity(x);
    if (a == infinity(x)) return y > F(0) ? sign * infinity(x) : sign * F(0);
    if (x < F(0) && !integer) return nan(x);
    return sign * pow_positive(a, y);
}

}  // namespace math

}  // namespace device

using namespace device;

#endif
