// Matrix times many columns, formats with codebooks (matmul.h).
#include "matmul.h"
#include "quants_iq.h"

MATMUL(iq1_s)
MATMUL(iq1_m)
MATMUL(iq2_xxs)
MATMUL(iq2_xs)
MATMUL(iq2_s)
MATMUL(iq3_xxs)
MATMUL(iq3_s)
