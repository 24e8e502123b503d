// Matrix times many columns, formats with blocks of 32 (matmul.h).
#include "matmul.h"

MATMUL(q4_0)
MATMUL(q4_1)
MATMUL(q5_0)
MATMUL(q5_1)
MATMUL(q8_0)
MATMUL(q8_1)
