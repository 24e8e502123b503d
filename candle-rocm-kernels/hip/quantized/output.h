// What is done to a sum of products before it is stored.
#ifndef CANDLE_ROCM_QUANTIZED_OUTPUT_H
#define CANDLE_ROCM_QUANTIZED_OUTPUT_H

#include "activation.h"

namespace device {

enum OutputType : u32 { OUTPUT_F32, OUTPUT_F16, OUTPUT_BF16 };
enum Activation : u32 { ACTIVATION_NONE, ACTIVATION_SILU, ACTIVATION_GELU, ACTIVATION_GELU_ERF };

// y, bias and residual have one type. All choices are the same for every thread: branches on them cost a scalar instruction.
struct Output {
    void* y;
    const void* bias;      // one per row of the matrix, or null
    const void* residual;  // one per element of y, or null
    u32 type;
    u32 activation;

    DEVICE_FN float read(const void* from, u64 at) const {
        switch (type) {
            case OUTPUT_F16: return load(((const f16*)from)[at]);
            case OUTPUT_BF16: return load(((const bf16*)from)[at]);
            default: return ((const float*)from)[at];
        }
    }
    DEVICE_FN void write(u64 at, float v) const {
        switch (type) {
            case OUTPUT_F16: ((f16*)y)[at] = store<f16>(v); break;
            case OUTPUT_BF16: ((bf16*)y)[at] = store<bf16>(v); break;
            default: ((float*)y)[at] = v;
        }
    }
    DEVICE_FN float activate(float x) const {
        switch (activation) {
            case ACTIVATION_SILU: return Silu<float>::apply(x);
            case ACTIVATION_GELU: return Gelu<float>::apply(x);
            case ACTIVATION_GELU_ERF: return GeluErf<float>::apply(x);
            default: return x;
        }
    }
    // y[at] = activation(sum + bias[row]) + residual[at]
    DEVICE_FN void finish(u64 at, u32 row, float sum) const {
        if (bias) sum += read(bias, row);
        sum = activate(sum);
        if (residual) sum += read(residual, at);
        write(at, sum);
    }
    // y[at] = activation(gate) * up + residual[at]
    DEVICE_FN void finish_gated(u64 at, float gate, float up) const {
        float v = activate(gate) * up;
        if (residual) v += read(residual, at);
        write(at, v);
    }
};

}  // namespace device

#endif
