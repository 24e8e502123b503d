// Quantized matrix times a few vectors of floats, for formats that quants.h has no integers of.
//
// LANES neighbouring threads share a row of the matrix, so a wave holds several rows: short rows still occupy every lane, and each step
// reads 128 consecutive elements of a row. Sums are taken in f32.
#include "blocks.h"
#include "index_error.h"

constexpr u32 LANES = 16;

// Plain numbers as blocks of a group, for experts, whose matrices no library multiplies by.
template <typename T> struct Plain {
    static constexpr u32 ELEMENTS = blocks::GROUP, BYTES = ELEMENTS * sizeof(T);
    static DEVICE_FN void read(const u8* block, u32, float (&out)[blocks::GROUP]) {
        for (u32 i = 0; i < ELEMENTS; ++i) out[i] = load(blocks::field<T>(block, i * sizeof(T)));
    }
};
namespace blocks {
using f32 = Plain<float>;
using f16 = Plain<device::f16>;
using bf16 = Plain<device::bf16>;
}  // namespace blocks

struct __attribute__((packed, aligned(4))) Floats {
    float v[blocks::GROUP];
};

// A row of `cols` elements times columns 0..COLUMNS of x, `cols` apart; columns beyond `last` repeat it. The sums in all lanes that share
// the row; all lanes of the wave arrive.
template <typename Format, u32 COLUMNS> DEVICE_FN void row_times(const u8* row, u32 cols, const float* x, u32 last, float (&sum)[COLUMNS]) {
#ifndef __HIP_SIM__
#pragma clang fp contract(fast)
#endif
    constexpr u32 GROUPS_PER_BLOCK = Format::ELEMENTS / blocks::GROUP;
    const u32 groups = cols / blocks::GROUP;
    for (u32 c = 0; c < COLUMNS; ++c) sum[c] = 0;
    for (u32 g = thread_x() % LANES; g < groups; g += LANES) {
        float values[blocks::GROUP];
        Format::read(row + (u64)(g / GROUPS_PER_BLOCK) * Format::BYTES, g % GROUPS_PER_BLOCK, values);
        for (u32 c = 0; c < COLUMNS; ++c) {
            const u64 column = c < last ? c : last;
            const Floats other = *(const Floats*)(x + column * cols + (u64)g * blocks::GROUP);
            for (u32 e = 0; e < blocks::GROUP; ++e) sum[c] += values[e] * other.v[e];
        }
    }
    for (u32 c = 0; c < COLUMNS; ++c) {
        for (u32 mask = LANES / 2; mask > 0; mask /= 2) sum[c] += shfl_xor(sum[c], mask);
    }
}

// y[c][row] = w[row] . x[c], for c < batch <= COLUMNS; x and y are row-major.
template <typename Format, u32 COLUMNS>
DEVICE_FN void matvec(u32 rows, u32 cols, u32 batch, const u8* w, const float* x, float* y) {
    constexpr u32 ROWS = WAVE / LANES;
    const u64 row_bytes = (u64)(cols / Format::ELEMENTS) * Format::BYTES;
    for (u64 first = global_index() / WAVE * ROWS; first < rows; first += global_size() / WAVE * ROWS) {
        const u64 row = first + thread_x() % WAVE / LANES;
        float sum[COLUMNS];
        // Lanes beyond the last row repeat it, for the shuffles' sake only.
        row_times<Format, COLUMNS>(w + (row < rows ? row : rows - 1) * row_bytes, cols, x, batch - 1, sum);
        if (thread_x() % LANES != 0 || row >= rows) continue;
        for (u32 c = 0; c < COLUMNS; ++c) {
            if (c < batch) y[(u64)c * rows + row] = sum[c];
        }
    }
}

// The same for slots: y[slot][row] = w[expert of the slot][row] . x[slot / slots_per_column]. An expert that does not exist gives
// zeros and is reported, but for the largest number, which names none.
template <typename Format>
DEVICE_FN void moe(u32 rows, u32 cols, u32 slots, u32 slots_per_column, u32 experts, u32 op, const u8* w, const float* x, const u32* experts_of,
                   IndexError* error, float* y) {
    constexpr u32 ROWS = WAVE / LANES;
    const u64 row_bytes = (u64)(cols / Format::ELEMENTS) * Format::BYTES;
    const u32 waves_per_slot = (rows + ROWS - 1) / ROWS;
    for (u64 task = global_index() / WAVE; task < (u64)slots * waves_per_slot; task += global_size() / WAVE) {
        const u32 slot = (u32)(task / waves_per_slot);
        const u32 row = (u32)(task - (u64)slot * waves_per_slot) * ROWS + thread_x() % WAVE / LANES;
        const u32 expert = experts_of[slot];
        const bool found = expert < experts;
        if (!found && expert != 0xffffffffu) report_index(error, op, experts, expert);
        float sum[1];
        const u64 at = (u64)(found ? expert : 0) * rows + (row < rows ? row : rows - 1);
        row_times<Format, 1>(w + at * row_bytes, found ? cols : 0, x + (u64)(slot / slots_per_column) * cols, 0, sum);
        if (thread_x() % LANES == 0 && row < rows) y[(u64)slot * rows + row] = sum[0];
    }
}

#define MATVEC_OF(FORMAT, COLUMNS)                                                                                           \
    extern "C" __global__ MAX_BLOCK(256) void matvec_float_##FORMAT##_##COLUMNS(u32 rows, u32 cols, u32 batch, const u8* w,  \
                                                                                const float* x, float* y) {                  \
        matvec<blocks::FORMAT, COLUMNS>(rows, cols, batch, w, x, y);                                                         \
    }
#define MOE(FORMAT)                                                                                                          \
    extern "C" __global__ MAX_BLOCK(256) void moe_float_##FORMAT(u32 rows, u32 cols, u32 slots, u32 slots_per_column, u32 experts, \
                                                                 u32 op, const u8* w, const float* x, const u32* experts_of, \
                                                                 IndexError* error, float* y) {                              \
        moe<blocks::FORMAT>(rows, cols, slots, slots_per_column, experts, op, w, x, experts_of, error, y);                   \
    }
#define MATVEC(FORMAT)    \
    MATVEC_OF(FORMAT, 1)  \
    MATVEC_OF(FORMAT, 8)  \
    MOE(FORMAT)

MOE(f32)
MOE(f16)
MOE(bf16)
