// Gated activations of feed-forward layers: act(gate) * up, computed in float and rounded once.
#include "activation.h"
#include "rows.h"
#include "shared/gated.h"

template <u32 N, typename Activation, typename T> DEVICE_FN void gate(const T* gate, const T* up, T* out) {
    Values<compute_t<T>, N> values = read<N>(gate);
    const Values<compute_t<T>, N> factors = read<N>(up);
    for (u32 j = 0; j < N; ++j) values.v[j] = Activation::apply(values.v[j]) * factors.v[j];
    write(out, values);
}

template <typename Activation, typename T> DEVICE_FN void gated(const T* gates, const T* ups, T* out, const Gated& layout) {
    constexpr u32 N = PACK<T>;
    for (u64 step = global_index(); step < layout.steps; step += global_size()) {
        const u32 row = (u32)step / layout.row_steps;
        const u64 i = (u64)((u32)step - row * layout.row_steps) * N;
        const T* const g = gates + row * layout.gate_stride + i;
        const T* const u = ups + row * layout.up_stride + i;
        T* const o = out + row * layout.columns + i;
        const u64 left = layout.columns - i;
        if (left >= N) {
            gate<N, Activation>(g, u, o);
        } else {
            for (u32 j = 0; j < left; ++j) gate<1, Activation>(g + j, u + j, o + j);
        }
    }
}

#define GATED(op, Op, name, T)                                                                                                       \
    extern "C" __global__ MAX_BLOCK(256) void op##_mul_##name(const T* gates, const T* ups, T* out, Gated layout) {                   \
        gated<Op<T>>(gates, ups, out, layout);                                                                                       \
    }
#define GATED_FLOATS(op, Op)         \
    GATED(op, Op, f16, f16)          \
    GATED(op, Op, bf16, bf16)        \
    GATED(op, Op, f32, float)
GATED_FLOATS(silu, Silu)
GATED_FLOATS(gelu, Gelu)
GATED_FLOATS(gelu_erf, GeluErf)
GATED_FLOATS(relu, Relu)
