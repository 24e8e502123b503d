// Readers of ggml's quantized blocks that give integers, for dot products with 8-bit activations.
//
// A format is a struct that reads a block by units: the elements that 16 packed bytes hold (of 8-bit formats, 32
// elements). A unit consists of HALVES times 16 elements, which lie apart in the block: `place(unit, half)` is where.
// Elements that share a scale are GROUP of neighbours. The value of an element is scale * (q - ZERO) + offset; q fits a
// signed byte, and only formats with HAS_MIN (formats.h) have an offset.
#ifndef CANDLE_ROCM_QUANTS_H
#define CANDLE_ROCM_QUANTS_H

#include "blocks.h"
#include "dot.h"

namespace quants {

using blocks::field;
using blocks::half_field;

template <u32 HALVES> struct Unit {
    u32x4 q[HALVES];
    float scale[HALVES], offset[HALVES];
};

// BITS bits of each of 16 bytes, from bit `shift` on.
template <u32 BITS> DEVICE_FN u32x4 bits(u32x4 bytes, u32 shift) { return (bytes >> shift) & (0x01010101u * ((1u << BITS) - 1u)); }

// The lowest 16 bits of `bits`, one in bit `to` of each byte.
DEVICE_FN u32x4 spread(u32 bits, u32 to) {
    u32x4 bytes;
    // Copies of four bits at distance 7 put bit i into the lowest place of byte i.
    for (u32 i = 0; i < 4; ++i) bytes[i] = ((bits >> (4 * i) & 15u) * 0x00204081u & 0x01010101u) << to;
    return bytes;
}

// The two halves of a number pair of binary16.
struct Pair {
    float first, second;
};
DEVICE_FN Pair pair(u32 bits) { return {load(f16{(u16)bits}), load(f16{(u16)(bits >> 16)})}; }

// ---------------------------------------------------------------- blocks of 32: one unit each

template <typename Format, u32 ZERO_POINT> struct Small : Format {
    static_assert(Format::ELEMENTS == 32, "one unit");
    static constexpr u32 HALVES = 2, GROUP = 32, ZERO = ZERO_POINT;
    static constexpr DEVICE_FN u32 place(u32, u32 half) { return half * 16; }

  protected:
    static DEVICE_FN void set(Unit<2>& unit, float scale, float offset) {
        for (u32 h = 0; h < 2; ++h) unit.scale[h] = scale, unit.offset[h] = offset;
    }
    static DEVICE_FN void nibbles(Unit<2>& unit, const u8* bytes) {
        const u32x4 packed = field<u32x4>(bytes, 0);
        for (u32 h = 0; h < 2; ++h) unit.q[h] = bits<4>(packed, 4 * h);
    }
    static DEVICE_FN void fifth_bits(Unit<2>& unit, u32 packed) {
        for (u32 h = 0; h < 2; ++h) unit.q[h] |= spread(packed >> (16 * h), 4);
    }
    static DEVICE_FN void bytes(Unit<2>& unit, const u8* bytes) {
        for (u32 h = 0; h < 2; ++h) unit.q[h] = field<u32x4>(bytes, 16 * h);
    }
};

struct q4_0 : Small<formats::q4_0, 8> {
    static DEVICE_FN void read(const u8* block, u32, Unit<2>& unit) {
        nibbles(unit, block + 2);
        set(unit, half_field(block, 0), 0);
    }
};
struct q4_1 : Small<formats::q4_1, 0> {
    static DEVICE_FN void read(const u8* block, u32, Unit<2>& unit) {
        nibbles(unit, block + 4);
        const Pair by = pair(field<u32>(block, 0));
        set(unit, by.first, by.second);
    }
};
struct q5_0 : Small<formats::q5_0, 16> {
    static DEVICE_FN void read(const u8* block, u32, Unit<2>& unit) {
        nibbles(unit, block + 6);
        fifth_bits(unit, field<u32>(block, 2));
        set(unit, half_field(block, 0), 0);
    }
};
struct q5_1 : Small<formats::q5_1, 0> {
    static DEVICE_FN void read(const u8* block, u32, Unit<2>& unit) {
        nibbles(unit, block + 8);
        fifth_bits(unit, field<u32>(block, 4));
        const Pair by = pair(field<u32>(block, 0));
        set(unit, by.first, by.second);
    }
};
struct q8_0 : Small<formats::q8_0, 0> {
    static DEVICE_FN void read(const u8* block, u32, Unit<2>& unit) {
        bytes(unit, block + 2);
        set(unit, half_field(block, 0), 0);
    }
};
struct q8_1 : Small<formats::q8_1, 0> {
    static DEVICE_FN void read(const u8* block, u32, Unit<2>& unit) {
        bytes(unit, block + 4);
        set(unit, half_field(block, 0), 0);
    }
};

// ---------------------------------------------------------------- blocks of 256

struct q8k : formats::q8k {
    static constexpr u32 HALVES = 2, GROUP = 32, ZERO = 0;
    static constexpr DEVICE_FN u32 place(u32 unit, u32 half) { return unit * 32 + half * 16; }
    static DEVICE_FN void read(const u8* block, u32 u, Unit<2>& unit) {
        const float d = field<float>(block, 0);
        for (u32 h = 0; h < 2; ++h) {
            unit.q[h] = field<u32x4>(block, 4 + place(u, h));
            unit.scale[h] = d, unit.offset[h] = 0;
        }
    }
};

// q2k and q3k: 16 bytes hold 2 bits of 16 elements of each of four runs of 32.
struct TwoBits {
    static constexpr u32 HALVES = 4, GROUP = 16;
    static constexpr DEVICE_FN u32 place(u32 unit, u32 half) { return unit / 2 * 128 + half * 32 + unit % 2 * 16; }
};

struct q2k : TwoBits, formats::q2k {
    static constexpr u32 ZERO = 0;
    static DEVICE_FN void read(const u8* block, u32 u, Unit<4>& unit) {
        const u32x4 packed = field<u32x4>(block, 16 + u * 16);
        // The unit's sub-blocks of 16 are every second one of eight.
        const u64 scales = field<u64>(block, u / 2 * 8) >> (u % 2 * 8);
        const Pair by = pair(field<u32>(block, 80));
        for (u32 h = 0; h < 4; ++h) {
            const u32 scale = (u32)(scales >> (16 * h));
            unit.q[h] = bits<2>(packed, 2 * h);
            unit.scale[h] = by.first * (float)(scale & 15u);
            unit.offset[h] = -by.second * (float)(scale >> 4 & 15u);
        }
    }
};

struct q3k : TwoBits, formats::q3k {
    static constexpr u32 ZERO = 4;
    static DEVICE_FN void read(const u8* block, u32 u, Unit<4>& unit) {
        const u32x4 low = field<u32x4>(block, 32 + u * 16);
        const u32x4 high = field<u32x4>(block, u % 2 * 16);
        const u64 scale_low = field<u64>(block, 96) >> (u / 2 * 4 + u % 2 * 8);
        const u32 scale_high = field<u32>(block, 104) >> (u / 2 * 4 + u % 2 * 8);
        const float d = half_field(block, 108);
        for (u32 h = 0; h < 4; ++h) {
            // Sub-block 2h (+ 1) of eight; the high bits of four sub-blocks lie in four bytes, those of the next four
            // above them.
            const u32 scale = ((u32)(scale_low >> (16 * h)) & 15u) | (scale_high >> (16 * (h % 2) + 2 * (h / 2)) & 3u) << 4;
            unit.q[h] = bits<2>(low, 2 * h) | bits<1>(high, u / 2 * 4 + h) << 2;
            unit.scale[h] = d * (float)((i32)scale - 32);
            unit.offset[h] = 0;
        }
    }
};

// q4k and q5k: 16 bytes of nibbles hold 16 elements of each of two runs of 32. The block starts with 16 bytes: d, dmin,
// and the 6-bit scales and mins of 8 runs, packed as blocks.h tells; those of two neighbouring runs are taken at once.
struct Nibbles {
    static constexpr u32 HALVES = 2, GROUP = 32, ZERO = 0;
    static constexpr DEVICE_FN u32 place(u32 unit, u32 half) { return unit / 2 * 64 + half * 32 + unit % 2 * 16; }

  protected:
    static DEVICE_FN void scales(const u8* block, u32 u, Unit<2>& unit) {
        const u32x4 head = field<u32x4>(block, 0);
        const u32 chunk = u / 2, shift = chunk % 2 * 16;
        const u32 first = head[1] >> shift, second = head[2] >> shift, third = head[3] >> shift;
        const bool front = chunk < 2;
        const u32 scale = front ? first & 0x3f3fu : (third & 0x0f0fu) | (first >> 2 & 0x3030u);
        const u32 min = front ? second & 0x3f3fu : (third >> 4 & 0x0f0fu) | (second >> 2 & 0x3030u);
        const Pair by = pair(head[0]);
        for (u32 h = 0; h < 2; ++h) {
            unit.scale[h] = by.first * (float)(scale >> (8 * h) & 0xffu);
            unit.offset[h] = -by.second * (float)(min >> (8 * h) & 0xffu);
        }
    }
};

struct q4k : Nibbles, formats::q4k {
    static DEVICE_FN void read(const u8* block, u32 u, Unit<2>& unit) {
        const u32x4 packed = field<u32x4>(block, 16 + u * 16);
        for (u32 h = 0; h < 2; ++h) unit.q[h] = bits<4>(packed, 4 * h);
        scales(block, u, unit);
    }
};

struct q5k : Nibbles, formats::q5k {
    static DEVICE_FN void read(const u8* block, u32 u, Unit<2>& unit) {
        const u32x4 packed = field<u32x4>(block, 48 + u * 16);
        const u32x4 fifth = field<u32x4>(block, 16 + u % 2 * 16);
        for (u32 h = 0; h < 2; ++h) unit.q[h] = bits<4>(packed, 4 * h) | bits<1>(fifth, u / 2 * 2 + h) << 4;
        scales(block, u, unit);
    }
};

// 16 bytes of low nibbles hold 16 elements of each of two runs of 32 that are 64 apart.
struct q6k : formats::q6k {
    static constexpr u32 HALVES = 2, GROUP = 16, ZERO = 32;
    static constexpr DEVICE_FN u32 place(u32 unit, u32 half) { return unit / 4 * 128 + half * 64 + unit % 4 * 16; }
    static DEVICE_FN void read(const u8* block, u32 u, Unit<2>& unit) {
        const u32x4 low = field<u32x4>(block, u * 16);
        const u32x4 high = field<u32x4>(block, 128 + u / 4 * 32 + u % 2 * 16);
        const float d = half_field(block, 208);
        for (u32 h = 0; h < 2; ++h) {
            unit.q[h] = bits<4>(low, 4 * h) | bits<2>(high, u % 4 / 2 * 2 + 4 * h) << 4;
            unit.scale[h] = d * (float)(i8)block[192 + place(u, h) / 16];
            unit.offset[h] = 0;
        }
    }
};

template <typename Format> constexpr u32 UNIT = 16 * Format::HALVES;
template <typename Format> constexpr u32 UNITS_PER_BLOCK = Format::ELEMENTS / UNIT<Format>;
// Whether a unit's two halves are one block of activations under one scale.
template <typename Format> constexpr bool WHOLE = Format::HALVES == 2 && Format::GROUP == 32 && Format::place(0, 1) == 16;

}  // namespace quants

#endif
