// Matrix times many columns, formats with blocks of 32 (matmul.h), and a few (matmul_few.h).
#include "matmul.h"
#include "matmul_few.h"

PART(q4_0) MATMUL(q4_0) MATMUL_FEW(q4_0)
PART(q4_1) MATMUL(q4_1) MATMUL_FEW(q4_1)
PART(q5_0) MATMUL(q5_0) MATMUL_FEW(q5_0)
PART(q5_1) MATMUL(q5_1) MATMUL_FEW(q5_1)
PART(q8_0) MATMUL(q8_0) MATMUL_FEW(q8_0)
PART(q8_1) MATMUL(q8_1) MATMUL_FEW(q8_1)
