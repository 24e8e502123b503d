// Quantized mixture of experts: each slot, a pair of a token and one of its experts, is a column of activations times
// the expert's matrix. Few slots go one by one, as quantized/matvec.h does a column; many are sorted by expert here and
// multiplied in tiles by quantized/matmul.h.
#include "slots.h"
#include "quantized/matvec.h"
#include "quantized/quants_iq.h"

template <typename Format> DEVICE_FN void moe_matvec(const Matvec& m, const Slots& s, const Activations& x, float* y, IndexError* error) {
    const u32 pairs = m.rows / 2 + m.rows % 2;
    const u32 at_once = block_dim() / m.lanes, blocks_per_slot = (pairs + at_once - 1) / at_once;
    const u32 r = thread_x() & (m.lanes - 1);
    for (u64 task = block_x(); task < (u64)s.slots * blocks_per_slot; task += grid_dim()) {
        const u32 slot = (u32)(task / blocks_per_slot), block = (u32)(task - (u64)slot * blocks_per_slot);
        const u32 at = block * at_once + thread_x() / m.lanes;
        const u32 row = 2 * (at < pairs ? at : pairs - 1);
        u32 expert;
        const bool found = find(s, slot, expert, error);
        const u8* const one = m.weights + (found ? expert : 0) * s.matrix_bytes + row * m.row_bytes;
        const u8* const other = row + 1 < m.rows ? one + m.row_bytes : one;
        const float total = two_rows<Format, 1>(one, other, found ? m.units : 0, x, slot / s.slots_per_column, 0, m.lanes);
        if (at < pairs && r < MATVEC_ROWS && row + r < m.rows) y[(u64)slot * m.rows + row + r] = total;
    }
}

#define MOE_MATVEC(FORMAT)                                                                                                   \
    extern "C" __global__ MAX_BLOCK(256) void moe_matvec_##FORMAT(Matvec m, Slots s, Activations x, float* y, IndexError* error) { \
        moe_matvec<quants::FORMAT>(m, s, x, y, error);                                                                       \
    }

PART(q4_0) MOE_MATVEC(q4_0)
PART(q4_1) MOE_MATVEC(q4_1)
PART(q5_0) MOE_MATVEC(q5_0)
PART(q5_1) MOE_MATVEC(q5_1)
PART(q8_0) MOE_MATVEC(q8_0)
PART(q8_1) MOE_MATVEC(q8_1)
PART(q2k) MOE_MATVEC(q2k)
PART(q3k) MOE_MATVEC(q3k)
PART(q4k) MOE_MATVEC(q4k)
PART(q5k) MOE_MATVEC(q5k)
PART(q6k) MOE_MATVEC(q6k)
PART(q8k) MOE_MATVEC(q8k)
PART(iq1_s) MOE_MATVEC(iq1_s)
PART(iq1_m) MOE_MATVEC(iq1_m)
PART(iq2_xxs) MOE_MATVEC(iq2_xxs)
PART(iq2_xs) MOE_MATVEC(iq2_xs)
PART(iq2_s) MOE_MATVEC(iq2_s)
PART(iq3_xxs) MOE_MATVEC(iq3_xxs)
PART(iq3_s) MOE_MATVEC(iq3_s)
PART(iq4_nl) MOE_MATVEC(iq4_nl)
PART(iq4_xs) MOE_MATVEC(iq4_xs)
PART(tq1_0) MOE_MATVEC(tq1_0)
PART(tq2_0) MOE_MATVEC(tq2_0)
PART(mxfp4) MOE_MATVEC(mxfp4)
PART(nvfp4) MOE_MATVEC(nvfp4)

// ---------------------------------------------------------------- sorting

// Writes the slots in the order of their experts, and what each tile of `columns` columns is to do (ExpertTile in
// matmul.h): tiles[0] is the number of tiles, three words each follow from tiles[3] on. Slots without an expert are
// left out. One block.
extern "C" __global__ MAX_BLOCK(256) void moe_sort(Slots s, u32 columns, u32* order, u32* tiles, IndexError* error) {
    __shared__ u32 count[MAX_EXPERTS], first[MAX_EXPERTS];
    for (u32 e = thread_x(); e < s.experts; e += block_dim()) count[e] = 0;
    barrier();
    for (u32 slot = thread_x(); slot < s.slots; slot += block_dim()) {
        u32 expert;
        if (find(s, slot, expert, error)) count_up(&count[expert], 1);
    }
    barrier();
    if (thread_x() == 0) {
        u32 total = 0, tile = 0;
        for (u32 e = 0; e < s.experts; ++e) {
            first[e] = total;
            for (u32 done = 0; done < count[e]; done += columns) {
                const u32 left = count[e] - done;
                u32* const to = tiles + 3 * ++tile;
                to[0] = e, to[1] = total + done, to[2] = left < columns ? left : columns;
            }
            total += count[e];
        }
        tiles[0] = tile;
    }
    barrier();
    for (u32 slot = thread_x(); slot < s.slots; slot += block_dim()) {
        const u32 expert = s.experts_of[slot];
        if (expert < s.experts) order[count_up(&first[expert], 1)] = slot;
    }
}
