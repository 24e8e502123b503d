// Activations to 8 bits, as they are or behind the norm that makes them.
#include "blocks.h"
#include "norm.h"
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
// behind all of which the scales lie. A block has a row.
template <typename Source>
DEVICE_FN void norm_row(BlockTeam& team, const Source& source, u64 r, const float* weight, float* out, u32* quants, const Shape& shape, u32 stride) {
    // The largest block keeps 8192 values; for more there are too few scalar registers.
    using Row = device::Row<BlockTeam, float, Source, 8>;
    sum_beyond<Row>(source, shape.columns, true);
    const Row row(team, source, shape.columns, true);
    const float squares = row.sum([](float value) { return value * value; });
    const float scale = 1.0f / math::sqrt(squares / (float)shape.columns + shape.eps);
    row.each_together(stride / 4, [&](u32 i, Values<float, 4> values) {
        if (i < shape.columns) {
            values = RmsNorm::scaled(values, read<4>(weight + i), scale);
            write(out + r * shape.columns + i, values);
        }
        ActivationScale* const scales = (ActivationScale*)(quants + shape.rows * (stride / 4));
        quantize_four(values.v, (u32)(r * (stride / 4)) + i / 4, i < stride, quants, scales);
    });
}

extern "C" __global__ void rms_norm_quantize(const float* src, const float* weight, float* out, u32* quants, Shape shape, u32 stride) {
    BlockTeam team;
    for (u64 r = block_x(); r < shape.rows; r += grid_dim()) {
        norm_row(team, Plain<float, true>{src + r * shape.row_stride}, r, weight, out, quants, shape, stride);
    }
}
extern "C" __global__ void add_rms_norm_quantize(const float* src, const float* residual, const float* weight, float* sum, float* out, u32* quants,
                                                 Shape shape, u32 stride) {
    BlockTeam team;
    for (u64 r = block_x(); r < shape.rows; r += grid_dim()) {
        const Residual<float, true> source{src + r * shape.row_stride, residual + r * shape.residual_stride, sum + r * shape.columns};
        norm_row(team, source, r, weight, out, quants, shape, stride);
    }
}
