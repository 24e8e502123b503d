// Products of matrices of floats, in tiles through LDS: by matrix instructions for 16 bits where the GPU has them, else
// by each thread's own multiplications. Operands may lie along K or across it, at any address: elements are copied 16
// bytes at a time where all of these exist, else one by one, and what does not exist is not read. Sums are f32, of f64
// f64; where K is cut into parts, these have results of their own, which gemm_join adds in order.
#include "gemm_matrix.h"
#include "gemm_vector.h"

// Rows of tiles whose blocks follow each other, column by column, so that they meet in the caches.
constexpr u32 TILES_TOGETHER = 8;

template <typename T, u32 EDGE> struct TileFor { using type = VectorTile<T, EDGE>; };
#if MATRIX
template <u32 EDGE> struct TileFor<f16, EDGE> { using type = MatrixTile<f16, EDGE>; };
template <u32 EDGE> struct TileFor<bf16, EDGE> { using type = MatrixTile<bf16, EDGE>; };
#endif

DEVICE_FN u32 least(u32 x, u32 y) { return x < y ? x : y; }

template <typename T> DEVICE_FN void put(void* out, u64 at, compute_t<T> sum, bool wide) {
    if (wide) {
        ((compute_t<T>*)out)[at] = sum;
    } else {
        ((T*)out)[at] = store<T>(sum);
    }
}

template <typename T, u32 EDGE> DEVICE_FN void gemm(const T* a, const T* b, void* out, const Gemm& s) {
    using Tile = typename TileFor<T, EDGE>::type;
    using Carried = typename Tile::Carried;
    __shared__ typename Tile::Places places;
    const u32 down = (s.m + EDGE - 1) / EDGE, across = (s.n + EDGE - 1) / EDGE;
    const u32 per_matrix = down * across;
    const u64 tiles = (u64)s.batches * s.parts * per_matrix;
    for (u64 index = block_x(); index < tiles; index += grid_dim()) {
        const u64 which = index / per_matrix;
        const u32 tile = (u32)(index - which * per_matrix);
        const u64 batch = which / s.parts;
        const u32 part = (u32)(which - batch * s.parts);
        const u32 group = tile / (TILES_TOGETHER * across);
        const u32 in_group = tile - group * TILES_TOGETHER * across;
        const u32 height = least(down - group * TILES_TOGETHER, TILES_TOGETHER);
        const u32 column_tile = in_group / height;
        const u32 m0 = (group * TILES_TOGETHER + in_group - column_tile * height) * EDGE;
        const u32 n0 = column_tile * EDGE;
        const u32 begin = part * s.part;
        const u32 end = least(s.k, begin + s.part);

        typename Tile::Sums sums;
        Carried x(a + batch * s.a_batch, s.a_stride, s.a_along_k != 0, m0, s.m, begin);
        Carried y(b + batch * s.b_batch, s.b_stride, s.b_along_k != 0, n0, s.n, begin);
        const bool inside = m0 + EDGE <= s.m && n0 + EDGE <= s.n;
        const auto load = [&](u32 k0) {
            if (inside && k0 + Tile::DEPTH <= end) {
                x.template load<true>(k0, end);
                y.template load<true>(k0, end);
            } else {
                x.template load<false>(k0, end);
                y.template load<false>(k0, end);
            }
        };
        load(begin);
        for (u32 k0 = begin; k0 < end; k0 += Tile::DEPTH) {
            barrier();
            x.store_to(places.a);
            y.store_to(places.b);
            barrier();
            // On their way while these are multiplied.
            if (k0 + Tile::DEPTH < end) load(k0 + Tile::DEPTH);
            sums.add(places);
        }
        const u64 first = batch * s.out_batch + part * s.out_part;
        sums.each([&](u32 row, u32 column, compute_t<T> sum) {
            if (m0 + row < s.m && n0 + column < s.n) put<T>(out, first + (m0 + row) * s.out_stride + n0 + column, sum, s.wide != 0);
        });
    }
}

// The sum of the parts, which lie as whole matrices without gaps.
template <typename T> DEVICE_FN void join(const compute_t<T>* partial, void* out, const Gemm& s) {
    const u32 matrix = s.m * s.n;
    const u64 count = (u64)s.batches * matrix;
    for (u64 i = global_index(); i < count; i += global_size()) {
        compute_t<T> sum = partial[i];
        for (u32 part = 1; part < s.parts; ++part) sum += partial[part * s.out_part + i];
        const u64 batch = i / matrix;
        const u32 at = (u32)(i - batch * matrix);
        const u32 row = at / s.n;
        put<T>(out, batch * s.out_batch + row * s.out_stride + (at - row * s.n), sum, s.wide != 0);
    }
}

#define GEMM(dtype, T, EDGE)                                                                                                              \
    extern "C" __global__ MAX_BLOCK_OF(GEMM_THREADS, 128 / EDGE) void gemm_##dtype##_##EDGE(const T* a, const T* b, void* out, Gemm s) { \
        gemm<T, EDGE>(a, b, out, s);                                                                                                      \
    }
#define JOIN(dtype, T)                                                                                                      \
    extern "C" __global__ MAX_BLOCK(256) void gemm_join_##dtype(const compute_t<T>* partial, void* out, Gemm s) { \
        join<T>(partial, out, s);                                                                                           \
    }

PART(f16) GEMM(f16, f16, 128)
PART(f16) GEMM(f16, f16, 64)
PART(f16) JOIN(f16, f16)
PART(bf16) GEMM(bf16, bf16, 128)
PART(bf16) GEMM(bf16, bf16, 64)
PART(bf16) JOIN(bf16, bf16)
PART(f32) GEMM(f32, float, 128)
PART(f32) GEMM(f32, float, 64)
PART(f32) JOIN(f32, float)
PART(f64) GEMM(f64, double, 64)
PART(f64) JOIN(f64, double)
