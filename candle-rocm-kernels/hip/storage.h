// Storage types to compute types and back: load and store. Included by device.h.
#ifndef CANDLE_ROCM_STORAGE_H
#define CANDLE_ROCM_STORAGE_H

namespace device {

DEVICE_FN bool is_nan(float x) { return (bit_cast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
DEVICE_FN bool is_nan(double x) { return (bit_cast<u64>(x) & ~(1ull << 63)) > 0x7ff0000000000000ull; }

DEVICE_FN u16 float_to_bf16(float x) {
    if constexpr (target::HAS_BF16) {
        return target::float_to_bf16(x);
    } else {
        const u32 bits = bit_cast<u32>(x);
        if (is_nan(x)) return (u16)((bits >> 16) | 0x40u);
        return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
}

DEVICE_FN float f8e4m3_to_float(u8 b) {
    const u32 sign = (u32)(b & 0x80u) << 24;
    const u32 magnitude = b & 0x7fu;
    if (magnitude == 0x7fu) return bit_cast<float>(0x7fffe000u);
    // As for f16: 2^120 rebiases from 7 to 127 and normalises subnormals exactly.
    return bit_cast<float>(sign | bit_cast<u32>(bit_cast<float>(magnitude << 20) * 0x1p120f));
}

// Round to nearest even; beyond 464 (and at infinity) saturate at 448; NaN keeps its sign.
DEVICE_FN u8 float_to_f8e4m3(float x) {
    const u32 bits = bit_cast<u32>(x);
    const u32 sign = (bits >> 24) & 0x80u;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (u8)(sign | 0x7fu);
    if (magnitude > 0x43e80000u) return (u8)(sign | 0x7eu);
    if (magnitude < 0x3c800000u) {
        // Below 2^-6: adding 2^14 leaves the multiple of 2^-9 nearest to x in the low mantissa bits.
        return (u8)(sign | (bit_cast<u32>(bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u));
    }
    const u32 rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    const u32 code = (rounded >> 20) - (120u << 3);
    return (u8)(sign | (code > 0x7eu ? 0x7eu : code));
}

// load: storage to compute type.
DEVICE_FN float load(f16 v) { return f16_to_float(v.bits); }
DEVICE_FN float load(bf16 v) { return bit_cast<float>((u32)v.bits << 16); }
DEVICE_FN float load(f8e4m3 v) { return f8e4m3_to_float(v.bits); }
template <typename T> DEVICE_FN T load(T v) { return v; }

// store<T>: compute type to storage, rounding to nearest even. From double the results are those of Rust's `half` on
// x86 (f16 by way of float; bf16 from the upper 32 bits in one rounding) and `float8` (one rounding).
template <typename T, typename C> struct Store {
    static DEVICE_FN T from(C v) { return (T)v; }
};
template <> struct Store<f16, float> {
    static DEVICE_FN f16 from(float v) { return f16{float_to_f16(v)}; }
};
template <> struct Store<f16, double> {
    static DEVICE_FN f16 from(double v) { return f16{float_to_f16((float)v)}; }
};
template <> struct Store<bf16, float> {
    static DEVICE_FN bf16 from(float v) { return bf16{float_to_bf16(v)}; }
};
template <> struct Store<bf16, double> {
    static DEVICE_FN bf16 from(double v) {
        if (is_nan(v)) return bf16{float_to_bf16((float)v)};
        const double head = bit_cast<double>(bit_cast<u64>(v) & ~0xffffffffull);
        const double magnitude = bit_cast<double>(bit_cast<u64>(head) & ~(1ull << 63));
        if (magnitude >= 0x1p-126) return bf16{float_to_bf16((float)head)};
        // A subnormal of float would round twice; in units of 2^-133 one rounding gives the bits.
        const u32 units = (u32)__builtin_rint(magnitude * 0x1p133);
        return bf16{(u16)(units | (u32)(bit_cast<u64>(v) >> 48 & 0x8000u))};
    }
};
template <> struct Store<f8e4m3, float> {
    static DEVICE_FN f8e4m3 from(float v) { return f8e4m3{float_to_f8e4m3(v)}; }
};
template <> struct Store<f8e4m3, double> {
    static DEVICE_FN f8e4m3 from(double v) {
        // Round to odd first: a float with the sticky bit kept rounds to 4 bits as the double itself would.
        const float head = (float)v;
        if (is_nan(v) || (double)head == v) return f8e4m3{float_to_f8e4m3(head)};
        const u64 magnitude = bit_cast<u64>(v) & ~(1ull << 63);
        const float toward_zero = (bit_cast<u64>((double)head) & ~(1ull << 63)) > magnitude ? bit_cast<float>(bit_cast<u32>(head) - 1u) : head;
        return f8e4m3{float_to_f8e4m3(bit_cast<float>(bit_cast<u32>(toward_zero) | 1u))};
    }
};
template <typename T, typename C> DEVICE_FN T store(C v) { return Store<T, C>::from(v); }

}  // namespace device

#endif
