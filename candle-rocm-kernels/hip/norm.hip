// RMS norm and layer norm along the last dimension, also of a sum of two tensors that is wanted itself (`add_…`: a
// residual connection and the norm behind it read and write memory once) or scaled and shifted by what is given for each
// row (`modulated_`: the adaptive norms of diffusion transformers). Statistics are taken in f32.
#include "norm.h"

// (x - mean) / sqrt(variance + eps) * weight + bias; `bias` may be null, and weights may be given as what they are above
// one. The variance is that of the differences to the mean: no cancellation.
template <bool ABOVE_ONE> struct CenteredNorm {
    template <typename Team, typename T, typename Source>
    static DEVICE_FN void apply(Team& team, const Source& source, const Parameters<T>& parameters, T* out, const Shape& shape) {
        using C = compute_t<T>;
        using Row = device::Row<Team, T, Source>;
        const bool in_packs = source.in_packs() && parameters.in_packs() && are_in_packs(out);
        sum_beyond<Row>(source, shape.columns, in_packs);
        const Row row(team, source, shape.columns, in_packs);
        const C mean = row.sum([](C value) { return value; }) / (C)shape.columns;
        const C squares = row.sum([=](C value) { return (value - mean) * (value - mean); });
        const C scale = C(1) / math::sqrt(squares / (C)shape.columns + (C)shape.eps);
        each_beside(row, parameters, [&](u32 i, auto values, const auto& beside) {
            for (C& value : values.v) value -= mean;
            auto weight = beside.weight.values();
            if constexpr (ABOVE_ONE) {
                for (C& value : weight.v) value += C(1);
            }
            values = RmsNorm::scaled(values, weight, scale);
            if (parameters.bias) {
                const auto bias = beside.bias(parameters, i);
                for (u32 j = 0; j < sizeof(values.v) / sizeof(C); ++j) values.v[j] += bias.v[j];
            }
            write_aligned(out + i, values);
        });
    }
};

using LayerNorm = CenteredNorm<false>;

template <typename Norm, typename Team, typename T>
DEVICE_FN void norm(const T* src, const Parameters<T>& parameters, T* out, const Shape& shape) {
    Team team;
    for (u64 r = Team::index(); r < shape.rows; r += Team::count()) {
        Norm::apply(team, Plain<T>{src + r * shape.row_stride}, parameters, out + r * shape.columns, shape);
    }
}
template <typename Norm, typename Team, typename T>
DEVICE_FN void add_norm(const T* src, const T* residual, const Parameters<T>& parameters, T* sum, T* out, const Shape& shape) {
    Team team;
    for (u64 r = Team::index(); r < shape.rows; r += Team::count()) {
        const Residual<T> source{src + r * shape.row_stride, residual + r * shape.residual_stride, sum + r * shape.columns};
        Norm::apply(team, source, parameters, out + r * shape.columns, shape);
    }
}

// norm(x) * (1 + scale) + shift, both for each row or shared by several; `shift` may be null.
template <typename Team, typename T>
DEVICE_FN void modulated_norm(const T* src, const T* scale, const T* shift, T* out, const Shape& shape, const RowVectors& scales, const RowVectors& shifts) {
    Team team;
    for (u64 r = Team::index(); r < shape.rows; r += Team::count()) {
        const Parameters<T> parameters{of_row(scale, (u32)r, scales), of_row(shift, (u32)r, shifts)};
        CenteredNorm<true>::apply(team, Plain<T>{src + r * shape.row_stride}, parameters, out + r * shape.columns, shape);
    }
}

#define NORM(op, Op, name, Team, T)                                                                                                 \
    extern "C" __global__ void op##_##name(const T* src, const T* weight, const T* bias, T* out, Shape shape) {                      \
        norm<Op, Team>(src, Parameters<T>{weight, bias}, out, shape);                                                                              \
    }                                                                                                                               \
    extern "C" __global__ void add_##op##_##name(const T* src, const T* residual, const T* weight, const T* bias, T* sum, T* out,    \
                                                 Shape shape) {                                                                     \
        add_norm<Op, Team>(src, residual, Parameters<T>{weight, bias}, sum, out, shape);                                                           \
    }
#define MODULATED(name, Team, T)                                                                                                    \
    extern "C" __global__ void modulated_norm_##name(const T* src, const T* scale, const T* shift, T* out, Shape shape,              \
                                                     RowVectors scales, RowVectors shifts) {                                                \
        modulated_norm<Team>(src, scale, shift, out, shape, scales, shifts);                                                        \
    }
#define NORMS(dtype, T)                                   \
    MODULATED(dtype, BlockTeam, T)                        \
    MODULATED(wave_##dtype, WaveTeam, T)                  \
    NORM(rms_norm, RmsNorm, dtype, BlockTeam, T)          \
    NORM(rms_norm, RmsNorm, wave_##dtype, WaveTeam, T)    \
    NORM(layer_norm, LayerNorm, dtype, BlockTeam, T)      \
    NORM(layer_norm, LayerNorm, wave_##dtype, WaveTeam, T)
PART(f16) NORMS(f16, f16)
PART(bf16) NORMS(bf16, bf16)
PART(f32) NORMS(f32, float)
