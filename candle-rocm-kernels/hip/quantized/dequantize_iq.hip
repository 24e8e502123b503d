// Blocks of the IQ formats, the ternary ones and the 4-bit floats to floating point.
#include "dequantize.h"
#include "iq.h"

DEQUANTIZE(iq1_s)
DEQUANTIZE(iq1_m)
DEQUANTIZE(iq2_xxs)
DEQUANTIZE(iq2_xs)
DEQUANTIZE(iq2_s)
DEQUANTIZE(iq3_xxs)
DEQUANTIZE(iq3_s)
DEQUANTIZE(iq4_nl)
DEQUANTIZE(iq4_xs)
DEQUANTIZE(tq1_0)
DEQUANTIZE(tq2_0)
DEQUANTIZE(mxfp4)
DEQUANTIZE(nvfp4)
