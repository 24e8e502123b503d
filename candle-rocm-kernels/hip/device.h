// What every kernel is written on: types, indices, barriers, wave operations, atomics and mathematics.
//
// The same text compiles for three targets, each in one file that gives what is listed here: amdgcn (the product), the
// host under hip-sim, and nvptx (for measuring). Kernels do not ask what they are compiled for: where a target has
// something that another lacks, a constant in namespace `target` says so. Everything lives in namespace `device`, which
// kernels see through a using-directive; mathematics (math.h) is reached as `math::exp(x)`, so that nothing can clash
// with a runtime's own header.
#ifndef CANDLE_ROCM_DEVICE_H
#define CANDLE_ROCM_DEVICE_H

#include "plain.h"
#include "types.h"

// These include nothing themselves: a header is spliced once, and would be missing from the other branches.
#if defined(__HIP_SIM__)
#include "target/host.h"
#elif defined(__CUDACC__)
#include "target/nvptx.h"
#else
#include "target/amdgcn.h"
#endif

// Begins a line of one part of a family: a compiler on the user's machine makes the parts one by one, each without the
// lines of others.
#define PART(name)

// ---------------------------------------------------------------- what a target gives

// Macros:
//
//     DEVICE_FN                      begins a function of device code
//     MAX_BLOCK(threads)             the largest block that a kernel is launched with; lets the compiler use more
//                                    registers than the default of 1024 threads allows
//     MAX_BLOCK_OF(threads, blocks)  the same, in registers that on nvptx leave room for so many blocks at once
//     BATCHING_BLOCK(threads)        the same, for kernels that ask for several packs at once: nvrtc's own choice of
//                                    registers would have them wait for one after the other
//     CONTRACT                       begins a function in which a product and a sum may become one operation, with one
//                                    rounding
//     ROLLED                         before a loop whose body is long: it is not to be unrolled, or little
//
// Types: Mask, one bit for each lane; u32x4, 16 bytes as one load moves them; f16_register and bf16_register, the
// elements that the compiler's matrix instructions take.
//
// Constants: WAVE, the lanes of a wave, and in namespace target:
//
//     ANY_ALIGNMENT      memory may be accessed at addresses that are no multiples of the access's size
//     APPROXIMATES       exp2_fast and its like are approximations
//     COPIES_AHEAD       memory can be copied into LDS without registers: target::copy_ahead and what goes with it
//     HAS_BF16           bf16 is rounded in hardware: target::float_to_bf16
//     HAS_DOT4           products of four bytes are one instruction: target::dot4
//     HAS_SMALL_ATOMICS  memory of one and two bytes can be exchanged atomically
namespace device {

// Where the thread is. All grids have one dimension.
DEVICE_FN u32 thread_x();
DEVICE_FN u32 block_x();
DEVICE_FN u32 block_dim();
DEVICE_FN u32 grid_dim();
// The number of threads in the grid: for (u64 i = global_index(); i < n; i += global_size()).
DEVICE_FN u64 global_size();

// All threads of the block arrive, and each sees what the others wrote to LDS and to global memory before.
DEVICE_FN void barrier();
// Each lane sees what the others of its wave wrote to LDS before. All lanes must be active.
DEVICE_FN void wave_sync();

// Waves. All lanes must arrive.
DEVICE_FN u32 lane();
// The value that lane `source` holds.
DEVICE_FN u32 shfl(u32 v, u32 source);
DEVICE_FN u64 shfl(u64 v, u32 source);
// The word of lane ^ MASK, for the masks that wave_reduce takes.
template <u32 MASK> DEVICE_FN u32 word_across(u32 v);
// What the lane 16 further or nearer holds, in waves of 32 and in halves of 64.
DEVICE_FN u32 other_half(u32 v);
DEVICE_FN Mask ballot(bool v);
DEVICE_FN bool any_lane(bool v);
// The lowest bit that is set; one is.
DEVICE_FN u32 lowest(u32 mask);
DEVICE_FN u32 lowest(u64 mask);
// A value that is the same for the whole wave.
DEVICE_FN u32 uniform(u32 v);

// Replaces *p by f(*p) atomically, over the bits of T (4 or 8 bytes, less with HAS_SMALL_ATOMICS).
template <typename Word, typename F> DEVICE_FN void atomic_update(Word* p, F f);
DEVICE_FN void atomic_add(float* p, float v);
DEVICE_FN void atomic_add(double* p, double v);
DEVICE_FN void atomic_add(u32* p, u32 v);
DEVICE_FN void atomic_add(u64* p, u64 v);
// Adds to a counter in LDS and gives what it was.
DEVICE_FN u32 count_up(u32* counter, u32 by);

// Conversions of the bits of a binary16, to nearest even.
DEVICE_FN float f16_to_float(u16 h);
DEVICE_FN u16 float_to_f16(float x);
// Two finite values below 2^15, or NaN, as neighbours of T (f16 or bf16): nearest, on amdgcn halves away from zero and
// f16 below 2^-14 toward zero.
template <typename T> DEVICE_FN u32 narrow_pair(float low, float high);
// The lower halves of two words as neighbours, and the upper halves.
DEVICE_FN u32 low_halves(u32 first, u32 second);
DEVICE_FN u32 high_halves(u32 first, u32 second);
// Byte i of the result is byte `selector[i]` (0..7) of high:low.
DEVICE_FN u32 permute_bytes(u32 high, u32 low, u32 selector);

// What the hardware has of 2^x, 1/x, the root and its inverse. Denormal arguments and results may be 0; `exp2_whole`
// has them.
DEVICE_FN float exp2_fast(float x);
DEVICE_FN float exp2_whole(float x);
DEVICE_FN float reciprocal_fast(float x);
DEVICE_FN float sqrt_fast(float x);
DEVICE_FN float rsqrt_fast(float x);
// a * b + c, rounded once where that is one operation.
DEVICE_FN float multiply_add(float a, float b, float c);

// From any address.
template <typename T> DEVICE_FN T load_unaligned(const u8* at);

// The same bits, of which the compiler does not know where they come from.
DEVICE_FN u32 anew(u32 bits);
// The same value, but not the same to the compiler: what is computed from it is computed where it is used, not kept in
// registers.
template <typename T> DEVICE_FN T opaque(T x);
// As `opaque`, of what is the same for the whole wave.
template <typename T> DEVICE_FN T opaque_uniform(T x);

namespace target {
// x * 2^k, as math::ldexp.
DEVICE_FN float ldexp(float x, i32 k);
DEVICE_FN double ldexp(double x, i32 k);

// With COPIES_AHEAD: 16 bytes on their way from global memory into LDS, or zeros. The thread has them there after
// copies_arrive, others after a barrier.
DEVICE_FN void copy_ahead(void* to, const void* from, bool exists);
DEVICE_FN void copies_arrive();
// A word that is loaded here and now, whatever happens to it.
DEVICE_FN u32 load_word(const u32* from);
// With HAS_BF16: to nearest even.
DEVICE_FN u16 float_to_bf16(float x);
// With HAS_DOT4: sum + the products of the four signed bytes of a and b.
DEVICE_FN i32 dot4(u32 a, u32 b, i32 sum);
}  // namespace target

// ---------------------------------------------------------------- what follows from it

template <typename To, typename From>
DEVICE_FN To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between sizes");
    return __builtin_bit_cast(To, from);
}

// The thread's index in the grid.
DEVICE_FN u64 global_index() { return (u64)block_x() * block_dim() + thread_x(); }

}  // namespace device
#include "shared/dims.h"
#include "storage.h"
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

// An Op is a struct with `template <typename T> static DEVICE_FN T apply(T a, T b)` and `template <typename T> static
// DEVICE_FN T identity()`. Result in every lane. All lanes of the wave must be active.
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

// Result in every thread. The block must be a multiple of WAVE; scratch is `__shared__ T scratch[MAX_WAVES]` and may be
// used again at once.
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

// As atomic_update, for 1- and 2-byte values, which most hardware only exchanges as part of an aligned 32-bit word.
template <typename Bits, typename F> DEVICE_FN void atomic_update_small(Bits* p, F f) {
    if constexpr (target::HAS_SMALL_ATOMICS) {
        atomic_update(p, f);
    } else {
        const u64 address = (u64)p;
        const u32 shift = (u32)(address & 3u) * 8u;
        const u32 mask = ((1u << (8u * sizeof(Bits))) - 1u) << shift;
        atomic_update((u32*)(address & ~3ull), [=](u32 word) -> u32 {
            return (word & ~mask) | ((u32)f((Bits)((word & mask) >> shift)) << shift);
        });
    }
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
DEVICE_FN void atomic_add(i32* p, i32 v) { atomic_add((u32*)p, (u32)v); }
DEVICE_FN void atomic_add(i64* p, i64 v) { atomic_add((u64*)p, (u64)v); }

}  // namespace device

#include "math.h"

using namespace device;

#endif
