// Attention by tiles, for many rows on any GPU, of inference and of training.
//
// A block has TILE packed rows of one sequence and head of keys (no more work than that, so that few arguments stay in
// registers), and walks the keys in tiles of TILE: scores are a product over chunks of CHUNK dimensions of queries and
// keys in LDS, then the same LDS holds the weights and chunks of values. Each thread has 4 rows by 4 keys of the scores
// and 4 rows by 4 columns of each chunk of the result, in f32 registers. LDS is 32 KiB, so two blocks share a compute
// unit.
#ifndef CANDLE_ROCM_ATTENTION_TILES_H
#define CANDLE_ROCM_ATTENTION_TILES_H
#include "packed.h"

constexpr u32 TILE = TILED_ROWS;
constexpr u32 CHUNK = TILED_CHUNK;
constexpr u32 THREADS = TILED_THREADS;
// Threads along keys or columns; as many along rows.
constexpr u32 SIDE = 16;

// A TILE x CHUNK matrix in LDS. Groups of four columns are permuted within each row, so that 16 rows of one column lie
// in different banks.
struct Matrix {
    Float4* data;
    DEVICE_FN Float4& at(u32 row, u32 group) const { return data[row * (CHUNK / 4) + (group ^ (row % SIDE))]; }
    DEVICE_FN float& element(u32 row, u32 column) const { return at(row, column / 4).v[column % 4]; }
};

// Copies CHUNK columns of TILE rows into LDS; a thread has eight columns of two rows, which begin at `starts`. Columns
// and rows that do not exist are copies of the last ones: nothing that is read depends on them.
template <u32 F>
DEVICE_FN void stage_as(const Matrix& matrix, const void* base, const f16* scales, const u64 (&starts)[2], u32 column, u32 width, u32 shift = 0) {
    constexpr u32 RAW = F == F16 || F == BF16 || F == F32 || F == I8 ? F : PACKED;
    const u32 thread = opaque(thread_x());
    const u32 group = thread % 8 * 2;
    const u32 wanted = column + group * 4;
    const u32 first = wanted < width ? wanted : width - 8;
    Raw8<RAW> raw[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) load_raw(raw[i], Format<F>{}, base, scales, starts[i] + first, shift);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 row = thread / 8 + i * (THREADS / 8);
        float x[8];
        widen_raw(raw[i], Format<F>{}, x);
        matrix.at(row, group) = Float4{{x[0], x[1], x[2], x[3]}};
        matrix.at(row, group + 1) = Float4{{x[4], x[5], x[6], x[7]}};
    }
}
DEVICE_FN void stage(const Matrix& matrix, u32 format, const void* base, const f16* scales, const u64 (&starts)[2], u32 column, u32 width) {
    switch (opaque_uniform(format)) {
        case F16: return stage_as<F16>(matrix, base, scales, starts, column, width);
        case BF16: return stage_as<BF16>(matrix, base, scales, starts, column, width);
        case F32: return stage_as<F32>(matrix, base, scales, starts, column, width);
        default: return stage_as<I8>(matrix, base, scales, starts, column, width);
    }
}

// Elements of one side of a product: their format, where they lie, and the factors of packed ones.
struct Side {
    u32 format;
    const void* base;
    const f16* scales;
    u32 shift = 0;
};
// Of a cache that is PACKED or has the formats that `stage` takes.
template <bool IS_PACKED> DEVICE_FN void stage_side(const Matrix& matrix, const Side& side, const u64 (&starts)[2], u32 column, u32 width) {
    if constexpr (IS_PACKED) {
        switch (opaque_uniform(side.format)) {
            case Q4_0: return stage_as<Q4_0>(matrix, side.base, side.scales, starts, column, width);
            case Q4_1: return stage_as<Q4_1>(matrix, side.base, side.scales, starts, column, width);
            case Q5_0: return stage_as<Q5_0>(matrix, side.base, side.scales, starts, column, width);
            case Q5_1: return stage_as<Q5_1>(matrix, side.base, side.scales, starts, column, width);
            case IQ4_NL: return stage_as<IQ4_NL>(matrix, side.base, side.scales, starts, column, width);
            case F8: return stage_as<F8>(matrix, side.base, side.scales, starts, column, width, opaque_uniform(side.shift));
            default: break;
        }
    }
    stage(matrix, side.format, side.base, side.scales, starts, column, width);
}

// Adds the products of TILE rows of both sides, of `width` elements: those of rows ty * 4 + i of the left one and tx + j
// * SIDE of the right one, for thread ty * SIDE + tx. Begins and ends as barriers do.
template <bool IS_PACKED = false>
DEVICE_FN void products(const Matrix& left, const Matrix& right, const Side& x_side, const u64 (&x_starts)[2], const Side& y_side,
                        const u64 (&y_starts)[2], u32 width, float (&p)[4][4]) {
    const u32 thread = opaque(thread_x());
    const u32 tx = thread % SIDE;
    const u32 ty = thread / SIDE;
    for (u32 column = 0; column < width; column += CHUNK) {
        stage(left, x_side.format, x_side.base, x_side.scales, x_starts, column, width);
        stage_side<IS_PACKED>(right, y_side, y_starts, column, width);
        barrier();
        const u32 rest = width - column;
        const u32 groups = (rest < CHUNK ? rest : CHUNK) / 4;
#pragma unroll 1
        for (u32 g = 0; g < groups; ++g) {
            Float4 x[4];
            Float4 y[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                x[i] = left.at(ty * 4 + i, g);
                y[i] = right.at(tx + i * SIDE, g);
            }
#pragma unroll
            for (u32 n = 0; n < 4; ++n)
#pragma unroll
                for (u32 i = 0; i < 4; ++i)
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) p[i][j] = math::fma(x[i].v[n], y[j].v[n], p[i][j]);
        }
        barrier();
    }
}

struct Max {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a < b ? b : a; }
};
// Reduces over the four neighbouring lanes that share a row of the softmax.
template <typename Op> DEVICE_FN float row_reduce(float v) {
    v = Op::apply(v, shfl_xor(v, 1));
    return Op::apply(v, shfl_xor(v, 2));
}

// Inference: all weights meet the values as they are, which may be in a packed cache.
struct AllWeights {
    static constexpr bool IS_PACKED = true;
    DEVICE_FN void apply(Float4&, u32, u32, u32) const {}
};

// `weights.apply(x, line, row, key)` may change the weights of four neighbouring keys, from `key` on, after their sum was
// taken; `line` is the number of the sequence and head.
template <u32 CHUNKS, typename Weights>
DEVICE_FN void attend(const Problem& problem, u32 tiles, u32 heads_first, Float4* left_lds, Float4* right_lds, const Weights& weights) {
    Problem a = problem;
    if constexpr (Weights::IS_PACKED) {
        // There are too few scalar registers for all of these.
        a.k_scales = opaque(a.k_scales);
        a.v_scales = opaque(a.v_scales);
        a.lse = opaque(a.lse);
        a.sinks = opaque(a.sinks);
    }
    const Shape& s = problem.shape;
    const Matrix left{left_lds};
    const Matrix right{right_lds};
    const u32 pairs = s.batch * s.kv_heads;
    // Late tiles see the most keys under a causal window: they start first.
    const u32 tile = tiles - 1 - (heads_first ? block_x() / pairs : block_x() % tiles);
    const u32 pair = heads_first ? block_x() % pairs : block_x() / tiles;
    const u32 kv_head = pair % s.kv_heads;
    const Sequence seq = sequence(a, pair / s.kv_heads, kv_head);
    const u32 first_row = tile * TILE / s.group;
    if (first_row >= seq.rows) return;
    const u32 end_row = (tile * TILE + TILE - 1) / s.group;
    const Span span = windows(a, seq, first_row, end_row < seq.rows ? end_row : seq.rows - 1);

    u64 q_starts[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 packed = tile * TILE + thread_x() / 8 + i * (THREADS / 8);
        const u32 row = packed / s.group;
        const u32 head = kv_head * s.group + packed % s.group;
        q_starts[i] = seq.q + (u64)(row < seq.rows ? row : seq.rows - 1) * s.q_row + (u64)head * s.q_head;
    }
    // In the softmax a thread has a quarter of one of its own 4 rows of scores: max is the row's, sum the quarter's.
    const u32 own = thread_x() / 4;
    const u32 quarter = thread_x() % 4;
    const u32 own_packed = tile * TILE + own;
    const u32 own_head = kv_head * s.group + own_packed % s.group;
    const Row own_row = row_of(a, seq, own_packed / s.group, own_head);
    const u64 lse_at = opaque(seq.lse + own_head * s.lse_head + own_packed / s.group);
    float max = -math::infinity(0.0f);
    float sum = 0.0f;
    float out[4][CHUNKS][4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (u32 n = 0; n < 4; ++n) out[i][c][n] = 0.0f;
    }

    for (u32 key0 = span.begin / TILE * TILE; key0 < span.end; key0 += TILE) {
        const u32 thread = opaque(thread_x());
        const u32 tx = thread % SIDE;
        const u32 ty = thread / SIDE;
        u64 k_starts[2];
        u64 v_starts[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 key = key0 + thread_x() / 8 + i * (THREADS / 8);
            const Entry e = entry(a, seq, key < seq.keys ? key : seq.keys - 1);
            k_starts[i] = e.k;
            v_starts[i] = e.v;
        }
        float p[4][4] = {};
        products<Weights::IS_PACKED>(left, right, Side{s.q_format, a.q, nullptr}, q_starts, Side{s.k_format, a.k, a.k_scales, s.k_shift}, k_starts,
                                     s.width, p);

#pragma unroll
        for (u32 i = 0; i < 4; ++i)
#pragma unroll
            for (u32 j = 0; j < 4; ++j) left.element(ty * 4 + i, tx + j * SIDE) = p[i][j];
        barrier();
        float next = max;
#pragma unroll 1
        for (u32 g = quarter * 4; g < quarter * 4 + 4; ++g) {
            Float4 x = left.at(own, g);
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                const bool visible = score(a, seq, own_row, key0 + g * 4 + n, x.v[n]);
                next = visible_max(next, visible, x.v[n]);
            }
            left.at(own, g) = x;
        }
        next = row_reduce<Max>(next);
        const float shrink = weight(max, next);
        max = next;
        sum *= shrink;
#pragma unroll 1
        for (u32 g = quarter * 4; g < quarter * 4 + 4; ++g) {
            Float4 x = left.at(own, g);
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                x.v[n] = weight(x.v[n], max);
                sum += x.v[n];
            }
            weights.apply(x, seq.index * s.heads + own_head, own_packed / s.group, key0 + g * 4);
            left.at(own, g) = x;
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float factor = shfl(shrink, lane() / SIDE * SIDE + i * 4);
#pragma unroll
            for (u32 c = 0; c < CHUNKS; ++c)
#pragma unroll
                for (u32 n = 0; n < 4; ++n) out[i][c][n] *= factor;
        }

#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
            if (c * CHUNK >= opaque_uniform(s.v_width)) break;
            stage_side<Weights::IS_PACKED>(right, Side{s.v_format, a.v, a.v_scales, s.v_shift}, v_starts, c * CHUNK, s.v_width);
            barrier();
#pragma unroll 1
            for (u32 g = 0; g < TILE / 4; ++g) {
                Float4 x[4];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) x[i] = left.at(ty * 4 + i, g);
#pragma unroll
                for (u32 u = 0; u < 4; ++u) {
                    const Float4 y = right.at(g * 4 + u, tx);
#pragma unroll
                    for (u32 i = 0; i < 4; ++i)
#pragma unroll
                        for (u32 n = 0; n < 4; ++n) out[i][c][n] = math::fma(x[i].v[u], y.v[n], out[i][c][n]);
                }
            }
            barrier();
        }
    }

    const u32 tx = thread_x() % SIDE;
    const u32 ty = thread_x() / SIDE;
    sum = row_reduce<Sum>(sum);
    const float to_sink = add_sink(own_row.sink, max, sum, LOG2E);
    if (a.lse && quarter == 0 && own_row.exists) a.lse[lse_at] = log_sum_exp(max, sum);
    const float inverse = to_sink / sum;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 owner = lane() / SIDE * SIDE + i * 4;
        const float row_max = shfl(max, owner);
        const float row_inverse = shfl(inverse, owner);
        const u32 packed = tile * TILE + ty * 4 + i;
        const u32 row = packed / s.group;
        const u32 head = kv_head * s.group + packed % s.group;
        if (row >= seq.rows) continue;
        const u64 start = seq.out + (u64)row * s.o_row + (u64)head * s.o_head;
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
            const u32 column = c * CHUNK + tx * 4;
            if (column >= s.v_width) break;
#pragma unroll
            for (u32 n = 0; n < 4; ++n) out[i][c][n] = normalized(out[i][c][n], row_max, row_inverse);
            store4(opaque_uniform(s.q_format), a.out, start + column, out[i][c]);
        }
    }
}

#endif
