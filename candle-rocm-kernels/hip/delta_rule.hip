// The gated delta rule (Yang, Kautz and Hatamizadeh, "Gated Delta Networks", arXiv 2412.06464) along sequences that lie
// behind each other. A head has a state S, [key_size, value_size]; with a row's key k, query q, value v, decay g and
// rate b,
//
//     S = g S;  S = S + k (b (v - k S));  out = q S
//
// where keys and queries have length 1 and queries are scaled. Nothing is normalised in memory: what is linear in a key
// is multiplied by the inverse of its length afterwards.
//
// A block has DELTA_COLUMNS columns of one head's state and goes along the rows of a sequence: `step` row by row, the
// state in registers; `chunks` DELTA_CHUNK rows at a time, with products of matrices. Blocks share nothing, and each
// reads its part of the old state before it writes new ones.
#include "device.h"
#include "shared/delta_rule.h"

constexpr u32 COLUMNS = DELTA_COLUMNS;
constexpr u32 CHUNK = DELTA_CHUNK;
constexpr u32 THREADS = DELTA_BLOCK;

#define DELTA_PARAMETERS(T)                                                                                                                  \
    const T *q, const T *k, const T *v, const T *a, const T *b, const float *rate, const float *bias, float *states, const u32 *starts,      \
        const u32 *from, const u32 *to
#define DELTA_ARGUMENTS q, k, v, a, b, rate, bias, states, starts, from, to

template <typename T> struct Delta {
    const T *q, *k, *v, *a, *b;
    const float *rate, *bias;
    float* states;
    const u32 *starts, *from, *to;
    const DeltaRule& c;

    DEVICE_FN u32 end(u32 sequence) const {
        const u32 stop = starts[sequence + 1];
        const u32 most = starts[sequence] + c.longest;
        const u32 end = stop < most ? stop : most;
        return end < c.rows ? end : c.rows;
    }
    DEVICE_FN u32 key_head(u32 head) const { return c.tiled ? head % c.key_heads : head / (c.value_heads / c.key_heads); }
    DEVICE_FN float key(u32 row, u32 head, u32 i) const { return load(k[(u64)row * c.k_stride + head * c.key_size + i]); }
    DEVICE_FN float query(u32 row, u32 head, u32 i) const { return load(q[(u64)row * c.q_stride + head * c.key_size + i]); }
    DEVICE_FN float value(u32 row, u32 head, u32 i) const { return load(v[(u64)row * c.v_stride + head * c.value_size + i]); }
    // The logarithm of the decay: rate * log(1 + exp(a + bias)).
    DEVICE_FN float log_decay(u32 row, u32 head) const {
        const float x = load(a[(u64)row * c.a_stride + head]) + bias[head];
        const float e = math::exp(-math::abs(x));
        // Where 1 + e has lost what e is.
        const float tail = e < 0.001f ? e - 0.5f * e * e : math::log(1.0f + e);
        return rate[head] * ((x > 0.0f ? x : 0.0f) + tail);
    }
    DEVICE_FN float learning(u32 row, u32 head) const { return 1.0f / (1.0f + math::exp(-load(b[(u64)row * c.b_stride + head]))); }
    DEVICE_FN u64 state(u32 slot, u32 head, u32 i) const { return (((u64)slot * c.value_heads + head) * c.key_size + i) * c.value_size; }
    DEVICE_FN float inverse_length(float squares) const { return 1.0f / math::sqrt(squares + c.epsilon); }
};

// ---------------------------------------------------------------- row by row

// Of DELTA_STEPS rows at most. A thread has R rows of a column; GROUPS threads share a column. One barrier a row: what threads share lies twice.
template <u32 R, typename T> DEVICE_FN void step(const Delta<T>& d, T* out) {
    constexpr u32 GROUPS = THREADS / COLUMNS;
    constexpr u32 KEYS = R * GROUPS;
    __shared__ float keys[2][KEYS];
    __shared__ float queries[2][KEYS];
    __shared__ float by_keys[2][GROUPS][COLUMNS];
    __shared__ float by_queries[2][GROUPS][COLUMNS];
    __shared__ float lengths[2][GROUPS][3];
    __shared__ float decays[DELTA_STEPS];
    __shared__ float learnings[DELTA_STEPS];
    const DeltaRule& c = d.c;
    for (u32 task = block_x(); task < c.tasks; task += grid_dim()) {
        // Anew for each task, so that what follows from it does not stay in registers.
        const u32 thread = opaque(thread_x());
        const u32 group = thread / COLUMNS;
        const u32 lane = thread % COLUMNS;
        const u32 mine = group * R;
        const u32 line = task / c.tiles;
        const u32 sequence = line / c.value_heads;
        const u32 head = line - sequence * c.value_heads;
        const u32 column = (task - line * c.tiles) * COLUMNS + lane;
        const bool exists = column < c.value_size;
        const u32 key_head = d.key_head(head);
        const u32 start = d.starts[sequence];
        const u32 end = d.end(sequence);
        if (start >= end) continue;
        const u32 slot = d.from[sequence];
        float s[R];
        const bool begins = !exists || slot >= c.slots;
        const float* const before = d.states + (begins ? 0 : d.state(slot, head, 0) + column);
        // Beyond the key's size, where keys are 0, anything finite will do.
        const u32 most = c.key_size - 1;
        const u32 apart = opaque(c.value_size);
#pragma unroll
        for (u32 i = 0; i < R; ++i) s[i] = begins ? 0.0f : before[(mine + i < most ? mine + i : most) * apart];
        const bool loads = thread < KEYS;
        const bool has_key = thread < c.key_size;
        barrier();
        if (thread < end - start) {
            decays[thread] = math::exp(d.log_decay(start + thread, head));
            learnings[thread] = d.learning(start + thread, head);
        }
        if (loads) {
            keys[0][thread] = has_key ? d.key(start, key_head, thread) : 0.0f;
            queries[0][thread] = has_key ? d.query(start, key_head, thread) : 0.0f;
        }
        barrier();
        for (u32 row = start; row < end; ++row) {
            const u32 now = (row - start) % 2;
            const bool goes_on = row + 1 < end && has_key;
            const float next_key = goes_on ? d.key(row + 1, key_head, thread) : 0.0f;
            const float next_query = goes_on ? d.query(row + 1, key_head, thread) : 0.0f;
            const float value = exists ? d.value(row, head, column) : 0.0f;
            const float decay = decays[row - start];
            const float learning = learnings[row - start];
            const u32 target = d.to[row];
            float key[R];
            float by_key = 0.0f, by_query = 0.0f, kk = 0.0f, qq = 0.0f, kq = 0.0f;
#pragma unroll
            for (u32 i = 0; i < R; ++i) {
                key[i] = keys[now][mine + i];
                const float query = queries[now][mine + i];
                by_key = math::fma(s[i], key[i], by_key);
                by_query = math::fma(s[i], query, by_query);
                kk = math::fma(key[i], key[i], kk);
                qq = math::fma(query, query, qq);
                kq = math::fma(key[i], query, kq);
            }
            by_keys[now][group][lane] = by_key;
            by_queries[now][group][lane] = by_query;
            if (lane == 0) {
                lengths[now][group][0] = kk;
                lengths[now][group][1] = qq;
                lengths[now][group][2] = kq;
            }
            if (loads) {
                keys[1 - now][thread] = next_key;
                queries[1 - now][thread] = next_query;
            }
            barrier();
            by_key = by_query = kk = qq = kq = 0.0f;
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g) {
                by_key += by_keys[now][g][lane];
                by_query += by_queries[now][g][lane];
                kk += lengths[now][g][0];
                qq += lengths[now][g][1];
                kq += lengths[now][g][2];
            }
            const float key_scale = d.inverse_length(kk);
            const float change = key_scale * learning * (value - decay * key_scale * by_key);
            if (group == 0 && exists) {
                const float result = d.inverse_length(qq) * c.scale * math::fma(kq, change, decay * by_query);
                out[((u64)row * c.value_heads + head) * c.value_size + column] = store<T>(result);
            }
#pragma unroll
            for (u32 i = 0; i < R; ++i) s[i] = math::fma(key[i], change, s[i] * decay);
            if (target < c.slots && exists) {
                // Anew, so that what follows from them does not stay in registers meanwhile.
                const u32 size = opaque(c.key_size);
                const u32 apart = opaque(c.value_size);
                float* const after = d.states + d.state(target, head, 0) + column;
#pragma unroll
                for (u32 i = 0; i < R; ++i) {
                    if (mine + i < size) after[(mine + i) * apart] = s[i];
                }
            }
        }
    }
}

// ---------------------------------------------------------------- chunks

// What `chunks` needs of each row and head, in float: [rows, value_heads, DELTA_SCRATCH].
//
// With G the sum of the logarithms of decays up to a row of its chunk, the changes x that the rows of a chunk make solve
//
//     x_i = b_i (v_i - exp(G_i) k_i S - sum over j < i of exp(G_i - G_j) (k_i k_j) x_j)
//
// which is x = inverse (v - exp(G) k S) with the lower triangular `inverse` = (1 + A)^-1 diag(b); and with `scores`_ij =
// exp(G_i - G_j) (q_i k_j) for j <= i, out = exp(G) q S + scores x. Neither depends on the state.
constexpr u32 INVERSE = 0;
constexpr u32 SCORES = CHUNK;
constexpr u32 SUM = 2 * CHUNK;
constexpr u32 KEY_SCALE = 2 * CHUNK + 1;
constexpr u32 QUERY_SCALE = 2 * CHUNK + 2;
static_assert(QUERY_SCALE < DELTA_SCRATCH, "room for all");

// Neighbours in LDS that threads read down a column lie in different banks.
constexpr u32 PITCH = CHUNK + 1;
// Threads have this many rows and columns of a product of CHUNK by CHUNK.
constexpr u32 EDGE = 4;
static_assert(CHUNK / EDGE * (CHUNK / EDGE) == THREADS, "a thread for each part");

// Of rows `first` to `first + count` of keys or queries, CHUNK elements from `at` on; zeros beyond.
template <typename Load> DEVICE_FN void load_slice(float (*slice)[PITCH], u32 count, u32 at, u32 size, Load element) {
    for (u32 i = thread_x(); i < CHUNK * CHUNK; i += THREADS) {
        const u32 row = i / CHUNK;
        const u32 column = i % CHUNK;
        slice[row][column] = row < count && at + column < size ? element(row, at + column) : 0.0f;
    }
}

template <typename T> DEVICE_FN void prepare(const Delta<T>& d, float* scratch) {
    __shared__ float keys[CHUNK][PITCH];
    __shared__ float queries[CHUNK][PITCH];
    __shared__ float sums[CHUNK];
    __shared__ float rates[CHUNK];
    __shared__ float key_scales[CHUNK];
    __shared__ float query_scales[CHUNK];
    const DeltaRule& c = d.c;
    for (u32 task = block_x(); task < c.tasks; task += grid_dim()) {
        // Anew for each task, so that what follows from it does not stay in registers.
        const u32 thread = opaque(thread_x());
        const u32 first_row = thread / (CHUNK / EDGE) * EDGE;
        // Of columns, every (CHUNK / EDGE)th.
        const u32 first_column = thread % (CHUNK / EDGE);
        const u32 line = task / c.value_heads;
        const u32 head = task - line * c.value_heads;
        const u32 sequence = line / c.chunks;
        const u32 first = d.starts[sequence] + (line - sequence * c.chunks) * CHUNK;
        const u32 end = d.end(sequence);
        if (first >= end) continue;
        const u32 count = end - first < CHUNK ? end - first : CHUNK;
        const u32 key_head = d.key_head(head);
        float by_keys[EDGE][EDGE] = {};
        float by_queries[EDGE][EDGE] = {};
        // Of one row in the first threads.
        float kk = 0.0f, qq = 0.0f;
        for (u32 at = 0; at < c.key_size; at += CHUNK) {
            barrier();
            load_slice(keys, count, at, c.key_size, [&](u32 row, u32 i) { return d.key(first + row, key_head, i); });
            load_slice(queries, count, at, c.key_size, [&](u32 row, u32 i) { return d.query(first + row, key_head, i); });
            barrier();
            for (u32 i = 0; i < CHUNK; ++i) {
                float other[EDGE];
#pragma unroll
                for (u32 n = 0; n < EDGE; ++n) other[n] = keys[first_column + n * (CHUNK / EDGE)][i];
#pragma unroll
                for (u32 m = 0; m < EDGE; ++m) {
                    const float key = keys[first_row + m][i];
                    const float query = queries[first_row + m][i];
#pragma unroll
                    for (u32 n = 0; n < EDGE; ++n) {
                        by_keys[m][n] = math::fma(key, other[n], by_keys[m][n]);
                        by_queries[m][n] = math::fma(query, other[n], by_queries[m][n]);
                    }
                }
                if (thread_x() < CHUNK) {
                    const float key = keys[thread_x()][i];
                    const float query = queries[thread_x()][i];
                    kk = math::fma(key, key, kk);
                    qq = math::fma(query, query, qq);
                }
            }
        }
        barrier();
        if (thread_x() < CHUNK) {
            const bool has = thread_x() < count;
            sums[thread_x()] = has ? d.log_decay(first + thread_x(), head) : 0.0f;
            rates[thread_x()] = has ? d.learning(first + thread_x(), head) : 0.0f;
            key_scales[thread_x()] = d.inverse_length(kk);
            query_scales[thread_x()] = d.inverse_length(qq) * c.scale;
        }
        barrier();
        if (thread_x() == 0) {
            for (u32 i = 1; i < CHUNK; ++i) sums[i] += sums[i - 1];
        }
        barrier();
#pragma unroll
        for (u32 m = 0; m < EDGE; ++m) {
            const u32 i = first_row + m;
            float* const row = scratch + ((u64)(first + i) * c.value_heads + head) * DELTA_SCRATCH;
#pragma unroll
            for (u32 n = 0; n < EDGE; ++n) {
                const u32 j = first_column + n * (CHUNK / EDGE);
                const float factor = j <= i ? math::exp(sums[i] - sums[j]) * key_scales[j] : 0.0f;
                // A, where keys were.
                keys[i][j] = j < i ? rates[i] * key_scales[i] * factor * by_keys[m][n] : 0.0f;
                if (i < count) row[SCORES + j] = query_scales[i] * factor * by_queries[m][n];
            }
        }
        barrier();
        if (thread_x() < CHUNK) {
            // A column of the inverse, by forward substitution, where queries were.
            const u32 j = thread_x();
            for (u32 i = 0; i < CHUNK; ++i) {
                float x = i == j ? rates[j] : 0.0f;
                for (u32 m = j; m < i; ++m) x = math::fma(-keys[i][m], queries[m][j], x);
                queries[i][j] = x;
            }
        }
        barrier();
        for (u32 i = thread_x(); i < count * CHUNK; i += THREADS) {
            const u32 row = i / CHUNK;
            scratch[((u64)(first + row) * c.value_heads + head) * DELTA_SCRATCH + INVERSE + i % CHUNK] = queries[row][i % CHUNK];
        }
        if (thread_x() < count) {
            float* const row = scratch + ((u64)(first + thread_x()) * c.value_heads + head) * DELTA_SCRATCH;
            row[SUM] = sums[thread_x()];
            row[KEY_SCALE] = key_scales[thread_x()];
            row[QUERY_SCALE] = query_scales[thread_x()];
        }
    }
}

// A thread's part of a product of CHUNK rows and COLUMNS columns.
constexpr u32 PART_ROWS = 4;
constexpr u32 PART_COLUMNS = CHUNK * COLUMNS / (THREADS * PART_ROWS);
struct Product {
    float v[PART_ROWS][PART_COLUMNS];

    DEVICE_FN void clear() {
#pragma unroll
        for (u32 m = 0; m < PART_ROWS; ++m) {
#pragma unroll
            for (u32 n = 0; n < PART_COLUMNS; ++n) v[m][n] = 0.0f;
        }
    }
    static DEVICE_FN u32 row(u32 m) { return thread_x() / (COLUMNS / PART_COLUMNS) * PART_ROWS + m; }
    static DEVICE_FN u32 column(u32 n) { return thread_x() % (COLUMNS / PART_COLUMNS) + n * (COLUMNS / PART_COLUMNS); }

    // Adds left times right, `depth` columns of the one and rows of the other.
    DEVICE_FN void add(const float (*left)[PITCH], const float (*right)[COLUMNS], u32 depth) {
        for (u32 i = 0; i < depth; ++i) {
            float r[PART_COLUMNS];
#pragma unroll
            for (u32 n = 0; n < PART_COLUMNS; ++n) r[n] = right[i][column(n)];
#pragma unroll
            for (u32 m = 0; m < PART_ROWS; ++m) {
                const float l = left[row(m)][i];
#pragma unroll
                for (u32 n = 0; n < PART_COLUMNS; ++n) v[m][n] = math::fma(l, r[n], v[m][n]);
            }
        }
    }
    // The same with the left one's transpose, whose columns then are rows.
    DEVICE_FN void add_transposed(const float (*left)[PITCH], const float (*right)[COLUMNS], u32 depth) {
        for (u32 i = 0; i < depth; ++i) {
            float r[PART_COLUMNS];
#pragma unroll
            for (u32 n = 0; n < PART_COLUMNS; ++n) r[n] = right[i][column(n)];
#pragma unroll
            for (u32 m = 0; m < PART_ROWS; ++m) {
                const float l = left[i][row(m)];
#pragma unroll
                for (u32 n = 0; n < PART_COLUMNS; ++n) v[m][n] = math::fma(l, r[n], v[m][n]);
            }
        }
    }
};

// KEYS is the key size rounded up to chunks.
template <u32 KEYS, typename T> DEVICE_FN void chunks(const Delta<T>& d, const float* scratch, T* out) {
    __shared__ float state[KEYS][COLUMNS];
    __shared__ float slice[CHUNK][PITCH];
    __shared__ float changes[CHUNK][COLUMNS];
    __shared__ float sums[CHUNK];
    __shared__ float key_scales[CHUNK];
    __shared__ float query_scales[CHUNK];
    const DeltaRule& c = d.c;
    for (u32 task = block_x(); task < c.tasks; task += grid_dim()) {
        const u32 line = task / c.tiles;
        const u32 sequence = line / c.value_heads;
        const u32 head = line - sequence * c.value_heads;
        const u32 first_column = (task - line * c.tiles) * COLUMNS;
        const u32 key_head = d.key_head(head);
        const u32 start = d.starts[sequence];
        const u32 end = d.end(sequence);
        if (start >= end) continue;
        const u32 slot = d.from[sequence];
        barrier();
        for (u32 i = thread_x(); i < KEYS * COLUMNS; i += THREADS) {
            const u32 row = i / COLUMNS;
            const u32 column = first_column + i % COLUMNS;
            const bool has = slot < c.slots && row < c.key_size && column < c.value_size;
            state[row][i % COLUMNS] = has ? d.states[d.state(slot, head, row) + column] : 0.0f;
        }
        for (u32 first = start; first < end; first += CHUNK) {
            const u32 count = end - first < CHUNK ? end - first : CHUNK;
            const float* const rows = scratch + ((u64)first * c.value_heads + head) * DELTA_SCRATCH;
            const u64 apart = (u64)c.value_heads * DELTA_SCRATCH;
            const auto load_keys = [&](u32 at) {
                load_slice(slice, count, at, c.key_size, [&](u32 row, u32 i) { return d.key(first + row, key_head, i); });
            };
            const auto load_rows = [&](u32 what) {
                load_slice(slice, count, 0, CHUNK, [&](u32 row, u32 i) { return rows[row * apart + what + i]; });
            };
            barrier();
            if (thread_x() < CHUNK) {
                const bool has = thread_x() < count;
                sums[thread_x()] = has ? rows[thread_x() * apart + SUM] : 0.0f;
                key_scales[thread_x()] = has ? rows[thread_x() * apart + KEY_SCALE] : 0.0f;
                query_scales[thread_x()] = has ? rows[thread_x() * apart + QUERY_SCALE] : 0.0f;
            }
            // What keys and queries find in the state before the chunk.
            Product by_keys, by_queries;
            by_keys.clear();
            by_queries.clear();
            ROLLED
            for (u32 at = 0; at < KEYS; at += CHUNK) {
                barrier();
                load_keys(at);
                barrier();
                by_keys.add(slice, state + at, CHUNK);
                barrier();
                load_slice(slice, count, at, c.key_size, [&](u32 row, u32 i) { return d.query(first + row, key_head, i); });
                barrier();
                by_queries.add(slice, state + at, CHUNK);
            }
            barrier();
            load_rows(INVERSE);
#pragma unroll
            for (u32 m = 0; m < PART_ROWS; ++m) {
                const u32 row = Product::row(m);
                const float decay = math::exp(sums[row]);
#pragma unroll
                for (u32 n = 0; n < PART_COLUMNS; ++n) {
                    const u32 column = first_column + Product::column(n);
                    const bool has = row < count && column < c.value_size;
                    const float value = has ? d.value(first + row, head, column) : 0.0f;
                    changes[row][Product::column(n)] = value - decay * key_scales[row] * by_keys.v[m][n];
                    by_queries.v[m][n] *= decay * query_scales[row];
                }
            }
            barrier();
            by_keys.clear();
            by_keys.add(slice, changes, count);
            barrier();
            load_rows(SCORES);
#pragma unroll
            for (u32 m = 0; m < PART_ROWS; ++m) {
#pragma unroll
                for (u32 n = 0; n < PART_COLUMNS; ++n) changes[Product::row(m)][Product::column(n)] = by_keys.v[m][n];
            }
            barrier();
            by_queries.add(slice, changes, count);
#pragma unroll
            for (u32 m = 0; m < PART_ROWS; ++m) {
                const u32 row = Product::row(m);
#pragma unroll
                for (u32 n = 0; n < PART_COLUMNS; ++n) {
                    const u32 column = first_column + Product::column(n);
                    if (row >= count || column >= c.value_size) continue;
                    out[((u64)(first + row) * c.value_heads + head) * c.value_size + column] = store<T>(by_queries.v[m][n]);
                }
            }
            // States behind rows: those that are kept, at last the one that the next chunk begins with.
            for (u32 last = 0; last < count; ++last) {
                const u32 target = d.to[first + last];
                const bool is_kept = target < c.slots;
                const bool goes_on = last + 1 == count;
                if (!is_kept && !goes_on) continue;
                const float decay = math::exp(sums[last]);
                ROLLED
                for (u32 at = 0; at < KEYS; at += CHUNK) {
                    barrier();
                    load_slice(slice, last + 1, at, c.key_size, [&](u32 row, u32 i) {
                        return d.key(first + row, key_head, i) * key_scales[row] * math::exp(sums[last] - sums[row]);
                    });
                    barrier();
                    Product added;
                    added.clear();
                    added.add_transposed(slice, changes, last + 1);
#pragma unroll
                    for (u32 m = 0; m < PART_ROWS; ++m) {
                        const u32 row = at + Product::row(m);
#pragma unroll
                        for (u32 n = 0; n < PART_COLUMNS; ++n) {
                            float* const old = &state[row][Product::column(n)];
                            const float s = math::fma(decay, *old, added.v[m][n]);
                            const u32 column = first_column + Product::column(n);
                            if (is_kept && row < c.key_size && column < c.value_size) d.states[d.state(target, head, row) + column] = s;
                            if (goes_on) *old = s;
                        }
                    }
                }
            }
        }
    }
}

#define DELTA_STEP(name, T, R)                                                                                                            \
    extern "C" __global__ MAX_BLOCK(DELTA_BLOCK) void delta_rule_step_##R##_##name(DELTA_PARAMETERS(T), T* out, DeltaRule c) {            \
        step<R>(Delta<T>{DELTA_ARGUMENTS, c}, out);                                                                                       \
    }
#define DELTA_CHUNKS(name, T, KEYS)                                                                                                       \
    extern "C" __global__ MAX_BLOCK(DELTA_BLOCK) void delta_rule_chunks_##KEYS##_##name(DELTA_PARAMETERS(T), const float* scratch, T* out, \
                                                                                       DeltaRule c) {                                     \
        chunks<KEYS>(Delta<T>{DELTA_ARGUMENTS, c}, scratch, out);                                                                         \
    }
// On nvptx, where kernels are only measured, a block has no more than 48 KiB of LDS without being asked: longer keys have
// no chunks there.
#if defined(__CUDACC__)
#define DELTA_LONG_CHUNKS(name, T)
#else
#define DELTA_LONG_CHUNKS(name, T) DELTA_CHUNKS(name, T, 256)
#endif
#define DELTA(name, T)                                                                                                                    \
    DELTA_STEP(name, T, 16)                                                                                                               \
    DELTA_STEP(name, T, 32)                                                                                                               \
    extern "C" __global__ MAX_BLOCK(DELTA_BLOCK) void delta_rule_prepare_##name(DELTA_PARAMETERS(T), float* scratch, DeltaRule c) {       \
        prepare(Delta<T>{DELTA_ARGUMENTS, c}, scratch);                                                                                   \
    }                                                                                                                                     \
    DELTA_CHUNKS(name, T, 128)                                                                                                            \
    DELTA_LONG_CHUNKS(name, T)
PART(f16) DELTA(f16, f16)
PART(bf16) DELTA(bf16, bf16)
PART(f32) DELTA(f32, float)
