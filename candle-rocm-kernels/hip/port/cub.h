// cub's primitives of threads, warps and blocks. What is called from the host (cub::DeviceReduce and its like) is not
// here: docs/rocm-port/libraries.md says what takes its place.
#ifndef CANDLE_ROCM_PORT_CUB_H
#define CANDLE_ROCM_PORT_CUB_H

#include "cub_neighbours.h"
#include "cub_warp_load.h"

#endif
