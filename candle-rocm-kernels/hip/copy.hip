// Copies between layouts. Only bits move, so kernels go by element size: b8 to b128. Launchers pick the widest size that the layout
// allows, which makes rows of small elements move in 16-byte pieces.
#include "device.h"

using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
struct alignas(16) b128 { u64 low, high; };

// Any layout, gathered into a contiguous one.
template <typename T>
DEVICE_FN void copy_strided(const T* src, T* dst, u64 n, const Dims& dims, const Strides& strides) {
    for (u64 i = global_index(); i < n; i += global_size()) dst[i] = src[strided_offset(dims, strides, (u32)i)];
}

// Rows of `columns` contiguous elements, `src_stride` and `dst_stride` apart. At most 2^32-1 elements in all.
template <typename T>
DEVICE_FN void copy_rows(const T* src, T* dst, u32 n, u32 columns, u64 src_stride, u64 dst_stride) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 row = (u32)i / columns;
        const u32 column = (u32)i - row * columns;
        dst[row * dst_stride + column] = src[row * src_stride + column];
    }
}

constexpr u32 TILE = 32;
constexpr u32 TRANSPOSE_BLOCK = 256;

// A batch of matrices whose rows are dense in `dst` and whose columns are dense in `src`. Each block turns a tile around in LDS, so that
// both sides are accessed along their dense dimension; the padding keeps a tile's column out of a single LDS bank.
template <typename T>
DEVICE_FN void copy_transposed(const T* src, T* dst, u32 rows, u32 columns, u32 src_column_stride, u32 dst_row_stride, u32 batch,
                               const Dims& dims, const Strides& src_strides, const Strides& dst_strides) {
    __shared__ T tile[TILE][TILE + 1];
    const u32 x = thread_x() % TILE;
    const u32 y = thread_x() / TILE;
    const u32 tiles_down = (rows - 1) / TILE + 1;
    const u32 tiles_across = (columns - 1) / TILE + 1;
    const u64 tiles = (u64)tiles_down * tiles_across * batch;
    for (u64 i = block_x(); i < tiles; i += grid_dim()) {
        const u32 matrix = (u32)(i / ((u64)tiles_down * tiles_across));
        const u32 in_matrix = (u32)(i - (u64)matrix * tiles_down * tiles_across);
        const u32 row = in_matrix / tiles_across * TILE;
        const u32 column = in_matrix % tiles_across * TILE;
        const T* from = src + strided_offset(dims, src_strides, matrix);
        T* to = dst + strided_offset(dims, dst_strides, matrix);
        for (u32 c = y; c < TILE; c += TRANSPOSE_BLOCK / TILE) {
            if (row + x < rows && column + c < columns) tile[c][x] = from[(u64)(column + c) * src_column_stride + row + x];
        }
        barrier();
        for (u32 r = y; r < TILE; r += TRANSPOSE_BLOCK / TILE) {
            if (row + r < rows && column + x < columns) to[(u64)(row + r) * dst_row_stride + column + x] = tile[x][r];
        }
        barrier();
    }
}

#define COPY(T)                                                                                                             \
    extern "C" __global__ void copy_##T(const T* src, T* dst, u64 n, Dims dims, Strides strides) {                           \
        copy_strided(src, dst, n, dims, strides);                                                                           \
    }                                                                                                                       \
    extern "C" __global__ void copy2d_##T(const T* src, T* dst, u32 n, u32 columns, u64 src_stride, u64 dst_stride) {        \
        copy_rows(src, dst, n, columns, src_stride, dst_stride);                                                            \
    }
COPY(b8)
COPY(b16)
COPY(b32)
COPY(b64)
COPY(b128)

#define TRANSPOSE(T)                                                                                                        \
    extern "C" __global__ MAX_BLOCK(TRANSPOSE_BLOCK) void transpose_##T(                                                     \
        const T* src, T* dst, u32 rows, u32 columns, u32 src_column_stride, u32 dst_row_stride, u32 batch, Dims dims,        \
        Strides src_strides, Strides dst_strides) {                                                                         \
        copy_transposed(src, dst, rows, columns, src_column_stride, dst_row_stride, batch, dims, src_strides, dst_strides);  \
    }
TRANSPOSE(b8)
TRANSPOSE(b16)
TRANSPOSE(b32)
TRANSPOSE(b64)
