// Matrix times up to 8 columns, formats with blocks of 32 (matvec.h).
#include "matvec.h"

PART(q4_0) MATVEC(q4_0)
PART(q4_1) MATVEC(q4_1)
PART(q5_0) MATVEC(q5_0)
PART(q5_1) MATVEC(q5_1)
PART(q8_0) MATVEC(q8_0)
PART(q8_1) MATVEC(q8_1)
