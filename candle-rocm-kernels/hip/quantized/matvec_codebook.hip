// Matrix times up to 8 columns, formats with codebooks (matvec.h).
#include "matvec.h"
#include "quants_iq.h"

PART(iq1_s) MATVEC(iq1_s)
PART(iq1_m) MATVEC(iq1_m)
PART(iq2_xxs) MATVEC(iq2_xxs)
PART(iq2_xs) MATVEC(iq2_xs)
PART(iq2_s) MATVEC(iq2_s)
PART(iq3_xxs) MATVEC(iq3_xxs)
PART(iq3_s) MATVEC(iq3_s)
