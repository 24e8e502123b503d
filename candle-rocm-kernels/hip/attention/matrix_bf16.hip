// Attention by matrix instructions on bf16.
#include "matrix_attend.h"

ATTENTION_MATRIX(bf16, 64)
ATTENTION_MATRIX(bf16, 96)
ATTENTION_MATRIX(bf16, 128)
ATTENTION_MATRIX(bf16, 256)
