// What mixtures whose experts have biases do beside the products: the gate between them, and the sum over a token's
// experts. A slot is a pair of a token and one of its experts; one that names no expert gives nothing.
#include "rows.h"
#include "shared/moe.h"

// (up + 1) gate sigmoid(alpha gate), with the gate up to `limit` and `up` up to it on both sides. NaN stays.
template <u32 N, typename T>
DEVICE_FN void gate(const T* gates, const T* ups, const T* gate_biases, const T* up_biases, T* out, const ExpertGate& by) {
    using C = compute_t<T>;
    Values<C, N> x = read<N>(gates);
    const Values<C, N> y = read<N>(ups), x_bias = read<N>(gate_biases), y_bias = read<N>(up_biases);
    for (u32 j = 0; j < N; ++j) {
        const C open = x.v[j] + x_bias.v[j], up = y.v[j] + y_bias.v[j];
        const C g = open > by.limit ? by.limit : open;
        const C u = up > by.limit ? by.limit : up < -by.limit ? -by.limit : up;
        x.v[j] = (u + C(1)) * (g / (C(1) + math::exp(-by.alpha * g)));
    }
    write(out, x);
}

template <u32 N, typename T> DEVICE_FN void clear(T* out) {
    Values<compute_t<T>, N> zeros;
    for (u32 j = 0; j < N; ++j) zeros.v[j] = 0;
    write(out, zeros);
}

template <typename T>
DEVICE_FN void gate_slots(const T* gates, const T* ups, const T* gate_biases, const T* up_biases, const u32* ids, T* out, const ExpertGate& by) {
    constexpr u32 N = PACK<T>;
    const u32 row_steps = (by.columns + N - 1) / N;
    for (u64 step = global_index(); step < (u64)by.slots * row_steps; step += global_size()) {
        const u32 slot = (u32)step / row_steps;
        const u32 i = ((u32)step - slot * row_steps) * N;
        const u32 expert = ids[slot];
        const u64 at = (u64)slot * by.columns + i, bias = (u64)expert * by.columns + i;
        const u32 left = by.columns - i;
        if (expert >= by.experts) {
            if (left >= N) clear<N>(out + at);
            else for (u32 j = 0; j < left; ++j) clear<1>(out + at + j);
        } else if (left >= N) {
            gate<N>(gates + at, ups + at, gate_biases + bias, up_biases + bias, out + at, by);
        } else {
            for (u32 j = 0; j < left; ++j) gate<1>(gates + at + j, ups + at + j, gate_biases + bias + j, up_biases + bias + j, out + at + j, by);
        }
    }
}

// N columns of a token: what its experts give, with their biases if there are any, times their weights.
template <u32 N, typename T> DEVICE_FN void add_up(const T* slots, const T* biases, const u32* ids, const float* weights, u32 column, T* out, const ExpertSum& s) {
    Values<compute_t<T>, N> sum;
    for (u32 j = 0; j < N; ++j) sum.v[j] = 0;
    for (u32 k = 0; k < s.used; ++k) {
        const u32 expert = ids[k];
        if (expert >= s.experts) continue;
        const float weight = weights[k];
        const Values<compute_t<T>, N> x = read<N>(slots + (u64)k * s.columns);
        if (biases) {
            const Values<compute_t<T>, N> bias = read<N>(biases + (u64)expert * s.columns + column);
            for (u32 j = 0; j < N; ++j) sum.v[j] = math::fma(weight, x.v[j] + bias.v[j], sum.v[j]);
        } else {
            for (u32 j = 0; j < N; ++j) sum.v[j] = math::fma(weight, x.v[j], sum.v[j]);
        }
    }
    write(out, sum);
}

template <typename T> DEVICE_FN void sum_slots(const T* slots, const T* biases, const u32* ids, const float* weights, T* out, const ExpertSum& s) {
    constexpr u32 N = PACK<T>;
    const u32 row_steps = (s.columns + N - 1) / N;
    for (u64 step = global_index(); step < (u64)s.tokens * row_steps; step += global_size()) {
        const u32 token = (u32)step / row_steps;
        const u32 i = ((u32)step - token * row_steps) * N;
        const T* const from = slots + (u64)token * s.used * s.columns + i;
        const u32* const of = ids + (u64)token * s.used;
        const float* const by = weights + (u64)token * s.used;
        T* const to = out + (u64)token * s.columns + i;
        const u32 left = s.columns - i;
        if (left >= N) add_up<N>(from, biases, of, by, i, to, s);
        else for (u32 j = 0; j < left; ++j) add_up<1>(from + j, biases, of, by, i + j, to + j, s);
    }
}

#define MOE_GATE(name, T)                                                                                                                  \
    extern "C" __global__ MAX_BLOCK(256) void moe_gate_##name(const T* gates, const T* ups, const T* gate_biases, const T* up_biases,        \
                                                              const u32* ids, T* out, ExpertGate by) {                                       \
        gate_slots(gates, ups, gate_biases, up_biases, ids, out, by);                                                                        \
    }                                                                                                                                        \
    extern "C" __global__ MAX_BLOCK(256) void moe_sum_##name(const T* slots, const T* biases, const u32* ids, const float* weights, T* out,   \
                                                             ExpertSum sizes) {                                                              \
        sum_slots(slots, biases, ids, weights, out, sizes);                                                                                  \
    }
MOE_GATE(f16, f16)
MOE_GATE(bf16, bf16)
MOE_GATE(f32, float)
