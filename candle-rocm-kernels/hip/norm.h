// RMS norm of a row, and rows that are the sum of two tensors.
#ifndef CANDLE_ROCM_NORM_H
#define CANDLE_ROCM_NORM_H

#include "rows.h"
#include "shared/norm.h"

namespace device {

// x + residual, rounded to T as it is stored in `sum`; the norm is that of the rounded sum. ANYWHERE as for Plain.
template <typename T, bool ANYWHERE = false> struct Residual {
    static constexpr bool IS_SUM = true;
    const T* src;
    const T* residual;
    T* sum;
    DEVICE_FN bool in_packs() const { return ANYWHERE || are_in_packs(src, residual, sum); }
    template <u32 N> DEVICE_FN Neighbours<N, T> first(u32 i) const {
        Values<compute_t<T>, N> values = Plain<T, ANYWHERE>{src}.template again<N>(i);
        const Values<compute_t<T>, N> more = Plain<T, ANYWHERE>{residual}.template again<N>(i);
        for (u32 j = 0; j < N; ++j) values.v[j] += more.v[j];
        const Neighbours<N, T> rounded = narrowed<T>(values);
        copy_to_aligned(sum + i, rounded);
        return rounded;
    }
    template <u32 N> DEVICE_FN Values<compute_t<T>, N> again(u32 i) const { return widened(copy_from_aligned<N>(sum + i)); }
};

// What a row of these does not keep is summed beforehand; each thread reads again what it wrote itself.
template <typename Row, typename Source> DEVICE_FN void sum_beyond(const Source& source, u32 columns, bool in_packs) {
    if constexpr (Source::IS_SUM) {
        const u32 packs = in_packs ? columns / Row::N : 0;
        const u32 size = Row::pack(1) - Row::pack(0);
        for (u32 p = Row::pack(Row::PACKS); p < packs; p += size) source.template first<Row::N>(p * Row::N);
        if constexpr (!ALWAYS_IN_PACKS) {
            for (u32 i = packs * Row::N + Row::pack(1); i < columns; i += size) source.template first<1>(i);
        }
    }
}

// A weight for each column and, unless null, a bias.
template <typename T> struct Parameters {
    const T* weight;
    const T* bias;
    DEVICE_FN bool in_packs() const { return are_in_packs(weight, bias); }
};
// Those of N columns from i on. Of narrow elements, weight and bias are asked for together; others' would take too many
// registers.
template <u32 N, typename T> struct Beside {
    static constexpr bool TOGETHER = sizeof(T) <= 2;
    Held<N, T> weight;
    Held<N, T> later;
    DEVICE_FN void read(const Parameters<T>& from, u32 i) {
        weight = copy_from_aligned<N>(from.weight + i);
        if (TOGETHER && from.bias) later = copy_from_aligned<N>(from.bias + i);
    }
    DEVICE_FN Values<compute_t<T>, N> bias(const Parameters<T>& from, u32 i) const {
        if constexpr (TOGETHER) return later.values();
        return widened(copy_from_aligned<N>(from.bias + i));
    }
};

// f(column, values, beside) for all of a row. Of narrow elements, what is beside two packs is asked for at once.
template <typename Row, typename T, typename F> DEVICE_FN void each_beside(const Row& row, const Parameters<T>& parameters, F f) {
    constexpr u32 N = Row::N, BATCH = sizeof(T) <= 2 ? 2 : 1;
#pragma unroll
    for (u32 first = 0; first < Row::PACKS; first += BATCH) {
        Beside<N, T> beside[BATCH];
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            const u32 p = Row::pack(first + b);
            if (p < row.packs) beside[b].read(parameters, p * N);
        }
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            const u32 p = Row::pack(first + b);
            if (p < row.packs) f(p * N, row.kept[first + b].values(), beside[b]);
        }
    }
    const auto alone = [&](u32 i, auto values) {
        Beside<sizeof(values.v) / sizeof(values.v[0]), T> beside;
        beside.read(parameters, i);
        f(i, values, beside);
    };
    if (row.single() < row.columns) alone(row.single(), row.last.values());
    row.each_beyond(alone);
}

// x / sqrt(mean(x²) + eps) * weight
struct RmsNorm {
    template <typename Team, typename T, typename Source>
    static DEVICE_FN void apply(Team& team, const Source& source, const Parameters<T>& parameters, T* out, const Shape& shape) {
        using C = compute_t<T>;
        using Row = device::Row<Team, T, Source>;
        const bool in_packs = source.in_packs() && parameters.in_packs() && are_in_packs(out);
        sum_beyond<Row>(source, shape.columns, in_packs);
        const Row row(team, source, shape.columns, in_packs);
        const C squares = row.sum([](C value) { return value * value; });
        const C scale = C(1) / math::sqrt(squares / (C)shape.columns + (C)shape.eps);
        each_beside(row, parameters, [&](u32 i, auto values, const auto& beside) { write_aligned(out + i, scaled(values, beside.weight.values(), scale)); });
    }
    template <typename C, u32 N> static DEVICE_FN Values<C, N> scaled(Values<C, N> values, const Values<C, N>& weight, C scale) {
        for (u32 j = 0; j < N; ++j) values.v[j] = values.v[j] * scale * weight.v[j];
        return values;
    }
};

}  // namespace device

#endif
