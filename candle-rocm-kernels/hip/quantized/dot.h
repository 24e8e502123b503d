// Dot products of packed signed bytes, and byte arithmetic on four of them at once.
#ifndef CANDLE_ROCM_DOT_H
#define CANDLE_ROCM_DOT_H

#include "device.h"

namespace device {

// 16 bytes, as one load moves them.
#ifdef __CUDACC__
struct alignas(16) u32x4 {
    u32 v[4];
    DEVICE_FN u32& operator[](u32 i) { return v[i]; }
    DEVICE_FN u32 operator[](u32 i) const { return v[i]; }
};
#define LANEWISE(op)                                                                  \
    DEVICE_FN u32x4 operator op(u32x4 a, u32 b) {                                      \
        return u32x4{{a.v[0] op b, a.v[1] op b, a.v[2] op b, a.v[3] op b}};            \
    }                                                                                 \
    DEVICE_FN u32x4 operator op(u32x4 a, u32x4 b) {                                    \
        return u32x4{{a.v[0] op b.v[0], a.v[1] op b.v[1], a.v[2] op b.v[2], a.v[3] op b.v[3]}}; \
    }                                                                                 \
    DEVICE_FN u32x4& operator op##=(u32x4& a, u32x4 b) { return a = a op b; }
LANEWISE(+)
LANEWISE(-)
LANEWISE(&)
LANEWISE(|)
LANEWISE(^)
LANEWISE(<<)
LANEWISE(>>)
#undef LANEWISE
#else
typedef u32 u32x4 __attribute__((vector_size(16)));
#endif

// sum + the products of the four signed bytes of a and b. Written out where the arch has no such instruction (gfx900, gfx1010).
DEVICE_FN i32 dot4(u32 a, u32 b, i32 sum) {
#ifdef __CUDACC__
    return __dp4a((i32)a, (i32)b, sum);
#elif !defined(__HIP_SIM__) && (defined(__GFX11__) || defined(__GFX12__))
    return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, sum, false);
#elif !defined(__HIP_SIM__) &&                                                                                                  \
    (defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) ||          \
     defined(__gfx9_4_generic__) || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) ||                      \
     defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) ||     \
     defined(__gfx1036__) || defined(__gfx10_3_generic__))
    return __builtin_amdgcn_sdot4((i32)a, (i32)b, sum, false);
#else
    for (u32 i = 0; i < 32; i += 8) sum += (i32)(i8)(u8)(a >> i) * (i32)(i8)(u8)(b >> i);
    return sum;
#endif
}
DEVICE_FN i32 dot16(u32x4 a, u32x4 b, i32 sum) {
    for (u32 i = 0; i < 4; ++i) sum = dot4(a[i], b[i], sum);
    return sum;
}

// Four bytes of 0..127, each less ZERO (at most 128). Bit 7 is set before and flipped after, so that no byte borrows from the next.
template <u32 ZERO> DEVICE_FN u32x4 bytes_less(u32x4 bytes) {
    if constexpr (ZERO == 0) return bytes;
    return ((bytes | 0x80808080u) - ZERO * 0x01010101u) ^ 0x80808080u;
}

}  // namespace device

#endif
