// Dot products of packed signed bytes, and byte arithmetic on four of them at once.
#ifndef CANDLE_ROCM_DOT_H
#define CANDLE_ROCM_DOT_H

#include "device.h"

namespace device {

// sum + the products of the four signed bytes of a and b. Written out where there is no such instruction.
DEVICE_FN i32 dot4(u32 a, u32 b, i32 sum) {
    if constexpr (target::HAS_DOT4) {
        return target::dot4(a, b, sum);
    } else {
        for (u32 i = 0; i < 32; i += 8) sum += (i32)(i8)(u8)(a >> i) * (i32)(i8)(u8)(b >> i);
        return sum;
    }
}
DEVICE_FN i32 dot16(u32x4 a, u32x4 b, i32 sum) {
    for (u32 i = 0; i < 4; ++i) sum = dot4(a[i], b[i], sum);
    return sum;
}

// Four bytes of 0..127, each less ZERO (at most 128). Bit 7 is set before and flipped after, so that no byte borrows
// from the next.
template <u32 ZERO> DEVICE_FN u32x4 bytes_less(u32x4 bytes) {
    if constexpr (ZERO == 0) return bytes;
    return ((bytes | 0x80808080u) - ZERO * 0x01010101u) ^ 0x80808080u;
}

}  // namespace device

#endif
