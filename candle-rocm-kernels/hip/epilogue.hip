// What follows a product: residual + gate * act(product + bias), computed in float and rounded once. Bias, gate and
// residual may be null.
#include "activation.h"
#include "rows.h"
#include "shared/epilogue.h"

FUNCTION(Same, return x;)

// What of it is beside a pack of N elements, or of the row where the bias is one number.
template <typename T> struct BesideProduct {
    const T* bias;
    const T* gate;
    const T* residual;
    bool one_bias;
    static DEVICE_FN const T* at(const T* vector, u64 i) { return vector ? vector + i : nullptr; }
    DEVICE_FN BesideProduct behind(u64 i) const { return {at(bias, one_bias ? 0 : i), at(gate, i), at(residual, i), one_bias}; }
};

template <u32 N, typename Activation, typename T> DEVICE_FN void finish(const T* product, const BesideProduct<T>& beside, T* out) {
    Values<compute_t<T>, N> values = read<N>(product);
    if (beside.bias && beside.one_bias) {
        const auto bias = load(*beside.bias);
        for (auto& value : values.v) value += bias;
    } else if (beside.bias) {
        const auto biases = read<N>(beside.bias);
        for (u32 j = 0; j < N; ++j) values.v[j] += biases.v[j];
    }
    for (auto& value : values.v) value = Activation::apply(value);
    if (beside.gate) {
        const auto gates = read<N>(beside.gate);
        for (u32 j = 0; j < N; ++j) values.v[j] *= gates.v[j];
    }
    if (beside.residual) {
        const auto more = read<N>(beside.residual);
        for (u32 j = 0; j < N; ++j) values.v[j] += more.v[j];
    }
    write(out, values);
}

template <typename Activation, typename T>
DEVICE_FN void epilogue(const T* product, const T* bias, const T* gate, const T* residual, T* out, const Epilogue& layout, const RowVectors& biases,
                        const RowVectors& gates) {
    constexpr u32 N = PACK<T>;
    for (u64 step = global_index(); step < layout.steps; step += global_size()) {
        const u32 row = (u32)step / layout.row_steps;
        const u64 i = (u64)((u32)step - row * layout.row_steps) * N;
        const T* const rest = BesideProduct<T>::at(residual, row * layout.residual_stride);
        const BesideProduct<T> of_the_row{of_row(bias, row, biases), of_row(gate, row, gates), rest, layout.one_bias != 0};
        const BesideProduct<T> beside = of_the_row.behind(i);
        const T* const p = product + row * layout.stride + i;
        T* const o = out + row * layout.columns + i;
        const u64 left = layout.columns - i;
        if (left >= N) {
            finish<N, Activation>(p, beside, o);
        } else {
            for (u32 j = 0; j < left; ++j) finish<1, Activation>(p + j, beside.behind(j), o + j);
        }
    }
}

#define EPILOGUE(op, Op, name, T)                                                                                                    \
    extern "C" __global__ MAX_BLOCK(256) void epilogue_##op##_##name(const T* product, const T* bias, const T* gate,                  \
                                                                     const T* residual, T* out, Epilogue layout, RowVectors biases,      \
                                                                     RowVectors gates) {                                                \
        epilogue<Op<T>>(product, bias, gate, residual, out, layout, biases, gates);                                                  \
    }
#define EPILOGUE_FLOATS(op, Op)      \
    EPILOGUE(op, Op, f16, f16)       \
    EPILOGUE(op, Op, bf16, bf16)     \
    EPILOGUE(op, Op, f32, float)
EPILOGUE_FLOATS(none, Same)
EPILOGUE_FLOATS(silu, Silu)
EPILOGUE_FLOATS(gelu, Gelu)
EPILOGUE_FLOATS(gelu_erf, GeluErf)
EPILOGUE_FLOATS(relu, Relu)
