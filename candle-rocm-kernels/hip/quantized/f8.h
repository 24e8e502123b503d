// 8-bit floats (e4m3) of formats::f8_e4m3 as the numbers that products take. There is no NaN and no -0 among them.
//
// All conversions are exact. A number is a power of two smaller than it stands for, where that saves an instruction:
// its UNIT multiplies sums.
#ifndef CANDLE_ROCM_F8_H
#define CANDLE_ROCM_F8_H

#include "halves.h"
#include "formats.h"

// Where an instruction makes floats of bytes. That of gfx942 reads another format, FNUZ, in which the same bits are
// half of the number.
#if defined(__gfx942__)
#define F8_CONVERTS 1
#define F8_UNIT_OF_FLOATS 2
#elif defined(__gfx950__) || defined(__GFX12__)
#define F8_CONVERTS 1
#define F8_UNIT_OF_FLOATS 1
#else
#define F8_CONVERTS 0
#define F8_UNIT_OF_FLOATS 256
#endif

namespace device {
namespace f8 {

constexpr u32 ELEMENTS = formats::f8_e4m3::ELEMENTS, BYTES = formats::f8_e4m3::BYTES;
// Bytes of a block before its elements: the scale.
constexpr u32 HEAD = BYTES - ELEMENTS;

// Two floats, which CDNA2 and later multiply at once.
struct Two {
    float v[2];
};

// a * b + c of both.
DEVICE_FN Two multiply_add(Two a, Two b, Two c) {
#if defined(__HIP_SIM__) || defined(__CUDACC__)
    return {{device::multiply_add(a.v[0], b.v[0], c.v[0]), device::multiply_add(a.v[1], b.v[1], c.v[1])}};
#else
    typedef float Pair __attribute__((ext_vector_type(2)));
    return bit_cast<Two>(__builtin_elementwise_fma(bit_cast<Pair>(a), bit_cast<Pair>(b), bit_cast<Pair>(c)));
#endif
}

// The upper byte of each half of a word as a 256th of it in binary16, subnormal numbers included: the exponent has a bit
// more there, and another bias.
DEVICE_FN u32 halves_of_upper(u32 bits) {
#if defined(__HIP_SIM__) || defined(__CUDACC__)
    return (bits & 0x80008000u) | (bits >> 1 & 0x3f803f80u);
#else
    // The sign comes once more into the bit that the mask clears.
    typedef short Pair __attribute__((ext_vector_type(2)));
    return bit_cast<u32>(bit_cast<Pair>(bits) >> (Pair)(short)1) & 0xbf80bf80u;
#endif
}
constexpr float UNIT_OF_HALVES = 256;
// Neighbours 2 i and 2 i + 1 of a word as such halves.
DEVICE_FN u32 small_halves(u32 bits, u32 i) { return halves_of_upper(permute_bytes(0, bits, i == 0 ? 0x01040004u : 0x03040204u)); }

// The numbers of a word in their order, UNIT_OF_FLOATS of each.
constexpr float UNIT_OF_FLOATS = F8_UNIT_OF_FLOATS;
struct Four {
    Two v[2];
};
#if F8_CONVERTS
DEVICE_FN Four floats(u32 bits) {
#if defined(__HIP_SIM__)
    Four four;
    for (u32 i = 0; i < 4; ++i) four.v[i / 2].v[i % 2] = load(f8e4m3{(u8)(bits >> (8 * i))}) / UNIT_OF_FLOATS;
    return four;
#else
    return {{bit_cast<Two>(__builtin_amdgcn_cvt_pk_f32_fp8((int)bits, false)), bit_cast<Two>(__builtin_amdgcn_cvt_pk_f32_fp8((int)bits, true))}};
#endif
}
#else
DEVICE_FN Four floats(u32 bits) {
    const u32 even = halves_of_upper(bits << 8), odd = halves_of_upper(bits);
    return {{{{f16_to_float((u16)even), f16_to_float((u16)odd)}}, {{f16_to_float((u16)(even >> 16)), f16_to_float((u16)(odd >> 16))}}}};
}
#endif

// Neighbours 2 i and 2 i + 1 of a word as T, for matrix instructions, of which some take subnormal numbers for zeros.
template <typename T> constexpr float UNIT = is_same<T, f16>::value ? 1 : UNIT_OF_FLOATS;
template <typename T> DEVICE_FN u32 pair(u32 bits, u32 i) {
    if constexpr (is_same<T, f16>::value) {
        return multiply_add_halves(small_halves(bits, i), 0x5c005c00u, 0);
    } else {
        // Four bits of significand are not rounded.
        const Two two = floats(bits).v[i];
        return high_halves(bit_cast<u32>(two.v[0]), bit_cast<u32>(two.v[1]));
    }
}

// The upper eight bits of the significands of two neighbours, and what they leave: together 16 bits at least.
struct Split {
    u32 high, low;
};
DEVICE_FN Split split(float first, float second) {
    const u32 x = bit_cast<u32>(first), y = bit_cast<u32>(second);
    const float rest_x = first - bit_cast<float>(x & 0xffff0000u), rest_y = second - bit_cast<float>(y & 0xffff0000u);
    return {high_halves(x, y), narrow_pair<bf16>(rest_x, rest_y)};
}

// The scale of a block.
DEVICE_FN float scale(const u8* block) { return load_unaligned<float>(block); }

}  // namespace f8
}  // namespace device

#endif
