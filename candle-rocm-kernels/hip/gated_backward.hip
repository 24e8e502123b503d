// Gradients of gated activations, act(gate) * up: grad up act'(gate) for the gates and grad act(gate) for the others,
// computed in float and rounded once.
#include "rows.h"
#include "shared/gated.h"

struct ValueAndSlope {
    float value;
    float slope;
};

DEVICE_FN float sigmoid(float x) { return 1.0f / (1.0f + math::exp(-x)); }

// x sigmoid(x)
struct Silu {
    static DEVICE_FN ValueAndSlope at(float x) {
        const float s = sigmoid(x);
        return {x * s, s * (1.0f + x * (1.0f - s))};
    }
};
// x sigmoid(2 z) with z = sqrt(2/pi) (x + 0.044715 x³): GELU by tanh
struct Gelu {
    static DEVICE_FN ValueAndSlope at(float x) {
        const float s = sigmoid(x * math::fma(x * x, 0.071354816f, 1.59576912f));
        return {x * s, s + x * s * (1.0f - s) * math::fma(x * x, 3.0f * 0.071354816f, 1.59576912f)};
    }
};
// x times the normal distribution's function, whose slope is the bell: GELU by erf
struct GeluErf {
    static DEVICE_FN ValueAndSlope at(float x) {
        const float distribution = math::normal_distribution(x);
        return {x * distribution, distribution + x * 0.398942280f * math::exp(-0.5f * x * x)};
    }
};
// NaN stays NaN, and has the slope of what is above 0.
struct Relu {
    static DEVICE_FN ValueAndSlope at(float x) { return x <= 0.0f ? ValueAndSlope{0.0f, 0.0f} : ValueAndSlope{x, 1.0f}; }
};

template <typename Activation, typename T>
DEVICE_FN void gated_backward(const T* gates, const T* ups, const T* grads, T* out_gates, T* out_ups, const Gated& layout) {
    constexpr u32 N = PACK<T>;
    for (u64 step = global_index(); step < layout.steps; step += global_size()) {
        const u32 row = (u32)step / layout.row_steps;
        const u64 i = (u64)((u32)step - row * layout.row_steps) * N;
        const T* const g = gates + row * layout.gate_stride + i;
        const T* const u = ups + row * layout.up_stride + i;
        const u64 at = row * layout.columns + i;
        const u64 left = layout.columns - i;
        for (u32 j = 0; j < N && j < left; ++j) {
            const ValueAndSlope act = Activation::at(load(g[j]));
            const float grad = load(grads[at + j]);
            out_gates[at + j] = store<T>(grad * load(u[j]) * act.slope);
            out_ups[at + j] = store<T>(grad * act.value);
        }
    }
}

#define GATED(op, Op, name, T)                                                                                                       \
    extern "C" __global__ MAX_BLOCK(256) void op##_mul_backward_##name(const T* gates, const T* ups, const T* grads, T* out_gates,    \
                                                                       T* out_ups, Gated layout) {                                   \
        gated_backward<Op>(gates, ups, grads, out_gates, out_ups, layout);                                                           \
    }
#define GATED_FLOATS(op, Op)         \
    GATED(op, Op, f16, f16)          \
    GATED(op, Op, bf16, bf16)        \
    GATED(op, Op, f32, float)
GATED_FLOATS(silu, Silu)
GATED_FLOATS(gelu, Gelu)
GATED_FLOATS(gelu_erf, GeluErf)
GATED_FLOATS(relu, Relu)
