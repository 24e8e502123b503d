// Attention of a few rows to many keys: what takes the time is reading keys and values, so each is read once, by as
// many blocks as the GPU holds.
//
// A block has up to R packed rows of one sequence and head of keys, and one of `splits` parts of the keys that they
// see. `lanes` neighbouring lanes (a power of two) are a stream: they read one key and one value, E elements each. The
// block's streams take keys in turn, AHEAD of them at a time, and their softmaxes join at the end. With more than one
// part each is left in `partial`, and attention_combine makes the result.
//
// `attention_split_<format>_<E>_<R>`: E is 8 up to head size 8 WAVE; waves of 32 need 16 above. `packed` is for caches
// whose keys and values have formats of their own, and may have been turned: then queries turn as the keys did, and
// results back, in the lanes that hold them.
#include "packed.h"
#include "quantized/quantize.h"

constexpr u32 THREADS = SPLIT_THREADS;
constexpr u32 WAVES = THREADS / WAVE;
constexpr u32 MAX_WIDTH = 512;
// Streams at most.
constexpr u32 STREAMS = THREADS / LEAST_LANES;

// A part's result for one row: v_width sums of weighted values, the maximum, the sum of weights; padded to 16 bytes.
DEVICE_FN u64 partial_at(const Shape& s, u32 splits, u32 sequence, u32 head, u32 row, u32 split) {
    return ((((u64)sequence * s.heads + head) * s.rows + row) * splits + split) * (s.v_width + PART_EXTRA);
}

struct Greater {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a < b ? b : a; }
};

// An entry of a sequence's keys: which of its blocks, and which of the block. Keys without blocks are all of one.
struct Place {
    u32 block;
    u32 key;
};
// Steps along the places of a sequence without dividing at each.
struct Steps {
    u32 size;
    DEVICE_FN explicit Steps(const Shape& s) : size(s.block_size != 0 ? s.block_size : ~0u) {}
    DEVICE_FN Place split(u32 key) const { return Place{key / size, key % size}; }
    DEVICE_FN Place sum(Place a, Place b) const {
        const u32 key = a.key + b.key;
        const bool beyond = key >= size;
        return Place{a.block + b.block + (beyond ? 1u : 0u), beyond ? key - size : key};
    }
};

// Adds up the first N numbers of each lane over `mask` times two neighbours. With every step a lane hands over half of
// what it has left and keeps the other half: of `lanes` neighbours the one l ends with the N / lanes totals from l * N
// / lanes on, or with the one of there.
template <u32 N, u32 ROOM> DEVICE_FN void reduce(float (&v)[ROOM], u32 mask) {
    if constexpr (N > 1) {
        if (mask == 0) return;
        const bool upper = (lane() & mask) != 0;
#pragma unroll
        for (u32 i = 0; i < N / 2; ++i) {
            const float keep = upper ? v[i + N / 2] : v[i];
            const float give = upper ? v[i] : v[i + N / 2];
            v[i] = keep + shfl_xor(give, mask);
        }
        reduce<N / 2>(v, mask / 2);
    } else {
#pragma unroll 1
        for (; mask > 0; mask /= 2) v[0] += shfl_xor(v[0], mask);
    }
}

// body(number, elements) for each of what a lane has loaded. Formats are told apart once for all, unless what is made of
// the elements takes so many registers that there are none for several formats of code between.
template <u32 F, u32 E, u32 R, u32 COUNT, typename Body> DEVICE_FN void widen_each(u32 format, const Raw8<F> (&raw)[COUNT][E / 8], Body body) {
    if constexpr (E * R > 32) {
#pragma unroll
        for (u32 u = 0; u < COUNT; ++u) {
            float x[E];
            in_format<F>(format, [&](auto known) {
#pragma unroll
                for (u32 e = 0; e < E / 8; ++e) widen_raw(raw[u][e], known, x + e * 8);
            });
            body(u, x);
        }
    } else {
        in_format<F>(format, [&](auto known) {
#pragma unroll
            for (u32 u = 0; u < COUNT; ++u) {
                float x[E];
#pragma unroll
                for (u32 e = 0; e < E / 8; ++e) widen_raw(raw[u][e], known, x + e * 8);
                body(u, x);
            }
        });
    }
}

template <u32 F, u32 E, u32 R> DEVICE_FN void attend(const Problem& problem, float* partial, u32 splits, u32 tiles, u32 lanes) {
    // Keys that a stream has in flight, their scores, and of these the ones that a lane makes, at most.
    constexpr u32 AHEAD = E * R > 32 || (F == F32 && R > 1) ? 2 : 4;
    constexpr u32 SCORES = AHEAD * R;
    constexpr u32 OWN = SCORES > LEAST_LANES ? SCORES / LEAST_LANES : 1;
    __shared__ Row rows[R];
    // Of each stream: weights of what it has in flight, what they change for the sums so far, and in the end its maxima
    // and sums.
    __shared__ Float4 weights[STREAMS][(SCORES + 3) / 4];
    __shared__ Float4 shrinks[STREAMS][(R + 3) / 4];
    __shared__ float maxima[STREAMS][R];
    __shared__ float sums[STREAMS][R];
    __shared__ float joined[2][R];
    __shared__ float values[WAVES][MAX_WIDTH];
    // There are too few scalar registers for all of these.
    Problem a = problem;
    a.prefix = opaque(a.prefix);
    a.mask = opaque(a.mask);
    a.sinks = opaque(a.sinks);
    a.k_scales = opaque(a.k_scales);
    a.v_scales = opaque(a.v_scales);
    a.out = opaque(a.out);
    a.lse = opaque(a.lse);
    if constexpr (F == PACKED) {
        a.k = opaque(a.k);
        a.v = opaque(a.v);
    }
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
    const u32 place = thread_x() % lanes;
    const u32 column = place * E;
    const u32 stream = thread_x() / lanes;
    const u32 streams = THREADS / lanes;
    const bool in_width = column < s.width;
    const u32 k_column = in_width ? column : 0;
    const u32 v_column = column < s.v_width ? column : 0;

    const Steps steps(s);
    const Place stride = steps.split(streams);
    const u32* const table = a.table + (u64)seq.index * s.table_row;
    Place walk = steps.split(begin + stream);
    const Place last = steps.split(end - 1);
    float q[R][E];
    float out[R][E];
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
        if constexpr (F == PACKED) rotate(q[r], s.k_rotation);
    }
    // Of the scores that the lane makes, numbered key * R + row from `first` on.
    const u32 first = place * SCORES / lanes;
    const u32 owned = SCORES > lanes ? SCORES / lanes : 1;
    float max[OWN];
    float sum[OWN];
#pragma unroll
    for (u32 n = 0; n < OWN; ++n) {
        max[n] = -math::infinity(0.0f);
        sum[n] = 0.0f;
    }

    // All lanes stay in the loop to the end, where some have keys no more.
    for (u32 start = begin; start < end; start += streams * AHEAD) {
        const u32 key0 = start + stream;
        Raw8<F> keys[AHEAD][E / 8];
        Raw8<F> weighted[AHEAD][E / 8];
        // Where they are in memory: the last key's place for those that do not exist.
        u32 blocks[AHEAD];
        u32 entries[AHEAD];
#pragma unroll
        for (u32 u = 0; u < AHEAD; ++u) {
            const Place at = key0 + u * streams < end ? walk : last;
            blocks[u] = a.table ? table[at.block] : 0;
            entries[u] = at.key;
            walk = steps.sum(walk, stride);
        }
        // Keys first, as they are needed first. Where a lane has only some of its elements, the others repeat them.
        in_format<F>(s.k_format, [&](auto format) {
#pragma unroll
            for (u32 u = 0; u < AHEAD; ++u) {
                const u64 at = seq.k + blocks[u] * s.k_batch + (u64)entries[u] * s.k_row + k_column;
#pragma unroll
                for (u32 e = 0; e < E; e += 8) {
                    load_raw(keys[u][e / 8], format, a.k, a.k_scales, at + (k_column + e < s.width ? e : 0), s.k_shift);
                }
            }
        });
        in_format<F>(s.v_format, [&](auto format) {
#pragma unroll
            for (u32 u = 0; u < AHEAD; ++u) {
                const u64 at = seq.v + blocks[u] * s.v_batch + (u64)entries[u] * s.v_row + v_column;
#pragma unroll
                for (u32 e = 0; e < E; e += 8) {
                    load_raw(weighted[u][e / 8], format, a.v, a.v_scales, at + (v_column + e < s.v_width ? e : 0), s.v_shift);
                }
            }
        });
        float p[SCORES];
        const auto multiply = [&](u32 u, const float (&k)[E]) {
#pragma unroll
            for (u32 r = 0; r < R; ++r) {
                float dot = 0.0f;
#pragma unroll
                for (u32 e = 0; e < E; ++e) dot = math::fma(q[r][e], k[e], dot);
                p[u * R + r] = in_width ? dot : 0.0f;
            }
        };
        widen_each<F, E, R>(s.k_format, keys, multiply);
        reduce<SCORES>(p, lanes / 2);
        wave_sync();
#pragma unroll
        for (u32 n = 0; n < OWN; ++n) {
            if (n >= owned) break;
            const u32 i = first + n;
            const u32 key = key0 + i / R * streams;
            float x = p[n];
            bool visible = score(a, seq, rows[i % R], key, x);
            if (key >= end) {
                visible = false;
                x = -math::infinity(0.0f);
            }
            // The keys of one row are the highest bits of the lanes.
            float next = visible_max(max[n], visible, x);
            u32 mask = lanes / 2;
#pragma unroll
            for (u32 u = AHEAD; u > 1; u /= 2, mask /= 2) {
                next = Greater::apply(next, shfl_xor(next, mask));
            }
            const float shrink = weight(max[n], next);
            const float w = weight(x, next);
            sum[n] = sum[n] * shrink + w;
            max[n] = next;
            weights[stream][i / 4].v[i % 4] = w;
            shrinks[stream][i % R / 4].v[i % 4] = shrink;
        }
        wave_sync();
        bool grown = false;
#pragma unroll
        for (u32 r = 0; r < R; ++r) grown |= shrinks[stream][r / 4].v[r % 4] != 1.0f;
        if (grown) {
#pragma unroll
            for (u32 r = 0; r < R; ++r) {
                const float shrink = shrinks[stream][r / 4].v[r % 4];
#pragma unroll
                for (u32 e = 0; e < E; ++e) out[r][e] *= shrink;
            }
        }
        widen_each<F, E, R>(s.v_format, weighted, [&](u32 u, const float (&v)[E]) {
#pragma unroll
            for (u32 r = 0; r < R; ++r) {
                const u32 i = u * R + r;
                const float w = weights[stream][i / 4].v[i % 4];
#pragma unroll
                for (u32 e = 0; e < E; ++e) out[r][e] = math::fma(w, v[e], out[r][e]);
            }
        });
    }

    // Streams join: first their maxima and sums of weights, then, on that scale, the values within the wave and through
    // LDS.
#pragma unroll
    for (u32 n = 0; n < OWN; ++n) {
        if (n >= owned) break;
        u32 mask = lanes / 2;
#pragma unroll
        for (u32 u = AHEAD; u > 1; u /= 2, mask /= 2) sum[n] += shfl_xor(sum[n], mask);
        const u32 r = first + n;
        if (r < R) {
            maxima[stream][r] = max[n];
            sums[stream][r] = sum[n];
        }
    }
    barrier();
    if (thread_x() < WAVE) {
        const u32 r = lane() % R;
        float all = -math::infinity(0.0f);
        for (u32 i = lane() / R; i < streams; i += WAVE / R) all = Greater::apply(all, maxima[i][r]);
#pragma unroll
        for (u32 mask = R; mask < WAVE; mask *= 2) all = Greater::apply(all, shfl_xor(all, mask));
        float total = 0.0f;
        for (u32 i = lane() / R; i < streams; i += WAVE / R) total += sums[i][r] * weight(maxima[i][r], all);
#pragma unroll
        for (u32 mask = R; mask < WAVE; mask *= 2) total += shfl_xor(total, mask);
        if (lane() < R) {
            // Of several parts, whoever joins them takes it in; the values below are brought to the maximum with it.
            if (!partial) add_sink(rows[r].sink, all, total, LOG2E);
            joined[0][r] = all;
            joined[1][r] = total;
        }
    }
    barrier();
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
        const float factor = weight(maxima[stream][r], joined[0][r]);
#pragma unroll
        for (u32 e = 0; e < E; ++e) out[r][e] *= factor;
    }
#pragma unroll 1
    for (u32 mask = lanes; mask < WAVE; mask *= 2) {
#pragma unroll
        for (u32 r = 0; r < R; ++r)
#pragma unroll
            for (u32 e = 0; e < E; ++e) out[r][e] += shfl_xor(out[r][e], mask);
    }
    if constexpr (F == PACKED) {
#pragma unroll
        for (u32 r = 0; r < R; ++r) rotate(out[r], s.v_rotation);
    }
    // As many rows at a time as there is room for.
    const u32 wave = thread_x() / WAVE;
    const u32 padded = lanes * E;
    const u32 at_once = MAX_WIDTH / padded;
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
        const u32 slot = r % at_once;
        if (lane() < lanes) {
#pragma unroll
            for (u32 e = 0; e < E; ++e) values[wave][slot * padded + column + e] = out[r][e];
        }
        if (slot + 1 < at_once && r + 1 < R) continue;
        barrier();
#pragma unroll 1
        for (u32 i = thread_x(); i < (slot + 1) * padded; i += THREADS) {
            const u32 c = i % padded;
            const u32 in_tile = r - slot + i / padded;
            const u32 packed = opaque_uniform(tile) * R + in_tile;
            const u32 row = packed / s.group;
            const u32 head = kv_head * s.group + packed % s.group;
            const u32 columns = opaque_uniform(s.v_width);
            if (row >= seq.rows || c >= columns) continue;
            float x = 0.0f;
#pragma unroll
            for (u32 w = 0; w < WAVES; ++w) x += values[w][i];
            const float all = joined[0][in_tile];
            const float total = joined[1][in_tile];
            if (partial) {
                const u64 part = partial_at(s, opaque_uniform(splits), seq.index, head, row, split);
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

// A block joins the parts of one row: its threads share them, and each has some of the parts for one column. With
// `quants` the result, f32 then, is given in 8 bits, too: vectors of all heads, `stride` quants apart, zero behind the
// last head, as QuantizedActivations has them.
extern "C" __global__ MAX_BLOCK(COMBINE_THREADS) void attention_combine(ATTENTION_PARAMETERS, const float* partial, u32 splits, u32* quants,
                                                                        ActivationScale* scales, u32 stride) {
    __shared__ float weights[MAX_PARTS];
    __shared__ float sums[COMBINE_THREADS];
    const Problem a = ATTENTION_PROBLEM;
    const u32 row = block_x() % shape.rows;
    const u32 head = block_x() / shape.rows % shape.heads;
    const Sequence seq = sequence(a, block_x() / shape.rows / shape.heads, 0);
    if (row >= seq.rows) return;
    const u32 width = shape.v_width;
    const float* parts = partial + partial_at(shape, splits, seq.index, head, row, 0);
    // Each wave for itself: all of it is in the cache.
    float max = -math::infinity(0.0f);
    for (u32 i = lane(); i < splits; i += WAVE) max = Greater::apply(max, parts[(u64)i * (width + PART_EXTRA) + width]);
    max = wave_reduce<Greater>(max);
    float sum = 0.0f;
    for (u32 i = lane(); i < splits; i += WAVE) {
        const float* part = parts + (u64)i * (width + PART_EXTRA) + width;
        const float w = weight(part[0], max);
        sum += part[1] * w;
        if (thread_x() < WAVE) weights[i] = w;
    }
    sum = wave_reduce<Sum>(sum);
    const float inverse = add_sink(a.sinks ? a.sinks[head] : -math::infinity(0.0f), max, sum, LOG2E) / sum;
    barrier();
    const u64 vector = (a.cu_rows ? a.cu_rows[seq.index] : (u64)seq.index * shape.rows) + row;
    u32 across = WAVE;
    while (across < width && across < COMBINE_THREADS) across *= 2;
    for (u32 first = 0; first < width; first += across) {
        const u32 c = first + thread_x() % across;
        float x = 0.0f;
        if (c < width) {
#pragma unroll 4
            for (u32 i = thread_x() / across; i < splits; i += COMBINE_THREADS / across) x += parts[(u64)i * (width + PART_EXTRA) + c] * weights[i];
        }
        sums[thread_x()] = x;
        barrier();
        const bool is_stored = thread_x() < across && c < width;
        if (is_stored) {
            for (u32 i = thread_x() + across; i < COMBINE_THREADS; i += across) x += sums[i];
            x = normalized(x, max, inverse);
            store1(shape.q_format, out, seq.out + (u64)row * shape.o_row + (u64)head * shape.o_head + c, x);
        }
        if (quants) quantize_one(is_stored ? x : 0.0f, vector * stride + head * width + c, is_stored, quants, scales);
        barrier();
    }
    if (quants && head + 1 == shape.heads) {
        for (u32 i = shape.heads * width + thread_x(); i < stride; i += COMBINE_THREADS) {
            const u64 at = vector * stride + i;
            ((u8*)quants)[at] = 0;
            if (at % 32 == 0) scales[at / 32] = {0.0f, {0, 0}};
        }
    }
    if (lse && thread_x() == 0) lse[seq.lse + head * shape.lse_head + row] = log_sum_exp(max, sum);
}

// On nvptx with room for a second block, unless that takes registers away.
#define SPLIT(name, F, E, R)                                                                                                  \
    extern "C" __global__ MAX_BLOCK_OF(THREADS, E * R > 32 ? 1 : 2) void attention_split_##name##_##E##_##R(                  \
        ATTENTION_PARAMETERS, float* partial, u32 splits, u32 tiles, u32 lanes) {                                             \
        attend<F, E, R>(ATTENTION_PROBLEM, partial, splits, tiles, lanes);                                                    \
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
PART(f16) SPLITS(f16, F16)
PART(bf16) SPLITS(bf16, BF16)
PART(f32) SPLITS(f32, F32)
PART(u8) SPLITS(u8, I8)
PART(packed) SPLITS(packed, PACKED)
