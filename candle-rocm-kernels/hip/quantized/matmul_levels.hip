// Matrix times many columns, formats with a table of levels, or ternary (matmul.h), and a few (matmul_few.h).
#include "matmul.h"
#include "matmul_few.h"
#include "quants_iq.h"

PART(iq4_nl) MATMUL(iq4_nl) MATMUL_FEW(iq4_nl)
PART(iq4_xs) MATMUL(iq4_xs) MATMUL_FEW(iq4_xs)
PART(tq1_0) MATMUL(tq1_0) MATMUL_FEW(tq1_0)
PART(tq2_0) MATMUL(tq2_0) MATMUL_FEW(tq2_0)
PART(mxfp4) MATMUL(mxfp4) MATMUL_FEW(mxfp4)
PART(nvfp4) MATMUL(nvfp4) MATMUL_FEW(nvfp4)
