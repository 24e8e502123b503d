// Activations to 8 bits, as they are or behind the norm that makes them.
#include "blocks.h"
#include "norm_rows.h"
#include "quantize.h"

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
        quantize_four(v, i, i < total, quants, scales);
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

// The RMS norm of rows of `shape.columns` values, a multiple of 32, as floats and in 8 bits of `stride` quants a row,
// behind all of which the scales lie.
struct Quants {
    u32* quants;
    u64 rows;
    u32 stride;
    DEVICE_FN void operator()(u64 r, u32 i, const Values<float, 4>& values) const {
        ActivationScale* const scales = (ActivationScale*)(quants + rows * (stride / 4));
        quantize_four(values.v, (u32)(r * (stride / 4)) + i / 4, i < stride, quants, scales);
    }
};

extern "C" __global__ void rms_norm_quantize(const float* src, const float* weight, float* out, u32* quants, Shape shape, u32 stride) {
    norm_rows(src, weight, out, shape, stride, Quants{quants, shape.rows, stride});
}
extern "C" __global__ void add_rms_norm_quantize(const float* src, const float* residual, const float* weight, float* sum, float* out, u32* quants,
                                                 Shape shape, u32 stride) {
    add_norm_rows(src, residual, weight, sum, out, shape, stride, Quants{quants, shape.rows, stride});
}
