// The formats of iq.h as quants.h reads them: their levels are signed bytes already.
#ifndef CANDLE_ROCM_QUANTS_IQ_H
#define CANDLE_ROCM_QUANTS_IQ_H

#include "iq.h"
#include "quants.h"

namespace quants {

template <typename Format> struct Levels : Format {
    static constexpr u32 HALVES = 2, GROUP = Format::SHARED < 32 ? 16 : 32, ZERO = 0;
    static_assert(Format::SHARED % 16 == 0, "a half has one scale");
    static constexpr DEVICE_FN u32 place(u32 unit, u32 half) { return unit * 32 + half * 16; }
    static DEVICE_FN void read(const u8* block, u32 u, Unit<2>& unit) {
        for (u32 h = 0; h < 2; ++h) {
            const u32 group = u * 4 + h * 2;
            const u64 low = Format::quants(block, group), high = Format::quants(block, group + 1);
            unit.q[h] = u32x4{(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
            unit.scale[h] = Format::scale(block, group), unit.offset[h] = 0;
        }
    }
};

#define LEVELS(name) using name = Levels<iq::name>;
IQ_FORMATS(LEVELS)
#undef LEVELS

}  // namespace quants

#endif
