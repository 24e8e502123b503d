// Activations in 8 bits: blocks of 32 values d * q with q in -127..127, and the sums of q over each half of a block, with which a
// format's zero point or minimum costs one operation per scale.
//
// Unlike ggml's Q8_1, quants and scales lie apart, so that 16 bytes load aligned, and d is binary32, so that no activation overflows.
#ifndef CANDLE_ROCM_Q8_1_H
#define CANDLE_ROCM_Q8_1_H

#include "dot.h"

namespace device {

struct alignas(8) ActivationScale {
    float d;
    i16 sum[2];
};

// `columns` vectors of `stride` quants each, a multiple of 128; those beyond the vectors' length are zero.
struct Activations {
    const u32x4* quants;
    const ActivationScale* scales;
    u32 stride;
    u32 columns;

    // The 16 quants from element k of a column; k is a multiple of 16.
    DEVICE_FN u32x4 half(u64 column, u32 k) const { return quants[(column * stride + k) / 16]; }
    // Scale and sums of the block with element k.
    DEVICE_FN ActivationScale scale(u64 column, u32 k) const { return scales[(column * stride + k) / 32]; }
};

}  // namespace device

#endif
