// Activations to 8 bits (q8_1.h). Eight lanes share a block of 32 values.
#include "q8_1.h"
#include "blocks.h"

template <typename T> struct Four {
    T v[4];
};

// x: `columns` vectors of k values; k and stride are multiples of 32, columns * stride is below 2^34.
template <typename T> DEVICE_FN void quantize(u32 columns, u32 k, u32 stride, const T* x, u32* quants, ActivationScale* scales) {
    const u32 fours = stride / 4;
    const u32 total = (u32)((u64)columns * fours);
    // All lanes of a wave stay for the shuffles; those beyond the end form whole blocks.
    for (u64 first = global_index() - lane(); first < total; first += global_size()) {
        const u32 i = (u32)(first + lane());
        const u32 column = i / fours, at = i % fours * 4;
        float v[4] = {};
        if (i < total && at < k) {
            const Four<T> in = blocks::field<Four<T>>((const u8*)(x + (u64)column * k + at), 0);
            for (u32 e = 0; e < 4; ++e) v[e] = load(in.v[e]);
        }
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
        if (i < total) {
            quants[i] = packed;
            if (i % 8 == 0) scales[i / 8] = {finite ? d : math::nan(0.0f), {(i16)sum, (i16)upper}};
        }
    }
}

#define QUANTIZE(NAME, T)                                                                                                          \
    extern "C" __global__ MAX_BLOCK(256) void quantize_##NAME(u32 columns, u32 k, u32 stride, const T* x, u32* quants,             \
                                                              ActivationScale* scales) {                                           \
        quantize<T>(columns, k, stride, x, quants, scales);                                                                        \
    }

QUANTIZE(f32, float)
QUANTIZE(f16, f16)
QUANTIZE(bf16, bf16)
