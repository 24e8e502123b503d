// Matrix times up to 8 columns, K formats (matvec.h).
#include "matvec.h"

PART(q2k) MATVEC(q2k)
PART(q3k) MATVEC(q3k)
PART(q4k) MATVEC(q4k)
PART(q5k) MATVEC(q5k)
PART(q6k) MATVEC(q6k)
PART(q8k) MATVEC(q8k)
