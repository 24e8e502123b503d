// Matrix of 8-bit floats times up to 8 columns of floats as they are: decode reads each weight once.
//
// `lanes` neighbouring threads share some rows of the matrix: each takes every lanes-th unit of F8_UNIT elements of all
// of them, so that a column's activations are loaded once for these rows. Products and sums are f32: no activation is
// too large. The host chooses `lanes`, a power of two from 32 to the block's size (select.rs).
#ifndef CANDLE_ROCM_MATVEC_F8_H
#define CANDLE_ROCM_MATVEC_F8_H

#include "f8.h"
#include "output.h"
#include "shared/f8.h"
#include "totals.h"

namespace device {

constexpr u32 F8_UNITS_PER_BLOCK = f8::ELEMENTS / F8_UNIT;
template <u32 COLUMNS> constexpr u32 F8_ROWS_FOR = COLUMNS <= 2 ? F8_ROWS : F8_ROWS_OF_MANY;

// Four activations.
template <typename T> DEVICE_FN f8::Four four_at(const T* at) {
    if constexpr (is_same<T, float>::value) {
        const u32x4 bits = *(const u32x4*)at;
        return {{{{bit_cast<float>(bits[0]), bit_cast<float>(bits[1])}}, {{bit_cast<float>(bits[2]), bit_cast<float>(bits[3])}}}};
    } else {
        const u64 bits = *(const u64*)at;
        const auto value = [=](u32 i) { return load(T{(u16)(bits >> (16 * i))}); };
        return {{{{value(0), value(1)}}, {{value(2), value(3)}}}};
    }
}

// Sums over rows of `units` units times columns first_column + c, but for f8::UNIT_OF_FLOATS. Of the totals, numbered
// row * COLUMNS + column, each of the first threads of the `lanes` that share the rows gets the one of total_of_lane.
// All threads of the block arrive. Columns beyond `last` repeat it.
template <typename T, u32 ROWS, u32 COLUMNS>
DEVICE_FN float f8_rows(const u8* const (&rows)[ROWS], u32 units, const Vectors& x, u64 first_column, u32 last, u32 lanes) {
    float sum[ROWS * COLUMNS];
    for (float& of : sum) of = 0;
    for (u32 i = thread_x() & (lanes - 1); i < units; i += lanes) {
        const u64 block = (u64)(i / F8_UNITS_PER_BLOCK) * f8::BYTES;
        u32x4 bytes[ROWS];
        float scale[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            bytes[r] = load_unaligned<u32x4>(rows[r] + block + f8::HEAD + i % F8_UNITS_PER_BLOCK * F8_UNIT);
            scale[r] = f8::scale(rows[r] + block);
        }
        // Where eight columns begin is computed anew each time: kept, it would take the scalar registers that there are.
        const u32 stride = COLUMNS > 4 ? opaque(x.stride) : x.stride, end = COLUMNS > 4 ? opaque(last) : last;
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c) {
            const T* const column = (const T*)x.x + (first_column + (c < end ? c : end)) * stride + (u64)i * F8_UNIT;
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                f8::Two part = {};
#pragma unroll
                for (u32 w = 0; w < 4; ++w) {
                    const f8::Four weights = f8::floats(bytes[r][w]), values = four_at(column + 4 * w);
                    for (u32 h = 0; h < 2; ++h) part = f8::multiply_add(weights.v[h], values.v[h], part);
                }
                float& to = sum[r * COLUMNS + c];
                to = multiply_add(scale[r], part.v[0] + part.v[1], to);
            }
        }
    }
    return total(sum, lanes);
}

template <typename T, u32 COLUMNS> DEVICE_FN void matvec_f8(const Matvec& m, const Vectors& x, const Output& output) {
    constexpr u32 ROWS = F8_ROWS_FOR<COLUMNS>;
    // With `up`, half of the rows are of each matrix.
    const u32 step = m.up ? ROWS / 2 : ROWS;
    const u32 groups = (m.rows + step - 1) / step;
    const u32 at_once = block_dim() / m.lanes;
    const u32 place = thread_x() & (m.lanes - 1);
    const u32 own = total_of_lane<ROWS * COLUMNS>();
    const u32 r = own / COLUMNS, c = own % COLUMNS;
    // Whole blocks go on together, since they meet in f8_rows.
    for (u64 first = (u64)block_x() * at_once; first < groups; first += (u64)grid_dim() * at_once) {
        const u64 at = first + thread_x() / m.lanes;
        const bool inside = at < groups;
        const u64 row = (inside ? at : groups - 1) * step;
        const u8* rows[ROWS];
        for (u32 i = 0; i < ROWS; ++i) {
            const bool is_up = m.up && i >= ROWS / 2;
            // Beyond the last, the last one once more.
            const u64 wanted = row + (is_up ? i - ROWS / 2 : i), which = wanted < m.rows ? wanted : m.rows - 1;
            rows[i] = (is_up ? m.up : m.weights) + which * m.row_bytes;
        }
        const float total = f8_rows<T, ROWS, COLUMNS>(rows, m.units, x, 0, x.columns - 1, m.lanes) * f8::UNIT_OF_FLOATS;
        // The lowest bit of a lane tells the half of the rows.
        const float partner = m.up ? shfl_xor(total, 1u) : 0;
        if (!inside || place >= ROWS * COLUMNS || c >= x.columns || r >= step || row + r >= m.rows) continue;
        const u64 to = (u64)c * m.rows + row + r;
        if (!m.up) {
            finish(output, to, (u32)row + r, total);
        } else {
            finish_gated(output, to, total, partner);
        }
    }
}

}  // namespace device

#endif
