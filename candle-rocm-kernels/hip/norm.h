// RMS norm of a row, and rows that are the sum of two tensors.
#ifndef CANDLE_ROCM_NORM_H
#define CANDLE_ROCM_NORM_H

#include "rows.h"

namespace device {

// x + residual, rounded to T as it is stored in `sum`; the norm is that of the rounded sum.
template <typename T> struct Residual {
    const T* src;
    const T* residual;
    T* sum;
    template <u32 N> DEVICE_FN Values<compute_t<T>, N> first(u32 i) const {
        Values<compute_t<T>, N> values = read<N>(src + i);
        const Values<compute_t<T>, N> more = read<N>(residual + i);
        for (u32 j = 0; j < N; ++j) values.v[j] = load(store<T>(values.v[j] + more.v[j]));
        write(sum + i, values);
        return values;
    }
    template <u32 N> DEVICE_FN Values<compute_t<T>, N> again(u32 i) const { return read<N>(sum + i); }
};

// What lies beyond the kept elements is summed beforehand; each thread reads again what it wrote itself.
template <typename Team, u32 KEEP = KEPT, typename T> DEVICE_FN void sum_beyond(const Residual<T>& source, u32 columns) {
    constexpr u32 N = PACK<T>;
    for (u32 p = Team::rank() + KEEP / N * Team::size(); p < columns / N; p += Team::size()) source.template first<N>(p * N);
}
template <typename Team, u32 KEEP = KEPT, typename T> DEVICE_FN void sum_beyond(const Plain<T>&, u32) {}

// Rows of input, of which `residual` may be null; both inputs have rows of their own stride, outputs are packed.
struct Shape {
    u64 rows;
    u64 row_stride;
    u64 residual_stride;
    u32 columns;
    float eps;
};

// x / sqrt(mean(x²) + eps) * weight
struct RmsNorm {
    template <typename Team, typename T, typename Source>
    static DEVICE_FN void apply(const Source& source, const T* weight, const T*, T* out, const Shape& shape) {
        using C = compute_t<T>;
        sum_beyond<Team>(source, shape.columns);
        Row<Team, T, Source> row(source, shape.columns);
        const C squares = row.sum([](C value) { return value * value; });
        const C scale = C(1) / math::sqrt(squares / (C)shape.columns + (C)shape.eps);
        row.each([&](u32 i, auto& values) { scaled(out, weight, i, values, scale); });
    }
    template <typename T, typename C, u32 N> static DEVICE_FN void scaled(T* out, const T* weight, u32 i, Values<C, N>& values, C scale) {
        const Values<C, N> w = read<N>(weight + i);
        for (u32 j = 0; j < N; ++j) values.v[j] = values.v[j] * scale * w.v[j];
        write(out + i, values);
    }
};

}  // namespace device

#endif
