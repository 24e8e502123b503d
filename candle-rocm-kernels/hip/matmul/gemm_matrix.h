// Tiles of 16-bit floats, multiplied by matrix instructions. In LDS both operands lie along K, as fragments are loaded;
// an operand that lies across K in memory is transposed on the way.
#ifndef CANDLE_ROCM_MATMUL_GEMM_MATRIX_H
#define CANDLE_ROCM_MATMUL_GEMM_MATRIX_H

#include "matrix.h"
#include "rows.h"
#include "shared/matmul.h"

#if MATRIX
namespace device {

// The first `count` of a pack of 16-bit elements, and zeros.
template <typename T> DEVICE_FN u32x4 load_first(const T* from, u32 count) {
    constexpr u32 N = PACK<T>;
    u32x4 words{};
    if (count >= N) {
        if constexpr (ALWAYS_IN_PACKS) {
            __builtin_memcpy(&words, from, sizeof(words));
        } else {
            words = bit_cast<u32x4>(copy_from<N>(from));
        }
    } else {
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            if (j < count) words[j / 2] |= (u32)from[j].bits << j % 2 * 16;
        }
    }
    return words;
}

template <typename T, u32 EDGE> struct MatrixTile {
    static constexpr u32 N = PACK<T>;
    // Two packs of each operand for a thread.
    static constexpr u32 DEPTH = 2 * N * GEMM_THREADS / EDGE;
    // Elements between rows, so that neighbouring ones begin in different banks; and between each eight of them a pack
    // more, for packs that are transposed.
    static constexpr u32 PITCH = DEPTH + N;
    static DEVICE_FN u32 start(u32 row) { return row * PITCH + row / 8 * N; }
    static_assert(device::DEPTH % DEPTH == 0, "parts of K are cut there");

    struct alignas(16) Places {
        T a[EDGE * PITCH + EDGE / 8 * N];
        T b[EDGE * PITCH + EDGE / 8 * N];
    };

    // A thread's packs of one operand's rows (of a, or columns of b), on their way into LDS. Along K, they are of two
    // rows; across, of two neighbours in K.
    struct Carried {
        static constexpr u32 PACKS_ALONG = DEPTH / N, PACKS_ACROSS = EDGE / N;
        static constexpr u32 APART = GEMM_THREADS / PACKS_ALONG;
        static_assert(2 * APART == EDGE && 2 * (GEMM_THREADS / PACKS_ACROSS) == DEPTH, "two packs a thread are a tile");
        const T* from;
        u64 stride;
        // Of the first pack in the tile, and how many rows there are from it on.
        u32 row, column, rows;
        bool along;
        u32x4 packs[2];

        DEVICE_FN Carried(const T* matrix, u64 matrix_stride, bool along_k, u32 first_row, u32 all_rows, u32 k0)
            : stride(matrix_stride), along(along_k) {
            const u32 t = thread_x();
            row = along ? t / PACKS_ALONG : t % PACKS_ACROSS * N;
            column = along ? t % PACKS_ALONG * N : t / PACKS_ACROSS * 2;
            const u32 at = first_row + row;
            rows = at < all_rows ? all_rows - at : 0;
            from = matrix + (along ? at * stride + k0 + column : (k0 + column) * stride + at);
        }
        // What the tile has from k0 on; called for one after the other. WHOLE: all of it exists.
        template <bool WHOLE> DEVICE_FN void load(u32 k0, u32 end) {
            const u32 left = k0 + column < end ? end - k0 - column : 0;
            if (along) {
                packs[0] = load_first(from, WHOLE ? N : rows > 0 ? left : 0);
                packs[1] = load_first(from + APART * stride, WHOLE ? N : rows > APART ? left : 0);
                from += DEPTH;
            } else {
                packs[0] = load_first(from, WHOLE ? N : left > 0 ? rows : 0);
                packs[1] = load_first(from + stride, WHOLE ? N : left > 1 ? rows : 0);
                from += DEPTH * stride;
            }
        }
        DEVICE_FN void store_to(T* place) const {
            if (along) {
                *(u32x4*)(place + start(row) + column) = packs[0];
                *(u32x4*)(place + start(row + APART) + column) = packs[1];
            } else {
                T* const first = place + start(row) + column;
#pragma unroll
                for (u32 j = 0; j < N; j += 2) {
                    *(u32*)(first + j * PITCH) = low_halves(packs[0][j / 2], packs[1][j / 2]);
                    *(u32*)(first + (j + 1) * PITCH) = high_halves(packs[0][j / 2], packs[1][j / 2]);
                }
            }
        }
    };

    // Two waves lie one below the other, the others beside them.
    struct Sums {
        using Lane = matrix::Accumulator<float>;
        static constexpr u32 WAVES_DOWN = 2, WAVES_ACROSS = GEMM_THREADS / WAVE / WAVES_DOWN;
        static constexpr u32 DOWN = EDGE / WAVES_DOWN / matrix::TILE, ACROSS = EDGE / WAVES_ACROSS / matrix::TILE;
        Lane sums[DOWN][ACROSS];

        DEVICE_FN Sums() {
#pragma unroll
            for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                for (u32 c = 0; c < ACROSS; ++c) sums[d][c] = Lane::zero();
        }
        static DEVICE_FN u32 row(u32 d) { return (thread_x() / WAVE % WAVES_DOWN * DOWN + d) * matrix::TILE; }
        static DEVICE_FN u32 column(u32 c) { return (thread_x() / WAVE / WAVES_DOWN * ACROSS + c) * matrix::TILE; }

        // 16 rows from the given one on, a multiple of 16.
        static DEVICE_FN matrix::Fragment<T> fragment(const T* place, u32 row, u32 k) {
            return matrix::Fragment<T>::load_from([=](u32 index) { return place + start(row) + start(index) + k; });
        }
        DEVICE_FN void add(const Places& places) {
#pragma unroll
            for (u32 k = 0; k < DEPTH; k += matrix::K<T>) {
                matrix::Fragment<T> y[ACROSS];
#pragma unroll
                for (u32 c = 0; c < ACROSS; ++c) y[c] = fragment(places.b, column(c), k);
#pragma unroll
                for (u32 d = 0; d < DOWN; ++d) {
                    const matrix::Fragment<T> x = fragment(places.a, row(d), k);
#pragma unroll
                    for (u32 c = 0; c < ACROSS; ++c) matrix::multiply<T>(x, y[c], sums[d][c]);
                }
            }
        }
        // Calls f(row, column, sum).
        template <typename F> DEVICE_FN void each(F f) const {
#pragma unroll
            for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
                for (u32 c = 0; c < ACROSS; ++c)
#pragma unroll
                    for (u32 i = 0; i < Lane::VALUES; ++i) f(row(d) + Lane::row(i), column(c) + Lane::column(i), sums[d][c].values[i]);
        }
    };
};

}  // namespace device
#endif

#endif
