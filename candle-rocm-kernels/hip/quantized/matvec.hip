// Quantized matrix times up to 8 vectors, without writing the matrix out: decode reads each weight once.
//
// LANES neighbouring threads share a row of the matrix, so a wave holds several rows: short rows (576 columns are 72 groups)
// still occupy every lane, and each step reads 128 consecutive elements of a row.
#include "device.h"
#include "blocks.h"

constexpr u32 LANES = 16;

struct __attribute__((packed, aligned(4))) Floats {
    float v[blocks::GROUP];
};

// y[c][row] = sum over k of w[row][k] * x[c][k], for c < batch <= COLUMNS; x and y are row-major.
template <typename Format, u32 COLUMNS>
DEVICE_FN void matvec(u32 rows, u32 cols, u32 batch, const u8* w, const float* x, float* y) {
#ifndef __HIP_SIM__
#pragma clang fp contract(fast)
#endif
    constexpr u32 GROUPS_PER_BLOCK = Format::ELEMENTS / blocks::GROUP;
    constexpr u32 ROWS = WAVE / LANES;
    const u32 groups = cols / blocks::GROUP;
    const u64 row_bytes = (u64)(cols / Format::ELEMENTS) * Format::BYTES;
    const u32 place = thread_x() % LANES;
    // The same for all lanes of a wave, which must meet in the shuffles below.
    for (u64 first = global_index() / WAVE * ROWS; first < rows; first += global_size() / WAVE * ROWS) {
        const u64 row = first + thread_x() % WAVE / LANES;
        // Lanes beyond the last row repeat it, and lanes of surplus columns repeat the last, for the shuffles' sake only.
        const u8* weights = w + (row < rows ? row : rows - 1) * row_bytes;
        float sum[COLUMNS] = {};
        for (u32 g = place; g < groups; g += LANES) {
            float values[blocks::GROUP];
            Format::read(weights + (u64)(g / GROUPS_PER_BLOCK) * Format::BYTES, g % GROUPS_PER_BLOCK, values);
            for (u32 c = 0; c < COLUMNS; ++c) {
                const u64 column = c < batch ? c : batch - 1;
                const Floats other = *(const Floats*)(x + column * cols + (u64)g * blocks::GROUP);
                for (u32 e = 0; e < blocks::GROUP; ++e) sum[c] += values[e] * other.v[e];
            }
        }
        for (u32 c = 0; c < COLUMNS; ++c) {
            for (u32 mask = LANES / 2; mask > 0; mask /= 2) sum[c] += shfl_xor(sum[c], mask);
            if (place == 0 && row < rows && c < batch) y[(u64)c * rows + row] = sum[c];
        }
    }
}

#define MATVEC_OF(FORMAT, COLUMNS)                                                                                                                  \
    extern "C" __global__ void matvec_##FORMAT##_##COLUMNS(u32 rows, u32 cols, u32 batch, const u8* w, const float* x, float* y) { \
        matvec<blocks::FORMAT, COLUMNS>(rows, cols, batch, w, x, y);                                                                                \
    }
#define MATVEC(FORMAT)    \
    MATVEC_OF(FORMAT, 1)  \
    MATVEC_OF(FORMAT, 2)  \
    MATVEC_OF(FORMAT, 4)  \
    MATVEC_OF(FORMAT, 8)

MATVEC(q4_0)
MATVEC(q4_1)
MATVEC(q5_0)
MATVEC(q5_1)
MATVEC(q8_0)
MATVEC(q8_1)
MATVEC(q2k)
MATVEC(q3k)
MATVEC(q4k)
MATVEC(q5k)
MATVEC(q6k)
MATVEC(q8k)
