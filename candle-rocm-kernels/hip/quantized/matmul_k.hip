// Matrix times many columns, K formats (matmul.h).
#include "matmul.h"

PART(q2k) MATMUL(q2k)
PART(q3k) MATMUL(q3k)
PART(q4k) MATMUL(q4k)
PART(q5k) MATMUL(q5k)
PART(q6k) MATMUL(q6k)
PART(q8k) MATMUL(q8k)
