// The RMS norm of rows whose results are stored as floats and, packed, as something smaller. A block has a row.
#ifndef CANDLE_ROCM_NORM_ROWS_H
#define CANDLE_ROCM_NORM_ROWS_H

#include "norm.h"

namespace device {

// A row of `shape.columns` values. Calls put(i, values) for each four from element i on: those of a row up to
// `stride`, a multiple of 4, and further ones to whole waves; those beyond the row are zero.
template <typename Source, typename F>
DEVICE_FN void norm_row(BlockTeam& team, const Source& source, u64 r, const float* weight, float* out, const Shape& shape, u32 stride, F put) {
    // The largest block keeps 8192 values; for more there are too few scalar registers.
    using Row = device::Row<BlockTeam, float, Source, 8>;
    sum_beyond<Row>(source, shape.columns, true);
    const Row row(team, source, shape.columns, true);
    const float squares = row.sum([](float value) { return value * value; });
    const float scale = 1.0f / math::sqrt(squares / (float)shape.columns + shape.eps);
    row.each_together(stride / 4, [&](u32 i, Values<float, 4> values) {
        if (i < shape.columns) {
            values = RmsNorm::scaled(values, read<4>(weight + i), scale);
            write(out + r * shape.columns + i, values);
        }
        put(i, values);
    });
}
template <typename F>
DEVICE_FN void norm_rows(const float* src, const float* weight, float* out, const Shape& shape, u32 stride, F put) {
    BlockTeam team;
    for (u64 r = block_x(); r < shape.rows; r += grid_dim()) {
        const auto put_row = [&](u32 i, const Values<float, 4>& values) { put(r, i, values); };
        norm_row(team, Plain<float, true>{src + r * shape.row_stride}, r, weight, out, shape, stride, put_row);
    }
}
// The same of a sum, which is stored, too.
template <typename F>
DEVICE_FN void add_norm_rows(const float* src, const float* residual, const float* weight, float* sum, float* out, const Shape& shape, u32 stride, F put) {
    BlockTeam team;
    for (u64 r = block_x(); r < shape.rows; r += grid_dim()) {
        const Residual<float, true> source{src + r * shape.row_stride, residual + r * shape.residual_stride, sum + r * shape.columns};
        const auto put_row = [&](u32 i, const Values<float, 4>& values) { put(r, i, values); };
        norm_row(team, source, r, weight, out, shape, stride, put_row);
    }
}

}  // namespace device

#endif
