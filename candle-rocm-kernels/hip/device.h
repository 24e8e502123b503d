// What every kernel is written on: types, indices, barriers, wave operations, atomics and mathematics.
//
// The same text compiles for amdgcn (clang or hiprtc: compiler builtins only, no header) and, under hip-sim, for the host
// (__HIP_SIM__; the simulator's prelude gives threadIdx and friends) and for nvptx (__CUDACC__; nvrtc, in waves of 32). Everything lives in namespace `device`, which kernels see
// through a using-directive; mathematics (math.h) is reached as `math::exp(x)`, so that nothing can clash with a runtime's own header.
#ifndef CANDLE_ROCM_DEVICE_H
#define CANDLE_ROCM_DEVICE_H

#ifdef __HIP_SIM__
#define DEVICE_FN inline
#elif defined(__CUDACC__)
#define DEVICE_FN __device__ __forceinline__
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
// BATCHING_BLOCK is for kernels that ask for several packs at once: nvrtc's own choice of registers would have them wait for one after the other.
#ifdef __HIP_SIM__
#define MAX_BLOCK(threads)
#define BATCHING_BLOCK(threads)
#elif defined(__CUDACC__)
#define MAX_BLOCK(threads) __launch_bounds__(threads)
#define BATCHING_BLOCK(threads) __launch_bounds__(threads, 1024 / threads)
#else
#define MAX_BLOCK(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define BATCHING_BLOCK(threads) MAX_BLOCK(threads)
#endif
// The same, in registers that on nvptx leave room for so many blocks at once.
#ifdef __CUDACC__
#define MAX_BLOCK_OF(threads, blocks) __launch_bounds__(threads, blocks)
#else
#define MAX_BLOCK_OF(threads, blocks) MAX_BLOCK(threads)
#endif

// Begins a line of one part of a family: a compiler on the user's machine makes the parts one by one, each without the lines of others.
#define PART(name)

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
#elif defined(__CUDACC__)
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
#else
DEVICE_FN float f16_to_float(u16 h) { return (float)bit_cast<_Float16>(h); }
DEVICE_FN u16 float_to_f16(float x) { return bit_cast<u16>((_Float16)x); }
#endif

DEVICE_FN u16 float_to_bf16(float x) {
#ifdef __CUDACC__
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    const u32 bits = bit_cast<u32>(x);
    if (is_nan(x)) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
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

#if defined(__HIP_SIM__) || defined(__CUDACC__)
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
#if defined(__HIP_SIM__) || defined(__CUDACC__)
DEVICE_FN u64 global_size() { return (u64)grid_dim() * block_dim(); }
#else
DEVICE_FN u64 global_size() { return __builtin_amdgcn_grid_size_x(); }
#endif

}  // namespace device
#include "shared/dims.h"
namespace device {

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
#elif defined(__CUDACC__)
constexpr u32 WAVE = 32;
DEVICE_FN void barrier() { __syncthreads(); }
DEVICE_FN u32 lane() { return threadIdx.x % WAVE; }
DEVICE_FN u32 shfl(u32 v, u32 source) { return __shfl_sync(~0u, v, (int)(source % WAVE)); }
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

// Each lane sees what the others of its wave wrote to LDS before. All lanes must be active.
DEVICE_FN void wave_sync() {
#ifdef __HIP_SIM__
    hip_sim_wave_exchange(0);
#elif defined(__CUDACC__)
    __syncwarp();
#else
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#endif
}

// The word of lane ^ MASK, for the masks that wave_reduce takes.
template <u32 MASK> DEVICE_FN u32 word_across(u32 v) {
#if defined(__HIP_SIM__) || defined(__CUDACC__)
    return shfl(v, lane() ^ MASK);
#else
    // Rows of 16 lanes have instructions of their own, which neither go through LDS nor need an address: quad_perm, row_half_mirror, row_ror.
    constexpr int CONTROL = MASK == 1 ? 0xb1 : MASK == 2 ? 0x4e : MASK == 7 ? 0x141 : MASK == 8 ? 0x128 : 0;
    if constexpr (CONTROL != 0) {
        return (u32)__builtin_amdgcn_update_dpp(0, (int)v, CONTROL, 0xf, 0xf, true);
    } else if constexpr (MASK == 16) {
        return (u32)__builtin_amdgcn_ds_swizzle((int)v, MASK << 10 | 31);
    } else {
        return shfl(v, lane() ^ MASK);
    }
#endif
}
template <u32 MASK, typename T> DEVICE_FN T across(T v) {
    if constexpr (sizeof(T) % 4 == 0) {
        struct Words {
            u32 w[sizeof(T) / 4];
        };
        Words words = bit_cast<Words>(v);
        for (u32& word : words.w) word = word_across<MASK>(word);
        return bit_cast<T>(words);
    } else {
        return shfl(v, lane() ^ MASK);
    }
}

// An Op is a struct with `template <typename T> static DEVICE_FN T apply(T a, T b)` and `template <typename T> static DEVICE_FN T identity()`.
// Result in every lane. All lanes of the wave must be active.
template <typename Op, typename T> DEVICE_FN T wave_reduce(T v) {
    static_assert(WAVE == 32 || WAVE == 64, "masks that together reach every lane");
    if constexpr (WAVE == 64) v = Op::apply(v, across<32>(v));
    v = Op::apply(v, across<16>(v));
    v = Op::apply(v, across<8>(v));
    v = Op::apply(v, across<7>(v));
    v = Op::apply(v, across<2>(v));
    return Op::apply(v, across<1>(v));
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
#elif defined(__CUDACC__)
    Word seen = *(volatile Word*)p;
    for (Word expected = ~seen; expected != seen;) {
        expected = seen;
        seen = atomicCAS(p, expected, (Word)f(expected));
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
DEVICE_FN void atomic_add(float* p, float v) {
    atomic_update((u32*)p, [=](u32 old) -> u32 { return bit_cast<u32>(bit_cast<float>(old) + v); });
}
DEVICE_FN void atomic_add(double* p, double v) {
    atomic_update((u64*)p, [=](u64 old) -> u64 { return bit_cast<u64>(bit_cast<double>(old) + v); });
}
DEVICE_FN void atomic_add(u32* p, u32 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEVICE_FN void atomic_add(u64* p, u64 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
#elif defined(__CUDACC__)
DEVICE_FN void atomic_add(float* p, float v) { atomicAdd(p, v); }
DEVICE_FN void atomic_add(double* p, double v) { atomicAdd(p, v); }
DEVICE_FN void atomic_add(u32* p, u32 v) { atomicAdd(p, v); }
DEVICE_FN void atomic_add(u64* p, u64 v) { atomicAdd(p, v); }
#else
// One instruction where the arch has it for the type, a loop elsewhere.
DEVICE_FN void atomic_add(float* p, float v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN void atomic_add(double* p, double v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN void atomic_add(u32* p, u32 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE_FN void atomic_add(u64* p, u64 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
#endif
DEVICE_FN void atomic_add(i32* p, i32 v) { atomic_add((u32*)p, (u32)v); }
DEVICE_FN void atomic_add(i64* p, i64 v) { atomic_add((u64*)p, (u64)v); }

}  // namespace device

#include "math.h"

using namespace device;

#endif
