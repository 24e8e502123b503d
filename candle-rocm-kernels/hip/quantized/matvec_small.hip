// Matrix times up to 8 columns, formats with blocks of 32 (matvec.h).
#include "matvec.h"

MATVEC(q4_0)
MATVEC(q4_1)
MATVEC(q5_0)
MATVEC(q5_1)
MATVEC(q8_0)
MATVEC(q8_1)
