// Tiles of 8-bit floats (e4m3), multiplied by matrix instructions: on the floats themselves where the GPU has such
// instructions (MATRIX_FLOAT8), else as binary16, which holds each of them exactly.
//
// Sums of FLOAT8_STEP elements of K, or of a multiple of it, are made by the instructions; then they are multiplied with
// the scales of their row and column and added in f32. What the operands are, a tile does not know: it asks for 16 bytes
// of a row, and where the scales of a row lie.
#ifndef CANDLE_ROCM_MATMUL_FLOAT8_H
#define CANDLE_ROCM_MATMUL_FLOAT8_H

#include "matrix.h"
#include "quantized/halves.h"
#include "quantized/output.h"
#include "shared/float8.h"
#include "tiles.h"

namespace device {
namespace float8 {

constexpr u32 STEP = FLOAT8_STEP, THREADS = FLOAT8_THREADS;
// Floats that a thread loads at once.
constexpr u32 FLOATS = 16, PACKS_OF_ROW = STEP / FLOATS;

// The first `count` of 16 floats, and zeros. Few are less than all: one copy of the code reads byte by byte.
DEVICE_FN u32x4 first_of(const u8* at, u32 count) {
    if (count >= FLOATS) return load_unaligned<u32x4>(at);
    u64 low = 0, high = 0;
    ROLLED
    for (u32 j = count; j-- > 0;) {
        high = high << 8 | low >> 56;
        low = low << 8 | at[j];
    }
    return u32x4{(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
}

// The scales of a row: one for each A::SCALED elements of K, so many bytes apart; none of a row that does not exist.
struct Line {
    const u8* at;
    u32 stride;
};

// A 1 at bit 7 of each byte, or of each half, that is a NaN; `magnitudes` are without signs.
template <u32 ONES> DEVICE_FN u32 not_numbers(u32 magnitudes) { return (magnitudes + ONES) & ONES << 7; }

// The bits that instructions take: with another bias (see matrix.h), -0 becomes 0, and NaN what is one there.
DEVICE_FN u32 as_instructions_take(u32 word) {
#if MATRIX_FLOAT8
    if constexpr (matrix::FLOAT8_UNIT != 1.0f) {
        const u32 magnitudes = word & 0x7f7f7f7fu;
        const u32 positive = (magnitudes + 0x7f7f7f7fu) & 0x80808080u;
        const u32 none = not_numbers<0x01010101u>(magnitudes);
        return (((word & positive) | magnitudes) & ~(none | (none - (none >> 7)))) | none;
    }
#endif
    return word;
}

// Floats 0 and 2 of a word as binary16, of 1 and 3 if it is shifted by 8 before. Those bits shifted into place are the
// 2^8th part, subnormal numbers included, which some matrix instructions take for zeros: multiplied, they are normal.
DEVICE_FN u32 as_halves(u32 word) {
    const u32 magnitudes = word & 0x007f007fu;
    const u32 none = not_numbers<0x00010001u>(magnitudes);
    const u32 halves = multiply_add_halves((word & 0x00800080u) << 8 | magnitudes << 7, 0x5c005c00u, 0);
    // All bits of an exponent, and some below.
    return halves | ((none << 8) - (none << 2));
}

#if MATRIX
#if MATRIX_FLOAT8
using Stored = f8e4m3;
constexpr float UNIT = matrix::FLOAT8_UNIT;
DEVICE_FN void store_floats(Stored* to, u32x4 floats, bool as_they_are) {
    if (!as_they_are) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) floats[i] = as_instructions_take(floats[i]);
    }
    *(u32x4*)to = floats;
}
#else
using Stored = f16;
constexpr float UNIT = 1.0f;
// In another order, which is the same in both operands.
DEVICE_FN void store_floats(Stored* to, u32x4 floats, bool) {
    u32x4 halves[2];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        halves[i / 2][i % 2 * 2] = as_halves(floats[i]);
        halves[i / 2][i % 2 * 2 + 1] = as_halves(floats[i] >> 8);
    }
    ((u32x4*)to)[0] = halves[0];
    ((u32x4*)to)[1] = halves[1];
}
#endif

// A row of LDS is 16 bytes longer than its floats, so that neighbouring ones begin in different banks.
template <u32 EDGE> struct Tile : Tiling<EDGE> {
    static constexpr u32 PITCH = STEP + 16 / sizeof(Stored);
    struct alignas(16) Operands {
        Stored a[EDGE * PITCH], b[EDGE * PITCH];
        float scale_a[EDGE], scale_b[EDGE];
    };
    union Places {
        Operands operands;
        typename Tiling<EDGE>::Results results;
    };

    // A thread's packs of both operands, and one scale, on their way into LDS.
    template <typename A, typename B> struct Carried {
        static constexpr u32 APART = THREADS / PACKS_OF_ROW, PACKS = EDGE / APART;
        static_assert(PACKS * APART == EDGE && 2 * EDGE <= THREADS, "whole packs, and a scale for a thread at most");
        static_assert(A::SCALED == B::SCALED, "scales of the same steps");
        u32x4 a[PACKS], b[PACKS];
        // A thread has those of one row.
        Line line;
        float scale;

        static DEVICE_FN u32 row(u32 i) { return thread_x() / PACKS_OF_ROW + i * APART; }
        static DEVICE_FN u32 column() { return thread_x() % PACKS_OF_ROW * FLOATS; }

        DEVICE_FN Carried(const A& from_a, const B& from_b, u32 m0, u32 n0) : line{nullptr, 0} {
            const u32 t = thread_x();
            if (t < EDGE) {
                line = from_a.line(m0 + t);
            } else if (t < 2 * EDGE) {
                line = from_b.line(n0 + t - EDGE);
            }
        }
        DEVICE_FN void load(const A& from_a, const B& from_b, u32 m0, u32 n0, u32 k0) {
#pragma unroll
            for (u32 i = 0; i < PACKS; ++i) {
                a[i] = from_a.floats(m0 + row(i), k0 + column());
                b[i] = from_b.floats(n0 + row(i), k0 + column());
            }
            scale = line.at ? load_unaligned<float>(line.at + (u64)(k0 / A::SCALED) * line.stride) * UNIT : 0.0f;
        }
        DEVICE_FN void store(Operands& to) const {
#pragma unroll
            for (u32 i = 0; i < PACKS; ++i) {
                store_floats(to.a + row(i) * PITCH + column(), a[i], A::IS_MENDED);
                store_floats(to.b + row(i) * PITCH + column(), b[i], B::IS_MENDED);
            }
            const u32 t = thread_x();
            if (t < EDGE) {
                to.scale_a[t] = scale;
            } else if (t < 2 * EDGE) {
                to.scale_b[t - EDGE] = scale;
            }
        }
    };

    struct Products {
        using Fragment = matrix::Fragment<Stored>;
        using Of = Tiling<EDGE>;
        typename Of::Sums sums, scaled;

        DEVICE_FN Products() {
            Of::clear(sums);
            Of::clear(scaled);
        }
        DEVICE_FN void add(const Operands& operands) {
#pragma unroll
            for (u32 k = 0; k < STEP; k += matrix::K<Stored>) {
                Fragment y[Of::ACROSS];
#pragma unroll
                for (u32 c = 0; c < Of::ACROSS; ++c) y[c] = Fragment::load(operands.b + Of::column(c) * PITCH + k, PITCH);
#pragma unroll
                for (u32 d = 0; d < Of::DOWN; ++d) {
                    const Fragment x = Fragment::load(operands.a + Of::row(d) * PITCH + k, PITCH);
#pragma unroll
                    for (u32 c = 0; c < Of::ACROSS; ++c) matrix::multiply<Stored>(x, y[c], sums[d][c]);
                }
            }
        }
        // Ends sums, whose scales these are.
        DEVICE_FN void scale(const Operands& operands) {
            using Lane = typename Of::Lane;
#pragma unroll
            for (u32 d = 0; d < Of::DOWN; ++d)
#pragma unroll
                for (u32 c = 0; c < Of::ACROSS; ++c) {
#pragma unroll
                    for (u32 i = 0; i < Lane::VALUES; ++i) {
                        const float by_column = sums[d][c].values[i] * operands.scale_b[Of::column(c) + Lane::column(i)];
                        scaled[d][c].values[i] = math::fma(by_column, operands.scale_a[Of::row(d) + Lane::row(i)], scaled[d][c].values[i]);
                    }
                    sums[d][c] = Lane::zero();
                }
        }
    };
};

// y[at + row * n + column] of the tile that begins at m0 and n0. `period` steps have the same scales, or all of them.
template <u32 EDGE, typename A, typename B>
DEVICE_FN void multiply_tile(typename Tile<EDGE>::Places& places, const A& a, const B& b, u32 m0, u32 n0, u32 k, u32 period, const Output& output, u64 at) {
    typename Tile<EDGE>::Products products;
    typename Tile<EDGE>::template Carried<A, B> carried(a, b, m0, n0);
    carried.load(a, b, m0, n0, 0);
    u32 together = 0;
    for (u32 k0 = 0; k0 < k; k0 += STEP) {
        barrier();
        carried.store(places.operands);
        barrier();
        // On their way while these are multiplied.
        const bool is_last = k0 + STEP >= k;
        if (!is_last) carried.load(a, b, m0, n0, k0 + STEP);
        products.add(places.operands);
        ++together;
        if (together == period || is_last) {
            products.scale(places.operands);
            together = 0;
        }
    }
    Tiling<EDGE>::each(products.scaled, places.results, [&](u32 row, u32 column, float sum) {
        const u32 r = m0 + row, c = n0 + column;
        if (r < a.rows && c < b.rows) finish(output, at + (u64)r * b.rows + c, c, sum);
    });
}
#endif

}  // namespace float8
}  // namespace device

#endif
