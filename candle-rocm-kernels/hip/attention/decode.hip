// Attention of a few rows to many keys: what takes the time is reading keys and values, so each is read once, by as many blocks as the GPU holds.
//
// A block has up to R packed rows of one sequence and head of keys, and one of `splits` parts of the keys that they see. `lanes` neighbouring lanes
// (a power of two) read one key and one value, E elements each; the block's groups of lanes take keys in turn, and their softmaxes join at the end. With
// more than one part each is left in `partial`, and attention_combine makes the result.
//
// `attention_split_<format>_<E>_<R>`: E is 8 up to head size 8 WAVE; waves of 32 need 16 above.
#include "common.h"

constexpr u32 THREADS = 256;
constexpr u32 WAVES = THREADS / WAVE;
constexpr u32 MAX_WIDTH = 512;

// A part's result for one row: v_width sums of weighted values, the maximum, the sum of weights; padded to 16 bytes.
DEVICE_FN u64 partial_at(const Shape& s, u32 splits, u32 sequence, u32 head, u32 row, u32 split) {
    return ((((u64)sequence * s.heads + head) * s.rows + row) * splits + split) * (s.v_width + 4);
}

template <u32 F, u32 E, u32 R> DEVICE_FN void attend(const Problem& problem, float* partial, u32 splits, u32 tiles, u32 lanes) {
    // Keys that a group of lanes has in flight.
    constexpr u32 AHEAD = E * R > 32 ? 2 : 4;
    __shared__ Row rows[R];
    // Scores, later weights, of what each group of lanes has in flight; with the smallest head size there are most groups.
    __shared__ Float4 scores[THREADS / 8][(AHEAD * R + 3) / 4];
    __shared__ Float4 bounds[THREADS / 8][(AHEAD * R + 3) / 4];
    __shared__ float values[WAVES][MAX_WIDTH];
    __shared__ float maxima[WAVES][R];
    __shared__ float sums[WAVES][R];
    // There are too few scalar registers for all of these.
    Problem a = problem;
    a.prefix = opaque(a.prefix);
    a.mask = opaque(a.mask);
    a.k_scales = opaque(a.k_scales);
    a.v_scales = opaque(a.v_scales);
    a.out = opaque(a.out);
    a.lse = opaque(a.lse);
    partial = opaque(partial);
    const Shape& s = problem.shape;
    const u32 split = block_x() % splits;
    const u32 tile = block_x() / splits % tiles;
    const u32 pair = block_x() / splits / tiles;
    const u32 kv_head = pair % s.kv_heads;
    const Sequence seq = sequence(a, pair / s.kv_heads, kv_head);
    const u32 first_row = tile * R / s.group;
    if (first_row >= seq.rows) return;
    const u32 end_row = (tile * R + R - 1) / s.group;
    const Span span = windows(a, seq, first_row, end_row < seq.rows ? end_row : seq.rows - 1);
    const u32 length = span.begin < span.end ? span.end - span.begin : 0;
    const u32 share = (length + splits - 1) / splits;
    const u32 begin = span.begin + (split * share < length ? split * share : length);
    const u32 rest = span.begin + length - begin;
    const u32 end = begin + (share < rest ? share : rest);

    if (thread_x() < R) {
        const u32 packed = tile * R + thread_x();
        rows[thread_x()] = row_of(a, seq, packed / s.group, kv_head * s.group + packed % s.group);
    }
    barrier();
    const u64 out_start = opaque(seq.out);
    const u64 lse_start = opaque(seq.lse);
    const u32 o_row = opaque(s.o_row);
    const u32 o_head = opaque(s.o_head);
    const u64 lse_head = opaque(s.lse_head);
    const u32 column = thread_x() % lanes * E;
    const u32 stream = thread_x() / lanes;
    const u32 streams = THREADS / lanes;
    const bool in_width = column < s.width;
    const u32 k_column = in_width ? column : 0;
    const u32 v_column = column < s.v_width ? column : 0;
    float q[R][E];
    float out[R][E];
    float max[R];
    float sum[R];
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
        const u32 packed = tile * R + r;
        const u32 row = packed / s.group;
        const u64 start = seq.q + (u64)(row < seq.rows ? row : seq.rows - 1) * s.q_row + (u64)(kv_head * s.group + packed % s.group) * s.q_head;
#pragma unroll
        for (u32 e = 0; e < E; e += 8) {
            load8(s.q_format, a.q, nullptr, start + (column + e < s.width ? column + e : 0), q[r] + e);
#pragma unroll
            for (u32 n = 0; n < 8; ++n) {
                if (column + e >= s.width) q[r][e + n] = 0.0f;
                out[r][e + n] = 0.0f;
            }
        }
        max[r] = -math::infinity(0.0f);
        sum[r] = 0.0f;
    }

    // All lanes stay in the loop to the end, where some have keys no more.
    for (u32 start = begin; start < end; start += streams * AHEAD) {
        const u32 key0 = start + stream;
        Raw8<F> keys[AHEAD][E / 8];
        Raw8<F> weighted[AHEAD][E / 8];
#pragma unroll
        for (u32 u = 0; u < AHEAD; ++u) {
            const u32 key = key0 + u * streams;
            const Entry at = entry(a, seq, key < end ? key : end - 1);
#pragma unroll
            for (u32 e = 0; e < E / 8; ++e) {
                // Where a lane has only some of its elements, the others repeat them.
                const u32 k_more = k_column + e * 8 < s.width ? e * 8 : 0;
                const u32 v_more = v_column + e * 8 < s.v_width ? e * 8 : 0;
                keys[u][e].load(a.k, a.k_scales, at.k + k_column + k_more);
                weighted[u][e].load(a.v, a.v_scales, at.v + v_column + v_more);
            }
        }
        float p[AHEAD][R];
#pragma unroll
        for (u32 u = 0; u < AHEAD; ++u) {
            float k[E];
#pragma unroll
            for (u32 e = 0; e < E / 8; ++e) keys[u][e].widen(k + e * 8);
#pragma unroll
            for (u32 r = 0; r < R; ++r) {
                float dot = 0.0f;
#pragma unroll
                for (u32 e = 0; e < E; ++e) dot = math::fma(q[r][e], k[e], dot);
                p[u][r] = in_width ? dot : 0.0f;
            }
        }
#pragma unroll 1
        for (u32 mask = 1; mask < lanes; mask *= 2) {
#pragma unroll
            for (u32 u = 0; u < AHEAD; ++u)
#pragma unroll
                for (u32 r = 0; r < R; ++r) p[u][r] += shfl_xor(p[u][r], mask);
        }
        // One lane makes the score of one row and key.
        Float4* own = scores[stream];
        wave_sync();
        if (column == 0) {
#pragma unroll
            for (u32 i = 0; i < AHEAD * R; ++i) own[i / 4].v[i % 4] = p[i / R][i % R];
        }
        wave_sync();
#pragma unroll 1
        for (u32 i = thread_x() % lanes; i < AHEAD * R; i += lanes) {
            const u32 key = key0 + i / R * streams;
            float x = own[i / 4].v[i % 4];
            bool visible = score(a, seq, rows[i % R], key, x);
            if (key >= end) {
                visible = false;
                x = -math::infinity(0.0f);
            }
            own[i / 4].v[i % 4] = x;
            bounds[stream][i / 4].v[i % 4] = visible_max(-math::infinity(0.0f), visible, x);
        }
        wave_sync();
#pragma unroll
        for (u32 r = 0; r < R; ++r) {
            float next = max[r];
#pragma unroll
            for (u32 u = 0; u < AHEAD; ++u) {
                const u32 i = u * R + r;
                const float bound = bounds[stream][i / 4].v[i % 4];
                next = next < bound ? bound : next;
                p[u][r] = own[i / 4].v[i % 4];
            }
            const float shrink = weight(max[r], next);
            max[r] = next;
            sum[r] *= shrink;
#pragma unroll
            for (u32 u = 0; u < AHEAD; ++u) {
                p[u][r] = weight(p[u][r], next);
                sum[r] += p[u][r];
            }
#pragma unroll
            for (u32 e = 0; e < E; ++e) out[r][e] *= shrink;
        }
#pragma unroll
        for (u32 u = 0; u < AHEAD; ++u) {
            float v[E];
#pragma unroll
            for (u32 e = 0; e < E / 8; ++e) weighted[u][e].widen(v + e * 8);
#pragma unroll
            for (u32 r = 0; r < R; ++r)
#pragma unroll
                for (u32 e = 0; e < E; ++e) out[r][e] = math::fma(p[u][r], v[e], out[r][e]);
        }
    }

    // Groups of lanes join within the wave, then waves through LDS, one row at a time.
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
#pragma unroll 1
        for (u32 mask = lanes; mask < WAVE; mask *= 2) {
            const float other = shfl_xor(max[r], mask);
            const float next = other > max[r] ? other : max[r];
            const float mine = weight(max[r], next);
            const float theirs = weight(other, next);
            max[r] = next;
            sum[r] = sum[r] * mine + shfl_xor(sum[r], mask) * theirs;
#pragma unroll
            for (u32 e = 0; e < E; ++e) out[r][e] = out[r][e] * mine + shfl_xor(out[r][e], mask) * theirs;
        }
    }
    const u32 wave = thread_x() / WAVE;
    if (lane() == 0) {
#pragma unroll
        for (u32 r = 0; r < R; ++r) {
            maxima[wave][r] = max[r];
            sums[wave][r] = sum[r];
        }
    }
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
        if (lane() < lanes) {
#pragma unroll
            for (u32 e = 0; e < E; ++e) values[wave][column + e] = out[r][e];
        }
        barrier();
        const u32 packed = opaque_uniform(tile) * R + r;
        const u32 row = packed / s.group;
        const u32 head = kv_head * s.group + packed % s.group;
        const u32 parts = opaque_uniform(splits);
        float all = maxima[0][r];
#pragma unroll
        for (u32 w = 1; w < WAVES; ++w) all = all < maxima[w][r] ? maxima[w][r] : all;
        float total = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WAVES; ++w) total += sums[w][r] * weight(maxima[w][r], all);
        const u64 part = partial_at(s, parts, seq.index, head, row, split);
        const u32 columns = row < seq.rows ? opaque_uniform(s.v_width) : 0;
#pragma unroll 1
        for (u32 c = thread_x(); c < columns; c += THREADS) {
            float x = 0.0f;
#pragma unroll
            for (u32 w = 0; w < WAVES; ++w) x += values[w][c] * weight(maxima[w][r], all);
            if (parts > 1) {
                partial[part + c] = x;
                if (c == 0) {
                    partial[part + columns] = all;
                    partial[part + columns + 1] = total;
                }
            } else {
                store1(opaque_uniform(s.q_format), a.out, out_start + (u64)row * o_row + (u64)head * o_head + c, normalized(x, all, 1.0f / total));
                if (a.lse && c == 0) a.lse[lse_start + head * lse_head + row] = log_sum_exp(all, total);
            }
        }
        barrier();
    }
}

// A block joins the parts of one row.
extern "C" __global__ MAX_BLOCK(128) void attention_combine(ATTENTION_PARAMETERS, const float* partial, u32 splits) {
    const Problem a = ATTENTION_PROBLEM;
    const u32 row = block_x() % shape.rows;
    const u32 head = block_x() / shape.rows % shape.heads;
    const Sequence seq = sequence(a, block_x() / shape.rows / shape.heads, 0);
    if (row >= seq.rows) return;
    const u32 width = shape.v_width;
    const float* parts = partial + partial_at(shape, splits, seq.index, head, row, 0);
    float max = -math::infinity(0.0f);
    for (u32 i = 0; i < splits; ++i) {
        const float other = parts[(u64)i * (width + 4) + width];
        max = max < other ? other : max;
    }
    float sum = 0.0f;
    for (u32 i = 0; i < splits; ++i) {
        const float* part = parts + (u64)i * (width + 4) + width;
        sum += part[1] * weight(part[0], max);
    }
    for (u32 c = thread_x(); c < width; c += block_dim()) {
        float x = 0.0f;
        for (u32 i = 0; i < splits; ++i) {
            const float* part = parts + (u64)i * (width + 4);
            x += part[c] * weight(part[width], max);
        }
        store1(shape.q_format, out, seq.out + (u64)row * shape.o_row + (u64)head * shape.o_head + c, normalized(x, max, 1.0f / sum));
    }
    if (lse && thread_x() == 0) lse[seq.lse + head * shape.lse_head + row] = log_sum_exp(max, sum);
}

#define SPLIT(name, F, E, R)                                                                                                             \
    extern "C" __global__ MAX_BLOCK(THREADS) void attention_split_##name##_##E##_##R(ATTENTION_PARAMETERS, float* partial, u32 splits, u32 tiles, \
                                                                                     u32 lanes) {                                        \
        attend<F, E, R>(ATTENTION_PROBLEM, partial, splits, tiles, lanes);                                                               \
    }
#ifdef __GFX9__
#define SPLIT_WIDE(name, F)
#else
#define SPLIT_WIDE(name, F) SPLIT(name, F, 16, 4)
#endif
#define SPLITS(name, F)  \
    SPLIT(name, F, 8, 1) \
    SPLIT(name, F, 8, 4) \
    SPLIT(name, F, 8, 8) \
    SPLIT_WIDE(name, F)
SPLITS(f16, F16)
SPLITS(bf16, BF16)
SPLITS(f32, F32)
SPLITS(u8, I8)
