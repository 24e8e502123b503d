// Matrices of 8-bit floats times up to 8 columns of floats (matvec_f8.h).
#include "matvec_f8.h"

#define MATVEC_F8_OF(dtype, T, COLUMNS)                                                                                                     \
    extern "C" __global__ MAX_BLOCK(256) void matvec_f8_e4m3_##dtype##_##COLUMNS(Matvec m, Vectors x, Output output) { \
        matvec_f8<T, COLUMNS>(m, x, output);                                                                                                \
    }
#define MATVEC_F8(dtype, T)     \
    MATVEC_F8_OF(dtype, T, 1)   \
    MATVEC_F8_OF(dtype, T, 2)   \
    MATVEC_F8_OF(dtype, T, 4)   \
    MATVEC_F8_OF(dtype, T, 8)

PART(f32) MATVEC_F8(f32, float)
PART(f16) MATVEC_F8(f16, f16)
PART(bf16) MATVEC_F8(bf16, bf16)
