// What is done to a sum of products before it is stored.
#ifndef CANDLE_ROCM_QUANTIZED_OUTPUT_H
#define CANDLE_ROCM_QUANTIZED_OUTPUT_H

#include "activation.h"
#include "shared/quantized.h"

namespace device {

DEVICE_FN float read(const Output& output, const void* from, u64 at) {
    switch (output.dtype) {
        case OUTPUT_F16: return load(((const f16*)from)[at]);
        case OUTPUT_BF16: return load(((const bf16*)from)[at]);
        default: return ((const float*)from)[at];
    }
}
DEVICE_FN void write(const Output& output, u64 at, float v) {
    switch (output.dtype) {
        case OUTPUT_F16: ((f16*)output.y)[at] = store<f16>(v); break;
        case OUTPUT_BF16: ((bf16*)output.y)[at] = store<bf16>(v); break;
        default: ((float*)output.y)[at] = v;
    }
}
DEVICE_FN float activate(const Output& output, float x) {
    switch (output.activation) {
        case ACTIVATION_SILU: return Silu<float>::apply(x);
        case ACTIVATION_GELU: return Gelu<float>::apply(x);
        case ACTIVATION_GELU_ERF: return GeluErf<float>::apply(x);
        default: return x;
    }
}
// y[at] = activation(sum + bias[row]) + residual[at]
DEVICE_FN void finish(const Output& output, u64 at, u32 row, float sum) {
    if (output.bias) sum += read(output, output.bias, row);
    sum = activate(output, sum);
    if (output.residual) sum += read(output, output.residual, at);
    write(output, at, sum);
}
// y[at] = activation(gate) * up + residual[at]
DEVICE_FN void finish_gated(const Output& output, u64 at, float gate, float up) {
    float v = activate(output, gate) * up;
    if (output.residual) v += read(output, output.residual, at);
    write(output, at, v);
}

}  // namespace device

#endif
