// Attention of all heads to one latent vector of each token, which is key and value (multi-head latent attention with
// absorbed matrices), and the choice of the keys that attention looks at.
//
// An entry of the cache has the `turning` elements of a key before the `rank` elements of the latent vector; a query
// has them in that order, too. A block has up to HEADS heads of one token and one of `splits` parts of the keys that it
// sees. Each of its waves takes keys in turn, AHEAD of them at a time; a lane has E elements of the latent vector, which
// it needs twice and loads once, and TURNS of those that turn. What waves have joins at the end; with more than one part
// it is left in `partial`, and attention_latent_combine makes the result.
#include "common.h"
#include "shared/latent.h"

constexpr u32 WAVES = LATENT_THREADS / WAVE;
constexpr u32 HEADS = WAVE == 64 ? HEADS_OF_64 : HEADS_OF_32;
constexpr u32 E = MAX_LATENT / WAVE;
constexpr u32 TURNS = MAX_TURNING / WAVE;
// Keys that a wave has under way, and their scores.
constexpr u32 AHEAD = 2;
constexpr u32 SCORES = AHEAD * HEADS;
static_assert(SCORES <= WAVE, "a lane for each score");

// Adds up N numbers of each lane over the wave. With every step a lane hands over half of what it has left and keeps
// the other half: lane l ends with total l * N / WAVE.
template <u32 N, u32 ROOM> DEVICE_FN void totals(float (&v)[ROOM], u32 mask) {
    if constexpr (N > 1) {
        const bool upper = (lane() & mask) != 0;
#pragma unroll
        for (u32 i = 0; i < N / 2; ++i) {
            const float keep = upper ? v[i + N / 2] : v[i];
            const float give = upper ? v[i] : v[i + N / 2];
            v[i] = keep + shfl_xor(give, mask);
        }
        totals<N / 2>(v, mask / 2);
    } else {
#pragma unroll 1
        for (; mask > 0; mask /= 2) v[0] += shfl_xor(v[0], mask);
    }
}

// The sequence of a token, and how many keys the token sees: none of a sequence that only fills the batch up.
struct Seen {
    u32 sequence;
    u32 keys;
};
DEVICE_FN Seen seen_by(const u32* cu_rows, const u32* cu_keys, u32 sequences, u32 token) {
    u32 first = 0;
    u32 end = sequences;
    while (end - first > 1) {
        const u32 middle = (first + end) / 2;
        if (cu_rows[middle] <= token) {
            first = middle;
        } else {
            end = middle;
        }
    }
    const u32 rows = cu_rows[first + 1] - cu_rows[first];
    const u32 keys = cu_keys[first + 1] - cu_keys[first];
    return Seen{first, keys < rows ? 0u : keys - rows + token - cu_rows[first] + 1};
}

// One element of a format.
template <u32 F> DEVICE_FN float element(const void* base, const f16* scales, u64 at) {
    if constexpr (F == F16) {
        return load(((const f16*)base)[at]);
    } else if constexpr (F == BF16) {
        return load(((const bf16*)base)[at]);
    } else if constexpr (F == F32) {
        return ((const float*)base)[at];
    } else {
        return load(scales[at / SCALED]) * (float)(((const i8*)base)[at]);
    }
}

// Where a part's sums are: `rank` of them, the maximum, the sum of weights.
DEVICE_FN u64 part_at(const Latent& s, u64 line, u32 split) { return (line * s.splits + split) * (s.rank + PART_EXTRA); }

template <u32 F>
DEVICE_FN void attend(const void* q, const void* k, const f16* scales, void* out, float* partial, const u32* cu_rows, const u32* cu_keys,
                      const u32* table, const u32* chosen, const Latent& s, u32 tiles) {
    __shared__ float maxima[WAVES][HEADS];
    __shared__ float sums[WAVES][HEADS];
    __shared__ float values[WAVES][MAX_LATENT];
    const u32 split = block_x() % s.splits;
    const u32 tile = block_x() / s.splits % tiles;
    const u32 token = block_x() / s.splits / tiles;
    const Seen seen = seen_by(cu_rows, cu_keys, s.sequences, token);
    const u32 visible = s.most != 0 && s.most < seen.keys ? s.most : seen.keys;
    const u32* const own = s.most != 0 ? chosen + (u64)token * s.most : nullptr;
    const u32* const blocks = table + (u64)seen.sequence * s.table_row;
    const u32 share = (visible + s.splits - 1) / s.splits;
    const u32 begin = split * share < visible ? split * share : visible;
    const u32 end = begin + (share < visible - begin ? share : visible - begin);
    const u32 wave = thread_x() / WAVE;
    const u32 column = lane() * E;
    const bool has_latent = column < s.rank;
    const u32 first_turn = lane() * TURNS;

    float latent[HEADS][E];
    float turn[HEADS][TURNS];
    float sum_of[HEADS][E];
    float max[HEADS];
    float sum[HEADS];
#pragma unroll
    for (u32 r = 0; r < HEADS; ++r) {
        const u32 head = tile * HEADS + r;
        const bool exists = head < s.heads;
        const u64 start = (u64)token * s.q_token + (u64)(exists ? head : 0) * s.q_head;
        max[r] = -math::infinity(0.0f);
        sum[r] = 0.0f;
#pragma unroll
        for (u32 e = 0; e < E; e += 8) {
            const bool inside = exists && column + e < s.rank;
            load8(s.q_format, q, nullptr, start + s.turning + (inside ? column + e : 0), latent[r] + e);
#pragma unroll
            for (u32 n = 0; n < 8; ++n) {
                if (!inside) latent[r][e + n] = 0.0f;
                sum_of[r][e + n] = 0.0f;
            }
        }
#pragma unroll
        for (u32 t = 0; t < TURNS; ++t) {
            const bool inside = exists && first_turn + t < s.turning;
            turn[r][t] = inside ? load1(s.q_format, q, start + first_turn + t) : 0.0f;
        }
    }

    for (u32 start = begin; start < end; start += WAVES * AHEAD) {
        Raw8<F> raw[AHEAD][E / 8];
        float turning[AHEAD][TURNS];
        bool exists[AHEAD];
#pragma unroll
        for (u32 u = 0; u < AHEAD; ++u) {
            const u32 at = start + u * WAVES + wave;
            exists[u] = at < end;
            u32 key = exists[u] ? at : begin;
            if (own) key = own[key];
            exists[u] = exists[u] && key != NO_KEY;
            key = key < seen.keys ? key : 0;
            const u32 block = key / s.block_size;
            const u64 place = (u64)blocks[block] * s.k_block + (u64)(key - block * s.block_size) * s.k_entry;
#pragma unroll
            for (u32 e = 0; e < E; e += 8) {
                raw[u][e / 8].load(k, scales, place + s.turning + (column + e < s.rank ? column + e : 0));
            }
#pragma unroll
            for (u32 t = 0; t < TURNS; ++t) {
                const u32 index = first_turn + t < s.turning ? first_turn + t : 0;
                turning[u][t] = element<F>(k, scales, place + index);
            }
        }
        float p[SCORES];
#pragma unroll
        for (u32 u = 0; u < AHEAD; ++u) {
            float x[E];
#pragma unroll
            for (u32 e = 0; e < E; e += 8) raw[u][e / 8].widen(x + e);
#pragma unroll
            for (u32 r = 0; r < HEADS; ++r) {
                float dot = 0.0f;
#pragma unroll
                for (u32 e = 0; e < E; ++e) dot = math::fma(latent[r][e], x[e], dot);
                float turned = 0.0f;
#pragma unroll
                for (u32 t = 0; t < TURNS; ++t) turned = math::fma(turn[r][t], turning[u][t], turned);
                // What a lane without elements repeats must not make NaN of its zeros.
                p[u * HEADS + r] = (has_latent ? dot : 0.0f) + (first_turn < s.turning ? turned : 0.0f);
            }
        }
        totals<SCORES>(p, WAVE / 2);
        const float total = p[0];
#pragma unroll
        for (u32 r = 0; r < HEADS; ++r) {
            float x[AHEAD];
            float next = max[r];
#pragma unroll
            for (u32 u = 0; u < AHEAD; ++u) {
                x[u] = shfl(total, (u * HEADS + r) * (WAVE / SCORES)) * s.scale;
                if (!exists[u]) x[u] = -math::infinity(0.0f);
                next = visible_max(next, exists[u], x[u]);
            }
            const float shrink = weight(max[r], next);
            max[r] = next;
            sum[r] *= shrink;
#pragma unroll
            for (u32 e = 0; e < E; ++e) sum_of[r][e] *= shrink;
#pragma unroll
            for (u32 u = 0; u < AHEAD; ++u) {
                const float w = weight(x[u], next);
                sum[r] += w;
                p[u * HEADS + r] = w;
            }
        }
#pragma unroll
        for (u32 u = 0; u < AHEAD; ++u) {
            float x[E];
#pragma unroll
            for (u32 e = 0; e < E; e += 8) raw[u][e / 8].widen(x + e);
#pragma unroll
            for (u32 r = 0; r < HEADS; ++r) {
                const float w = p[u * HEADS + r];
#pragma unroll
                for (u32 e = 0; e < E; ++e) sum_of[r][e] = exists[u] ? math::fma(w, x[e], sum_of[r][e]) : sum_of[r][e];
            }
        }
    }

    if (lane() == 0) {
#pragma unroll
        for (u32 r = 0; r < HEADS; ++r) {
            maxima[wave][r] = max[r];
            sums[wave][r] = sum[r];
        }
    }
    barrier();
#pragma unroll
    for (u32 r = 0; r < HEADS; ++r) {
        float all = -math::infinity(0.0f);
#pragma unroll
        for (u32 w = 0; w < WAVES; ++w) all = all < maxima[w][r] ? maxima[w][r] : all;
        float total = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WAVES; ++w) total += sums[w][r] * weight(maxima[w][r], all);
        const float factor = weight(max[r], all);
#pragma unroll
        for (u32 e = 0; e < E; ++e) values[wave][column + e] = sum_of[r][e] * factor;
        barrier();
        const u32 head = tile * HEADS + r;
        if (head < s.heads) {
            const u64 line = (u64)token * s.heads + head;
            for (u32 c = thread_x(); c < s.rank; c += LATENT_THREADS) {
                float x = 0.0f;
#pragma unroll
                for (u32 w = 0; w < WAVES; ++w) x += values[w][c];
                if (partial) {
                    const u64 part = part_at(s, line, split);
                    partial[part + c] = x;
                    if (c == 0) {
                        partial[part + s.rank] = all;
                        partial[part + s.rank + 1] = total;
                    }
                } else {
                    store1(s.q_format, out, line * s.rank + c, normalized(x, all, 1.0f / total));
                }
            }
        }
        barrier();
    }
}

// A block for each line, a head of a token.
extern "C" __global__ MAX_BLOCK(LATENT_THREADS) void attention_latent_combine(const float* partial, void* out, Latent s) {
    const u64 line = block_x();
    float all = -math::infinity(0.0f);
    for (u32 i = 0; i < s.splits; ++i) {
        const float max = partial[part_at(s, line, i) + s.rank];
        all = all < max ? max : all;
    }
    float total = 0.0f;
    for (u32 i = 0; i < s.splits; ++i) {
        const float* const part = partial + part_at(s, line, i) + s.rank;
        total += part[1] * weight(part[0], all);
    }
    for (u32 c = thread_x(); c < s.rank; c += LATENT_THREADS) {
        float x = 0.0f;
        for (u32 i = 0; i < s.splits; ++i) {
            const float* const part = partial + part_at(s, line, i);
            x = math::fma(part[c], weight(part[s.rank], all), x);
        }
        store1(s.q_format, out, line * s.rank + c, normalized(x, all, 1.0f / total));
    }
}

// Scores of RANKED keys for one token, a key a thread: the sum over heads of weight * max(0, query * key).
constexpr u32 AT_ONCE = 8;
template <u32 F>
DEVICE_FN void rank(const void* q, const float* weights, const void* k, const f16* scales, float* scores, const u32* cu_rows, const u32* cu_keys,
                    const u32* table, const Ranking& s, u32 tiles) {
    __shared__ float queries[MAX_RANKING];
    __shared__ float shares[MAX_RANKERS];
    const u32 token = block_x() / tiles;
    const u32 key = block_x() % tiles * RANKED + thread_x();
    const Seen seen = seen_by(cu_rows, cu_keys, s.sequences, token);
    if (block_x() % tiles * RANKED >= seen.keys) return;
    for (u32 i = thread_x(); i < s.heads * s.size; i += RANKED) {
        queries[i] = load1(s.q_format, q, (u64)token * s.q_token + (u64)(i / s.size) * s.q_head + i % s.size);
    }
    for (u32 i = thread_x(); i < s.heads; i += RANKED) shares[i] = weights[(u64)token * s.heads + i];
    barrier();
    if (key >= seen.keys) return;
    const u32 block = key / s.block_size;
    const u64 place = (u64)table[(u64)seen.sequence * s.table_row + block] * s.k_block + (u64)(key - block * s.block_size) * s.k_entry;
    float score = 0.0f;
    for (u32 first = 0; first < s.heads; first += AT_ONCE) {
        float dots[AT_ONCE];
#pragma unroll
        for (u32 h = 0; h < AT_ONCE; ++h) dots[h] = 0.0f;
        for (u32 e = 0; e < s.size; e += 8) {
            float x[8];
            load8_as<F>(k, scales, place + e, x);
#pragma unroll
            for (u32 h = 0; h < AT_ONCE; ++h) {
                const u32 head = first + h < s.heads ? first + h : first;
                const float* const query = queries + head * s.size + e;
#pragma unroll
                for (u32 i = 0; i < 8; ++i) dots[h] = math::fma(query[i], x[i], dots[h]);
            }
        }
#pragma unroll
        for (u32 h = 0; h < AT_ONCE; ++h) {
            if (first + h < s.heads && dots[h] > 0.0f) score = math::fma(shares[first + h], dots[h], score);
        }
    }
    scores[(u64)token * s.keys + key] = score;
}

// Whole numbers in the order of floats; minus zero counts as zero, and what is not a number comes last.
DEVICE_FN u32 ordered(float x) {
    const u32 bits = bit_cast<u32>(x + 0.0f);
    if (x != x) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A block chooses the keys of one token: its `most` largest scores, the earlier one of two that are the same, in the
// order of keys. The least of them is found digit by digit; then those above it, and as many that are the same as
// there is room for, are counted along the keys.
extern "C" __global__ MAX_BLOCK(RANKED) void attention_latent_choose(const float* scores, const u32* cu_rows, const u32* cu_keys, u32* chosen, Ranking s) {
    __shared__ u32 counts[256];
    __shared__ u32 state[2];
    __shared__ u32 above[RANKED];
    __shared__ u32 equal[RANKED];
    const u32 token = block_x();
    const Seen seen = seen_by(cu_rows, cu_keys, s.sequences, token);
    u32* const to = chosen + (u64)token * s.most;
    const float* const from = scores + (u64)token * s.keys;
    if (seen.keys <= s.most) {
        for (u32 i = thread_x(); i < s.most; i += RANKED) to[i] = i < seen.keys ? i : NO_KEY;
        return;
    }
    u32 least = 0;
    u32 room = s.most;
    for (u32 shift = 32; shift > 0;) {
        shift -= 8;
        counts[thread_x()] = 0;
        barrier();
        for (u32 i = thread_x(); i < seen.keys; i += RANKED) {
            const u32 x = ordered(from[i]);
            const bool same = shift == 24 || x >> (shift + 8) == least >> (shift + 8);
            if (same) count_up(&counts[x >> shift & 255], 1);
        }
        barrier();
        if (thread_x() == 0) {
            u32 digit = 255;
            u32 left = room;
            while (digit > 0 && counts[digit] < left) left -= counts[digit--];
            state[0] = digit;
            state[1] = left;
        }
        barrier();
        least |= state[0] << shift;
        room = state[1];
        barrier();
    }
    // `room` keys are chosen among those whose score is the least.
    u32 taken = 0;
    u32 taken_equal = 0;
    for (u32 start = 0; start < seen.keys; start += RANKED) {
        const u32 key = start + thread_x();
        const u32 x = key < seen.keys ? ordered(from[key]) : 0;
        const bool is_above = key < seen.keys && x > least;
        const bool is_equal = key < seen.keys && x == least;
        above[thread_x()] = is_above;
        equal[thread_x()] = is_equal;
        barrier();
        for (u32 step = 1; step < RANKED; step *= 2) {
            const u32 a = thread_x() >= step ? above[thread_x() - step] : 0;
            const u32 b = thread_x() >= step ? equal[thread_x() - step] : 0;
            barrier();
            above[thread_x()] += a;
            equal[thread_x()] += b;
            barrier();
        }
        const u32 equals = taken_equal + equal[thread_x()];
        const u32 used = equals < room ? equals : room;
        const u32 before = taken + above[thread_x()] + used;
        if (is_above || (is_equal && equals <= room)) to[before - 1] = key;
        taken += above[RANKED - 1];
        taken_equal += equal[RANKED - 1];
        barrier();
    }
}

#define LATENT(name, F)                                                                                                                              \
    extern "C" __global__ MAX_BLOCK(LATENT_THREADS) void attention_latent_##name(const void* q, const void* k, const f16* scales, void* out,         \
                                                                                 float* partial, const u32* cu_rows, const u32* cu_keys,             \
                                                                                 const u32* table, const u32* chosen, Latent s, u32 tiles) {         \
        attend<F>(q, k, scales, out, partial, cu_rows, cu_keys, table, chosen, s, tiles);                                                            \
    }                                                                                                                                                \
    extern "C" __global__ MAX_BLOCK(RANKED) void attention_latent_rank_##name(const void* q, const float* weights, const void* k, const f16* scales, \
                                                                              float* scores, const u32* cu_rows, const u32* cu_keys,                 \
                                                                              const u32* table, Ranking s, u32 tiles) {                              \
        rank<F>(q, weights, k, scales, scores, cu_rows, cu_keys, table, s, tiles);                                                                   \
    }
PART(f16) LATENT(f16, F16)
PART(bf16) LATENT(bf16, BF16)
PART(f32) LATENT(f32, F32)
PART(u8) LATENT(u8, I8)
