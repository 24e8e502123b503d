// Mixture of experts: each input row times the matrices of the experts that it is routed to.
//
// A slot is a pair of a row and one of its experts; there are `slots_per_row` for each row of x [slots / slots_per_row,
// k], and each is a row of the result [slots, n]. The caller gives the slots in the order of their experts:
// `slot_of[position]` and `expert_of[position]`; without `slot_of`, they are in their own order. Weights are [experts,
// n, k]; `scale`, if not null, has a factor for each slot. Sums are taken in f32.
#include "index_error.h"
#include "matrix.h"
#include "rows.h"
#include "shared/moe.h"

constexpr u32 NO_EXPERT = 0xffffffffu;

// Whether position's slot and expert exist; reports the one that does not.
DEVICE_FN bool exists(u32 slot, u32 expert, const Experts& shape, IndexError* error) {
    if (slot < shape.slots && expert < shape.experts) return true;
    if (slot >= shape.slots) {
        report_index(error, shape.op, shape.slots, slot);
    } else if (!(shape.may_lack && expert == NO_EXPERT)) {
        report_index(error, shape.op, shape.experts, expert);
    }
    return false;
}

// ---------------------------------------------------------------- few rows: a matrix is read once for each

// The experts' numbers may be narrower than those of x and out. A slot whose expert does not exist becomes zero.
template <typename T, typename W>
DEVICE_FN void matvec(const T* x, const W* weights, const u32* slot_of, const u32* expert_of, const float* scale, T* out, IndexError* error,
                      const Experts& shape) {
    constexpr u32 N = PACK<W>;
    const u32 groups = (shape.n + OUTPUTS - 1) / OUTPUTS;
    const u32 packs = shape.k / N;
    for (u64 task = global_index() / WAVE; task < (u64)shape.slots * groups; task += global_size() / WAVE) {
        const u32 position = (u32)(task / groups);
        const u32 first = (u32)(task - (u64)position * groups) * OUTPUTS;
        const u32 slot = slot_of ? slot_of[position] : position;
        const u32 expert = expert_of[position];
        if (!exists(slot, expert, shape, error)) {
            if (slot < shape.slots && lane() < OUTPUTS && first + lane() < shape.n) out[(u64)slot * shape.n + first + lane()] = store<T>(0.0f);
            continue;
        }
        const T* const row = x + (u64)(slot / shape.slots_per_row) * shape.k;
        const W* matrix_row[OUTPUTS];
        float sum[OUTPUTS];
        for (u32 j = 0; j < OUTPUTS; ++j) {
            // Past the last row, the last one once more.
            const u32 output = first + j < shape.n ? first + j : shape.n - 1;
            matrix_row[j] = weights + ((u64)expert * shape.n + output) * shape.k;
            sum[j] = 0.0f;
        }
        for (u32 p = lane(); p < packs; p += WAVE) {
            const Values<float, N> a = read<N>(row + p * N);
            for (u32 j = 0; j < OUTPUTS; ++j) {
                const Values<float, N> b = read<N>(matrix_row[j] + p * N);
                for (u32 i = 0; i < N; ++i) sum[j] = math::fma(a.v[i], b.v[i], sum[j]);
            }
        }
        if (packs * N + lane() < shape.k) {
            const u32 i = packs * N + lane();
            for (u32 j = 0; j < OUTPUTS; ++j) sum[j] = math::fma(load(row[i]), load(matrix_row[j][i]), sum[j]);
        }
        const float factor = scale ? scale[slot] : 1.0f;
        for (u32 j = 0; j < OUTPUTS; ++j) {
            const float total = wave_reduce<Sum>(sum[j]) * factor;
            if (lane() == j && first + j < shape.n) out[(u64)slot * shape.n + first + j] = store<T>(total);
        }
    }
}

// ---------------------------------------------------------------- many rows: tiles

// A block has TILE_M positions by TILE_N outputs. It takes the runs of one expert among its positions one after
// another, so that no one needs to count each expert's rows beforehand.
constexpr u32 TILE_K = 32;

template <typename T> struct alignas(16) Tile {
    // A pack more than TILE_K: neighbouring rows begin in different banks.
    static constexpr u32 STRIDE = TILE_K + PACK<T>;
    T x[TILE_M * STRIDE];
    T w[TILE_N * STRIDE];
    u32 slot[TILE_M];
    u32 expert[TILE_M];
};

// ROWS rows of TILE_K elements of T into LDS, from column k0 on; `row(r)` gives the address of a row or null. What does
// not exist becomes 0.
template <u32 ROWS, typename T, typename F> DEVICE_FN void stage(T* tile, u32 k0, u32 k, F row) {
    constexpr u32 N = PACK<T>;
    constexpr u32 PACKS = TILE_K / N;
    struct alignas(16) Words { T v[N]; };
#pragma unroll
    for (u32 i = thread_x(); i < ROWS * PACKS; i += TILE_THREADS) {
        const u32 r = i / PACKS;
        const u32 column = i % PACKS * N;
        const T* const from = row(r);
        Words words{};
        if (from && k0 + column + N <= k) {
            __builtin_memcpy(&words, from + k0 + column, sizeof(words));
        } else if (from) {
            for (u32 j = 0; j < N; ++j) {
                if (k0 + column + j < k) words.v[j] = from[k0 + column + j];
            }
        }
        *(Words*)(tile + r * Tile<T>::STRIDE + column) = words;
    }
}

// A thread's part of the sums of a tile, in the block's 16 by 8 threads: 4 by 4, at distances of 8 rows and 16 columns.
template <typename T> struct LaneSums {
    float sums[4][4] = {};

    static DEVICE_FN u32 row(u32 i) { return thread_x() / 16 + 8 * i; }
    static DEVICE_FN u32 column(u32 j) { return thread_x() % 16 + 16 * j; }

    DEVICE_FN void add(const Tile<T>& tile) {
        constexpr u32 N = PACK<T>;
#pragma unroll 1
        for (u32 k = 0; k < TILE_K; k += N) {
            Values<float, N> b[4];
            for (u32 j = 0; j < 4; ++j) b[j] = read<N>(tile.w + column(j) * Tile<T>::STRIDE + k);
            for (u32 i = 0; i < 4; ++i) {
                const Values<float, N> a = read<N>(tile.x + row(i) * Tile<T>::STRIDE + k);
                for (u32 j = 0; j < 4; ++j) {
                    for (u32 e = 0; e < N; ++e) sums[i][j] = math::fma(a.v[e], b[j].v[e], sums[i][j]);
                }
            }
        }
    }
    // Calls f(row, column, sum).
    template <typename F> DEVICE_FN void each(F f) const {
        for (u32 i = 0; i < 4; ++i) {
            for (u32 j = 0; j < 4; ++j) f(row(i), column(j), sums[i][j]);
        }
    }
};
template <typename T> struct SumsFor { using type = LaneSums<T>; };

#if MATRIX
// The same by matrix instructions: a wave has all rows of its share of the columns.
template <typename T> struct MatrixSums {
    static constexpr u32 ROWS = TILE_M / matrix::TILE;
    static constexpr u32 COLUMNS = TILE_N / matrix::TILE / (TILE_THREADS / WAVE);
    matrix::Accumulator<float> sums[ROWS][COLUMNS];

    DEVICE_FN MatrixSums() {
        for (u32 i = 0; i < ROWS; ++i) {
            for (u32 j = 0; j < COLUMNS; ++j) sums[i][j] = matrix::Accumulator<float>::zero();
        }
    }
    static DEVICE_FN u32 first_column() { return thread_x() / WAVE * COLUMNS * matrix::TILE; }

    DEVICE_FN void add(const Tile<T>& tile) {
        constexpr u32 STRIDE = Tile<T>::STRIDE;
#pragma unroll
        for (u32 k = 0; k < TILE_K; k += matrix::K<T>) {
            matrix::FragmentB<T> b[COLUMNS];
            for (u32 j = 0; j < COLUMNS; ++j) {
                b[j] = matrix::FragmentB<T>::load(tile.w + (first_column() + j * matrix::TILE) * STRIDE + k, STRIDE);
            }
            for (u32 i = 0; i < ROWS; ++i) {
                const matrix::FragmentA<T> a = matrix::FragmentA<T>::load(tile.x + i * matrix::TILE * STRIDE + k, STRIDE);
                for (u32 j = 0; j < COLUMNS; ++j) matrix::multiply<T>(a, b[j], sums[i][j]);
            }
        }
    }
    template <typename F> DEVICE_FN void each(F f) const {
        using Lane = matrix::Accumulator<float>;
        for (u32 i = 0; i < ROWS; ++i) {
            for (u32 j = 0; j < COLUMNS; ++j) {
                for (u32 v = 0; v < Lane::VALUES; ++v) {
                    f(i * matrix::TILE + Lane::row(v), first_column() + j * matrix::TILE + Lane::column(v), sums[i][j].values[v]);
                }
            }
        }
    }
};
template <> struct SumsFor<f16> { using type = MatrixSums<f16>; };
template <> struct SumsFor<bf16> { using type = MatrixSums<bf16>; };
#endif

template <typename T>
DEVICE_FN void matmul(const T* x, const T* weights, const u32* slot_of, const u32* expert_of, const float* scale, T* out, IndexError* error,
                      const Experts& shape) {
    __shared__ Tile<T> tile;
    const u32 t = thread_x();
    const u32 tiles_n = (shape.n + TILE_N - 1) / TILE_N;
    const u64 tiles = (u64)((shape.slots + TILE_M - 1) / TILE_M) * tiles_n;
    for (u64 index = block_x(); index < tiles; index += grid_dim()) {
        const u32 m0 = (u32)(index / tiles_n) * TILE_M;
        const u32 n0 = (u32)(index % tiles_n) * TILE_N;
        const u32 rows = shape.slots - m0 < TILE_M ? shape.slots - m0 : TILE_M;
        barrier();
        if (t < rows) {
            const u32 slot = slot_of[m0 + t];
            const u32 expert = expert_of[m0 + t];
            tile.slot[t] = slot;
            tile.expert[t] = exists(slot, expert, shape, error) ? expert : NO_EXPERT;
        }
        barrier();
        for (u32 begin = 0, end; begin < rows; begin = end) {
            const u32 expert = tile.expert[begin];
            for (end = begin + 1; end < rows && tile.expert[end] == expert; ++end) {
            }
            if (expert == NO_EXPERT) continue;
            const T* const expert_matrix = weights + (u64)expert * shape.n * shape.k;
            typename SumsFor<T>::type sums;
            for (u32 k0 = 0; k0 < shape.k; k0 += TILE_K) {
                stage<TILE_M>(tile.x, k0, shape.k, [&](u32 r) -> const T* {
                    return r >= begin && r < end ? x + (u64)(tile.slot[r] / shape.slots_per_row) * shape.k : nullptr;
                });
                stage<TILE_N>(tile.w, k0, shape.k, [&](u32 r) -> const T* {
                    return n0 + r < shape.n ? expert_matrix + (u64)(n0 + r) * shape.k : nullptr;
                });
                barrier();
                sums.add(tile);
                barrier();
            }
            sums.each([&](u32 r, u32 column, float sum) {
                if (r < begin || r >= end || n0 + column >= shape.n) return;
                const u32 slot = tile.slot[r];
                out[(u64)slot * shape.n + n0 + column] = store<T>(scale ? sum * scale[slot] : sum);
            });
        }
    }
}

#define MATVEC(dtype, T, W)                                                                                                         \
    extern "C" __global__ MAX_BLOCK(256) void moe_matvec_##dtype(const T* x, const W* weights, const u32* slot_of, const u32* expert_of, \
                                                                 const float* scale, T* out, IndexError* error, Experts shape) {     \
        matvec(x, weights, slot_of, expert_of, scale, out, error, shape);                                                           \
    }
#define MATMUL(dtype, T)                                                                                                            \
    extern "C" __global__ MAX_BLOCK(TILE_THREADS) void moe_matmul_##dtype(const T* x, const T* weights, const u32* slot_of,          \
                                                                          const u32* expert_of, const float* scale, T* out,          \
                                                                          IndexError* error, Experts shape) {                        \
        matmul(x, weights, slot_of, expert_of, scale, out, error, shape);                                                           \
    }
MATVEC(f16, f16, f16)
MATVEC(bf16, bf16, bf16)
MATVEC(f32, float, float)
// Experts of 16 bits, rows of f32.
MATVEC(f16_f32, float, f16)
MATVEC(bf16_f32, float, bf16)
MATMUL(f16, f16)
MATMUL(bf16, bf16)
MATMUL(f32, float)
