// Readers of ggml's quantized blocks: each gives 8 consecutive elements of a block as floats.
//
// A format is a struct with ELEMENTS and BYTES per block, which come from the table that host code has too (formats.h
// is made from the crate ggml-formats), and `read(block, group, out)`, where group counts runs of 8 elements. All
// fields are little-endian and blocks follow each other without padding, so most fields are not aligned; GPUs of every
// supported arch load unaligned words in one instruction.
#ifndef CANDLE_ROCM_BLOCKS_H
#define CANDLE_ROCM_BLOCKS_H

#include "device.h"
#include "formats.h"

namespace blocks {

constexpr u32 GROUP = 8;

template <typename T> DEVICE_FN T field(const u8* block, u32 offset) { return load_unaligned<T>(block + offset); }
DEVICE_FN float half_field(const u8* block, u32 offset) { return load(f16{field<u16>(block, offset)}); }

// Keeps the lowest BITS bits of every byte.
template <u32 BITS> DEVICE_FN u64 low_bits(u64 bytes) { return bytes & (0x0101010101010101ull * ((1u << BITS) - 1u)); }
// Bit i of the low byte of `bits`, moved to the lowest bit of byte i.
DEVICE_FN u64 spread_bits(u32 bits) {
    // One copy of the byte in every byte, each masked to its own bit; adding 0x7f carries a set bit into bit 7.
    const u64 own = ((u64)(bits & 0xffu) * 0x0101010101010101ull) & 0x8040201008040201ull;
    return ((((own & 0x7f7f7f7f7f7f7f7full) + 0x7f7f7f7f7f7f7f7full) | own) >> 7) & 0x0101010101010101ull;
}
DEVICE_FN i32 byte(u64 bytes, u32 i) { return (i32)(u8)(bytes >> (8u * i)); }
DEVICE_FN i32 signed_byte(u64 bytes, u32 i) { return (i32)(i8)(u8)(bytes >> (8u * i)); }

// out = scale * (byte - zero)
DEVICE_FN void scaled(u64 bytes, i32 zero, float scale, float (&out)[GROUP]) {
    for (u32 i = 0; i < GROUP; ++i) out[i] = scale * (float)(byte(bytes, i) - zero);
}
// out = scale * byte + offset
DEVICE_FN void scaled_offset(u64 bytes, float scale, float offset, float (&out)[GROUP]) {
    for (u32 i = 0; i < GROUP; ++i) out[i] = scale * (float)byte(bytes, i) + offset;
}
// out = scale * signed byte
DEVICE_FN void scaled_signed(u64 bytes, float scale, float (&out)[GROUP]) {
    for (u32 i = 0; i < GROUP; ++i) out[i] = scale * (float)signed_byte(bytes, i);
}

// 32 elements. The low nibbles of the 16 bytes are the first half of the block, the high nibbles the second.
DEVICE_FN u64 nibbles(const u8* quants, u32 group) {
    return low_bits<4>(field<u64>(quants, group % 2 * 8) >> (group / 2 * 4));
}

// half d; 16 bytes of nibbles
struct q4_0 : formats::q4_0 {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        scaled(nibbles(block + 2, group), 8, half_field(block, 0), out);
    }
};

// half d, half min; 16 bytes of nibbles
struct q4_1 : formats::q4_1 {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        scaled_offset(nibbles(block + 4, group), half_field(block, 0), half_field(block, 2), out);
    }
};

// half d; 32 fifth bits, one per element; 16 bytes of nibbles
struct q5_0 : formats::q5_0 {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const u64 fifth = spread_bits(block[2 + group]) << 4;
        scaled(nibbles(block + 6, group) | fifth, 16, half_field(block, 0), out);
    }
};

// half d, half min; 32 fifth bits, one per element; 16 bytes of nibbles
struct q5_1 : formats::q5_1 {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const u64 fifth = spread_bits(block[4 + group]) << 4;
        scaled_offset(nibbles(block + 8, group) | fifth, half_field(block, 0), half_field(block, 2), out);
    }
};

// half d; 32 signed bytes
struct q8_0 : formats::q8_0 {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        scaled_signed(field<u64>(block, 2 + group * 8), half_field(block, 0), out);
    }
};

// half d, half sum (d times the sum of the quants, not needed here); 32 signed bytes
struct q8_1 : formats::q8_1 {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        scaled_signed(field<u64>(block, 4 + group * 8), half_field(block, 0), out);
    }
};

// The K formats have 256 elements in 8 runs of 32, and hold some bits of four or eight runs side by side in 32 bytes.
// `group / 4` is the run, `group % 4 * 8` the place in it, `group / 2` the sub-block of 16.

// 16 bytes: scale and min of each sub-block as nibbles; 64 bytes of 2-bit quants, four runs in 32 bytes; half d, half
// dmin
struct q2k : formats::q2k {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const u32 run = group / 4;
        const u64 quants = low_bits<2>(field<u64>(block, 16 + run / 4 * 32 + group % 4 * 8) >> (run % 4 * 2));
        const u32 scales = block[group / 2];
        const float scale = half_field(block, 80) * (float)(scales & 15u);
        const float min = half_field(block, 82) * (float)(scales >> 4);
        scaled_offset(quants, scale, -min, out);
    }
};

// 32 bytes: third bits, eight runs in 32 bytes; 64 bytes of low 2 bits, four runs in 32 bytes; 16 scales of 6 bits (8
// bytes of low nibbles, then 4 bytes of high bits, four to a byte), less 32; half d
struct q3k : formats::q3k {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const u32 run = group / 4, place = group % 4 * 8, sub = group / 2;
        const u64 low = low_bits<2>(field<u64>(block, 32 + run / 4 * 32 + place) >> (run % 4 * 2));
        const u64 high = low_bits<1>(field<u64>(block, place) >> run) << 2;
        const u32 scale_low = block[96 + sub % 8] >> (sub / 8 * 4) & 15u;
        const u32 scale_high = block[104 + sub % 4] >> (sub / 4 * 2) & 3u;
        const i32 scale = (i32)(scale_low | scale_high << 4) - 32;
        scaled(low | high, 4, half_field(block, 108) * (float)scale, out);
    }
};

// The 6-bit scale and min of a run in q4k and q5k: 12 bytes hold 8 of each. The first four lie in the low 6 bits of
// bytes 0-3 (scales) and 4-7 (mins); the last four have their low nibbles in bytes 8-11 and their high bits atop the
// first four.
struct ScaleMin {
    float scale, min;
};
DEVICE_FN ScaleMin scale_min(const u8* block, u32 run) {
    const u8* packed = block + 4;
    u32 scale, min;
    if (run < 4) {
        scale = packed[run] & 63u;
        min = packed[run + 4] & 63u;
    } else {
        const u32 low = packed[run + 4];
        scale = (low & 15u) | (u32)(packed[run - 4] >> 6) << 4;
        min = low >> 4 | (u32)(packed[run] >> 6) << 4;
    }
    return {half_field(block, 0) * (float)scale, half_field(block, 2) * (float)min};
}

// half d, half dmin; 12 bytes of scales and mins; 128 bytes of nibbles, two runs in 32 bytes
struct q4k : formats::q4k {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const u32 run = group / 4, place = group % 4 * 8;
        const u64 quants = low_bits<4>(field<u64>(block, 16 + run / 2 * 32 + place) >> (run % 2 * 4));
        const ScaleMin by = scale_min(block, run);
        scaled_offset(quants, by.scale, -by.min, out);
    }
};

// half d, half dmin; 12 bytes of scales and mins; 32 bytes of fifth bits, eight runs in them; 128 bytes of nibbles as
// in q4k
struct q5k : formats::q5k {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const u32 run = group / 4, place = group % 4 * 8;
        const u64 low = low_bits<4>(field<u64>(block, 48 + run / 2 * 32 + place) >> (run % 2 * 4));
        const u64 fifth = low_bits<1>(field<u64>(block, 16 + place) >> run) << 4;
        const ScaleMin by = scale_min(block, run);
        scaled_offset(low | fifth, by.scale, -by.min, out);
    }
};

// 128 bytes of low nibbles, per half of the block 64: runs 0 and 2 in the first 32, 1 and 3 in the second; 64 bytes of
// high 2 bits, four runs in 32 bytes; 16 signed scales, one per sub-block; half d
struct q6k : formats::q6k {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const u32 half = group / 16, run = group / 4 % 4, place = group % 4 * 8;
        const u64 low = low_bits<4>(field<u64>(block, half * 64 + run % 2 * 32 + place) >> (run / 2 * 4));
        const u64 high = low_bits<2>(field<u64>(block, 128 + half * 32 + place) >> (run * 2)) << 4;
        const float scale = (float)(i8)block[192 + group / 2];
        scaled(low | high, 32, half_field(block, 208) * scale, out);
    }
};

// float d; 256 signed bytes; 16 sums of sub-blocks (not needed here)
struct q8k : formats::q8k {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        scaled_signed(field<u64>(block, 4 + group * 8), field<float>(block, 0), out);
    }
};

// float d; 64 floats of 8 bits
struct f8_e4m3 : formats::f8_e4m3 {
    static DEVICE_FN void read(const u8* block, u32 group, float (&out)[GROUP]) {
        const float d = field<float>(block, 0);
        const u64 bytes = field<u64>(block, 4 + group * 8);
        for (u32 i = 0; i < GROUP; ++i) out[i] = d * load(f8e4m3{(u8)(bytes >> (8 * i))});
    }
};

}  // namespace blocks

#endif
