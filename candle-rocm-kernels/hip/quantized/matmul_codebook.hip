// Matrix times many columns, formats with codebooks (matmul.h), and a few (matmul_few.h).
#include "matmul.h"
#include "matmul_few.h"
#include "quants_iq.h"

PART(iq1_s) MATMUL(iq1_s) MATMUL_FEW(iq1_s)
PART(iq1_m) MATMUL(iq1_m) MATMUL_FEW(iq1_m)
PART(iq2_xxs) MATMUL(iq2_xxs) MATMUL_FEW(iq2_xxs)
PART(iq2_xs) MATMUL(iq2_xs) MATMUL_FEW(iq2_xs)
PART(iq2_s) MATMUL(iq2_s) MATMUL_FEW(iq2_s)
PART(iq3_xxs) MATMUL(iq3_xxs) MATMUL_FEW(iq3_xxs)
PART(iq3_s) MATMUL(iq3_s) MATMUL_FEW(iq3_s)
