// Matrices of floats times one vector or a few: each row is read once, by a wave or, where rows are few and long, by a
// block. Rows and vectors lie along K. Sums are f32, of f64 f64.
#include "rows.h"
#include "shared/matmul.h"

template <typename T, u32 VECTORS> DEVICE_FN void gemv(const T* matrices, const T* vectors, void* out, const Gemv& s) {
    using C = compute_t<T>;
    constexpr u32 N = PACK<T>, ROWS = GEMV_ROWS, RESULTS = ROWS * VECTORS;
    __shared__ C scratch[GEMV_THREADS / WAVE][RESULTS];
    const bool by_blocks = s.by_blocks != 0;
    const u32 rank = by_blocks ? thread_x() : lane(), lanes = by_blocks ? block_dim() : WAVE;
    const u64 team = by_blocks ? block_x() : global_index() / WAVE, teams = by_blocks ? grid_dim() : global_size() / WAVE;
    const u32 groups = (s.rows + ROWS - 1) / ROWS;
    const u32 packs = s.k / N;
    for (u64 task = team; task < (u64)s.batches * groups; task += teams) {
        const u64 batch = task / groups;
        const u32 first = (u32)(task - batch * groups) * ROWS;
        const T *row[ROWS], *vector[VECTORS];
        C sums[ROWS][VECTORS];
        // Beyond the last, the last one once more.
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) row[r] = matrices + batch * s.matrix_batch + (first + r < s.rows ? first + r : s.rows - 1) * s.row_stride;
#pragma unroll
        for (u32 v = 0; v < VECTORS; ++v) vector[v] = vectors + batch * s.vectors_batch + (v < s.vectors ? v : s.vectors - 1) * s.vector_stride;
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
            for (u32 v = 0; v < VECTORS; ++v) sums[r][v] = C(0);
#pragma unroll 2
        for (u32 p = rank; p < packs; p += lanes) {
            Values<C, N> x[ROWS];
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) x[r] = read<N>(row[r] + (u64)p * N);
#pragma unroll
            for (u32 v = 0; v < VECTORS; ++v) {
                const Values<C, N> y = read<N>(vector[v] + (u64)p * N);
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
                    for (u32 j = 0; j < N; ++j) sums[r][v] = math::fma(x[r].v[j], y.v[j], sums[r][v]);
            }
        }
        if (packs * N + rank < s.k) {
            const u32 i = packs * N + rank;
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r)
#pragma unroll
                for (u32 v = 0; v < VECTORS; ++v) sums[r][v] = math::fma(load(row[r][i]), load(vector[v][i]), sums[r][v]);
        }
        C mine = C(0);
#pragma unroll
        for (u32 i = 0; i < RESULTS; ++i) {
            const C sum = wave_reduce<Sum>(sums[i / VECTORS][i % VECTORS]);
            if (lane() == i) mine = sum;
        }
        if (by_blocks) {
            if (lane() < RESULTS) scratch[thread_x() / WAVE][lane()] = mine;
            barrier();
            mine = C(0);
            if (thread_x() < RESULTS) {
                for (u32 w = 0; w < lanes / WAVE; ++w) mine += scratch[w][thread_x()];
            }
            barrier();
        }
        const u32 r = rank / VECTORS, v = rank % VECTORS;
        if (rank < RESULTS && first + r < s.rows && v < s.vectors) {
            const u64 at = batch * s.out_batch + (first + r) * s.out_row + v * s.out_vector;
            if (s.wide) {
                ((C*)out)[at] = mine;
            } else {
                ((T*)out)[at] = store<T>(mine);
            }
        }
    }
}

#define GEMV(dtype, T, VECTORS)                                                                                                             \
    extern "C" __global__ MAX_BLOCK(GEMV_THREADS) void gemv_##dtype##_##VECTORS(const T* matrices, const T* vectors, void* out, Gemv s) { \
        gemv<T, VECTORS>(matrices, vectors, out, s);                                                                                        \
    }
#define GEMVS(dtype, T) \
    GEMV(dtype, T, 1)   \
    GEMV(dtype, T, 4)   \
    GEMV(dtype, T, 8)

PART(f16) GEMVS(f16, f16)
PART(bf16) GEMVS(bf16, bf16)
PART(f32) GEMVS(f32, float)
PART(f64) GEMVS(f64, double)
