// Floats to the 8 bits of q8_1.h. Eight lanes share a block of 32 values.
#ifndef CANDLE_ROCM_QUANTIZE_H
#define CANDLE_ROCM_QUANTIZE_H

#include "q8_1.h"

namespace device {

// Stores the i-th four quants of all, and the scale of each eight. All lanes of a wave arrive; blocks begin at every eighth.
DEVICE_FN void quantize_four(const float (&v)[4], u32 i, bool is_stored, u32* quants, ActivationScale* scales) {
    // As integers, magnitudes are ordered with NaN above infinity: either makes d infinite or NaN, and with it all results.
    u32 largest = 0;
    for (u32 e = 0; e < 4; ++e) {
        const u32 magnitude = bit_cast<u32>(v[e]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    for (u32 mask = 1; mask < 8; mask *= 2) {
        const u32 other = shfl_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    const bool finite = largest < 0x7f800000u;
    const float d = bit_cast<float>(largest) / 127.0f;
    // Of magnitudes whose 127th part has no finite reciprocal, nothing is left beside binary32's own error.
    const float inverse = finite && d > 0x1p-126f ? 1.0f / d : 0.0f;
    u32 packed = 0;
    i32 sum = 0;
    for (u32 e = 0; e < 4; ++e) {
        const i32 q = finite ? (i32)math::rint(v[e] * inverse) : 0;
        sum += q;
        packed |= (u32)(u8)q << (8 * e);
    }
    for (u32 mask = 1; mask < 4; mask *= 2) sum += shfl_xor(sum, mask);
    const i32 upper = shfl_xor(sum, 4);
    if (is_stored) {
        quants[i] = packed;
        if (i % 8 == 0) scales[i / 8] = {finite ? d : math::nan(0.0f), {(i16)sum, (i16)upper}};
    }
}

}  // namespace device

#endif
