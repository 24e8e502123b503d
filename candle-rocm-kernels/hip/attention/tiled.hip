// Attention by tiles (tiles.h).
//
// `attention_tiled_<chunks>` takes head sizes up to 64 times that; the formats of queries and keys are arguments,
// converted on the way into LDS.
#include "tiles.h"

#define ATTENTION_TILED(chunks)                                                                                              \
    extern "C" __global__ MAX_BLOCK(THREADS) void attention_tiled_##chunks(ATTENTION_PARAMETERS, u32 tiles, u32 heads_first) { \
        __shared__ Float4 left[TILE * CHUNK / 4];                                                                            \
        __shared__ Float4 right[TILE * CHUNK / 4];                                                                           \
        attend<chunks>(ATTENTION_PROBLEM, tiles, heads_first, left, right, AllWeights{});                                    \
    }
ATTENTION_TILED(1)
ATTENTION_TILED(2)
ATTENTION_TILED(4)
ATTENTION_TILED(8)
