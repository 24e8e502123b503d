// Matrix times many columns, K formats (matmul.h), and a few (matmul_few.h).
#include "matmul.h"
#include "matmul_few.h"

PART(q2k) MATMUL(q2k) MATMUL_FEW(q2k)
PART(q3k) MATMUL(q3k) MATMUL_FEW(q3k)
PART(q4k) MATMUL(q4k) MATMUL_FEW(q4k)
PART(q5k) MATMUL(q5k) MATMUL_FEW(q5k)
PART(q6k) MATMUL(q6k) MATMUL_FEW(q6k)
PART(q8k) MATMUL(q8k) MATMUL_FEW(q8k)
