// MXFP4 matrices times vectors of 8-bit floats with MX scales: powers of two for each 32 elements, which gfx950's
// instructions apply themselves. Products and scalings are exact; sums are the instructions'.
//
// A block of MXFP4 has element i in the lower nibble of byte i and element i + 16 in the upper one, where instructions
// look for neighbours. Of vectors, the elements of a block are stored in this order, too (activations_float8.hip).
#include "matmul/tiles.h"
#include "formats.h"
#include "quantized/output.h"
#include "shared/float8.h"

#if defined(__gfx950__) && MATRIX
typedef int Registers __attribute__((vector_size(32)));

// Elements of an instruction, in blocks with a scale each; bytes of them in a row of either operand.
constexpr u32 K = 128, BLOCK = 32, BLOCKS = K / BLOCK, BYTES_A = K, BYTES_B = K / 2;
// The formats of operands, as instructions number them.
constexpr int E4M3 = 0, E2M1 = 4;

template <u32 EDGE> struct MxTile : Tiling<EDGE> {
    using typename Tiling<EDGE>::Lane;
    // Rows of LDS are 16 bytes longer than their elements, so that neighbouring ones begin in different banks.
    static constexpr u32 PITCH_A = BYTES_A + 16, PITCH_B = BYTES_B + 16;
    struct alignas(16) Operands {
        u8 a[EDGE * PITCH_A], b[EDGE * PITCH_B];
        u32 scale_a[EDGE];
        u8 scale_b[EDGE * BLOCKS];
    };
    union Places {
        Operands operands;
        typename Tiling<EDGE>::Results results;
    };

    // A thread's packs of vectors, of the matrix with their scales, and the scales of one vector.
    struct Carried {
        static constexpr u32 PACKS_A = EDGE * BYTES_A / 16 / FLOAT8_THREADS, PACKS_B = EDGE * BLOCKS / FLOAT8_THREADS;
        static constexpr u32 ROWS_A = FLOAT8_THREADS / (BYTES_A / 16), ROWS_B = FLOAT8_THREADS / BLOCKS;
        u32x4 a[PACKS_A], b[PACKS_B];
        u8 scale_b[PACKS_B];
        u32 scale_a;

        static DEVICE_FN u32 row_a(u32 i) { return thread_x() / (BYTES_A / 16) + i * ROWS_A; }
        static DEVICE_FN u32 column_a() { return thread_x() % (BYTES_A / 16) * 16; }
        static DEVICE_FN u32 row_b(u32 i) { return thread_x() / BLOCKS + i * ROWS_B; }
        static DEVICE_FN u32 block_b() { return thread_x() % BLOCKS; }

        DEVICE_FN void load(const FloatBlocks& w, const MxActivations& x, u32 m0, u32 n0, u32 k0) {
#pragma unroll
            for (u32 i = 0; i < PACKS_A; ++i) {
                const u32 row = m0 + row_a(i);
                a[i] = row < x.columns ? *(const u32x4*)(x.bits + (u64)row * x.stride + k0 + column_a()) : u32x4{};
            }
#pragma unroll
            for (u32 i = 0; i < PACKS_B; ++i) {
                const u32 row = n0 + row_b(i), block = k0 / BLOCK + block_b();
                const bool exists = row < w.rows && block < w.blocks;
                const u8* const from = w.weights + (exists ? row * w.row_bytes + (u64)block * formats::mxfp4::BYTES : 0);
                scale_b[i] = exists ? from[0] : (u8)0;
                b[i] = exists ? load_unaligned<u32x4>(from + 1) : u32x4{};
            }
            const u32 t = thread_x();
            const bool exists = t < EDGE && m0 + t < x.columns;
            scale_a = exists ? *(const u32*)(x.scales + ((u64)(m0 + t) * x.stride + k0) / BLOCK) : 0u;
        }
        DEVICE_FN void store(Operands& to) const {
#pragma unroll
            for (u32 i = 0; i < PACKS_A; ++i) *(u32x4*)(to.a + row_a(i) * PITCH_A + column_a()) = a[i];
#pragma unroll
            for (u32 i = 0; i < PACKS_B; ++i) {
                *(u32x4*)(to.b + row_b(i) * PITCH_B + block_b() * 16) = b[i];
                to.scale_b[row_b(i) * BLOCKS + block_b()] = scale_b[i];
            }
            if (thread_x() < EDGE) to.scale_a[thread_x()] = scale_a;
        }
    };
};

// What a lane holds of a row: 8-bit floats in two runs of 16 places of K that are 64 apart, 4-bit ones in one of 32.
DEVICE_FN Registers halves_of(u32x4 low, u32x4 high) {
    return Registers{(i32)low[0], (i32)low[1], (i32)low[2], (i32)low[3], (i32)high[0], (i32)high[1], (i32)high[2], (i32)high[3]};
}

template <u32 EDGE> DEVICE_FN void multiply_mx(const FloatBlocks& w, const MxActivations& x, const Output& output) {
    using Tile = MxTile<EDGE>;
    using Lane = typename Tile::Lane;
    __shared__ typename Tile::Places places;
    const u32 down = (x.columns + EDGE - 1) / EDGE, across = (w.rows + EDGE - 1) / EDGE;
    const u64 tiles = (u64)down * across;
    for (u64 index = block_x(); index < tiles; index += grid_dim()) {
        const u32 column_tile = (u32)(index / down);
        const u32 m0 = (u32)(index - (u64)column_tile * down) * EDGE, n0 = column_tile * EDGE;
        Lane sums[Tile::DOWN][Tile::ACROSS];
        Tile::clear(sums);
        typename Tile::Carried carried;
        carried.load(w, x, m0, n0, 0);
        for (u32 k0 = 0; k0 < x.stride; k0 += K) {
            barrier();
            carried.store(places.operands);
            barrier();
            if (k0 + K < x.stride) carried.load(w, x, m0, n0, k0 + K);
            const typename Tile::Operands& from = places.operands;
            const u32 own = lane() % matrix::TILE, part = lane() / matrix::TILE;
            Registers b[Tile::ACROSS];
            int scale_b[Tile::ACROSS];
#pragma unroll
            for (u32 c = 0; c < Tile::ACROSS; ++c) {
                const u32 row = Tile::column(c) + own;
                b[c] = halves_of(*(const u32x4*)(from.b + row * Tile::PITCH_B + part * 16), u32x4{});
                scale_b[c] = from.scale_b[row * BLOCKS + part];
            }
#pragma unroll
            for (u32 d = 0; d < Tile::DOWN; ++d) {
                const u32 row = Tile::row(d) + own;
                const u8* const at = from.a + row * Tile::PITCH_A + part * 16;
                const Registers a = halves_of(*(const u32x4*)at, *(const u32x4*)(at + 64));
                const int scale_a = (int)(from.scale_a[row] >> (8 * part));
#pragma unroll
                for (u32 c = 0; c < Tile::ACROSS; ++c) {
                    sums[d][c].values =
                        __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a, b[c], sums[d][c].values, E4M3, E2M1, 0, scale_a, 0, scale_b[c]);
                }
            }
        }
        Tile::each(sums, places.results, [&](u32 row, u32 column, float sum) {
            const u32 r = m0 + row, c = n0 + column;
            if (r < x.columns && c < w.rows) finish(output, (u64)r * w.rows + c, c, sum);
        });
    }
}

extern "C" __global__ MAX_BLOCK_OF(FLOAT8_THREADS, 1) void matmul_mx_128(FloatBlocks w, MxActivations x, Output output) { multiply_mx<FLOAT8_LARGE>(w, x, output); }
extern "C" __global__ MAX_BLOCK_OF(FLOAT8_THREADS, 2) void matmul_mx_64(FloatBlocks w, MxActivations x, Output output) { multiply_mx<FLOAT8_SMALL>(w, x, output); }
#endif
