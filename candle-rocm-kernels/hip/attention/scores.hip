// The naive form's middle: a matrix of products, in memory, becomes one of weights in place. A block has one row.
#include "common.h"

struct Max {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a < b ? b : a; }
    template <typename T> static DEVICE_FN T identity() { return -math::infinity(T(0)); }
};

// As `score` of common.h, in the type of the matrix.
template <typename C> DEVICE_FN bool exact_score(const Problem& a, const Sequence& seq, const Row& row, u32 key, C& x) {
    const Shape& s = a.shape;
    bool visible = key >= row.span.begin && key < row.span.end;
    if (opaque_uniform(s.ranges) != 0 && !visible) visible = in_prefix(a, seq, row.position, (i32)key);
    x *= (C)s.scale;
    const C cap = (C)opaque_uniform(s.softcap);
    if (cap != C(0)) x = cap * math::tanh(x / cap);
    const i32 distance = row.position - (i32)key;
    x -= (C)row.slope * (C)(distance < 0 ? -distance : distance);
    const u32 mask_format = opaque_uniform(s.mask_format);
    if (mask_format != NONE && visible) {
        const u64 at = row.mask + key * s.mask_key;
        const C bias = mask_format == F64 ? (C)((const double*)a.mask)[at] : (C)load1(mask_format, a.mask, at);
        visible = bias != -math::infinity(C(0));
        x += bias;
    }
    return visible;
}

template <typename C> DEVICE_FN void weigh(const Problem& a, C* matrix, const Part& part) {
    __shared__ C scratch[MAX_WAVES];
    __shared__ u32 counts[MAX_WAVES];
    const Sequence seq = sequence(a, part.sequence, part.kv_head);
    const u32 r = block_x();
    const u32 head = part.kv_head * a.shape.group + r / part.rows;
    const u32 row = part.first_row + r % part.rows;
    const Row info = row_of(a, seq, row, head);
    C* line = matrix + (u64)r * seq.keys;
    C max = -math::infinity(C(0));
    u32 seen = 0;
    for (u32 key = thread_x(); key < seq.keys; key += block_dim()) {
        C x = line[key];
        const bool visible = exact_score(a, seq, info, key, x);
        line[key] = visible ? x : -math::infinity(C(0));
        seen += visible;
        max = Max::apply(max, x != x || !visible ? max : x);
    }
    max = block_reduce<Max>(max, scratch);
    seen = block_reduce<Sum>(seen, counts);
    // What counts in the sum alone.
    const C sink = (C)info.sink;
    const bool is_empty = seen == 0 && sink == -math::infinity(C(0));
    max = Max::apply(max, sink);
    // Visible scores of minus infinity only give 0 / 0, as the formula does.
    const C reference = max == -math::infinity(C(0)) ? C(0) : max;
    C sum = C(0);
    for (u32 key = thread_x(); key < seq.keys; key += block_dim()) {
        line[key] = math::exp(line[key] - reference);
        sum += line[key];
    }
    sum = block_reduce<Sum>(sum, scratch) + math::exp(sink - reference);
    for (u32 key = thread_x(); key < seq.keys; key += block_dim()) line[key] = is_empty ? C(0) : line[key] / sum;
    if (a.lse && thread_x() == 0) {
        a.lse[seq.lse + head * a.shape.lse_head + row] = is_empty ? -math::infinity(0.0f) : (float)(max + math::log(sum));
    }
}

#define ATTENTION_SCORES(name, C)                                                                                 \
    extern "C" __global__ MAX_BLOCK(256) void attention_scores_##name(ATTENTION_PARAMETERS, C* matrix, Part part) { \
        weigh(ATTENTION_PROBLEM, matrix, part);                                                                    \
    }
ATTENTION_SCORES(f32, float)
ATTENTION_SCORES(f64, double)
