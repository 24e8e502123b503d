// Mixture of experts of 8-bit floats: each slot is a column of activations times the expert's matrix, as
// quantized/matvec_f8.h does a column. (Many are sorted by expert, and multiplied in tiles by quantized/matmul_f8.h.)
#include "slots.h"
#include "quantized/matvec_f8.h"

template <typename T> DEVICE_FN void moe_matvec(const Matvec& m, const Slots& s, const Vectors& x, float* y, IndexError* error) {
    constexpr u32 ROWS = F8_ROWS_FOR<1>;
    const u32 groups = (m.rows + ROWS - 1) / ROWS;
    const u32 at_once = block_dim() / m.lanes, blocks_per_slot = (groups + at_once - 1) / at_once;
    const u32 r = thread_x() & (m.lanes - 1);
    for (u64 task = block_x(); task < (u64)s.slots * blocks_per_slot; task += grid_dim()) {
        const u32 slot = (u32)(task / blocks_per_slot), block = (u32)(task - (u64)slot * blocks_per_slot);
        const u32 at = block * at_once + thread_x() / m.lanes;
        const u32 row = (at < groups ? at : groups - 1) * ROWS;
        u32 expert;
        const bool found = find(s, slot, expert, error);
        const u8* const matrix = m.weights + (found ? expert : 0) * s.matrix_bytes;
        const u8* rows[ROWS];
        for (u32 i = 0; i < ROWS; ++i) rows[i] = matrix + (row + i < m.rows ? row + i : row) * m.row_bytes;
        const float total = f8_rows<T, ROWS, 1>(rows, found ? m.units : 0, x, slot / s.slots_per_column, 0, m.lanes) * f8::UNIT_OF_FLOATS;
        if (at < groups && r < ROWS && row + r < m.rows) y[(u64)slot * m.rows + row + r] = total;
    }
}

#define MOE_MATVEC_F8(dtype, T)                                                                                                                   \
    extern "C" __global__ MAX_BLOCK(256) void moe_matvec_f8_e4m3_##dtype(Matvec m, Slots s, Vectors x, float* y, IndexError* error) { \
        moe_matvec<T>(m, s, x, y, error);                                                                                                         \
    }

PART(f32) MOE_MATVEC_F8(f32, float)
PART(f16) MOE_MATVEC_F8(f16, f16)
PART(bf16) MOE_MATVEC_F8(bf16, bf16)
