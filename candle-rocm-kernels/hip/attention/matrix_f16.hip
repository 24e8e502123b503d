// Attention by matrix instructions on f16.
#include "matrix_attend.h"

ATTENTION_MATRIX(f16, 64)
ATTENTION_MATRIX(f16, 96)
ATTENTION_MATRIX(f16, 128)
ATTENTION_MATRIX(f16, 256)
