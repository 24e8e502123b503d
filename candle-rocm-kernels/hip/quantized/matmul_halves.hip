// Matrix times up to 32 columns by matrix instructions on binary16 (matmul_halves.h).
#include "matmul_halves.h"

PART(q4k) MATMUL_HALVES(q4k)
PART(q5k) MATMUL_HALVES(q5k)
PART(q6k) MATMUL_HALVES(q6k)
