// Activations to 8-bit floats, as they are or behind the norm that makes them. 16 lanes share a step of 64 values; with
// MX scales, powers of two, 8 lanes share a block of 32.
//
// A scale makes the largest magnitude of its step the largest float, 448; where the same bits are half the value, they
// are 224, and the scale is the same. There are no bits of -0 or NaN: a step with NaN or an infinity has NaN as scale.
#include "matrix.h"
#include "norm_rows.h"
#include "shared/float8.h"

constexpr u32 LANES = FLOAT8_STEP / 4;

DEVICE_FN u32 float_bits(float v) {
    const u32 bits = float_to_f8e4m3(v);
    return bits == 0x80u ? 0u : bits;
}

// The bits of the largest magnitude that so many neighbouring lanes have. As integers, magnitudes are ordered with NaN
// above infinity.
template <u32 SHARERS> DEVICE_FN u32 largest_magnitude(const float (&v)[4]) {
    u32 largest = 0;
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
        const u32 magnitude = bit_cast<u32>(v[e]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
#pragma unroll
    for (u32 mask = 1; mask < SHARERS; mask *= 2) {
        const u32 other = shfl_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    return largest;
}

// Four floats; zeros where not all that share their scale are finite.
DEVICE_FN u32 packed(const float (&v)[4], float inverse, bool finite) {
    u32 word = 0;
#pragma unroll
    for (u32 e = 0; e < 4; ++e) word |= float_bits(finite ? v[e] * inverse : 0.0f) << 8 * e;
    return word;
}

// Stores the i-th four floats of all, and the scale of each 16 of these. All lanes of a wave arrive; steps begin at
// every sixteenth.
DEVICE_FN void quantize_floats(const float (&v)[4], u32 i, bool is_stored, u32* bits, float* scales) {
    const u32 largest = largest_magnitude<LANES>(v);
    const bool finite = largest < 0x7f800000u;
    const float d = bit_cast<float>(largest) * (1.0f / 448.0f);
    // Of magnitudes whose 448th part has no finite reciprocal, nothing is left beside binary32's own error.
    const float inverse = finite && d > 0x1p-126f ? 1.0f / d : 0.0f;
    const u32 word = packed(v, inverse, finite);
    if (is_stored) {
        bits[i] = word;
        if (i % LANES == 0) scales[i / LANES] = finite ? d : math::nan(0.0f);
    }
}

// `fours` times four values, whole steps, at any address of theirs.
template <typename T> DEVICE_FN void quantize(u32 fours, const T* x, u32* bits, float* scales) {
    struct Four {
        T v[4];
    };
    // All lanes of a wave stay for the shuffles; those beyond the end form whole steps.
    for (u64 first = global_index() - lane(); first < fours; first += global_size()) {
        const u32 i = (u32)(first + lane());
        float v[4] = {};
        if (i < fours) {
            const Four in = load_unaligned<Four>((const u8*)(x + (u64)i * 4));
            for (u32 e = 0; e < 4; ++e) v[e] = load(in.v[e]);
        }
        quantize_floats(v, i, i < fours, bits, scales);
    }
}

#define QUANTIZE(NAME, T)                                                                                                  \
    extern "C" __global__ MAX_BLOCK(256) void quantize_float8_##NAME(u32 fours, const T* x, u32* bits, float* scales) { \
        quantize<T>(fours, x, bits, scales);                                                                             \
    }

QUANTIZE(f32, float)
QUANTIZE(f16, f16)
QUANTIZE(bf16, bf16)

// x: `columns` vectors of k values, a multiple of 32; stride is one of 128, columns * stride is below 2^34.
template <typename T> DEVICE_FN void quantize_mx(u32 columns, u32 k, u32 stride, const T* x, u32* bits, u8* scales) {
    struct Four {
        T v[4];
    };
    const u32 fours = stride / 4;
    const u32 total = (u32)((u64)columns * fours);
    for (u64 first = global_index() - lane(); first < total; first += global_size()) {
        const u32 i = (u32)(first + lane());
        const u32 column = i / fours, at = i % fours * 4;
        float v[4] = {};
        if (i < total && at < k) {
            const Four in = load_unaligned<Four>((const u8*)(x + (u64)column * k + at));
            for (u32 e = 0; e < 4; ++e) v[e] = load(in.v[e]);
        }
        const u32 largest = largest_magnitude<8>(v);
        const bool finite = largest < 0x7f800000u;
        // The smallest power of two that leaves no magnitude above 448.
        const u32 least = bit_cast<u32>(bit_cast<float>(largest) * (1.0f / 448.0f));
        const u32 exponent = (least + 0x7fffffu) >> 23;
        const float inverse = finite && exponent > 0 ? bit_cast<float>((254u - exponent) << 23) : 0.0f;
        const u32 own = packed(v, inverse, finite);
        // Elements 16 apart become neighbours: each lane of a pair makes one word of both.
        const u32 other = shfl_xor(own, 4);
        const bool upper = lane() % 8 >= 4;
        const u32 word = upper ? permute_bytes(own, other, 0x07030602u) : permute_bytes(other, own, 0x05010400u);
        if (i < total) {
            bits[i / 8 * 8 + i % 4 * 2 + (upper ? 1 : 0)] = word;
            if (i % 8 == 0) scales[i / 8] = finite ? (u8)exponent : (u8)255;
        }
    }
}

#define QUANTIZE_MX(NAME, T)                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void quantize_mx_##NAME(u32 columns, u32 k, u32 stride, const T* x, u32* bits, u8* scales) { \
        quantize_mx<T>(columns, k, stride, x, bits, scales);                                                                           \
    }

QUANTIZE_MX(f32, float)
QUANTIZE_MX(f16, f16)
QUANTIZE_MX(bf16, bf16)

#if MATRIX_FLOAT8
// The RMS norm of rows of whole steps, as floats and in 8 bits of `stride` floats a row, behind all of which the scales
// lie.
struct Floats {
    u32* bits;
    u64 rows;
    u32 stride;
    DEVICE_FN void operator()(u64 r, u32 i, const Values<float, 4>& values) const {
        float* const scales = (float*)(bits + rows * (stride / 4));
        quantize_floats(values.v, (u32)(r * (stride / 4)) + i / 4, i < stride, bits, scales);
    }
};

extern "C" __global__ void rms_norm_float8(const float* src, const float* weight, float* out, u32* bits, Shape shape, u32 stride) {
    norm_rows(src, weight, out, shape, stride, Floats{bits, shape.rows, stride});
}
extern "C" __global__ void add_rms_norm_float8(const float* src, const float* residual, const float* weight, float* sum, float* out, u32* bits, Shape shape,
                                               u32 stride) {
    add_norm_rows(src, residual, weight, sum, out, shape, stride, Floats{bits, shape.rows, stride});
}
#endif
