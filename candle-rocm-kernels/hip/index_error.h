// How a kernel reports an index that is out of range, for the host to raise when it next waits (error_word.rs).
#ifndef CANDLE_ROCM_INDEX_ERROR_H
#define CANDLE_ROCM_INDEX_ERROR_H

#include "device.h"

namespace device {

// The device's error word; the first report stays until the host has read it.
struct IndexError {
    u32 op;  // the number of an IndexOp; 0: none
    u32 size;
    i64 index;
};

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
