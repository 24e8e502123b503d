// Matrix times up to 8 columns, K formats (matvec.h).
#include "matvec.h"

MATVEC(q2k)
MATVEC(q3k)
MATVEC(q4k)
MATVEC(q5k)
MATVEC(q6k)
MATVEC(q8k)
