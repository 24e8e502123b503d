// Quantized matrix times up to 8 columns of 8-bit activations: decode reads each weight once.
//
// `lanes` neighbouring threads share two rows of the matrix: each takes every lanes-th unit (quants.h) of both, so that
// a column's activations are loaded once for two rows. The host chooses `lanes`, a power of two from 16 to the block's
// size, from a table (select.rs).
#ifndef CANDLE_ROCM_MATVEC_H
#define CANDLE_ROCM_MATVEC_H

#include "output.h"
#include "q8_1.h"
#include "quants.h"
#include "totals.h"

namespace device {

constexpr u32 MATVEC_ROWS = 2;

// The products of one unit, of a block from element k of the row on, with the activations of a column, added to sum.
template <typename Format> DEVICE_FN float add_unit(const quants::Unit<Format::HALVES>& unit, u32 u, const Activations& x, u64 column, u32 k, float sum) {
    CONTRACT
    if constexpr (quants::WHOLE<Format>) {
        i32 dot = 0;
        const u32 at = k + Format::place(u, 0);
        for (u32 h = 0; h < 2; ++h) dot = dot16(unit.q[h], quants_at(x, column, at + 16 * h), dot);
        const ActivationScale by = scale_at(x, column, at);
        const i32 total = by.sum[0] + by.sum[1];
        if (Format::ZERO) dot -= (i32)Format::ZERO * total;
        float value = unit.scale[0] * (float)dot;
        if (Format::HAS_MIN) value += unit.offset[0] * (float)total;
        return sum + by.d * value;
    } else {
        for (u32 h = 0; h < Format::HALVES; ++h) {
            const u32 at = k + Format::place(u, h);
            i32 dot = dot16(unit.q[h], quants_at(x, column, at), 0);
            const ActivationScale by = scale_at(x, column, at);
            const i32 total = at / 16 % 2 ? by.sum[1] : by.sum[0];
            if (Format::ZERO) dot -= (i32)Format::ZERO * total;
            float value = unit.scale[h] * (float)dot;
            if (Format::HAS_MIN) value += unit.offset[h] * (float)total;
            sum += by.d * value;
        }
        return sum;
    }
}

// Sums over two rows of `units` units times columns first_column + c. Of the totals, numbered row * COLUMNS + column,
// each of the first threads of the `lanes` that share the rows gets the one of total_of_lane. All threads of the block
// arrive. Columns beyond `last` repeat it.
template <typename Format, u32 COLUMNS>
DEVICE_FN float two_rows(const u8* first_row, const u8* second_row, u32 units, const Activations& x, u64 first_column, u32 last, u32 lanes) {
    constexpr u32 PER_BLOCK = quants::UNITS_PER_BLOCK<Format>, SUMS = MATVEC_ROWS * COLUMNS;
    float sum[SUMS];
    for (u32 s = 0; s < SUMS; ++s) sum[s] = 0;
    for (u32 i = thread_x() & (lanes - 1); i < units; i += lanes) {
        const u32 block = i / PER_BLOCK, u = i % PER_BLOCK;
        quants::Unit<Format::HALVES> unit[MATVEC_ROWS];
        Format::read(first_row + (u64)block * Format::BYTES, u, unit[0]);
        Format::read(second_row + (u64)block * Format::BYTES, u, unit[1]);
        for (u32 c = 0; c < COLUMNS; ++c) {
            const u64 column = first_column + (c < last ? c : last);
            for (u32 r = 0; r < MATVEC_ROWS; ++r) {
                float& to = sum[r * COLUMNS + c];
                to = add_unit<Format>(unit[r], u, x, column, block * Format::ELEMENTS, to);
            }
        }
    }
    return total(sum, lanes);
}

template <typename Format, u32 COLUMNS> DEVICE_FN void matvec(const Matvec& m, const Activations& x, const Output& output) {
    const u32 pairs = m.up ? m.rows : m.rows / 2 + m.rows % 2;
    const u32 at_once = block_dim() / m.lanes;
    const u32 place = thread_x() & (m.lanes - 1);
    const u32 own = total_of_lane<MATVEC_ROWS * COLUMNS>();
    const u32 r = own / COLUMNS, c = own % COLUMNS;
    // Whole blocks go on together, since they meet in two_rows.
    for (u64 first = (u64)block_x() * at_once; first < pairs; first += (u64)grid_dim() * at_once) {
        const u64 at = first + thread_x() / m.lanes;
        const bool inside = at < pairs;
        const u64 pair = inside ? at : pairs - 1;
        const u64 row = m.up ? pair : 2 * pair;
        const u8* const one = m.weights + row * m.row_bytes;
        // The last of an odd number of rows is its own partner.
        const u8* const other = m.up ? m.up + row * m.row_bytes : row + 1 < m.rows ? one + m.row_bytes : one;
        const float total = two_rows<Format, COLUMNS>(one, other, m.units, x, 0, x.columns - 1, m.lanes);
        // The lowest bit of a lane tells the row.
        const float partner = m.up ? shfl_xor(total, 1u) : 0;
        if (!inside || place >= MATVEC_ROWS * COLUMNS || c >= x.columns) continue;
        if (!m.up) {
            if (row + r < m.rows) finish(output, (u64)c * m.rows + row + r, (u32)row + r, total);
        } else if (r == 0) {
            finish_gated(output, (u64)c * m.rows + row, total, partner);
        }
    }
}

}  // namespace device

#define MATVEC_OF(FORMAT, COLUMNS)                                                                                          \
    extern "C" __global__ MAX_BLOCK(256) void matvec_##FORMAT##_##COLUMNS(Matvec m, Activations x, Output output) {         \
        matvec<quants::FORMAT, COLUMNS>(m, x, output);                                                                      \
    }
#define MATVEC(FORMAT)    \
    MATVEC_OF(FORMAT, 1)  \
    MATVEC_OF(FORMAT, 2)  \
    MATVEC_OF(FORMAT, 4)  \
    MATVEC_OF(FORMAT, 8)

#endif
