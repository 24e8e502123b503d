// Matrix times up to 8 columns, formats with a table of levels, or ternary (matvec.h).
#include "matvec.h"
#include "quants_iq.h"

MATVEC(iq4_nl)
MATVEC(iq4_xs)
MATVEC(tq1_0)
MATVEC(tq2_0)
MATVEC(mxfp4)
MATVEC(nvfp4)
