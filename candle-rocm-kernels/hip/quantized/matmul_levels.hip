// Matrix times many columns, formats with a table of levels, or ternary (matmul.h).
#include "matmul.h"
#include "quants_iq.h"

PART(iq4_nl) MATMUL(iq4_nl)
PART(iq4_xs) MATMUL(iq4_xs)
PART(tq1_0) MATMUL(tq1_0)
PART(tq2_0) MATMUL(tq2_0)
PART(mxfp4) MATMUL(mxfp4)
PART(nvfp4) MATMUL(nvfp4)
