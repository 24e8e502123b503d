// Tiles that each thread multiplies a square part of. In LDS both operands lie across K, in the type that sums are made
// in: what a thread needs at one place of K are neighbours.
#ifndef CANDLE_ROCM_MATMUL_GEMM_VECTOR_H
#define CANDLE_ROCM_MATMUL_GEMM_VECTOR_H

#include "rows.h"
#include "shared/matmul.h"

namespace device {

template <typename T, u32 EDGE> struct VectorTile {
    using C = compute_t<T>;
    static constexpr u32 DEPTH = 16;
    // 16 by 16 threads have blocks of BLOCK rows and columns, 16 BLOCK apart.
    static constexpr u32 SIDE = 16, BLOCK = 4, BLOCKS = EDGE / (SIDE * BLOCK);
    static_assert(SIDE * SIDE == GEMM_THREADS && EDGE % (SIDE * BLOCK) == 0, "whole blocks");
    static_assert(device::DEPTH % DEPTH == 0, "parts of K are cut there");
    // 16 bytes more: what lies along K is stored to different banks.
    static constexpr u32 PITCH = EDGE + 16 / sizeof(C);

    struct alignas(16) Places {
        C a[DEPTH * PITCH];
        C b[DEPTH * PITCH];
    };

    // A thread's packs of one operand's rows (of a, or columns of b), on their way into LDS.
    struct Carried {
        static constexpr u32 ELEMENTS = EDGE * DEPTH / GEMM_THREADS;
        static constexpr u32 N = PACK<T> < ELEMENTS ? PACK<T> : ELEMENTS, PACKS = ELEMENTS / N;
        // Of a tile's row along K, and of a tile's column across.
        static constexpr u32 ALONG = DEPTH / N, ACROSS = EDGE / N;
        // Rows between the packs of a thread, or places in K.
        static constexpr u32 ROWS_APART = GEMM_THREADS / ALONG, COLUMNS_APART = GEMM_THREADS / ACROSS;
        const T* from;
        u64 stride;
        // Of the first pack in the tile, and how many rows there are from it on.
        u32 row, column, rows;
        bool along;
        Held<N, T> packs[PACKS];

        DEVICE_FN Carried(const T* matrix, u64 matrix_stride, bool along_k, u32 first_row, u32 all_rows, u32 k0)
            : stride(matrix_stride), along(along_k) {
            const u32 t = thread_x();
            row = along ? t / ALONG : t % ACROSS * N;
            column = along ? t % ALONG * N : t / ACROSS;
            const u32 at = first_row + row;
            rows = at < all_rows ? all_rows - at : 0;
            from = matrix + (along ? at * stride + k0 + column : (k0 + column) * stride + at);
        }
        // The first `count` of a pack, and zeros.
        static DEVICE_FN Neighbours<N, T> first(const T* at, u32 count) {
            if (count >= N) return copy_from<N>(at);
            Neighbours<N, T> pack{};
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (j < count) pack.v[j] = at[j];
            }
            return pack;
        }
        // What the tile has from k0 on; called for one after the other. WHOLE: all of it exists.
        template <bool WHOLE> DEVICE_FN void load(u32 k0, u32 end) {
            const u32 left = k0 + column < end ? end - k0 - column : 0;
            if (along) {
#pragma unroll
                for (u32 i = 0; i < PACKS; ++i) packs[i] = first(from + i * ROWS_APART * stride, WHOLE ? N : rows > i * ROWS_APART ? left : 0);
                from += DEPTH;
            } else {
#pragma unroll
                for (u32 i = 0; i < PACKS; ++i) packs[i] = first(from + i * COLUMNS_APART * stride, WHOLE ? N : left > i * COLUMNS_APART ? rows : 0);
                from += DEPTH * stride;
            }
        }
        DEVICE_FN void store_to(C* place) const {
#pragma unroll
            for (u32 i = 0; i < PACKS; ++i) {
                const Values<C, N> values = packs[i].values();
                if (along) {
#pragma unroll
                    for (u32 j = 0; j < N; ++j) place[(column + j) * PITCH + row + i * ROWS_APART] = values.v[j];
                } else {
#pragma unroll
                    for (u32 j = 0; j < N; ++j) place[(column + i * COLUMNS_APART) * PITCH + row + j] = values.v[j];
                }
            }
        }
    };

    struct Sums {
        struct alignas(16) Neighbourhood {
            C v[BLOCK];
        };
        C sums[BLOCKS][BLOCK][BLOCKS][BLOCK] = {};

        static DEVICE_FN u32 row(u32 block) { return (block * SIDE + thread_x() / SIDE) * BLOCK; }
        static DEVICE_FN u32 column(u32 block) { return (block * SIDE + thread_x() % SIDE) * BLOCK; }

        DEVICE_FN void add(const Places& places) {
#pragma unroll 2
            for (u32 k = 0; k < DEPTH; ++k) {
                Neighbourhood x[BLOCKS], y[BLOCKS];
#pragma unroll
                for (u32 i = 0; i < BLOCKS; ++i) {
                    x[i] = *(const Neighbourhood*)(places.a + k * PITCH + row(i));
                    y[i] = *(const Neighbourhood*)(places.b + k * PITCH + column(i));
                }
#pragma unroll
                for (u32 i = 0; i < BLOCKS; ++i)
#pragma unroll
                    for (u32 d = 0; d < BLOCK; ++d)
#pragma unroll
                        for (u32 j = 0; j < BLOCKS; ++j)
#pragma unroll
                            for (u32 c = 0; c < BLOCK; ++c) sums[i][d][j][c] = math::fma(x[i].v[d], y[j].v[c], sums[i][d][j][c]);
            }
        }
        // Calls f(row, column, sum).
        template <typename F> DEVICE_FN void each(F f) const {
#pragma unroll
            for (u32 i = 0; i < BLOCKS; ++i)
#pragma unroll
                for (u32 d = 0; d < BLOCK; ++d)
#pragma unroll
                    for (u32 j = 0; j < BLOCKS; ++j)
#pragma unroll
                        for (u32 c = 0; c < BLOCK; ++c) f(row(i) + d, column(j) + c, sums[i][d][j][c]);
        }
    };
};

}  // namespace device

#endif
