// Matrix times up to 8 columns, formats with codebooks (matvec.h).
#include "matvec.h"
#include "quants_iq.h"

MATVEC(iq1_s)
MATVEC(iq1_m)
MATVEC(iq2_xxs)
MATVEC(iq2_xs)
MATVEC(iq2_s)
MATVEC(iq3_xxs)
MATVEC(iq3_s)
