// WMMA as gfx12 has it, in waves of 32. Included by matrix.h.
#ifndef CANDLE_ROCM_MATRIX_WMMA12_H
#define CANDLE_ROCM_MATRIX_WMMA12_H

namespace device {
namespace matrix {

constexpr u32 PARTS = WAVE / TILE;
// A lane's rows follow each other.
constexpr bool INTERLEAVED = false;

constexpr u32 K_16BIT = 16;
constexpr u32 K_8BIT = 16;
typedef int i8_registers __attribute__((vector_size(K_8BIT / PARTS)));

// c + a b, all in registers.
template <typename T, typename Registers, typename Values> DEVICE_FN Values multiply_registers(Registers a, Registers b, Values c) {
    if constexpr (is_same<T, f16>::value) {
        return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
    } else if constexpr (is_same<T, bf16>::value) {
        return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c);
    } else if constexpr (is_same<T, f8e4m3>::value) {
        return __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(a, b, c);
    } else {
        return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, a, true, b, c, false);
    }
}

}  // namespace matrix
}  // namespace device

#endif
