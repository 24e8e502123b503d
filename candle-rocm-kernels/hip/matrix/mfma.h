// MFMA: the matrix instructions of gfx90a, gfx942 and gfx950, in waves of 64. Included by matrix.h.
#ifndef CANDLE_ROCM_MATRIX_MFMA_H
#define CANDLE_ROCM_MATRIX_MFMA_H

namespace device {
namespace matrix {

constexpr u32 PARTS = WAVE / TILE;
// A lane's rows follow each other.
constexpr bool INTERLEAVED = false;

#ifdef __gfx950__
constexpr u32 K_16BIT = 32;
#else
constexpr u32 K_16BIT = 16;
#endif
#ifdef __gfx90a__
constexpr u32 K_8BIT = 16;
using i8_registers = int;
#else
// gfx950 has 64 as well; 32 is the block of the quantized formats, each with a scale of its own.
constexpr u32 K_8BIT = 32;
using i8_registers = long;
#endif

// c + a b, all in registers. The last three operands would exchange blocks between lanes; there is one block.
template <typename T, typename Registers, typename Values> DEVICE_FN Values multiply_registers(Registers a, Registers b, Values c) {
    if constexpr (is_same<T, f16>::value) {
#ifdef __gfx950__
        return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
#else
        return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
#endif
    } else if constexpr (is_same<T, bf16>::value) {
#ifdef __gfx950__
        return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
#else
        return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
#endif
#if MATRIX_FLOAT8
    } else if constexpr (is_same<T, f8e4m3>::value) {
        return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, 0, 0, 0);
#endif
    } else {
#ifdef __gfx90a__
        return __builtin_amdgcn_mfma_i32_16x16x16i8(a, b, c, 0, 0, 0);
#else
        return __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, 0, 0, 0);
#endif
    }
}

}  // namespace matrix
}  // namespace device

#endif
