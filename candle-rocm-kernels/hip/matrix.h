// Matrix instructions: one wave computes D[16 x 16] += A[16 x K] B[K x 16], with sums in f32 (f16, bf16) or i32 (i8).
//
// MATRIX is 1 where the arch has them: MFMA on gfx90a, gfx942 and gfx950 (waves of 64), WMMA on gfx11 and gfx12 (waves of 32), mma.sync on
// nvptx from sm_80 on (waves of 32); code that uses what stands here lies in `#if MATRIX`. All lanes of the wave must be active.
//
// A lane's share of A is a row, of B a column, or COLUMNS of them; both are laid out alike, so one type serves as either. With i = lane % 16 and
// g = lane / 16 (ISA documents "AMD Instinct MI200", "AMD Instinct MI300", "CDNA4", "RDNA3", "RDNA4", chapters on matrix operations), for nvptx
// with n = lane / 4 and q = lane % 4 ("PTX ISA", fragments of mma.m16n8k16 and m16n8k32, whose A is our B so that a lane has whole columns of D):
//
//                        row of A, column of B    elements of K                column of D    rows of D
//     MFMA               i                        the g-th quarter             i              4 g + (0..4)
//     WMMA, gfx11        i                        all, the same for g = 0, 1   i              g + 2 (0..8)
//     WMMA, gfx12        i                        the g-th half                i              8 g + (0..8)
//     mma.sync           n and n + 8              the q-th quarter             n and n + 8    2 q + (0, 1, 8, 9)
//
// The order of K only has to be the same in A and B.
#ifndef CANDLE_ROCM_MATRIX_H
#define CANDLE_ROCM_MATRIX_H

#include "device.h"

#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
#define MATRIX 1
#define MATRIX_MFMA 1
#elif defined(__GFX11__)
#define MATRIX 1
#define MATRIX_WMMA11 1
#elif defined(__GFX12__)
#define MATRIX 1
#define MATRIX_WMMA12 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MATRIX 1
#define MATRIX_MMA 1
#else
#define MATRIX 0
#endif

#if MATRIX
namespace device {
namespace matrix {

// Rows of A and D, columns of B and D.
constexpr u32 TILE = 16;

// Columns of D, and with them rows of A and columns of B, that a lane holds, and how far apart.
#if MATRIX_MMA
constexpr u32 COLUMNS = 2;
#else
constexpr u32 COLUMNS = 1;
#endif
constexpr u32 APART = TILE / COLUMNS;

// Lanes that hold different parts of K of the same row or column.
#if MATRIX_WMMA11
constexpr u32 PARTS = 1;
#else
constexpr u32 PARTS = WAVE * COLUMNS / TILE;
#endif

#if defined(__gfx950__)
constexpr u32 K_16BIT = 32;
#else
constexpr u32 K_16BIT = 16;
#endif
#if defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__) || MATRIX_MMA
// gfx950 has 64 as well; 32 is the block of the quantized formats, each with a scale of its own.
constexpr u32 K_8BIT = 32;
#else
constexpr u32 K_8BIT = 16;
#endif

// The compiler's types: Registers is what its builtins take of A and B, Bits the same bytes as unsigned integers.
template <typename T> struct Format;
#if MATRIX_MMA
// Two words of each row or column, whatever is in them.
struct alignas(8) Words {
    u32 w[2];
};
template <typename Stored, u32 LENGTH, typename S> struct MmaFormat {
    static constexpr u32 K = LENGTH;
    using Bits = Words;
    using Element = Stored;
    using Sum = S;
};
template <> struct Format<f16> : MmaFormat<u16, K_16BIT, float> {};
template <> struct Format<bf16> : MmaFormat<u16, K_16BIT, float> {};
template <> struct Format<i8> : MmaFormat<u8, K_8BIT, i32> {};
#else
#ifdef __HIP_SIM__
using f16_register = short;
using bf16_register = short;
#elif defined(__gfx950__)
using f16_register = _Float16;
using bf16_register = __bf16;
#else
using f16_register = _Float16;
using bf16_register = short;
#endif
template <> struct Format<f16> {
    static constexpr u32 K = K_16BIT;
    typedef f16_register Registers __attribute__((vector_size(2 * K / PARTS)));
    typedef u16 Bits __attribute__((vector_size(2 * K / PARTS)));
    using Element = u16;
    using Sum = float;
};
template <> struct Format<bf16> {
    static constexpr u32 K = K_16BIT;
    typedef bf16_register Registers __attribute__((vector_size(2 * K / PARTS)));
    typedef u16 Bits __attribute__((vector_size(2 * K / PARTS)));
    using Element = u16;
    using Sum = float;
};
template <> struct Format<i8> {
    static constexpr u32 K = K_8BIT;
#if defined(__gfx90a__)
    using Registers = int;
#elif MATRIX_MFMA
    using Registers = long;
#else
    typedef int Registers __attribute__((vector_size(K / PARTS)));
#endif
    typedef u8 Bits __attribute__((vector_size(K / PARTS)));
    using Element = u8;
    using Sum = i32;
};
#endif

// The inner dimension of one instruction on T.
template <typename T> constexpr u32 K = Format<T>::K;

#if MATRIX_MMA
DEVICE_FN u32 part() { return lane() % PARTS; }
DEVICE_FN u32 held(u32 c) { return lane() / PARTS + c * APART; }
// Whether the lane is the first of those that hold the same columns.
DEVICE_FN bool is_first() { return part() == 0; }
#else
DEVICE_FN u32 part() { return PARTS == 1 ? 0u : lane() / TILE; }
DEVICE_FN u32 held(u32) { return lane() % TILE; }
DEVICE_FN bool is_first() { return lane() < TILE; }
#endif

// A lane's share of a 16 x K tile of A, or of a K x 16 tile of B.
template <typename T> struct Fragment {
    // Elements per lane of each row or column: consecutive ones of K, from k(0).
    static constexpr u32 ELEMENTS = Format<T>::K / PARTS;
    // What load needs p and the stride, in bytes, to be multiples of.
    static constexpr u32 ALIGNMENT = ELEMENTS * sizeof(T) < 16 ? ELEMENTS * sizeof(T) : 16;

    using Bits = typename Format<T>::Bits;
    Bits bits[COLUMNS];

    // The c-th row of A or column of B that the lane holds, and the position in K of its i-th element.
    static DEVICE_FN u32 index(u32 c) { return held(c); }
    static DEVICE_FN u32 k(u32 i) { return part() * ELEMENTS + i; }

    static DEVICE_FN Fragment zero() { return Fragment{}; }

    // From 16 rows of A, or 16 columns of B, of K contiguous elements each, `stride` elements apart.
    static DEVICE_FN Fragment load(const T* p, u32 stride) {
        return load_from([=](u32 index) { return p + index * stride; });
    }

    // From where start(index) says that the K elements of a row or column begin.
    template <typename F> static DEVICE_FN Fragment load_from(F start) {
        Fragment fragment;
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c) fragment.bits[c] = load_lane(start(index(c)) + k(0));
        return fragment;
    }

    // The lane's elements of a row or column from where they lie contiguously; p is as aligned as above.
    static DEVICE_FN Bits load_lane(const T* p) {
#if MATRIX_MMA
        return *(const Bits*)p;
#else
        typedef Bits __attribute__((aligned(ALIGNMENT), may_alias)) Vector;
        return *(const Vector*)p;
#endif
    }

    // From K rows of 16 contiguous elements, `stride` elements apart: A with its columns, or B with its rows in memory order.
    static DEVICE_FN Fragment load_transposed(const T* p, u32 stride) {
        Fragment fragment = zero();
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (u32 i = 0; i < ELEMENTS; ++i) fragment.set(c, i, p[k(i) * stride + index(c)]);
        return fragment;
    }

    // The i-th element of the c-th row or column, which was zero.
    DEVICE_FN void set(u32 c, u32 i, T v) {
        const auto element = bit_cast<typename Format<T>::Element>(v);
#if MATRIX_MMA
        constexpr u32 PER_WORD = 4 / sizeof(T);
        bits[c].w[i / PER_WORD] |= (u32)element << (i % PER_WORD * 8 * sizeof(T));
#else
        bits[c][i] = element;
#endif
    }
};
// A fragment in the order of the second operand's registers, or from it: loaded so at once, none needs to be moved.
template <typename T> DEVICE_FN Fragment<T> in_register_order(const Fragment<T>& x) {
#if MATRIX_MMA
    return Fragment<T>{{{{x.bits[0].w[0], x.bits[1].w[0]}}, {{x.bits[0].w[1], x.bits[1].w[1]}}}};
#else
    return x;
#endif
}
// Names for what a fragment is used as.
template <typename T> using FragmentA = Fragment<T>;
template <typename T> using FragmentB = Fragment<T>;

// A lane's share of a 16 x 16 tile of C and D; S is float or i32.
template <typename S> struct Accumulator {
    static constexpr u32 VALUES = TILE * TILE / WAVE;
    // Values of each column, which follow each other.
    static constexpr u32 ROWS = VALUES / COLUMNS;
#if MATRIX_MMA
    struct Registers {
        S v[VALUES];
        DEVICE_FN S& operator[](u32 i) { return v[i]; }
        DEVICE_FN S operator[](u32 i) const { return v[i]; }
    };
#else
    typedef S Registers __attribute__((vector_size(VALUES * sizeof(S))));
#endif
    Registers values;

    // Column and row of the i-th value.
    static DEVICE_FN u32 column(u32 i) { return held(i / ROWS); }
    static DEVICE_FN u32 row(u32 i) {
#if MATRIX_WMMA11
        return lane() / TILE + 2 * i;
#elif MATRIX_MMA
        return part() * 2 + i % 2 + i % ROWS / 2 * 8;
#else
        return lane() / TILE * ROWS + i;
#endif
    }

    static DEVICE_FN Accumulator zero() { return Accumulator{Registers{}}; }

#if MATRIX_MMA
    // For sums of integers below 2^22 that become floats, which nvptx converts at half its rate: their bits on top of those of a number whose last bit
    // is 1, and the difference.
    static constexpr float BASE = 0x1.8p23f;
    static DEVICE_FN Accumulator small() {
        Accumulator sums;
#pragma unroll
        for (u32 i = 0; i < VALUES; ++i) sums.values[i] = bit_cast<S>(BASE);
        return sums;
    }
    DEVICE_FN float small_value(u32 i) const { return bit_cast<float>(values[i]) - BASE; }
#else
    static DEVICE_FN Accumulator small() { return zero(); }
    DEVICE_FN float small_value(u32 i) const { return (float)values[i]; }
#endif

    // Multiplies the values of the c-th column.
    DEVICE_FN void scale(u32 c, S by) {
#if MATRIX_MMA
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) values[c * ROWS + i] *= by;
#else
        values *= by;
#endif
    }
};

#if MATRIX_MMA
// The first two values of both columns, or the last two: rows are those of A that `row` has of each lane.
template <typename T> DEVICE_FN void multiply_rows(const Words& row, const Fragment<T>& columns, typename Format<T>::Sum* first, typename Format<T>::Sum* second) {
    const Words &x = columns.bits[0], &y = columns.bits[1];
#ifdef __HIP_SIM__
    const hip_sim_i32x4 a = {(i32)x.w[0], (i32)y.w[0], (i32)x.w[1], (i32)y.w[1]};
    const hip_sim_i32x2 b = {(i32)row.w[0], (i32)row.w[1]};
    if constexpr (is_same<T, i8>::value) {
        const hip_sim_i32x4 d = hip_sim_mma_s8(a, b, hip_sim_i32x4{first[0], first[1], second[0], second[1]});
        first[0] = d[0], first[1] = d[1], second[0] = d[2], second[1] = d[3];
    } else {
        const hip_sim_f32x4 c = {first[0], first[1], second[0], second[1]};
        const hip_sim_f32x4 d = is_same<T, f16>::value ? hip_sim_mma_f16(a, b, c) : hip_sim_mma_bf16(a, b, c);
        first[0] = d[0], first[1] = d[1], second[0] = d[2], second[1] = d[3];
    }
#else
    // C apart from D: where it is a constant, no register needs to be set to it before.
    const typename Format<T>::Sum c[] = {first[0], first[1], second[0], second[1]};
#define MMA(instruction, S)                                                                                                                    \
    asm("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                                  \
        : "=" S(first[0]), "=" S(first[1]), "=" S(second[0]), "=" S(second[1])                                                                 \
        : "r"(x.w[0]), "r"(y.w[0]), "r"(x.w[1]), "r"(y.w[1]), "r"(row.w[0]), "r"(row.w[1]), S(c[0]), S(c[1]), S(c[2]), S(c[3]))
    if constexpr (is_same<T, f16>::value) {
        MMA("m16n8k16.row.col.f32.f16.f16.f32", "f");
    } else if constexpr (is_same<T, bf16>::value) {
        MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
    } else {
        MMA("m16n8k32.row.col.s32.s8.s8.s32", "r");
    }
#undef MMA
#endif
}
#endif

// c += a b
template <typename T> DEVICE_FN void multiply(const FragmentA<T>& a, const FragmentB<T>& b, Accumulator<typename Format<T>::Sum>& c) {
#if MATRIX_MMA
    for (u32 n = 0; n < COLUMNS; ++n) multiply_rows<T>(a.bits[n], b, &c.values[2 * n], &c.values[Accumulator<i32>::ROWS + 2 * n]);
#else
    using Registers = typename Format<T>::Registers;
    const Registers x = bit_cast<Registers>(a.bits[0]);
    const Registers y = bit_cast<Registers>(b.bits[0]);
#if MATRIX_MFMA
    // The last three operands would exchange blocks between lanes; there is one block.
    if constexpr (is_same<T, f16>::value) {
#if defined(__gfx950__)
        c.values = __builtin_amdgcn_mfma_f32_16x16x32_f16(x, y, c.values, 0, 0, 0);
#else
        c.values = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, c.values, 0, 0, 0);
#endif
    } else if constexpr (is_same<T, bf16>::value) {
#if defined(__gfx950__)
        c.values = __builtin_amdgcn_mfma_f32_16x16x32_bf16(x, y, c.values, 0, 0, 0);
#else
        c.values = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, c.values, 0, 0, 0);
#endif
    } else {
#if defined(__gfx90a__)
        c.values = __builtin_amdgcn_mfma_i32_16x16x16i8(x, y, c.values, 0, 0, 0);
#else
        c.values = __builtin_amdgcn_mfma_i32_16x16x32_i8(x, y, c.values, 0, 0, 0);
#endif
    }
#elif MATRIX_WMMA11
    if constexpr (is_same<T, f16>::value) {
        c.values = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, c.values);
    } else if constexpr (is_same<T, bf16>::value) {
        c.values = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, c.values);
    } else {
        c.values = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x, true, y, c.values, false);
    }
#else
    if constexpr (is_same<T, f16>::value) {
        c.values = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, c.values);
    } else if constexpr (is_same<T, bf16>::value) {
        c.values = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, c.values);
    } else {
        c.values = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x, true, y, c.values, false);
    }
#endif
#endif
}

// ---------------------------------------------------------------- operands from LDS

// As Fragment::load, of what lies in LDS; p and the stride are multiples of 16 bytes. On nvptx K is in another order than there: a lane has the q-th
// words of its halves. The registers come as the instruction wants those of the first or second operand, which saves moving them.
#if MATRIX_MMA
#define LOAD_MATRICES(transposed, row, x, y, z, w)                                                               \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" transposed ".shared.b16 {%0, %1, %2, %3}, [%4];"                 \
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)                                                            \
                 : "r"((u32)__cvta_generic_to_shared(row))                                                       \
                 : "memory")
#ifdef __HIP_SIM__
template <typename T> DEVICE_FN Fragment<T> load_halves(const T* p, u32 stride) {
    Fragment<T> fragment;
    for (u32 c = 0; c < COLUMNS; ++c) {
        for (u32 i = 0; i < 2; ++i) fragment.bits[c].w[i] = ((const u32*)(p + held(c) * stride))[i * PARTS + part()];
    }
    return fragment;
}
template <typename T> DEVICE_FN FragmentA<T> load_a(const T* p, u32 stride) { return load_halves(p, stride); }
template <typename T> DEVICE_FN FragmentB<T> load_b(const T* p, u32 stride) { return load_halves(p, stride); }
#else
template <typename T> DEVICE_FN FragmentA<T> load_a(const T* p, u32 stride) {
    FragmentA<T> fragment;
    const u8* const row = (const u8*)(p + (lane() % APART + lane() / TILE * APART) * stride) + lane() / APART % 2 * 16;
    LOAD_MATRICES("", row, fragment.bits[0].w[0], fragment.bits[0].w[1], fragment.bits[1].w[0], fragment.bits[1].w[1]);
    return fragment;
}
template <typename T> DEVICE_FN FragmentB<T> load_b(const T* p, u32 stride) {
    FragmentB<T> fragment;
    const u8* const row = (const u8*)(p + lane() % TILE * stride) + lane() / TILE * 16;
    LOAD_MATRICES("", row, fragment.bits[0].w[0], fragment.bits[1].w[0], fragment.bits[0].w[1], fragment.bits[1].w[1]);
    return fragment;
}
#endif
// 16 bytes on their way from global memory into LDS, or zeros. The thread has them there after copies_arrive, others after a barrier.
DEVICE_FN void copy_ahead(void* to, const void* from, bool exists) {
#ifdef __HIP_SIM__
    for (u32 i = 0; i < 4; ++i) ((u32*)to)[i] = exists ? ((const u32*)from)[i] : 0u;
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(exists ? 16u : 0u) : "memory");
#endif
}
// A word that is loaded here and now, whatever happens to it.
DEVICE_FN u32 load_word(const u32* from) {
#ifdef __HIP_SIM__
    return *from;
#else
    u32 word;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(word) : "l"(from));
    return word;
#endif
}
DEVICE_FN void copies_arrive() {
#ifndef __HIP_SIM__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// The half of K that a fragment of these has, by itself.
template <typename T> DEVICE_FN Fragment<T> half_of(Fragment<T> fragment, u32 half) {
#pragma unroll
    for (u32 c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (u32 i = 0; i < 2; ++i) fragment.bits[c].w[i] &= 0u - (u32)(i == half);
    return fragment;
}
#else
template <typename T> DEVICE_FN FragmentA<T> load_a(const T* p, u32 stride) { return FragmentA<T>::load(p, stride); }
template <typename T> DEVICE_FN FragmentB<T> load_b(const T* p, u32 stride) { return FragmentB<T>::load(p, stride); }
// The half of K that a fragment has, by itself.
template <typename T> DEVICE_FN Fragment<T> half_of(const Fragment<T>& fragment, u32 half) {
    return Fragment<T>::k(0) / (K<T> / 2) == half ? fragment : Fragment<T>::zero();
}
#endif

// ---------------------------------------------------------------- sums as operands

// What the lane 16 further or nearer holds, in waves of 32.
DEVICE_FN u32 other_half(u32 v) {
#if defined(__HIP_SIM__) || MATRIX_MFMA || MATRIX_MMA
    return shfl_xor(v, TILE);
#else
    return __builtin_amdgcn_permlanex16(v, v, 0x76543210u, 0xfedcba98u, false, false);
#endif
}

// Reduces over the lanes that hold values of the same column.
template <typename Op> DEVICE_FN float column_reduce(float v) {
#if MATRIX_MMA
#pragma unroll
    for (u32 mask = PARTS / 2; mask > 0; mask /= 2) v = Op::apply(v, shfl_xor(v, mask));
    return v;
#endif
    v = Op::apply(v, bit_cast<float>(other_half(bit_cast<u32>(v))));
    if constexpr (WAVE == 64) v = Op::apply(v, shfl_xor(v, 2 * TILE));
    return v;
}

// The lower halves of two words as neighbours, and the upper halves.
DEVICE_FN u32 low_halves(u32 first, u32 second) {
#if defined(__HIP_SIM__) || MATRIX_MMA
    return (first & 0xffffu) | second << 16;
#else
    return __builtin_amdgcn_perm(second, first, 0x05040100u);
#endif
}
DEVICE_FN u32 high_halves(u32 first, u32 second) {
#if defined(__HIP_SIM__) || MATRIX_MMA
    return first >> 16 | (second & 0xffff0000u);
#else
    return __builtin_amdgcn_perm(second, first, 0x07060302u);
#endif
}

// Two finite values below 2^15, or NaN, as neighbours of T: nearest, halves away from zero, f16 below 2^-14 toward zero. Made of 32-bit
// operations, of which it takes three.
template <typename T> DEVICE_FN u32 narrow_pair(float low, float high) {
#ifdef __HIP_SIM__
    return store<T>(low).bits | (u32)store<T>(high).bits << 16;
#elif MATRIX_MMA
    u32 pair;
    if constexpr (is_same<T, f16>::value) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
#else
    if constexpr (is_same<T, f16>::value) {
        const u32 half = 0x1000u;
        return bit_cast<u32>(__builtin_amdgcn_cvt_pkrtz(bit_cast<float>(bit_cast<u32>(low) + half), bit_cast<float>(bit_cast<u32>(high) + half)));
    } else {
        const u32 half = 0x8000u;
        return high_halves(bit_cast<u32>(low) + half, bit_cast<u32>(high) + half);
    }
#endif
}

// A product S[16 n x 16] becomes the second operand of the next one without leaving its lanes, if its rows are computed in the right order:
// tile t of a group of TILES takes as its row r the row operand_row(t, r) of the K that the group has.
template <typename T> constexpr u32 TILES = K<T> / TILE;
template <typename T> DEVICE_FN u32 operand_row(u32 tile, u32 row) {
    static_assert(TILES<T> <= 2, "groups of one tile or two");
    return TILES<T> == 1 ? row : row / 4 * 8 + tile * 4 + row % 4;
}
template <typename T> DEVICE_FN FragmentB<T> operand(const Accumulator<float>* tiles) {
    constexpr u32 PAIRS = Accumulator<float>::ROWS / 2;
#if MATRIX_MMA
    FragmentB<T> fragment;
#pragma unroll
    for (u32 c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) fragment.bits[c].w[i] = narrow_pair<T>(tiles->values[4 * c + 2 * i], tiles->values[4 * c + 2 * i + 1]);
    return fragment;
#else
    struct {
        u32 w[FragmentB<T>::ELEMENTS / 2];
    } words;
#if MATRIX_WMMA11
    // The halves of the wave hold even and odd rows; both need all.
    const bool upper = lane() >= TILE;
#pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        const u32 own = narrow_pair<T>(tiles->values[2 * i], tiles->values[2 * i + 1]);
        const u32 other = other_half(own);
        const u32 even = upper ? other : own;
        const u32 odd = upper ? own : other;
        words.w[2 * i] = low_halves(even, odd);
        words.w[2 * i + 1] = high_halves(even, odd);
    }
#else
#pragma unroll
    for (u32 t = 0; t < TILES<T>; ++t)
#pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) words.w[t * PAIRS + i] = narrow_pair<T>(tiles[t].values[2 * i], tiles[t].values[2 * i + 1]);
#endif
    return FragmentB<T>{{bit_cast<typename Format<T>::Bits>(words)}};
#endif
}

#if MATRIX_MMA
// The first operand that multiplies what `operand` gives, whose K is in the order of the rows: from K rows of LDS of 16 contiguous elements, `stride`
// elements apart. p and the stride are multiples of 16 bytes.
template <typename T> DEVICE_FN FragmentA<T> load_transposing(const T* p, u32 stride) {
    FragmentA<T> fragment;
#ifdef __HIP_SIM__
    for (u32 c = 0; c < COLUMNS; ++c) {
        for (u32 i = 0; i < 2; ++i) {
            const T* const at = p + (part() * 2 + i * 8) * stride + held(c);
            fragment.bits[c].w[i] = at[0].bits | (u32)at[stride].bits << 16;
        }
    }
#else
    // Each lane has the address of one row of 16 bytes: those of the four words, one after the other.
    LOAD_MATRICES(".trans", p + lane() % TILE * stride + lane() / TILE * 8, fragment.bits[0].w[0], fragment.bits[0].w[1], fragment.bits[1].w[0],
                  fragment.bits[1].w[1]);
#endif
    return fragment;
}
#endif

}  // namespace matrix
}  // namespace device
#endif

#endif
