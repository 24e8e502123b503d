// Activations in 8 bits: blocks of 32 values d * q with q in -127..127, and the sums of q over each half of a block,
// with which a format's zero point or minimum costs one operation per scale.
//
// Unlike ggml's Q8_1, quants and scales lie apart, so that 16 bytes load aligned, and d is binary32, so that no
// activation overflows.
#ifndef CANDLE_ROCM_Q8_1_H
#define CANDLE_ROCM_Q8_1_H

#include "dot.h"
#include "shared/quantized.h"

namespace device {

// The 16 quants from element k of a column; k is a multiple of 16.
DEVICE_FN u32x4 quants_at(const Activations& x, u64 column, u32 k) { return ((const u32x4*)x.quants)[(column * x.stride + k) / 16]; }
// Scale and sums of the block with element k.
DEVICE_FN ActivationScale scale_at(const Activations& x, u64 column, u32 k) { return x.scales[(column * x.stride + k) / 32]; }

}  // namespace device

#endif
