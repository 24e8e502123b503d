// Readers of ggml's formats whose values are a scale times one of few levels: the IQ formats, the ternary ones, and the
// 4-bit floats.
//
// A format is a struct with the table's ELEMENTS and BYTES per block, and SHARED, the number of neighbours under one
// scale; `quants(block, group)` gives 8 consecutive elements as signed bytes, `scale(block, group)` what they are
// multiplied by. Levels are looked up by byte permutation, four elements per instruction. The codebooks lie packed (2
// or 4 bits per element, at most 4 KiB) in constant memory, which lanes with different indices read through the vector
// cache, where they stay: copying them to LDS would cost a short-lived block of a matrix-vector product as much as its
// weights.
#ifndef CANDLE_ROCM_IQ_H
#define CANDLE_ROCM_IQ_H

#include "blocks.h"
#include "codebooks.h"

namespace iq {

using blocks::field;
using blocks::half_field;

// The levels that four bytes of 0..15 stand for.
DEVICE_FN u32 level_of_16(u32 codes, const u32 (&levels)[4]) {
    const u32 low = permute_bytes(levels[1], levels[0], codes & 0x07070707u);
    const u32 high = permute_bytes(levels[3], levels[2], codes & 0x07070707u);
    return permute_bytes(high, low, 0x03020100u | (codes >> 1 & 0x04040404u));
}
DEVICE_FN u64 pair(u32 low, u32 high) { return (u64)high << 32 | low; }

// Four bytes of 1..127, negated where a bit of the low four of `signs` is set.
DEVICE_FN u32 negate(u32 bytes, u32 signs) {
    // Copies at distance 7 put bit i into the lowest place of byte i.
    u32 ones = signs | signs << 7;
    ones = (ones | ones << 14) & 0x01010101u;
    return (bytes ^ ((ones << 8) - ones)) + ones;
}
DEVICE_FN u64 negate(u32 low, u32 high, u32 signs) { return pair(negate(low, signs), negate(high, signs >> 4)); }
// All 8 signs, of which an even number is set, given the lowest 7 bits.
DEVICE_FN u32 even_signs(u32 bits) {
    bits &= 127u;
    return bits | (u32)__builtin_parity(bits) << 7;
}

// Four codes of 2 bits, or of 4 bits, one to a byte.
DEVICE_FN u32 spread_2(u32 codes) {
    const u32 nibbles = ((codes & 0xffu) | codes << 12) & 0x000f000fu;
    return (nibbles | nibbles << 6) & 0x03030303u;
}
DEVICE_FN u32 spread_4(u32 codes) {
    const u32 bytes = (codes | codes << 8) & 0x00ff00ffu;
    return (bytes | bytes << 4) & 0x0f0f0f0fu;
}

// ---------------------------------------------------------------- 16 levels

// 8 elements of a run of 32 in 16 bytes of nibbles.
DEVICE_FN u64 nibble_levels(const u8* run, u32 group, const u32 (&levels)[4]) {
    const u64 codes = blocks::nibbles(run, group);
    return pair(level_of_16((u32)codes, levels), level_of_16((u32)(codes >> 32), levels));
}

// half d; 16 bytes of nibbles
struct iq4_nl : formats::iq4_nl {
    static constexpr u32 SHARED = 32;
    static DEVICE_FN u64 quants(const u8* block, u32 group) { return nibble_levels(block + 2, group, codebooks::IQ4_LEVELS); }
    static DEVICE_FN float scale(const u8* block, u32) { return half_field(block, 0); }
};

// half d; the high 2 bits of 8 scales; the low 4 bits of 8 scales, less 32; 16 bytes of nibbles for each run of 32
struct iq4_xs : formats::iq4_xs {
    static constexpr u32 SHARED = 32;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        return nibble_levels(block + 8 + group / 4 * 16, group % 4, codebooks::IQ4_LEVELS);
    }
    static DEVICE_FN float scale(const u8* block, u32 group) {
        const u32 run = group / 4;
        const u32 high = (u32)field<u16>(block, 2) >> (run * 2) & 3u;
        const u32 low = field<u32>(block, 4) >> (run * 4) & 15u;
        return half_field(block, 0) * (float)((i32)(low | high << 4) - 32);
    }
};

// An exponent e: 2^(e - 127), of which half since the levels are doubled; 16 bytes of nibbles
struct mxfp4 : formats::mxfp4 {
    static constexpr u32 SHARED = 32;
    static DEVICE_FN u64 quants(const u8* block, u32 group) { return nibble_levels(block + 1, group, codebooks::E2M1_LEVELS); }
    static DEVICE_FN float scale(const u8* block, u32) {
        const u32 exponent = block[0];
        return bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    }
};

// 4 scales, unsigned e4m3 (the sign bit means nothing, NaN is zero); for each run of 16, 8 bytes of nibbles: the low
// ones are its first half
struct nvfp4 : formats::nvfp4 {
    static constexpr u32 SHARED = 16;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u64 codes = blocks::low_bits<4>(field<u64>(block, 4 + group / 2 * 8) >> (group % 2 * 4));
        return pair(level_of_16((u32)codes, codebooks::E2M1_LEVELS), level_of_16((u32)(codes >> 32), codebooks::E2M1_LEVELS));
    }
    static DEVICE_FN float scale(const u8* block, u32 group) {
        const u32 bits = block[group / 2];
        // Scaling rebiases from 7 to 127, halves, and normalises subnormals in one exact multiplication.
        return bits == 0x7fu ? 0.0f : bit_cast<float>((bits & 0x7fu) << 20) * 0x1p119f;
    }
};

// ---------------------------------------------------------------- groups of 8 magnitudes from a codebook

DEVICE_FN u64 iq2_quants(u32 entry, u32 signs) {
    const u32 low = permute_bytes(0, codebooks::IQ2_LEVELS[0], spread_2(entry));
    const u32 high = permute_bytes(0, codebooks::IQ2_LEVELS[0], spread_2(entry >> 8));
    return negate(low, high, signs);
}
// A 4-bit scale s stands for (s + 1/2) / 4.
DEVICE_FN float iq2_scale(const u8* block, u32 scale) { return half_field(block, 0) * ((float)(scale & 15u) * 0.25f + 0.125f); }

// half d; for each run of 32 four indices of a byte, then four times 7 signs and a 4-bit scale
struct iq2_xxs : formats::iq2_xxs {
    static constexpr u32 SHARED = 32;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u64 run = field<u64>(block, 2 + group / 4 * 8);
        const u32 index = (u32)(run >> (group % 4 * 8)) & 0xffu;
        return iq2_quants(codebooks::IQ2_XXS[index], even_signs((u32)(run >> 32) >> (group % 4 * 7)));
    }
    static DEVICE_FN float scale(const u8* block, u32 group) { return iq2_scale(block, field<u32>(block, 6 + group / 4 * 8) >> 28); }
};

// half d; for each group 9 bits of index and 7 signs; a 4-bit scale for each run of 16
struct iq2_xs : formats::iq2_xs {
    static constexpr u32 SHARED = 16;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u32 word = field<u16>(block, 2 + group * 2);
        return iq2_quants(codebooks::IQ2_XS[word & 511u], even_signs(word >> 9));
    }
    static DEVICE_FN float scale(const u8* block, u32 group) { return iq2_scale(block, (u32)block[66 + group / 4] >> (group / 2 % 2 * 4)); }
};

// half d; low 8 bits of each group's index; 8 signs of each group; high 2 bits of each index; a 4-bit scale for each
// run of 16
struct iq2_s : formats::iq2_s {
    static constexpr u32 SHARED = 16;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u32 high = (u32)block[66 + group / 4] >> (group % 4 * 2) & 3u;
        return iq2_quants(codebooks::IQ2_S[block[2 + group] | high << 8], block[34 + group]);
    }
    static DEVICE_FN float scale(const u8* block, u32 group) { return iq2_scale(block, (u32)block[74 + group / 4] >> (group / 2 % 2 * 4)); }
};

// ---------------------------------------------------------------- groups of 4 magnitudes from a codebook

// half d; 64 indices of a byte; for each run of 32 four times 7 signs and a 4-bit scale s, which stands for (s + 1/2) /
// 2
struct iq3_xxs : formats::iq3_xxs {
    static constexpr u32 SHARED = 32;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u32 indices = field<u16>(block, 2 + group * 2);
        const u32 signs = even_signs(field<u32>(block, 66 + group / 4 * 4) >> (group % 4 * 7));
        return negate(magnitudes(indices & 0xffu), magnitudes(indices >> 8), signs);
    }
    static DEVICE_FN float scale(const u8* block, u32 group) {
        return half_field(block, 0) * ((float)(field<u32>(block, 66 + group / 4 * 4) >> 28) * 0.5f + 0.25f);
    }

  private:
    static DEVICE_FN u32 magnitudes(u32 index) {
        return permute_bytes(codebooks::IQ3_XXS_LEVELS[1], codebooks::IQ3_XXS_LEVELS[0], spread_4(codebooks::IQ3_XXS[index]));
    }
};

// half d; low 8 bits of 64 indices; their ninth bits; 8 signs of each group; a 4-bit scale s for each run of 32, which
// stands for 2 s + 1
struct iq3_s : formats::iq3_s {
    static constexpr u32 SHARED = 32;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u32 low = field<u16>(block, 2 + group * 2);
        const u32 ninth = (u32)block[66 + group / 4] >> (group % 4 * 2);
        return negate(magnitudes((low & 0xffu) | (ninth & 1u) << 8), magnitudes(low >> 8 | (ninth & 2u) << 7), block[74 + group]);
    }
    static DEVICE_FN float scale(const u8* block, u32 group) {
        const u32 scale = (u32)block[106 + group / 8] >> (group / 4 % 2 * 4) & 15u;
        return half_field(block, 0) * (float)(2 * scale + 1);
    }

  private:
    // Code c stands for 2 c + 1.
    static DEVICE_FN u32 magnitudes(u32 index) { return spread_4(codebooks::IQ3_S[index]) << 1 | 0x01010101u; }
};

// ---------------------------------------------------------------- groups of 8 ternary values from a codebook, moved by
// an eighth

// Eight times the values.
DEVICE_FN u64 iq1_quants(u32 index, bool down) {
    const u32 entry = codebooks::IQ1[index];
    // -1, 0, 1 become -7, 1, 9, or -9, -1, 7.
    const u32 levels = down ? 0x0007fff7u : 0x000901f9u;
    return pair(permute_bytes(0, levels, spread_2(entry)), permute_bytes(0, levels, spread_2(entry >> 8)));
}
// A 3-bit scale s stands for 2 s + 1, of which an eighth.
DEVICE_FN float iq1_scale(float d, u32 scale) { return d * ((float)(scale & 7u) * 0.25f + 0.125f); }

// half d; low 8 bits of each group's index; for each run of 32 the high 3 bits of four indices, a 3-bit scale, and
// where values move
struct iq1_s : formats::iq1_s {
    static constexpr u32 SHARED = 32;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u32 run = field<u16>(block, 34 + group / 4 * 2);
        return iq1_quants(block[2 + group] | (run >> (group % 4 * 3) & 7u) << 8, run >> 15 != 0);
    }
    static DEVICE_FN float scale(const u8* block, u32 group) {
        return iq1_scale(half_field(block, 0), (u32)field<u16>(block, 34 + group / 4 * 2) >> 12);
    }
};

// Low 8 bits of each group's index; for each group the high 3 bits of its index and where its values move; four words
// of four 3-bit scales, one for each run of 16, with a quarter of half d in the highest 4 bits of each word, the lowest
// first
struct iq1_m : formats::iq1_m {
    static constexpr u32 SHARED = 16;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        const u32 nibble = (u32)block[32 + group / 2] >> (group % 2 * 4);
        return iq1_quants(block[group] | (nibble & 7u) << 8, (nibble & 8u) != 0);
    }
    static DEVICE_FN float scale(const u8* block, u32 group) {
        const u64 words = field<u64>(block, 48);
        const u32 d = (u32)(words >> 12 & 0x000fu) | (u32)(words >> 24 & 0x00f0u) | (u32)(words >> 36 & 0x0f00u) | (u32)(words >> 48 & 0xf000u);
        return iq1_scale(load(f16{(u16)d}), (u32)(words >> (group / 8 * 16 + group / 2 % 4 * 3)));
    }
};

// ---------------------------------------------------------------- ternary

// Bytes of 0..3, each less 1. Bit 7 is set before and flipped after, so that no byte borrows from the next.
DEVICE_FN u64 less_one(u64 bytes) { return ((bytes | 0x8080808080808080ull) - 0x0101010101010101ull) ^ 0x8080808080808080ull; }

// 52 bytes of ternary digits: bytes are fractions of 256, and tripling gives one digit after the other. Digit n of
// bytes 0-31 are elements 32 n on, of bytes 32-47 elements 160 + 16 n on, of bytes 48-51 (four digits only) elements
// 240 + 4 n on. half d
struct tq1_0 : formats::tq1_0 {
    static constexpr u32 SHARED = 256;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        u64 bytes;
        u32 digit = group / 4, step = 0;
        if (group < 20) {
            bytes = field<u64>(block, group % 4 * 8);
        } else if (group < 30) {
            digit = group / 2 - 10;
            bytes = field<u64>(block, 32 + group % 2 * 8);
        } else {
            // Four bytes give two digits.
            digit = (group - 30) * 2;
            step = 1;
            const u32 word = field<u32>(block, 48);
            bytes = pair(word, word);
        }
        return less_one(pair(digits((u32)bytes, digit), digits((u32)(bytes >> 32), digit + step)));
    }
    static DEVICE_FN float scale(const u8* block, u32) { return half_field(block, 52); }

  private:
    // The given digit, 0..2, of each byte's fraction.
    static DEVICE_FN u32 digits(u32 bytes, u32 digit) {
        const u32 power = (u32)(0x511b090301ull >> (8 * digit)) & 0xffu;
        u32 even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu, odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
        even = even * 3 >> 8 & 0x00ff00ffu;
        odd = odd * 3 & 0xff00ff00u;
        return even | odd;
    }
};

// 64 bytes of 2-bit values, less 1: four runs of 32 in 32 bytes; half d
struct tq2_0 : formats::tq2_0 {
    static constexpr u32 SHARED = 256;
    static DEVICE_FN u64 quants(const u8* block, u32 group) {
        return less_one(blocks::low_bits<2>(field<u64>(block, group / 16 * 32 + group % 4 * 8) >> (group / 4 % 4 * 2)));
    }
    static DEVICE_FN float scale(const u8* block, u32) { return half_field(block, 64); }
};

// Every format of this file.
#define IQ_FORMATS(F) \
    F(iq1_s) F(iq1_m) F(iq2_xxs) F(iq2_xs) F(iq2_s) F(iq3_xxs) F(iq3_s) F(iq4_nl) F(iq4_xs) F(tq1_0) F(tq2_0) F(mxfp4) F(nvfp4)

}  // namespace iq

namespace blocks {

template <typename Format> struct Levels : Format {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        scaled_signed(Format::quants(block, group), Format::scale(block, group), out);
    }
};

#define LEVELS(name) using name = Levels<iq::name>;
IQ_FORMATS(LEVELS)
#undef LEVELS

}  // namespace blocks

#endif
