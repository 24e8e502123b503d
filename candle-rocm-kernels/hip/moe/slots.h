// Slots of a mixture: pairs of a token and one of its experts.
#ifndef CANDLE_ROCM_MOE_SLOTS_H
#define CANDLE_ROCM_MOE_SLOTS_H

#include "index_error.h"
#include "shared/quantized.h"

namespace device {

constexpr u32 NO_EXPERT = 0xffffffffu;

// The slot's expert, if there is one; reports one that does not exist.
DEVICE_FN bool find(const Slots& s, u32 slot, u32& expert, IndexError* error) {
    expert = s.experts_of[slot];
    if (expert < s.experts) return true;
    if (expert != NO_EXPERT) report_index(error, s.op, s.experts, expert);
    return false;
}

}  // namespace device

#endif
