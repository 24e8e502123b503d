// Group norm of images, also with SiLU behind it. Statistics are taken in f32.
#include "activation.h"
#include "rows.h"
#include "shared/group_norm.h"

DEVICE_FN u32 columns(const Groups& shape) { return shape.channels * shape.pixels; }
// Of part p of a row: its first element, and how many it has.
DEVICE_FN u32 part_begin(const Groups& shape, u32 p) { return p * shape.part; }
DEVICE_FN u32 part_length(const Groups& shape, u32 p) {
    const u32 left = columns(shape) - part_begin(shape, p);
    return left < shape.part ? left : shape.part;
}

// (x - mean) * scale * weight + bias with the channel's weight and bias, and SiLU if asked for; `values` begin at
// element i of a row.
template <typename T, typename C, u32 N>
DEVICE_FN void grouped(T* out, const T* weight, const T* bias, u32 i, Values<C, N>& values, C mean, C scale, const Groups& shape) {
    u32 channel = i / shape.pixels;
    u32 left = (channel + 1) * shape.pixels - i;
    C factor = scale * load(weight[channel]), shift = load(bias[channel]);
    for (u32 j = 0; j < N; ++j, --left) {
        if (left == 0) {
            left = shape.pixels;
            ++channel;
            factor = scale * load(weight[channel]);
            shift = load(bias[channel]);
        }
        const C value = (values.v[j] - mean) * factor + shift;
        values.v[j] = shape.silu ? Silu<T>::apply(value) : value;
    }
    write(out + i, values);
}

// What a block keeps of a row or a part of one.
template <typename T> using GroupRow = Row<BlockTeam, T, Plain<T>, GROUP_KEPT>;

// A block has a row.
template <typename T> DEVICE_FN void group_norm(const T* src, const T* weight, const T* bias, T* out, const Groups& shape) {
    using C = compute_t<T>;
    BlockTeam team;
    for (u64 r = block_x(); r < shape.rows; r += grid_dim()) {
        const u32 first = r % shape.groups * shape.channels;
        const Plain<T> source{src + r * columns(shape)};
        const GroupRow<T> row(team, source, columns(shape), source.in_packs());
        const C mean = row.sum([](C value) { return value; }) / (C)columns(shape);
        const C squares = row.sum([=](C value) { return (value - mean) * (value - mean); });
        const C scale = C(1) / math::sqrt(squares / (C)columns(shape) + (C)shape.eps);
        T* const to = out + r * columns(shape);
        row.each([&](u32 i, auto values) { grouped(to, weight + first, bias + first, i, values, mean, scale, shape); });
    }
}

template <typename T> DEVICE_FN void group_moments(const T* src, Moments* moments, const Groups& shape) {
    using C = compute_t<T>;
    BlockTeam team;
    for (u64 b = block_x(); b < shape.rows * shape.parts; b += grid_dim()) {
        const u32 p = b % shape.parts, length = part_length(shape, p);
        const Plain<T> source{src + b / shape.parts * columns(shape) + part_begin(shape, p)};
        const GroupRow<T> row(team, source, length, source.in_packs());
        const C mean = row.sum([](C value) { return value; }) / (C)length;
        const C squares = row.sum([=](C value) { return (value - mean) * (value - mean); });
        if (thread_x() == 0) moments[b] = Moments{mean, squares};
    }
}

// The parts' moments joined (Chan, Golub and LeVeque), then the norm of one part a block.
template <typename T>
DEVICE_FN void group_apply(const T* src, const Moments* moments, const T* weight, const T* bias, T* out, const Groups& shape) {
    using C = compute_t<T>;
    for (u64 b = block_x(); b < shape.rows * shape.parts; b += grid_dim()) {
        const u64 r = b / shape.parts;
        const u32 p = b % shape.parts, first = r % shape.groups * shape.channels;
        const Moments* const parts = moments + r * shape.parts;
        C mean = C(0), squares = C(0);
        for (u32 k = 0; k < shape.parts; ++k) mean += parts[k].mean * (C)part_length(shape, k);
        mean /= (C)columns(shape);
        for (u32 k = 0; k < shape.parts; ++k) {
            const C apart = parts[k].mean - mean;
            squares += parts[k].squares + apart * apart * (C)part_length(shape, k);
        }
        const C scale = C(1) / math::sqrt(squares / (C)columns(shape) + (C)shape.eps);
        const u64 start = r * columns(shape);
        const u32 end = part_begin(shape, p) + part_length(shape, p);
        constexpr u32 N = PACK<T>;
        const u32 whole = end - (end - part_begin(shape, p)) % N;
        for (u32 i = part_begin(shape, p) + thread_x() * N; i < whole; i += block_dim() * N) {
            Values<C, N> values = read<N>(src + start + i);
            grouped(out + start, weight + first, bias + first, i, values, mean, scale, shape);
        }
        if (whole + thread_x() < end) {
            Values<C, 1> values = read<1>(src + start + whole + thread_x());
            grouped(out + start, weight + first, bias + first, whole + thread_x(), values, mean, scale, shape);
        }
    }
}

#define GROUP_NORMS(dtype, T)                                                                                                       \
    extern "C" __global__ void group_norm_##dtype(const T* src, const T* weight, const T* bias, T* out, Groups shape) {              \
        group_norm(src, weight, bias, out, shape);                                                                                  \
    }                                                                                                                               \
    extern "C" __global__ void group_moments_##dtype(const T* src, Moments* moments, Groups shape) {                                 \
        group_moments(src, moments, shape);                                                                                         \
    }                                                                                                                               \
    extern "C" __global__ void group_apply_##dtype(const T* src, const Moments* moments, const T* weight, const T* bias, T* out,     \
                                                   Groups shape) {                                                                  \
        group_apply(src, moments, weight, bias, out, shape);                                                                        \
    }
PART(f16) GROUP_NORMS(f16, f16)
PART(bf16) GROUP_NORMS(bf16, bf16)
PART(f32) GROUP_NORMS(f32, float)
