// Gradients of RMS norm and layer norm along the last dimension, with all sums in f32.
//
// With n = (x - mean) scale, the normed row, and h = grad weight, the gradient of the row is scale (h - mean(h) - n
// mean(h n)); RMS norm has a mean neither of x nor of h. The gradient of the weight is the sum of grad n over all rows,
// that of the bias the sum of grad: parts of the rows are summed side by side, then the parts in order.
#include "rows.h"
#include "shared/backward.h"
#include "shared/norm.h"

template <bool CENTERED, typename Team, typename T>
DEVICE_FN void norm_backward(const T* src, const T* grad, const T* weight, T* out, Statistics* statistics, const Shape& shape) {
    const u32 columns = shape.columns;
    const float count = (float)columns;
    Team team;
    for (u64 r = Team::index(); r < shape.rows; r += Team::count()) {
        const T* const x = src + r * shape.row_stride;
        const T* const g = grad + r * shape.residual_stride;
        T* const to = out + r * columns;
        float mean = 0.0f;
        if constexpr (CENTERED) {
            for (u32 i = Team::rank(); i < columns; i += Team::size()) mean += load(x[i]);
            mean = team.template join<Sum>(mean) / count;
        }
        float squares = 0.0f, along = 0.0f, across = 0.0f;
        for (u32 i = Team::rank(); i < columns; i += Team::size()) {
            const float difference = load(x[i]) - mean;
            const float h = load(g[i]) * load(weight[i]);
            squares += difference * difference;
            if constexpr (CENTERED) along += h;
            across += h * difference;
        }
        squares = team.template join<Sum>(squares);
        across = team.template join<Sum>(across);
        if constexpr (CENTERED) along = team.template join<Sum>(along) / count;
        const float scale = 1.0f / math::sqrt(squares / count + shape.eps);
        const float slope = across / count * scale * scale;
        for (u32 i = Team::rank(); i < columns; i += Team::size()) {
            const float h = load(g[i]) * load(weight[i]);
            to[i] = store<T>(scale * (h - along - (load(x[i]) - mean) * slope));
        }
        if (Team::rank() == 0) statistics[r] = Statistics{mean, scale};
    }
}

// The sums over each part of the rows. A block has a part of PART_COLUMNS columns.
template <typename T>
DEVICE_FN void column_parts(const T* src, const T* grad, const Statistics* statistics, float* weights, float* biases, const Shape& shape, u32 parts) {
    __shared__ float sums[2 * PART_THREADS];
    const u32 column_blocks = (shape.columns + PART_COLUMNS - 1) / PART_COLUMNS;
    const u32 part = block_x() / column_blocks;
    const u32 column = block_x() % column_blocks * PART_COLUMNS + thread_x() % PART_COLUMNS;
    const u64 end = shape.rows * (part + 1) / parts;
    float weight = 0.0f, bias = 0.0f;
    if (column < shape.columns) {
        for (u64 r = shape.rows * part / parts + thread_x() / PART_COLUMNS; r < end; r += PART_THREADS / PART_COLUMNS) {
            const float g = load(grad[r * shape.residual_stride + column]);
            weight += g * (load(src[r * shape.row_stride + column]) - statistics[r].mean) * statistics[r].scale;
            bias += g;
        }
    }
    sums[thread_x()] = weight;
    sums[PART_THREADS + thread_x()] = bias;
    barrier();
    if (thread_x() >= PART_COLUMNS || column >= shape.columns) return;
    for (u32 t = thread_x() + PART_COLUMNS; t < PART_THREADS; t += PART_COLUMNS) {
        weight += sums[t];
        bias += sums[PART_THREADS + t];
    }
    const u64 at = (u64)part * shape.columns + column;
    weights[at] = weight;
    if (biases) biases[at] = bias;
}

template <typename T> DEVICE_FN void columns_of_parts(const float* sums, T* out, u32 columns, u32 parts) {
    for (u64 i = global_index(); i < columns; i += global_size()) {
        float sum = 0.0f;
        for (u32 part = 0; part < parts; ++part) sum += sums[(u64)part * columns + i];
        out[i] = store<T>(sum);
    }
}

#define NORM(op, CENTERED, name, Team, T)                                                                                             \
    extern "C" __global__ void op##_backward_##name(const T* src, const T* grad, const T* weight, T* out, Statistics* statistics,      \
                                                    Shape shape) {                                                                    \
        norm_backward<CENTERED, Team>(src, grad, weight, out, statistics, shape);                                                     \
    }
#define NORMS(dtype, T)                                                                                                               \
    NORM(rms_norm, false, dtype, BlockTeam, T)                                                                                        \
    NORM(rms_norm, false, wave_##dtype, WaveTeam, T)                                                                                  \
    NORM(layer_norm, true, dtype, BlockTeam, T)                                                                                       \
    NORM(layer_norm, true, wave_##dtype, WaveTeam, T)                                                                                 \
    extern "C" __global__ MAX_BLOCK(PART_THREADS) void norm_column_parts_##dtype(                                                     \
        const T* src, const T* grad, const Statistics* statistics, float* weights, float* biases, Shape shape, u32 parts) {            \
        column_parts(src, grad, statistics, weights, biases, shape, parts);                                                           \
    }                                                                                                                                 \
    extern "C" __global__ MAX_BLOCK(256) void norm_columns_##dtype(const float* sums, T* out, u32 columns, u32 parts) {                \
        columns_of_parts(sums, out, columns, parts);                                                                                  \
    }
NORMS(f16, f16)
NORMS(bf16, bf16)
NORMS(f32, float)
