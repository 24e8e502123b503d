// How a kernel reports an index that is out of range, for the host to raise when it next waits (error_word.rs).
#ifndef CANDLE_ROCM_INDEX_ERROR_H
#define CANDLE_ROCM_INDEX_ERROR_H

#include "device.h"
#include "shared/index_error.h"

namespace device {

DEVICE_FN void report_index(IndexError* error, u32 op, u32 size, i64 index) {
    bool first = false;
    atomic_update(&error->op, [&](u32 seen) -> u32 {
        first = seen == 0;
        return first ? op : seen;
    });
    if (first) {
        error->size = size;
        error->index = index;
    }
}

}  // namespace device

#endif
