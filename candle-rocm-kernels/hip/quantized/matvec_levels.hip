// Matrix times up to 8 columns, formats with a table of levels, or ternary (matvec.h).
#include "matvec.h"
#include "quants_iq.h"

PART(iq4_nl) MATVEC(iq4_nl)
PART(iq4_xs) MATVEC(iq4_xs)
PART(tq1_0) MATVEC(tq1_0)
PART(tq2_0) MATVEC(tq2_0)
PART(mxfp4) MATVEC(mxfp4)
PART(nvfp4) MATVEC(nvfp4)
