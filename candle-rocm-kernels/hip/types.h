// Integers, and numbers as they lie in memory: types alone, before anything of a target.
#ifndef CANDLE_ROCM_TYPES_H
#define CANDLE_ROCM_TYPES_H

namespace device {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(void*) == 8, "64-bit targets only");

template <typename A, typename B> struct is_same { static constexpr bool value = false; };
template <typename A> struct is_same<A, A> { static constexpr bool value = true; };

// IEEE binary16, bfloat16 and OCP float8 e4m3 (no infinity; 0x7f is NaN) as they lie in memory.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3 { u8 bits; };

// The type in which arithmetic on T is done: float for the small floats, T itself otherwise.
template <typename T> struct compute { using type = T; };
template <> struct compute<f16> { using type = float; };
template <> struct compute<bf16> { using type = float; };
template <> struct compute<f8e4m3> { using type = float; };
template <typename T> using compute_t = typename compute<T>::type;

template <typename T> struct is_float { static constexpr bool value = false; };
template <> struct is_float<f16> { static constexpr bool value = true; };
template <> struct is_float<bf16> { static constexpr bool value = true; };
template <> struct is_float<f8e4m3> { static constexpr bool value = true; };
template <> struct is_float<float> { static constexpr bool value = true; };
template <> struct is_float<double> { static constexpr bool value = true; };

// One bit for each lane of a wave.
template <u32 LANES> struct MaskOf { using type = u32; };
template <> struct MaskOf<64> { using type = u64; };

}  // namespace device

#endif
