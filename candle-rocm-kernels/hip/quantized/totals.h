// Sums of numbers over neighbouring threads.
#ifndef CANDLE_ROCM_TOTALS_H
#define CANDLE_ROCM_TOTALS_H

#include "device.h"

namespace device {

constexpr u32 MATVEC_MAX_BLOCK = 256;

// Which of the SUMS totals a lane holds after reduce: its low bits, mirrored.
template <u32 SUMS> DEVICE_FN u32 total_of_lane() {
    u32 index = 0;
    for (u32 mask = 1, weight = SUMS / 2; weight > 0; mask *= 2, weight /= 2) index += lane() & mask ? weight : 0;
    return index;
}
// Adds up SUMS numbers over each `lanes` neighbours, at least SUMS of them and within a wave. With every step a lane
// hands over half of what it has left and keeps the other half: SUMS - 1 exchanges instead of SUMS times the logarithm
// of lanes.
template <u32 SUMS> DEVICE_FN float reduce(float (&v)[SUMS], u32 lanes) {
    u32 mask = 1;
    for (u32 half = SUMS / 2; half > 0; half /= 2, mask *= 2) {
        const bool upper = lane() & mask;
        for (u32 i = 0; i < half; ++i) {
            const float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
            v[i] = keep + shfl_xor(give, mask);
        }
    }
    for (; mask < lanes; mask *= 2) v[0] += shfl_xor(v[0], mask);
    return v[0];
}
// The same over `lanes` neighbours in a wave or in several: each of the first threads that share the sums gets the total
// of total_of_lane. All threads of the block arrive, at most MATVEC_MAX_BLOCK.
template <u32 SUMS> DEVICE_FN float total(float (&sum)[SUMS], u32 lanes) {
    float total = reduce(sum, lanes < WAVE ? lanes : WAVE);
    if (lanes > WAVE) {
        __shared__ float partial[MATVEC_MAX_BLOCK / 32][SUMS];
        const u32 wave = thread_x() / WAVE, waves = lanes / WAVE;
        const u32 own = total_of_lane<SUMS>();
        if (lane() < SUMS) partial[wave][own] = total;
        barrier();
        total = 0;
        for (u32 w = 0; w < waves; ++w) total += partial[wave / waves * waves + w][own];
        barrier();
    }
    return total;
}

}  // namespace device

#endif
