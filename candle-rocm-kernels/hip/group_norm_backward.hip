// Gradients of group norm of images, also with SiLU behind it, with all sums in f32. The formulas are those of
// norm_backward.hip, with the weight of each channel; a block has a row, or a channel of all images.
#include "rows.h"
#include "shared/backward.h"
#include "shared/group_norm.h"

// The gradient of the norm's result y, out of that of SiLU if that is behind it.
DEVICE_FN float before_activation(float grad, float y, u32 silu) {
    if (!silu) return grad;
    const float sigmoid = 1.0f / (1.0f + math::exp(-y));
    return grad * sigmoid * (1.0f + y * (1.0f - sigmoid));
}

template <typename T>
DEVICE_FN void group_norm_backward(const T* src, const T* grad, const T* weight, const T* bias, T* out, Statistics* statistics, const Groups& shape) {
    const u32 columns = shape.channels * shape.pixels;
    const float count = (float)columns;
    BlockTeam team;
    for (u64 r = block_x(); r < shape.rows; r += grid_dim()) {
        const T* const x = src + r * columns;
        const T* const g = grad + r * columns;
        const u32 first = r % shape.groups * shape.channels;
        float mean = 0.0f;
        for (u32 i = thread_x(); i < columns; i += block_dim()) mean += load(x[i]);
        mean = team.template join<Sum>(mean) / count;
        float squares = 0.0f;
        for (u32 i = thread_x(); i < columns; i += block_dim()) squares += (load(x[i]) - mean) * (load(x[i]) - mean);
        squares = team.template join<Sum>(squares);
        const float scale = 1.0f / math::sqrt(squares / count + shape.eps);
        const auto weighted = [&](u32 i, float normed) {
            const u32 channel = first + i / shape.pixels;
            const float factor = load(weight[channel]);
            return factor * before_activation(load(g[i]), normed * factor + load(bias[channel]), shape.silu);
        };
        float along = 0.0f, across = 0.0f;
        for (u32 i = thread_x(); i < columns; i += block_dim()) {
            const float normed = (load(x[i]) - mean) * scale;
            const float h = weighted(i, normed);
            along += h;
            across += h * normed;
        }
        along = team.template join<Sum>(along) / count;
        across = team.template join<Sum>(across) / count;
        for (u32 i = thread_x(); i < columns; i += block_dim()) {
            const float normed = (load(x[i]) - mean) * scale;
            out[r * columns + i] = store<T>(scale * (weighted(i, normed) - along - normed * across));
        }
        if (thread_x() == 0) statistics[r] = Statistics{mean, scale};
    }
}

template <typename T>
DEVICE_FN void channels_backward(const T* src, const T* grad, const T* weight, const T* bias, const Statistics* statistics, T* weights, T* biases,
                                 const Groups& shape) {
    __shared__ float scratch[MAX_WAVES];
    const u32 channels = shape.groups * shape.channels;
    const u32 channel = block_x();
    const float factor = load(weight[channel]), shift = load(bias[channel]);
    float along = 0.0f, across = 0.0f;
    for (u64 r = channel / shape.channels; r < shape.rows; r += shape.groups) {
        const u64 at = (r / shape.groups * channels + channel) * shape.pixels;
        for (u32 i = thread_x(); i < shape.pixels; i += block_dim()) {
            const float normed = (load(src[at + i]) - statistics[r].mean) * statistics[r].scale;
            const float g = before_activation(load(grad[at + i]), normed * factor + shift, shape.silu);
            along += g;
            across += g * normed;
        }
    }
    along = block_reduce<Sum>(along, scratch);
    across = block_reduce<Sum>(across, scratch);
    if (thread_x() == 0) {
        weights[channel] = store<T>(across);
        biases[channel] = store<T>(along);
    }
}

#define GROUP_NORM(dtype, T)                                                                                                          \
    extern "C" __global__ void group_norm_backward_##dtype(const T* src, const T* grad, const T* weight, const T* bias, T* out,        \
                                                           Statistics* statistics, Groups shape) {                                 \
        group_norm_backward(src, grad, weight, bias, out, statistics, shape);                                                         \
    }                                                                                                                                 \
    extern "C" __global__ void group_norm_channels_##dtype(const T* src, const T* grad, const T* weight, const T* bias,                \
                                                           const Statistics* statistics, T* weights, T* biases, Groups shape) {    \
        channels_backward(src, grad, weight, bias, statistics, weights, biases, shape);                                               \
    }
GROUP_NORM(f16, f16)
GROUP_NORM(bf16, bf16)
GROUP_NORM(f32, float)
