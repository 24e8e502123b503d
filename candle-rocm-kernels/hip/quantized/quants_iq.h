// The formats of iq.h as quants.h reads them: their levels are signed bytes already.
#ifndef CANDLE_ROCM_QUANTS_IQ_H
#define CANDLE_ROCM_QUANTS_IQ_H

#include "iq.h"
#include "quants.h"

namespace quants {

template <typename Format> struct Levels {
    static constexpr u32 ELEMENTS = Format::ELEMENTS, BYTES = Format::BYTES, HALVES = 2, GROUP = Format::SHARED < 32 ? 16 : 32, ZERO = 0;
    static_assert(Format::SHARED % 16 == 0, "a half has one scale");
    static constexpr bool OFFSET = false;
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

using iq1_s = Levels<iq::iq1_s>;
using iq1_m = Levels<iq::iq1_m>;
using iq2_xxs = Levels<iq::iq2_xxs>;
using iq2_xs = Levels<iq::iq2_xs>;
using iq2_s = Levels<iq::iq2_s>;
using iq3_xxs = Levels<iq::iq3_xxs>;
using iq3_s = Levels<iq::iq3_s>;
using iq4_nl = Levels<iq::iq4_nl>;
using iq4_xs = Levels<iq::iq4_xs>;
using tq1_0 = Levels<iq::tq1_0>;
using tq2_0 = Levels<iq::tq2_0>;
using mxfp4 = Levels<iq::mxfp4>;
using nvfp4 = Levels<iq::nvfp4>;

}  // namespace quants

#endif
