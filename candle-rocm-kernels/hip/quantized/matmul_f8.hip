// Matrices of 8-bit floats times more than 8 columns of floats (matmul_f8.h, few_f8.h).
#include "matmul_f8.h"

PART(f32) MATMUL_F8(f32, float)
PART(f16) MATMUL_F8(f16, f16)
PART(bf16) MATMUL_F8(bf16, bf16)
