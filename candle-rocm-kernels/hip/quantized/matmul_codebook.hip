// Matrix times many columns, formats with codebooks (matmul.h).
#include "matmul.h"
#include "quants_iq.h"

PART(iq1_s) MATMUL(iq1_s)
PART(iq1_m) MATMUL(iq1_m)
PART(iq2_xxs) MATMUL(iq2_xxs)
PART(iq2_xs) MATMUL(iq2_xs)
PART(iq2_s) MATMUL(iq2_s)
PART(iq3_xxs) MATMUL(iq3_xxs)
PART(iq3_s) MATMUL(iq3_s)
