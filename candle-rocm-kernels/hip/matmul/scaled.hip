// Products of matrices of 8-bit floats (e4m3) with scales of tensors, rows or blocks: in tiles by matrix instructions,
// or by each thread's own multiplications in f32, for which scales are applied on the way into LDS.
//
// Rows may begin at any address; nothing beyond a matrix is read. A NaN makes the results of its row or column NaN.
#include "float8.h"
#include "gemm_vector.h"

// The rows of one matrix of an operand.
struct ScaledRows {
    static constexpr bool IS_MENDED = false;
    static constexpr u32 SCALED = SCALED_BLOCK;
    const u8* bits;
    const float* scales;
    const Scaling& scaling;
    u32 rows, k;

    DEVICE_FN ScaledRows(const ScaledFloats& of, u64 matrix, u32 all_rows, u32 length)
        : bits(of.bits + matrix * of.batch), scales(of.scales.values + matrix * of.scales.batch), scaling(of.scales), rows(all_rows), k(length) {}
    DEVICE_FN u32 left(u32 row, u32 at) const { return row < rows && at < k ? k - at : 0; }
    DEVICE_FN u32x4 floats(u32 row, u32 at) const {
        const u32 count = left(row, at);
        return float8::first_of(bits + (count > 0 ? (u64)row * k + at : 0), count);
    }
    DEVICE_FN float8::Line line(u32 row) const {
        if (left(row, 0) == 0) return {nullptr, 0};
        return {(const u8*)(scales + row / scaling.rows * scaling.row_stride), scaling.block_stride * (u32)sizeof(float)};
    }
};

// Calls f(a, b, m0, n0, first of the results) for each tile; those of the same rows of b follow each other.
template <u32 EDGE, typename F> DEVICE_FN void each_tile(const ScaledProduct& s, F f) {
    const u32 down = (s.m + EDGE - 1) / EDGE, across = (s.n + EDGE - 1) / EDGE;
    const u32 per_matrix = down * across;
    const u64 tiles = (u64)s.batches * per_matrix;
    for (u64 index = block_x(); index < tiles; index += grid_dim()) {
        const u64 matrix = index / per_matrix;
        const u32 tile = (u32)(index - matrix * per_matrix);
        const ScaledRows a(s.a, matrix, s.m, s.k), b(s.b, matrix, s.n, s.k);
        f(a, b, tile % down * EDGE, tile / down * EDGE, matrix * s.m * s.n);
    }
}

#if MATRIX
template <u32 EDGE> DEVICE_FN void by_matrix(const ScaledProduct& s, const Output& output) {
    __shared__ typename float8::Tile<EDGE>::Places places;
    const u32 period = s.in_blocks ? SCALED_BLOCK / float8::STEP : ~0u;
    each_tile<EDGE>(s, [&](const ScaledRows& a, const ScaledRows& b, u32 m0, u32 n0, u64 first) {
        float8::multiply_tile<EDGE>(places, a, b, m0, n0, s.k, period, output, first);
    });
}

extern "C" __global__ MAX_BLOCK_OF(FLOAT8_THREADS, 1) void scaled_matrix_128(ScaledProduct s, Output output) { by_matrix<FLOAT8_LARGE>(s, output); }
extern "C" __global__ MAX_BLOCK_OF(FLOAT8_THREADS, 2) void scaled_matrix_64(ScaledProduct s, Output output) { by_matrix<FLOAT8_SMALL>(s, output); }
#endif

// As the other tiles of floats have them in LDS, once they are floats.
using Vector = VectorTile<float, FLOAT8_SMALL>;

// A word of an operand's rows for each thread, and its scale.
struct Word {
    static constexpr u32 ALONG = Vector::DEPTH / 4;
    static_assert(FLOAT8_SMALL * ALONG == FLOAT8_THREADS, "a word for each");
    u32 word;
    float8::Line line;
    float scale;

    DEVICE_FN Word(const ScaledRows& from, u32 row0) : line(from.line(row0 + row())) {}
    static DEVICE_FN u32 row() { return thread_x() / ALONG; }
    static DEVICE_FN u32 column() { return thread_x() % ALONG * 4; }
    DEVICE_FN void load(const ScaledRows& from, u32 row0, u32 k0) {
        const u32 at = k0 + column(), count = from.left(row0 + row(), at);
        const u8* const bits = from.bits + (count > 0 ? (u64)(row0 + row()) * from.k + at : 0);
        word = 0;
        if (count >= 4) {
            word = load_unaligned<u32>(bits);
        } else {
            for (u32 j = 0; j < 3; ++j) {
                if (j < count) word |= (u32)bits[j] << 8 * j;
            }
        }
        scale = line.at ? *(const float*)(line.at + (u64)(k0 / SCALED_BLOCK) * line.stride) : 0.0f;
    }
    DEVICE_FN void store(float* place) const {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) place[(column() + j) * Vector::PITCH + row()] = f8e4m3_to_float((u8)(word >> 8 * j)) * scale;
    }
};

extern "C" __global__ MAX_BLOCK_OF(FLOAT8_THREADS, 2) void scaled_vector(ScaledProduct s, Output output) {
    __shared__ union {
        Vector::Places operands;
        float results[FLOAT8_SMALL * FLOAT8_SMALL];
    } shared;
    Vector::Places& places = shared.operands;
    float* const results = shared.results;
    each_tile<FLOAT8_SMALL>(s, [&](const ScaledRows& a, const ScaledRows& b, u32 m0, u32 n0, u64 first) {
        Vector::Sums sums;
        Word x(a, m0), y(b, n0);
        x.load(a, m0, 0);
        y.load(b, n0, 0);
        for (u32 k0 = 0; k0 < s.k; k0 += Vector::DEPTH) {
            barrier();
            x.store(places.a);
            y.store(places.b);
            barrier();
            if (k0 + Vector::DEPTH < s.k) {
                x.load(a, m0, k0 + Vector::DEPTH);
                y.load(b, n0, k0 + Vector::DEPTH);
            }
            sums.add(places);
        }
        // By way of LDS: one copy of the code that finishes a result.
        barrier();
        sums.each([&](u32 row, u32 column, float sum) { results[row * FLOAT8_SMALL + column] = sum; });
        barrier();
        ROLLED
        for (u32 t = thread_x(); t < FLOAT8_SMALL * FLOAT8_SMALL; t += FLOAT8_THREADS) {
            const u32 r = m0 + t / FLOAT8_SMALL, c = n0 + t % FLOAT8_SMALL;
            if (r < s.m && c < s.n) finish(output, first + (u64)r * s.n + c, c, results[t]);
        }
        barrier();
    });
}
