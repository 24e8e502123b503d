// Floats to the 8 bits of q8_1.h. Eight lanes share a block of 32 values.
#ifndef CANDLE_ROCM_QUANTIZE_H
#define CANDLE_ROCM_QUANTIZE_H

#include "q8_1.h"

namespace device {

// What the values of a block are divided by, from the bits of the largest magnitude. As integers, magnitudes are
// ordered with NaN above infinity: either makes d infinite or NaN, and with it all results.
struct Divisor {
    bool finite;
    float d, inverse;
    DEVICE_FN explicit Divisor(u32 largest) : finite(largest < 0x7f800000u), d(bit_cast<float>(largest) / 127.0f) {
        // Of magnitudes whose 127th part has no finite reciprocal, nothing is left beside binary32's own error.
        inverse = finite && d > 0x1p-126f ? 1.0f / d : 0.0f;
    }
    DEVICE_FN i32 quant(float v) const { return finite ? (i32)math::rint(v * inverse) : 0; }
    DEVICE_FN float scale() const { return finite ? d : math::nan(0.0f); }
};

// Stores the i-th four quants of all, and the scale of each eight. All lanes of a wave arrive; blocks begin at every
// eighth.
DEVICE_FN void quantize_four(const float (&v)[4], u32 i, bool is_stored, u32* quants, ActivationScale* scales) {
    u32 largest = 0;
    for (u32 e = 0; e < 4; ++e) {
        const u32 magnitude = bit_cast<u32>(v[e]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    for (u32 mask = 1; mask < 8; mask *= 2) {
        const u32 other = shfl_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    const Divisor by(largest);
    u32 packed = 0;
    i32 sum = 0;
    for (u32 e = 0; e < 4; ++e) {
        const i32 q = by.quant(v[e]);
        sum += q;
        packed |= (u32)(u8)q << (8 * e);
    }
    for (u32 mask = 1; mask < 4; mask *= 2) sum += shfl_xor(sum, mask);
    const i32 upper = shfl_xor(sum, 4);
    if (is_stored) {
        quants[i] = packed;
        if (i % 8 == 0) scales[i / 8] = {by.scale(), {(i16)sum, (i16)upper}};
    }
}

// The same for one value to a lane: stores the i-th quant of all. Blocks begin at every 32nd lane.
DEVICE_FN void quantize_one(float v, u64 i, bool is_stored, u32* quants, ActivationScale* scales) {
    u32 largest = bit_cast<u32>(v) & 0x7fffffffu;
    for (u32 mask = 1; mask < 32; mask *= 2) {
        const u32 other = shfl_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    const Divisor by(largest);
    const i32 q = by.quant(v);
    i32 sum = q;
    for (u32 mask = 1; mask < 16; mask *= 2) sum += shfl_xor(sum, mask);
    const i32 upper = shfl_xor(sum, 16);
    if (is_stored) {
        ((u8*)quants)[i] = (u8)q;
        if (i % 32 == 0) scales[i / 32] = {by.scale(), {(i16)sum, (i16)upper}};
    }
}

}  // namespace device

#endif
