// Copies between layouts. Only bits move, so kernels go by element size: b8 to b128. Launchers pick the widest size
// that the layout allows, which makes rows of small elements move in 16-byte pieces.
#include "rows.h"
#include "shared/copy.h"
#include "shared/index_error.h"

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

constexpr u32 LANES = TILE_WORDS;
constexpr u32 STEP = TRANSPOSE_BLOCK / LANES;

// A batch of matrices whose rows are dense in `dst` and whose columns are dense in `src`. Each block turns a tile
// around, so that both sides are accessed along their dense dimension, in words: two neighbours of 4 bytes or fewer, or
// one element. A thread turns two words of two around in registers, so that the tile in LDS has words of `dst`. Where a
// word lies in its line depends on the line, for each to have a bank of its own.
template <typename T>
DEVICE_FN void copy_transposed(const T* src, T* dst, u32 rows, u32 columns, u32 src_column_stride, u32 dst_row_stride, u32 batch,
                               const Dims& dims, const Strides& src_strides, const Strides& dst_strides) {
    constexpr u32 E = sizeof(T) <= 4 ? 2 : 1;
    constexpr u32 SIDE = LANES * E;
    using Word = Neighbours<E, T>;
    __shared__ Word tile[SIDE][LANES];
    const u32 x = thread_x() % LANES;
    const u32 y = thread_x() / LANES;
    const u32 tiles_across = (columns - 1) / SIDE + 1;
    const u32 tiles_per_matrix = ((rows - 1) / SIDE + 1) * tiles_across;
    const u32 tiles = tiles_per_matrix * batch;
    for (u32 i = block_x(); i < tiles; i += grid_dim()) {
        const u32 matrix = batch == 1 ? 0 : i / tiles_per_matrix;
        const u32 in_matrix = i - matrix * tiles_per_matrix;
        const u32 down = in_matrix / tiles_across;
        const u32 row = down * SIDE;
        const u32 column = (in_matrix - down * tiles_across) * SIDE;
        const T* from = src + strided_offset(dims, src_strides, matrix) + (u64)column * src_column_stride + row;
        T* to = dst + strided_offset(dims, dst_strides, matrix) + (u64)row * dst_row_stride + column;
        const u32 rows_left = rows - row;
        const u32 columns_left = columns - column;

        Word words[LANES / STEP][E];
        if (columns_left >= SIDE && rows_left >= SIDE && src_column_stride % E == 0 && Word::are_aligned(from)) {
#pragma unroll
            for (u32 k = 0; k < LANES / STEP; ++k) {
                for (u32 e = 0; e < E; ++e) words[k][e] = copy_from_aligned<E>(from + (u64)((y + k * STEP) * E + e) * src_column_stride + x * E);
            }
        } else {
#pragma unroll
            for (u32 k = 0; k < LANES / STEP; ++k) {
                for (u32 e = 0; e < E; ++e) {
                    const u32 c = (y + k * STEP) * E + e;
                    for (u32 d = 0; d < E; ++d) {
                        if (c < columns_left && x * E + d < rows_left) words[k][e].v[d] = from[(u64)c * src_column_stride + x * E + d];
                    }
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < LANES / STEP; ++k) {
            for (u32 d = 0; d < E; ++d) {
                Word turned;
                for (u32 e = 0; e < E; ++e) turned.v[e] = words[k][e].v[d];
                tile[x * E + d][(y + k * STEP) ^ x] = turned;
            }
        }
        barrier();
        const bool wide = columns_left >= SIDE && dst_row_stride % E == 0 && Word::are_aligned(to);
        Word lines[SIDE / STEP];
#pragma unroll
        for (u32 k = 0; k < SIDE / STEP; ++k) lines[k] = tile[y + k * STEP][x ^ ((y + k * STEP) / E)];
#pragma unroll
        for (u32 k = 0; k < SIDE / STEP; ++k) {
            const u32 r = y + k * STEP;
            T* const at = to + (u64)r * dst_row_stride + x * E;
            if (r >= rows_left) continue;
            if (wide) {
                copy_to_aligned(at, lines[k]);
            } else {
                for (u32 e = 0; e < E; ++e) {
                    if (x * E + e < columns_left) at[e] = lines[k].v[e];
                }
            }
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
    extern "C" __global__ MAX_BLOCK_OF(TRANSPOSE_BLOCK, (sizeof(T) == 2 ? 6 : 4)) void transpose_##T(                                                     \
        const T* src, T* dst, u32 rows, u32 columns, u32 src_column_stride, u32 dst_row_stride, u32 batch, Dims dims,        \
        Strides src_strides, Strides dst_strides) {                                                                         \
        copy_transposed(src, dst, rows, columns, src_column_stride, dst_row_stride, batch, dims, src_strides, dst_strides);  \
    }
TRANSPOSE(b8)
TRANSPOSE(b16)
TRANSPOSE(b32)
TRANSPOSE(b64)

// Words that the host has put into memory that both sides reach.
extern "C" __global__ void copy_words(const u32* src, u32* dst, u32 n) {
    for (u64 i = global_index(); i < n; i += global_size()) dst[i] = src[i];
}

// Into such memory: the device's error word, which is zero from then on, and words behind it. For a single block.
extern "C" __global__ void copy_answer(const u32* src, IndexError* error, u32* dst, u32 n) {
    constexpr u32 ERROR_WORDS = sizeof(IndexError) / sizeof(u32);
    for (u32 i = thread_x(); i < n; i += block_dim()) dst[ERROR_WORDS + i] = src[i];
    if (thread_x() < ERROR_WORDS) {
        u32* word = (u32*)error + thread_x();
        dst[thread_x()] = *word;
        *word = 0;
    }
}
