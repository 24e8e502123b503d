// Matrix times many columns, formats with a table of levels, or ternary (matmul.h).
#include "matmul.h"
#include "quants_iq.h"

MATMUL(iq4_nl)
MATMUL(iq4_xs)
MATMUL(tq1_0)
MATMUL(tq2_0)
MATMUL(mxfp4)
MATMUL(nvfp4)
