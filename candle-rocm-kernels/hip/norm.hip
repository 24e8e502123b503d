// RMS norm and layer norm along the last dimension, also of a sum of two tensors that is wanted itself (`add_…`: a residual connection and
// the norm behind it read and write memory once). Statistics are taken in f32.
#include "norm.h"

// (x - mean) / sqrt(variance + eps) * weight + bias; `bias` may be null. The variance is that of the differences to the mean: no cancellation.
struct LayerNorm {
    template <typename Team, typename T, typename Source>
    static DEVICE_FN void apply(const Source& source, const T* weight, const T* bias, T* out, const Shape& shape) {
        using C = compute_t<T>;
        sum_beyond<Team>(source, shape.columns);
        Row<Team, T, Source> row(source, shape.columns);
        const C mean = row.sum([](C value) { return value; }) / (C)shape.columns;
        const C squares = row.sum([=](C value) { return (value - mean) * (value - mean); });
        const C scale = C(1) / math::sqrt(squares / (C)shape.columns + (C)shape.eps);
        row.each([&](u32 i, auto& values) { scaled(out, weight, bias, i, values, mean, scale); });
    }
    template <typename T, typename C, u32 N>
    static DEVICE_FN void scaled(T* out, const T* weight, const T* bias, u32 i, Values<C, N>& values, C mean, C scale) {
        const Values<C, N> w = read<N>(weight + i);
        for (u32 j = 0; j < N; ++j) values.v[j] = (values.v[j] - mean) * scale * w.v[j];
        if (bias) {
            const Values<C, N> b = read<N>(bias + i);
            for (u32 j = 0; j < N; ++j) values.v[j] += b.v[j];
        }
        write(out + i, values);
    }
};

template <typename Norm, typename Team, typename T>
DEVICE_FN void norm(const T* src, const T* weight, const T* bias, T* out, const Shape& shape) {
    for (u64 r = Team::index(); r < shape.rows; r += Team::count()) {
        Norm::template apply<Team, T>(Plain<T>{src + r * shape.row_stride}, weight, bias, out + r * shape.columns, shape);
    }
}
template <typename Norm, typename Team, typename T>
DEVICE_FN void add_norm(const T* src, const T* residual, const T* weight, const T* bias, T* sum, T* out, const Shape& shape) {
    for (u64 r = Team::index(); r < shape.rows; r += Team::count()) {
        const Residual<T> source{src + r * shape.row_stride, residual + r * shape.residual_stride, sum + r * shape.columns};
        Norm::template apply<Team, T>(source, weight, bias, out + r * shape.columns, shape);
    }
}

#define NORM(op, Op, name, Team, T)                                                                                                 \
    extern "C" __global__ void op##_##name(const T* src, const T* weight, const T* bias, T* out, Shape shape) {                      \
        norm<Op, Team>(src, weight, bias, out, shape);                                                                              \
    }                                                                                                                               \
    extern "C" __global__ void add_##op##_##name(const T* src, const T* residual, const T* weight, const T* bias, T* sum, T* out,    \
                                                 Shape shape) {                                                                     \
        add_norm<Op, Team>(src, residual, weight, bias, sum, out, shape);                                                           \
    }
#define NORMS(dtype, T)                                   \
    NORM(rms_norm, RmsNorm, dtype, BlockTeam, T)          \
    NORM(rms_norm, RmsNorm, wave_##dtype, WaveTeam, T)    \
    NORM(layer_norm, LayerNorm, dtype, BlockTeam, T)      \
    NORM(layer_norm, LayerNorm, wave_##dtype, WaveTeam, T)
NORMS(f16, f16)
NORMS(bf16, bf16)
NORMS(f32, float)
