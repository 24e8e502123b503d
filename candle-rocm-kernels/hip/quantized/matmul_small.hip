// Matrix times many columns, formats with blocks of 32 (matmul.h).
#include "matmul.h"

PART(q4_0) MATMUL(q4_0)
PART(q4_1) MATMUL(q4_1)
PART(q5_0) MATMUL(q5_0)
PART(q5_1) MATMUL(q5_1)
PART(q8_0) MATMUL(q8_0)
PART(q8_1) MATMUL(q8_1)
