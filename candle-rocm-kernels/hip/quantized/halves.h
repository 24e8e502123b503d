// Two numbers of binary16 in a word, and what becomes of small integers that lie in one.
#ifndef CANDLE_ROCM_QUANTIZED_HALVES_H
#define CANDLE_ROCM_QUANTIZED_HALVES_H

#include "device.h"

namespace device {

// x * by + plus of both numbers, each rounded once. Subnormal numbers are what they are: an integer below 1024 is, as
// the bits of a binary16, its 2^24th part.
DEVICE_FN u32 multiply_add_halves(u32 x, u32 by, u32 plus) {
#if defined(__HIP_SIM__)
    u32 both = 0;
    for (u32 shift = 0; shift < 32; shift += 16) {
        // Exact but for the rounding of the sum.
        const float product = f16_to_float((u16)(x >> shift)) * f16_to_float((u16)(by >> shift));
        both |= (u32)float_to_f16(product + f16_to_float((u16)(plus >> shift))) << shift;
    }
    return both;
#elif defined(__CUDACC__)
    u32 both;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(x), "r"(by), "r"(plus));
    return both;
#else
    typedef _Float16 Halves __attribute__((ext_vector_type(2)));
    return bit_cast<u32>(__builtin_elementwise_fma(bit_cast<Halves>(x), bit_cast<Halves>(by), bit_cast<Halves>(plus)));
#endif
}

// A number below 2^15 in both halves of a word.
DEVICE_FN u32 both_halves(float x) { return narrow_pair<f16>(x, x); }

// A power of two that is above a magnitude, at most its double, and its inverse; both are normal numbers. A magnitude
// that is infinite or no number remains larger than that.
struct Above {
    float power, inverse;
    DEVICE_FN explicit Above(float magnitude) {
        u32 exponent = (bit_cast<u32>(magnitude) & 0x7f800000u) + 0x00800000u;
        if (exponent > 253u << 23) exponent = 253u << 23;
        power = bit_cast<float>(exponent), inverse = inverse_of(power);
    }
    static DEVICE_FN float inverse_of(float power) { return bit_cast<float>((254u << 23) - bit_cast<u32>(power)); }
    // The larger of it and a power of another.
    DEVICE_FN Above at_least(float other) const {
        Above larger = *this;
        if (other > power) larger.power = other, larger.inverse = inverse_of(other);
        return larger;
    }
};

}  // namespace device

#endif
