// Matrices of 8-bit floats in blocks of 64 times vectors of 8-bit floats, in tiles by matrix instructions on these:
// where the GPU has them.
//
// Neither has the bits of NaN or -0, so that they go to the instructions as they lie, whichever bias these have.
#include "matmul/float8.h"
#include "formats.h"

#if MATRIX_FLOAT8
// The rows of a matrix: blocks of a binary32 scale and as many floats as a step has.
struct BlockRows {
    static constexpr bool IS_MENDED = true;
    static constexpr u32 SCALED = float8::STEP;
    using Format = formats::f8_e4m3;
    static_assert(Format::ELEMENTS == float8::STEP && Format::BYTES == float8::STEP + 4, "a scale for each step");
    const u8* weights;
    u64 row_bytes;
    u32 rows, k;

    DEVICE_FN const u8* block(u32 row, u32 at) const { return weights + row * row_bytes + (u64)(at / Format::ELEMENTS) * Format::BYTES; }
    DEVICE_FN u32x4 floats(u32 row, u32 at) const {
        if (row >= rows || at >= k) return u32x4{};
        return load_unaligned<u32x4>(block(row, at) + 4 + at % Format::ELEMENTS);
    }
    DEVICE_FN float8::Line line(u32 row) const { return {row < rows && k > 0 ? block(row, 0) : nullptr, Format::BYTES}; }
};

// Vectors, of whole steps.
struct VectorRows {
    static constexpr bool IS_MENDED = true;
    static constexpr u32 SCALED = float8::STEP;
    const u8* bits;
    const float* scales;
    u32 rows, k;

    DEVICE_FN u32x4 floats(u32 row, u32 at) const {
        if (row >= rows || at >= k) return u32x4{};
        return *(const u32x4*)(bits + (u64)row * k + at);
    }
    DEVICE_FN float8::Line line(u32 row) const {
        return {row < rows && k > 0 ? (const u8*)(scales + (u64)row * (k / SCALED)) : nullptr, (u32)sizeof(float)};
    }
};

// Tiles with the same rows of the matrix follow each other.
template <u32 EDGE> DEVICE_FN void multiply_blocks(const FloatBlocks& w, const FloatActivations& x, const Output& output) {
    __shared__ typename float8::Tile<EDGE>::Places places;
    const VectorRows a{x.bits, x.scales, x.columns, x.k};
    const BlockRows b{w.weights, w.row_bytes, w.rows, x.k};
    const u32 down = (x.columns + EDGE - 1) / EDGE, across = (w.rows + EDGE - 1) / EDGE;
    const u64 tiles = (u64)down * across;
    for (u64 index = block_x(); index < tiles; index += grid_dim()) {
        const u32 column = (u32)(index / down), row = (u32)(index - (u64)column * down);
        float8::multiply_tile<EDGE>(places, a, b, row * EDGE, column * EDGE, x.k, 1, output, 0);
    }
}

extern "C" __global__ MAX_BLOCK_OF(FLOAT8_THREADS, 1) void matmul_float8_128(FloatBlocks w, FloatActivations x, Output output) {
    multiply_blocks<FLOAT8_LARGE>(w, x, output);
}
extern "C" __global__ MAX_BLOCK_OF(FLOAT8_THREADS, 2) void matmul_float8_64(FloatBlocks w, FloatActivations x, Output output) {
    multiply_blocks<FLOAT8_SMALL>(w, x, output);
}
#endif
