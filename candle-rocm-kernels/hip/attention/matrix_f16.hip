// Attention by matrix instructions on f16.
#include "matrix_attend.h"

ATTENTION_MATRIX(f16, 64)
ATTENTION_MATRIX(f16, 96)
ATTENTION_MATRIX(f16, 128)
// Results of 256 columns leave no registers for the queries in waves of 32.
#if MATRIX_MFMA
ATTENTION_MATRIX(f16, 256)
#endif
