// Matrix times many columns, K formats (matmul.h).
#include "matmul.h"

MATMUL(q2k)
MATMUL(q3k)
MATMUL(q4k)
MATMUL(q5k)
MATMUL(q6k)
MATMUL(q8k)
