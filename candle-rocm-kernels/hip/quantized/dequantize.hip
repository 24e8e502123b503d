// Blocks of the legacy and K formats and of 8-bit floats to floating point.
#include "dequantize.h"

DEQUANTIZE(q4_0)
DEQUANTIZE(q4_1)
DEQUANTIZE(q5_0)
DEQUANTIZE(q5_1)
DEQUANTIZE(q8_0)
DEQUANTIZE(q8_1)
DEQUANTIZE(q2k)
DEQUANTIZE(q3k)
DEQUANTIZE(q4k)
DEQUANTIZE(q5k)
DEQUANTIZE(q6k)
DEQUANTIZE(q8k)
DEQUANTIZE(f8_e4m3)
