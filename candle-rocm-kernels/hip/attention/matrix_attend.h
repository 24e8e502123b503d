// Attention by matrix instructions.
//
// Everything is computed transposed, so that a row of queries stays in one column of lanes from the scores to the
// result: Sᵀ = K Qᵀ gives every lane scores of one row (of as many as matrix::COLUMNS), whose maximum and sum take one
// register, and the weights are the second operand of Oᵀ = Vᵀ Pᵀ without leaving their lanes. Scores, sums and results
// are f32; weights are rounded to the values' format, as the instructions want them (Dao et al., FlashAttention 2 and
// 3).
//
// A block has WAVES waves with QUERIES tiles of 16 packed rows each, and walks the keys in tiles of KEYS: all waves
// copy keys and, transposed, values into LDS, after having loaded them into registers during the tile before. On nvptx
// they are copied without registers, into one of two places, and values are transposed on the way out of LDS.
//
// Head sizes up to WIDTH that are multiples of 8 are padded with zeros.
#ifndef CANDLE_ROCM_ATTENTION_MATRIX_ATTEND_H
#define CANDLE_ROCM_ATTENTION_MATRIX_ATTEND_H
#include "common.h"

#include "matrix.h"

#if MATRIX
namespace flash {

// Elements of a 16-byte load.
constexpr u32 VECTOR = 8;
// Waves of a block.
constexpr u32 WAVES = 4;
constexpr u32 THREADS = WAVES * WAVE;
// What windows, biases and the end need to know of a row. It waits in LDS, out of the inner loop's registers.
struct alignas(16) Waiting {
    Row row;
    u64 out;
    u64 lse;
};
static_assert(sizeof(Waiting) == 48, "as ops/attention/matrix.rs says");

}  // namespace flash

// Plan, the sizes for a width of heads; Tile, which brings keys and values into LDS, and load_values, which takes
// values from there; ATTENTION_LDS, what a kernel has there.
#if MATRIX_MMA
#include "tile_ahead.h"
#else
#include "tile_in_registers.h"
#endif

namespace flash {

// Powers of two by which weights may exceed 1 before the maximum is raised: sums and results are scaled seldom, and no
// weight leaves f16.
constexpr float SLACK = 8.0f;

// A value that is the same for the whole wave, from a vector register where waves of 64 have too few scalar ones.
DEVICE_FN u32 kept(u32 v) { return WAVE == 64 ? uniform(opaque(v)) : v; }

struct Max {
    static DEVICE_FN float apply(float a, float b) { return __builtin_fmaxf(a, b); }
};

// The lane's share of a row of queries from `column` on; zeros beyond `width`.
template <typename T> DEVICE_FN typename matrix::FragmentB<T>::Bits load_queries(const T* row, u32 column, u32 width) {
    using Fragment = matrix::FragmentB<T>;
    constexpr u32 STEP = Fragment::ELEMENTS < VECTOR ? Fragment::ELEMENTS : VECTOR;
    struct alignas(STEP * sizeof(T)) Part {
        u32 w[STEP / 2];
    };
    struct {
        Part parts[Fragment::ELEMENTS / STEP];
    } all;
#pragma unroll
    for (u32 i = 0; i < Fragment::ELEMENTS / STEP; ++i) {
        const u32 at = column + Fragment::k(i * STEP);
        const Part part = *(const Part*)(row + (at < width ? at : 0u));
#pragma unroll
        for (u32 n = 0; n < STEP / 2; ++n) all.parts[i].w[n] = at < width ? part.w[n] : 0u;
    }
    return bit_cast<typename Fragment::Bits>(all);
}

// A lane's part of 16 results of its c-th row, from `column` on; `exists` is the same for all lanes that share the row.
template <typename T> DEVICE_FN void store_results(const matrix::Accumulator<float>& sums, u32 c, T* row, u32 column, u32 width, bool exists) {
    constexpr u32 ROWS = matrix::Accumulator<float>::ROWS;
    u32 pairs[ROWS / 2];
#pragma unroll
    for (u32 i = 0; i < ROWS / 2; ++i) {
        const u32 at = c * ROWS + 2 * i;
        pairs[i] = device::store<T>(sums.values[at]).bits | (u32)device::store<T>(sums.values[at + 1]).bits << 16;
    }
    if constexpr (matrix::COLUMNS == 2) {
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; ++i) {
            const u32 at = column + matrix::Accumulator<float>::row(2 * i);
            if (exists && at < width) *(u32*)(row + at) = pairs[i];
        }
    } else if constexpr (matrix::INTERLEAVED) {
        // Even rows are in the lower half of the wave, odd ones in the upper; each stores eight neighbours.
        const bool upper = lane() >= matrix::TILE;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 other = other_half(upper ? pairs[i] : pairs[i + 2]);
            const u32 even = upper ? other : pairs[i];
            const u32 odd = upper ? pairs[i + 2] : other;
            pairs[i] = low_halves(even, odd);
            pairs[i + 2] = high_halves(even, odd);
        }
        const Bytes16 words{{pairs[0], pairs[2], pairs[1], pairs[3]}};
        const u32 at = column + lane() / matrix::TILE * ROWS;
        if (exists && at < width) *(Bytes16*)(row + at) = words;
    } else {
        struct alignas(2 * ROWS) Words {
            u32 w[ROWS / 2];
        } words;
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; ++i) words.w[i] = pairs[i];
        const u32 at = column + lane() / matrix::TILE * ROWS;
        if (exists && at < width) *(Words*)(row + at) = words;
    }
}

// Products to scores in powers of two; gives the greatest, as visible_max does.
template <typename T, u32 COUNT> DEVICE_FN float scores(const Problem& a, const Sequence& seq, const Row& row, const u32 (&keys)[COUNT], float (&x)[COUNT]) {
    const Shape& s = a.shape;
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) x[i] *= s.scale;
    if (s.softcap != 0.0f) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) x[i] = s.softcap * tanh_fast(x[i] / s.softcap);
    }
    if (a.alibi) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            const i32 distance = row.position - (i32)keys[i];
            x[i] = math::fma(row.slope, -(float)(distance < 0 ? -distance : distance), x[i]);
        }
    }
    u32 hidden = 0;
    static_assert(COUNT <= 32, "one bit per score");
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) hidden |= (u32)(keys[i] < row.span.begin || keys[i] >= row.span.end) << i;
    if (a.mask) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            // What is hidden is loaded from somewhere in the row, so that no lane needs a branch.
            const u64 at = row.mask + (keys[i] < seq.keys ? keys[i] : 0) * s.mask_key;
            const float bias = s.mask_format == F32 ? ((const float*)a.mask)[at] : load(((const T*)a.mask)[at]);
            hidden |= (u32)(bias == -math::infinity(0.0f)) << i;
            x[i] += bias;
        }
    }
    float max = -math::infinity(0.0f);
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        const bool visible = !(hidden >> i & 1);
        x[i] = visible ? x[i] * LOG2E : -math::infinity(0.0f);
        max = visible_max(max, visible, x[i]);
    }
    return max;
}

template <typename T, u32 WIDTH> DEVICE_FN void attend(const Problem& a, u32 tiles, u32 heads_first, Waiting* rows_lds, T* q_lds, T* k_lds, T* v_lds) {
    using Sizes = Plan<T, WIDTH>;
    using Sums = matrix::Accumulator<float>;
    constexpr u32 K = matrix::K<T>;
    constexpr u32 QUERIES = Sizes::QUERIES;
    constexpr u32 KEY_TILES = Sizes::KEYS / matrix::TILE;
    constexpr u32 GROUPS = Sizes::KEYS / K;
    // Scores of a row that a lane has.
    constexpr u32 SCORES = KEY_TILES * Sums::ROWS;
    constexpr u32 COLUMNS = matrix::COLUMNS;
    const Shape& s = a.shape;
    const u32 pairs = s.batch * s.kv_heads;
    // Late tiles see the most keys under a causal window: they start first.
    const u32 tile = tiles - 1 - (heads_first ? block_x() / pairs : block_x() % tiles);
    const u32 pair = heads_first ? block_x() % pairs : block_x() / tiles;
    const u32 kv_head = pair % s.kv_heads;
    Sequence seq = sequence(a, pair / s.kv_heads, kv_head);
    const u32 block_row = tile * Sizes::ROWS / s.group;
    if (block_row >= seq.rows) return;
    const u32 block_end = (tile * Sizes::ROWS + Sizes::ROWS - 1) / s.group;
    const Span span = windows(a, seq, block_row, block_end < seq.rows ? block_end : seq.rows - 1);

    // What the wave's rows see together, at most, and at least without a bias.
    const u32 first_in_block = uniform(thread_x() / WAVE) * (QUERIES * matrix::TILE);
    const u32 first = tile * Sizes::ROWS + first_in_block;
    const u32 first_row = first / s.group;
    const u32 end_row = (first + QUERIES * matrix::TILE - 1) / s.group;
    Span some{0, 0};
    Span all{0, 0};
    if (first_row < seq.rows) {
        const u32 last_row = end_row < seq.rows ? end_row : seq.rows - 1;
        some = windows(a, seq, first_row, last_row);
        if (s.softcap == 0.0f && !a.alibi && !a.mask) all = Span{window(s, seq, last_row).begin, window(s, seq, first_row).end};
    }

    static_assert(Sizes::ROWS <= THREADS, "a thread for each row");
    if (thread_x() < Sizes::ROWS) {
        const u32 packed = tile * Sizes::ROWS + thread_x();
        const u32 row = packed / s.group;
        const u32 head = kv_head * s.group + packed % s.group;
        rows_lds[thread_x()] = Waiting{row_of(a, seq, row, head), seq.out + (u64)row * s.o_row + (u64)head * s.o_head, seq.lse + head * s.lse_head + row};
    }
    barrier();
    const Waiting* const waiting = rows_lds + first_in_block + matrix::held(0);
    float max[QUERIES][COLUMNS];
    float sum[QUERIES][COLUMNS];
    Sums out[QUERIES][WIDTH / matrix::TILE];
    using Query = matrix::FragmentB<T>;
    // A fragment of every step lies in LDS once for all lanes that hold the same.
    constexpr u32 OWNERS = matrix::TILE * K / (Query::ELEMENTS * COLUMNS);
    Query* const staged = (Query*)q_lds + first_in_block / matrix::TILE * (WIDTH / K * OWNERS) + lane() % OWNERS;
    Query q[QUERIES][Sizes::STAGED ? 1 : WIDTH / K];
#pragma unroll
    for (u32 n = 0; n < QUERIES; ++n) {
        const T* start[COLUMNS];
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c) {
            const u32 packed = first + n * matrix::TILE + matrix::held(c);
            const u32 row = packed / s.group;
            const u32 head = kv_head * s.group + packed % s.group;
            max[n][c] = -math::infinity(0.0f);
            sum[n][c] = 0.0f;
            // Rows beyond the last repeat it; nobody stores their results.
            const u32 last = seq.rows - 1;
            start[c] = (const T*)a.q + seq.q + (u64)(row < last ? row : last) * s.q_row + (u64)head * s.q_head;
        }
#pragma unroll
        for (u32 d = 0; d < WIDTH / matrix::TILE; ++d) out[n][d] = Sums::zero();
#pragma unroll
        for (u32 k = 0; k < WIDTH / K; ++k) {
            Query x;
#pragma unroll
            for (u32 c = 0; c < COLUMNS; ++c) x.bits[c] = load_queries(start[c], k * K, opaque(s.width));
            if constexpr (Sizes::STAGED) {
                staged[(n * (WIDTH / K) + k) * OWNERS] = matrix::in_register_order(x);
            } else {
                q[n][k] = x;
            }
        }
    }
    if constexpr (WAVE == 64) seq.keys = opaque(seq.keys);
    Tile<T, WIDTH> next;
    u32 key0 = span.begin / Sizes::KEYS * Sizes::KEYS;
    if (key0 < span.end) next.load(a, seq, key0, k_lds, v_lds);
    for (; key0 < span.end; key0 += Sizes::KEYS) {
        const u32 place = next.arrive(s, seq.keys, key0, k_lds, v_lds);
        const T* const k_tile = k_lds + place * Sizes::K_LDS;
        const T* const v_tile = v_lds + place * Sizes::V_LDS;
        if (key0 + Sizes::KEYS < span.end) next.load(a, seq, key0 + Sizes::KEYS, k_lds, v_lds);
        if (key0 + Sizes::KEYS <= kept(some.begin) || key0 >= kept(some.end)) continue;

        Sums products[QUERIES][KEY_TILES];
#pragma unroll
        for (u32 n = 0; n < QUERIES; ++n)
#pragma unroll
            for (u32 t = 0; t < KEY_TILES; ++t) products[n][t] = Sums::zero();
#pragma unroll Sizes::STEPS
        for (u32 k = 0; k < WIDTH / K; ++k) {
            if constexpr (Sizes::STAGED) {
#pragma unroll
                for (u32 n = 0; n < QUERIES; ++n) q[n][0] = matrix::in_register_order(staged[(n * (WIDTH / K) + k) * OWNERS]);
            }
#pragma unroll
            for (u32 t = 0; t < KEY_TILES; ++t) {
                using Fragment = matrix::FragmentA<T>;
                const u32 group = t / matrix::TILES<T> * K;
                const Fragment x = Fragment::load_from([&](u32 index) {
                    const u32 key = group + matrix::operand_row<T>(t % matrix::TILES<T>, index);
                    return k_tile + key * Sizes::K_STRIDE + k * K;
                });
#pragma unroll
                for (u32 n = 0; n < QUERIES; ++n) matrix::multiply(x, q[n][Sizes::STAGED ? 0 : k], products[n][t]);
            }
        }

        const bool whole = kept(all.begin) <= key0 && key0 + Sizes::KEYS <= kept(all.end);
        matrix::FragmentB<T> weights[QUERIES][GROUPS];
#pragma unroll
        for (u32 n = 0; n < QUERIES; ++n) {
            float x[COLUMNS][SCORES];
            float top[COLUMNS];
            bool rises = false;
#pragma unroll
            for (u32 c = 0; c < COLUMNS; ++c) {
#pragma unroll
                for (u32 i = 0; i < SCORES; ++i) x[c][i] = products[n][i / Sums::ROWS].values[c * Sums::ROWS + i % Sums::ROWS];
                top[c] = LOWEST;
                if (whole) {
                    const float scale = s.scale * LOG2E;
#pragma unroll
                    for (u32 i = 0; i < SCORES; ++i) {
                        x[c][i] *= scale;
                        top[c] = __builtin_fmaxf(top[c], x[c][i]);
                    }
                } else {
                    u32 keys[SCORES];
#pragma unroll
                    for (u32 i = 0; i < SCORES; ++i) {
                        const u32 t = i / Sums::ROWS;
                        keys[i] = key0 + t / matrix::TILES<T> * K + matrix::operand_row<T>(t % matrix::TILES<T>, Sums::row(i % Sums::ROWS));
                    }
                    top[c] = scores<T>(a, seq, waiting[n * matrix::TILE + c * matrix::APART].row, keys, x[c]);
                }
                top[c] = matrix::column_reduce<Max>(top[c]);
                rises |= top[c] > max[n][c] + SLACK;
            }
            if (any_lane(rises)) {
#pragma unroll
                for (u32 c = 0; c < COLUMNS; ++c) {
                    const float raised = __builtin_fmaxf(top[c], max[n][c]);
                    const float shrink = max[n][c] == raised ? 1.0f : exp2_fast(max[n][c] - raised);
                    max[n][c] = raised;
                    sum[n][c] *= shrink;
#pragma unroll
                    for (u32 d = 0; d < WIDTH / matrix::TILE; ++d) out[n][d].scale(c, shrink);
                }
            }
            Sums exponentials[KEY_TILES];
#pragma unroll
            for (u32 c = 0; c < COLUMNS; ++c) {
                // Before anything was visible, what is hidden still weighs nothing.
                const float base = max[n][c] == -math::infinity(0.0f) ? 0.0f : max[n][c];
#pragma unroll
                for (u32 i = 0; i < SCORES; ++i) {
                    const float w = exp2_fast(x[c][i] - base);
                    sum[n][c] += w;
                    exponentials[i / Sums::ROWS].values[c * Sums::ROWS + i % Sums::ROWS] = w;
                }
            }
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g) weights[n][g] = matrix::operand<T>(exponentials + g * matrix::TILES<T>);
        }

#pragma unroll
        for (u32 d = 0; d < WIDTH / matrix::TILE; ++d) {
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g) {
                const auto x = load_values<T, WIDTH>(v_tile, d * matrix::TILE, g * K);
#pragma unroll
                for (u32 n = 0; n < QUERIES; ++n) matrix::multiply(x, weights[n][g], out[n][d]);
            }
        }
    }

#pragma unroll
    for (u32 n = 0; n < QUERIES; ++n) {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c) {
            float total = matrix::column_reduce<Sum>(sum[n][c]);
            const Waiting& row = waiting[n * matrix::TILE + c * matrix::APART];
            const float inverse = add_sink(row.row.sink * LOG2E, max[n][c], total, 1.0f) / total;
            const bool exists = row.row.exists;
            T* const result = (T*)a.out + row.out;
#pragma unroll
            for (u32 d = 0; d < WIDTH / matrix::TILE; ++d) {
#pragma unroll
                for (u32 i = c * Sums::ROWS; i < (c + 1) * Sums::ROWS; ++i) out[n][d].values[i] = normalized(out[n][d].values[i], max[n][c], inverse);
                store_results(out[n][d], c, result, d * matrix::TILE, s.v_width, exists);
            }
            if (a.lse && exists && matrix::is_first()) {
                a.lse[row.lse] = log_sum_exp(max[n][c] == -math::infinity(0.0f) ? max[n][c] : max[n][c] * LN2, total);
            }
        }
    }
}

}  // namespace flash

// attention_matrix_<dtype>_<WIDTH>
#define ATTENTION_MATRIX(T, WIDTH)                                                                                                                 \
    extern "C" __global__ MAX_BLOCK_OF(flash::THREADS, (flash::Plan<T, WIDTH>::BLOCKS)) void attention_matrix_##T##_##WIDTH(                       \
        ATTENTION_PARAMETERS, u32 tiles, u32 heads_first) {                                                                                        \
        using Element = T;                                                                                                                         \
        using Sizes = flash::Plan<T, WIDTH>;                                                                                                       \
        ATTENTION_LDS                                                                                                                              \
        flash::attend<T, WIDTH>(ATTENTION_PROBLEM, tiles, heads_first, rows, queries, keys, values);                                               \
    }
#else
#define ATTENTION_MATRIX(T, WIDTH)
#endif

#endif
