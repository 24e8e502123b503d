// Training: attention by tiles with dropout, and the gradients of attention with respect to queries, keys and values.
//
// The gradients are those of FlashAttention-2 (Dao: "FlashAttention-2: Faster attention with better parallelism and work
// partitioning", 2023): scores are computed again, the weights from them and each row's log-sum-exp, P = exp(S - LSE).
// With dO the gradient of the result O, D = sum(dO O) of each row and M the factors of dropout,
//
//     dV = (P M)ᵀ dO      dS = P (dO Vᵀ M - D) scale, times 1 - tanh² under a cap      dQ = dS K      dK = dSᵀ Q
//
// A block has a tile of rows and walks the keys for dQ, or has a tile of keys and walks the rows for dK and dV, those of
// all heads that share the keys: nothing is added to memory, and results are the same each time. Of wider heads, blocks
// have slices of the columns, and compute the scores for each of them.
#include "philox.h"
#include "shared/backward.h"
#include "tiles.h"

// ---------------------------------------------------------------- dropout

// Keeps a weight unless its word of the generator is below the threshold. The counter of a word: row and key / 4, and
// the number of the sequence and head; forward and backward pass find the same words.
struct Kept {
    static constexpr bool IS_PACKED = false;
    u64 seed;
    u32 threshold;
    float scale;
    // The factors of four neighbouring keys, from a multiple of 4 on.
    DEVICE_FN Float4 factors(u32 line, u32 row, u32 key) const {
        const Words words = philox(opaque(seed), (u64)row << 32 | key / 4, line);
        Float4 factors;
#pragma unroll
        for (u32 n = 0; n < 4; ++n) factors.v[n] = words.w[n] >= threshold ? scale : 0.0f;
        return factors;
    }
    DEVICE_FN void apply(Float4& x, u32 line, u32 row, u32 key) const {
        const Float4 kept = factors(line, row, key);
#pragma unroll
        for (u32 n = 0; n < 4; ++n) x.v[n] *= kept.v[n];
    }
};

// ---------------------------------------------------------------- gradients

// What gradients are computed from besides the problem: the gradient of the result, which lies as the result does, the
// log-sum-exp and the sums D of rows, which lie alike, and dropout, without which the threshold is 0. All of it is
// `opaque`: the problem takes the registers that waves have for what is the same in all lanes.
struct Given {
    const void* grad;
    const float* lse;
    const float* dots;
    Kept kept;
};

// The problem with what few problems have `opaque` as well.
DEVICE_FN Problem with_rare_in_lanes(Problem a) {
    a.alibi = opaque(a.alibi);
    a.mask = opaque(a.mask);
    a.prefix = opaque(a.prefix);
    a.shape.mask_batch = opaque(a.shape.mask_batch);
    a.shape.mask_head = opaque(a.shape.mask_head);
    a.shape.mask_row = opaque(a.shape.mask_row);
    a.shape.lse_head = opaque(a.shape.lse_head);
    a.shape.left = opaque(a.shape.left);
    a.shape.right = opaque(a.shape.right);
    a.shape.chunk = opaque(a.shape.chunk);
    a.shape.o_row = opaque(a.shape.o_row);
    a.shape.o_head = opaque(a.shape.o_head);
    return a;
}

DEVICE_FN Sequence sequence_in_lanes(const Problem& a, u32 index, u32 kv_head) {
    Sequence seq = sequence(a, index, kv_head);
    seq.q = opaque(seq.q);
    seq.k = opaque(seq.k);
    seq.v = opaque(seq.v);
    seq.out = opaque(seq.out);
    seq.lse = opaque(seq.lse);
    return seq;
}

// Rows that may see keys from `first` to `last`.
DEVICE_FN Span rows_that_see(const Problem& a, const Sequence& seq, u32 first, u32 last) {
    const Shape& s = a.shape;
    if (s.ranges != 0) return Span{0, seq.rows};
    const i64 shift = (i64)seq.rows - seq.keys;
    i64 begin = s.right == UNLIMITED ? 0 : (i64)first - s.right + shift;
    i64 end = s.left == UNLIMITED ? seq.rows : (i64)last + s.left + shift + 1;
    begin = begin < 0 ? 0 : begin;
    end = end < 0 ? 0 : end > seq.rows ? seq.rows : end;
    return Span{(u32)begin, (u32)end};
}

DEVICE_FN Span uniform(const Span& span) { return Span{uniform(span.begin), uniform(span.end)}; }

// Where packed rows begin in the queries and in the result: of those that a thread stages.
DEVICE_FN void starts_of_rows(const Problem& a, const Sequence& seq, u32 kv_head, u32 first, u64 (&q)[2], u64 (&out)[2]) {
    const Shape& s = a.shape;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 packed = first + thread_x() / 8 + i * (THREADS / 8);
        const u32 wanted = packed / s.group;
        const u32 row = wanted < seq.rows ? wanted : seq.rows - 1;
        const u32 head = kv_head * s.group + packed % s.group;
        q[i] = seq.q + (u64)row * s.q_row + (u64)head * s.q_head;
        out[i] = seq.out + (u64)row * s.o_row + (u64)head * s.o_head;
    }
}
DEVICE_FN void starts_of_keys(const Problem& a, const Sequence& seq, u32 first, u64 (&k)[2], u64 (&v)[2]) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 key = first + thread_x() / 8 + i * (THREADS / 8);
        const u32 existing = key < seq.keys ? key : seq.keys - 1;
        k[i] = seq.k + (u64)existing * a.shape.k_row;
        v[i] = seq.v + (u64)existing * a.shape.v_row;
    }
}

// For a tile of packed rows and one of keys: in `left` the weights that meet the values, P M, in `right` dS.
DEVICE_FN void weights_and_slopes(const Problem& a, const Given& given, const Sequence& seq, u32 kv_head, u32 packed0, u32 key0,
                                  const u64 (&q_starts)[2], const u64 (&out_starts)[2], const u64 (&k_starts)[2], const u64 (&v_starts)[2],
                                  const Matrix& left, const Matrix& right) {
    const Shape& s = a.shape;
    float p[4][4] = {};
    float d[4][4] = {};
    products(left, right, Side{s.q_format, a.q, nullptr}, q_starts, Side{s.k_format, a.k, nullptr}, k_starts, s.width, p);
    products(left, right, Side{s.q_format, given.grad, nullptr}, out_starts, Side{s.v_format, a.v, nullptr}, v_starts, s.v_width, d);
    const u32 thread = opaque(thread_x());
    const u32 tx = thread % SIDE;
    const u32 ty = thread / SIDE;
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            left.element(ty * 4 + i, tx + j * SIDE) = p[i][j];
            right.element(ty * 4 + i, tx + j * SIDE) = d[i][j];
        }
    barrier();
    // A thread has a quarter of a row.
    const u32 own = thread / 4;
    const u32 row = (packed0 + own) / s.group;
    const u32 head = kv_head * s.group + (packed0 + own) % s.group;
    const Row info = row_of(a, seq, row, head);
    float lse = 0.0f;
    float dot = 0.0f;
    if (info.exists) {
        const u64 at = seq.lse + head * s.lse_head + row;
        lse = given.lse[at];
        dot = given.dots[at];
    }
    const float cap = opaque_uniform(s.softcap);
#pragma unroll 1
    for (u32 g = thread % 4 * 4; g < thread % 4 * 4 + 4; ++g) {
        Float4 x = left.at(own, g);
        Float4 y = right.at(own, g);
        Float4 factors{{1.0f, 1.0f, 1.0f, 1.0f}};
        if (given.kept.threshold != 0) factors = given.kept.factors(seq.index * s.heads + head, row, key0 + g * 4);
#pragma unroll
        for (u32 n = 0; n < 4; ++n) {
            float slope = s.scale;
            if (cap != 0.0f) {
                const float bent = tanh_fast(x.v[n] * s.scale / cap);
                slope *= 1.0f - bent * bent;
            }
            const bool visible = score(a, seq, info, key0 + g * 4 + n, x.v[n]);
            const float weight = visible ? exp2_fast((x.v[n] - lse) * LOG2E) : 0.0f;
            y.v[n] = visible ? weight * (y.v[n] * factors.v[n] - dot) * slope : 0.0f;
            x.v[n] = weight * factors.v[n];
        }
        left.at(own, g) = x;
        right.at(own, g) = y;
    }
    barrier();
}

// Adds to 4 rows by 4 columns the product of the transposed matrix of a tile, with rows first, and columns in LDS.
DEVICE_FN void add_transposed(const Matrix& tile, const Matrix& columns, float (&sums)[4][4]) {
    const u32 thread = opaque(thread_x());
    const u32 tx = thread % SIDE;
    const u32 ty = thread / SIDE;
#pragma unroll 4
    for (u32 r = 0; r < TILE; ++r) {
        const Float4 x = tile.at(r, ty);
        const Float4 y = columns.at(r, tx);
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
#pragma unroll
            for (u32 n = 0; n < 4; ++n) sums[i][n] = math::fma(x.v[i], y.v[n], sums[i][n]);
    }
}
// The same of the matrix as it is.
DEVICE_FN void add_product(const Matrix& tile, const Matrix& columns, float (&sums)[4][4]) {
    const u32 thread = opaque(thread_x());
    const u32 tx = thread % SIDE;
    const u32 ty = thread / SIDE;
#pragma unroll 1
    for (u32 g = 0; g < TILE / 4; ++g) {
        Float4 x[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) x[i] = tile.at(ty * 4 + i, g);
#pragma unroll
        for (u32 u = 0; u < 4; ++u) {
            const Float4 y = columns.at(g * 4 + u, tx);
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
#pragma unroll
                for (u32 n = 0; n < 4; ++n) sums[i][n] = math::fma(x[i].v[u], y.v[n], sums[i][n]);
        }
    }
}

template <u32 CHUNKS> DEVICE_FN void clear(float (&sums)[CHUNKS][4][4]) {
#pragma unroll
    for (u32 c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
#pragma unroll
            for (u32 n = 0; n < 4; ++n) sums[c][i][n] = 0.0f;
}

// Where a gradient goes: strides in elements; `opaque`, too.
struct Output {
    void* base;
    u64 batch;
    u32 row;
    u32 head;
    DEVICE_FN u64 first(u32 index, const u32* starts) const { return starts ? (u64)starts[index] * row : index * batch; }
};
DEVICE_FN Output output(void* base, u64 batch, u32 row, u32 head) { return Output{opaque(base), batch, opaque(row), opaque(head)}; }

// Stores the columns of one row that a thread has.
template <u32 CHUNKS>
DEVICE_FN void store_row(u32 format, const Output& out, u64 first, u32 row, u32 head, const float (&sums)[CHUNKS][4][4], u32 i, u32 column0, u32 width) {
    const u64 start = first + (u64)row * out.row + (u64)head * out.head;
#pragma unroll
    for (u32 c = 0; c < CHUNKS; ++c) {
        const u32 column = column0 + c * CHUNK + thread_x() % SIDE * 4;
        if (column < width) store4(format, out.base, start + column, sums[c][i]);
    }
}

template <u32 CHUNKS>
DEVICE_FN void rows_backward(const Problem& a, const Given& given, const Output& dq, u32 tiles, Float4* left_lds, Float4* right_lds) {
    const Shape& s = a.shape;
    const Matrix left{left_lds};
    const Matrix right{right_lds};
    const u32 pairs = s.batch * s.kv_heads;
    const u32 tile = block_x() % tiles;
    const u32 pair = block_x() / tiles % pairs;
    const u32 column0 = opaque(block_x() / tiles / pairs * (CHUNKS * CHUNK));
    const u32 kv_head = pair % s.kv_heads;
    const Sequence seq = sequence_in_lanes(a, pair / s.kv_heads, kv_head);
    const u32 packed0 = tile * TILE;
    if (packed0 / s.group >= seq.rows) return;
    const u32 last_row = (packed0 + TILE - 1) / s.group;
    const Span span = uniform(windows(a, seq, packed0 / s.group, last_row < seq.rows ? last_row : seq.rows - 1));
    u64 q_starts[2];
    u64 out_starts[2];
    starts_of_rows(a, seq, kv_head, packed0, q_starts, out_starts);
    const u64 first = opaque(dq.first(seq.index, a.cu_rows));
    float sums[CHUNKS][4][4];
    clear(sums);
    for (u32 key0 = span.begin / TILE * TILE; key0 < span.end; key0 += TILE) {
        u64 k_starts[2];
        u64 v_starts[2];
        starts_of_keys(a, seq, key0, k_starts, v_starts);
        weights_and_slopes(a, given, seq, kv_head, packed0, key0, q_starts, out_starts, k_starts, v_starts, left, right);
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
            const u32 column = column0 + c * CHUNK;
            if (uniform(column) >= opaque_uniform(s.width)) break;
            stage(left, s.k_format, a.k, nullptr, k_starts, column, s.width);
            barrier();
            add_product(right, left, sums[c]);
            barrier();
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 packed = packed0 + thread_x() / SIDE * 4 + i;
        const u32 row = packed / s.group;
        const u32 head = kv_head * s.group + packed % s.group;
        if (row < seq.rows) store_row(s.q_format, dq, first, row, head, sums, i, column0, s.width);
    }
}

template <u32 CHUNKS>
DEVICE_FN void keys_backward(const Problem& a, const Given& given, const Output& dk, const Output& dv, u32 tiles, Float4* left_lds, Float4* right_lds,
                             Float4* staged_lds) {
    const Shape& s = a.shape;
    const Matrix left{left_lds};
    const Matrix right{right_lds};
    const Matrix staged{staged_lds};
    const u32 pairs = s.batch * s.kv_heads;
    const u32 tile = block_x() % tiles;
    const u32 pair = block_x() / tiles % pairs;
    const u32 column0 = opaque(block_x() / tiles / pairs * (CHUNKS * CHUNK));
    const u32 kv_head = pair % s.kv_heads;
    const Sequence seq = sequence_in_lanes(a, pair / s.kv_heads, kv_head);
    const u32 key0 = tile * TILE;
    if (key0 >= seq.keys) return;
    u64 k_starts[2];
    u64 v_starts[2];
    starts_of_keys(a, seq, key0, k_starts, v_starts);
    const u32 last_key = key0 + TILE < seq.keys ? key0 + TILE - 1 : seq.keys - 1;
    const Span span = uniform(rows_that_see(a, seq, key0, last_key));
    const u64 k_first = opaque(dk.first(seq.index, a.cu_keys));
    const u64 v_first = opaque(dv.first(seq.index, a.cu_keys));
    float k_sums[CHUNKS][4][4];
    float v_sums[CHUNKS][4][4];
    clear(k_sums);
    clear(v_sums);
    for (u32 packed0 = span.begin * s.group / TILE * TILE; packed0 < span.end * s.group; packed0 += TILE) {
        u64 q_starts[2];
        u64 out_starts[2];
        starts_of_rows(a, seq, kv_head, packed0, q_starts, out_starts);
        weights_and_slopes(a, given, seq, kv_head, packed0, key0, q_starts, out_starts, k_starts, v_starts, left, right);
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
            const u32 column = column0 + c * CHUNK;
            if (uniform(column) >= opaque_uniform(s.v_width)) break;
            stage(staged, s.q_format, given.grad, nullptr, out_starts, column, s.v_width);
            barrier();
            add_transposed(left, staged, v_sums[c]);
            barrier();
        }
#pragma unroll
        for (u32 c = 0; c < CHUNKS; ++c) {
            const u32 column = column0 + c * CHUNK;
            if (uniform(column) >= opaque_uniform(s.width)) break;
            stage(staged, s.q_format, a.q, nullptr, q_starts, column, s.width);
            barrier();
            add_transposed(right, staged, k_sums[c]);
            barrier();
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 key = key0 + thread_x() / SIDE * 4 + i;
        if (key >= seq.keys) continue;
        store_row(s.k_format, dk, k_first, key, kv_head, k_sums, i, column0, s.width);
        store_row(s.v_format, dv, v_first, key, kv_head, v_sums, i, column0, s.v_width);
    }
}

// D of each row, by a wave.
extern "C" __global__ MAX_BLOCK(THREADS) void attention_dots(ATTENTION_PARAMETERS, const void* grad, float* dots) {
    const Problem a = ATTENTION_PROBLEM;
    const Shape& s = a.shape;
    const u64 lines = (u64)s.batch * s.heads * s.rows;
    for (u64 line = global_index() / WAVE; line < lines; line += global_size() / WAVE) {
        const u32 row = line % s.rows;
        const u32 head = line / s.rows % s.heads;
        const Sequence seq = sequence(a, line / s.rows / s.heads, 0);
        if (row >= seq.rows) continue;
        const u64 start = seq.out + (u64)row * s.o_row + (u64)head * s.o_head;
        float sum = 0.0f;
        for (u32 column = lane() * 8; column < s.v_width; column += WAVE * 8) {
            float x[8];
            float y[8];
            load8(s.q_format, a.out, nullptr, start + column, x);
            load8(s.q_format, grad, nullptr, start + column, y);
#pragma unroll
            for (u32 n = 0; n < 8; ++n) sum = math::fma(x[n], y[n], sum);
        }
        sum = wave_reduce<Sum>(sum);
        if (lane() == 0) dots[seq.lse + head * s.lse_head + row] = sum;
    }
}

#define ATTENTION_DROPOUT(chunks)                                                                                             \
    extern "C" __global__ MAX_BLOCK(THREADS) void attention_dropout_##chunks(ATTENTION_PARAMETERS, u32 tiles, u32 heads_first, \
                                                                             u64 seed, u32 threshold, float kept) {     \
        __shared__ Float4 left[TILE * CHUNK / 4];                                                                             \
        __shared__ Float4 right[TILE * CHUNK / 4];                                                                            \
        attend<chunks>(ATTENTION_PROBLEM, tiles, heads_first, left, right, Kept{opaque(seed), opaque(threshold), opaque(kept)});                      \
    }
ATTENTION_DROPOUT(1)
ATTENTION_DROPOUT(2)
ATTENTION_DROPOUT(4)
ATTENTION_DROPOUT(8)

#define ATTENTION_BACKWARD(chunks)                                                                                            \
    extern "C" __global__ MAX_BLOCK(THREADS) void attention_backward_rows_##chunks(                                           \
        ATTENTION_PARAMETERS, const void* grad, const float* dots, void* dq, GradientStrides to, u32 tiles, u64 seed,    \
        u32 threshold, float kept) {                                                                                          \
        __shared__ Float4 left[TILE * CHUNK / 4];                                                                             \
        __shared__ Float4 right[TILE * CHUNK / 4];                                                                            \
        const Given given{opaque(grad), opaque((const float*)lse), opaque(dots), Kept{opaque(seed), opaque(threshold), opaque(kept)}};                                                           \
        rows_backward<chunks>(with_rare_in_lanes(ATTENTION_PROBLEM), given, output(dq, to.q_batch, to.q_row, to.q_head), tiles, left, right);                                          \
    }                                                                                                                         \
    extern "C" __global__ MAX_BLOCK(THREADS) void attention_backward_keys_##chunks(                                           \
        ATTENTION_PARAMETERS, const void* grad, const float* dots, void* dk, void* dv, GradientStrides to, u32 tiles,          \
        u64 seed, u32 threshold, float kept) {                                                                          \
        __shared__ Float4 left[TILE * CHUNK / 4];                                                                             \
        __shared__ Float4 right[TILE * CHUNK / 4];                                                                            \
        __shared__ Float4 staged[TILE * CHUNK / 4];                                                                           \
        const Given given{opaque(grad), opaque((const float*)lse), opaque(dots), Kept{opaque(seed), opaque(threshold), opaque(kept)}};                                                           \
        keys_backward<chunks>(with_rare_in_lanes(ATTENTION_PROBLEM), given, output(dk, to.k_batch, to.k_row, to.k_head), output(dv, to.v_batch, to.v_row, to.v_head), tiles,   \
                              left, right, staged);                              \
    }
ATTENTION_BACKWARD(1)
ATTENTION_BACKWARD(2)
