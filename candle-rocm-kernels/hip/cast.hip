// Every pair of element types, as Rust converts them: integers wrap into integers and go to floats in one rounding (to
// the small floats by way of float), floats saturate into integers with NaN as 0.
#include "elementwise.h"

template <typename T> struct limits;
template <> struct limits<u8> { static constexpr u8 LOW = 0, HIGH = 255; };
template <> struct limits<u32> { static constexpr u32 LOW = 0, HIGH = 0xffffffffu; };
template <> struct limits<i16> { static constexpr i16 LOW = -32768, HIGH = 32767; };
template <> struct limits<i32> { static constexpr i32 LOW = -2147483647 - 1, HIGH = 2147483647; };
template <> struct limits<i64> { static constexpr i64 LOW = -9223372036854775807ll - 1, HIGH = 9223372036854775807ll; };

// C++ leaves out-of-range conversions undefined, so they are decided by comparison first. HIGH rounds up to a power of
// two where F cannot hold it; everything below that power still fits.
template <typename To, typename F> DEVICE_FN To saturate(F v) {
    if (v >= (F)limits<To>::HIGH) return limits<To>::HIGH;
    if (v <= (F)limits<To>::LOW) return limits<To>::LOW;
    return is_nan(v) ? To(0) : (To)v;
}

template <typename From, typename To, bool FROM_FLOAT = is_float<From>::value, bool TO_FLOAT = is_float<To>::value> struct Cast;
template <typename From, typename To> struct Cast<From, To, true, true> {
    static DEVICE_FN To apply(From v) { return store<To>(load(v)); }
};
template <typename T> struct Cast<T, T, true, true> {
    static DEVICE_FN T apply(T v) { return v; }
};
template <typename From, typename To> struct Cast<From, To, true, false> {
    static DEVICE_FN To apply(From v) { return saturate<To>(load(v)); }
};
template <typename From, typename To> struct Cast<From, To, false, true> {
    static DEVICE_FN To apply(From v) { return store<To>((compute_t<To>)v); }
};
template <typename From, typename To> struct Cast<From, To, false, false> {
    static DEVICE_FN To apply(From v) { return (To)v; }
};

#define CAST(from, From, to, To)                                                                                                        \
    extern "C" __global__ MAX_BLOCK(256) void cast_##from##_##to(u64 n, Dims dims, Strides xs, const From* x, To* out) {                \
        map<pack_length(wider(sizeof(From), sizeof(To)))>(n, dims, xs, x, out, [](From v) -> To { return Cast<From, To>::apply(v); });  \
    }

#define CAST_FROM(from, From)                   \
    CAST(from, From, u8, u8)                    \
    CAST(from, From, u32, u32)                  \
    CAST(from, From, i16, i16)                  \
    CAST(from, From, i32, i32)                  \
    CAST(from, From, i64, i64)                  \
    CAST(from, From, f16, f16)                  \
    CAST(from, From, bf16, bf16)                \
    CAST(from, From, f32, float)                \
    CAST(from, From, f64, double)               \
    CAST(from, From, f8e4m3, f8e4m3)

// The 8-bit floats of gfx942 have a bias of 8, no -0, and one NaN: the bits of any other number stand for half of it.
#define HALVE_FNUZ(from, From)                                                                                                          \
    extern "C" __global__ MAX_BLOCK(256) void halve_##from##_fnuz(u64 n, Dims dims, Strides xs, const From* x, u8* out) {               \
        map<pack_length(1)>(n, dims, xs, (const u8*)x, out,                                                                             \
                            [](u8 v) -> u8 { return (v & 0x7f) == 0x7f ? 0x80 : v == 0x80 ? 0 : v; });                                  \
    }

PART(u8) CAST_FROM(u8, u8)
PART(u32) CAST_FROM(u32, u32)
PART(i16) CAST_FROM(i16, i16)
PART(i32) CAST_FROM(i32, i32)
PART(i64) CAST_FROM(i64, i64)
PART(f16) CAST_FROM(f16, f16)
PART(bf16) CAST_FROM(bf16, bf16)
PART(f32) CAST_FROM(f32, float)
PART(f64) CAST_FROM(f64, double)
PART(f8e4m3) CAST_FROM(f8e4m3, f8e4m3)
PART(f8e4m3) HALVE_FNUZ(f8e4m3, f8e4m3)
