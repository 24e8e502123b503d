// What the attention kernels share: the problem as it is passed, sequences and windows, scores, loads and stores of any
// format.
//
// Semantics are those of ops/attention/mod.rs. Rows are packed: the `group` heads of queries that share a head of keys
// are neighbouring rows of one tile, row r of it being head r % group of row r / group.
#ifndef CANDLE_ROCM_ATTENTION_COMMON_H
#define CANDLE_ROCM_ATTENTION_COMMON_H
#include "device.h"
#include "shared/attention.h"

constexpr float LOG2E = 1.44269504f;
constexpr float LN2 = 0.693147181f;
constexpr float LOWEST = -0x1.fffffep127f;

// A problem. Pointers to operands that it does not have are null.
struct Problem {
    const void* q;
    const void* k;
    const void* v;
    const f16* k_scales;
    const f16* v_scales;
    void* out;
    float* lse;
    const u32* cu_rows;
    const u32* cu_keys;
    const u32* table;
    const float* alibi;
    const float* sinks;
    const void* mask;
    const i32* prefix;
    Shape shape;
};
// A kernel's first parameters, and the problem that they make.
#define ATTENTION_PARAMETERS                                                                                                                \
    const void *q, const void *k, const void *v, const f16 *k_scales, const f16 *v_scales, void *out, float *lse, const u32 *cu_rows,         \
        const u32 *cu_keys, const u32 *table, const float *alibi, const float *sinks, const void *mask, const i32 *prefix, Shape shape
#define ATTENTION_PROBLEM \
    Problem { q, k, v, k_scales, v_scales, out, lse, cu_rows, cu_keys, table, alibi, sinks, mask, prefix, shape }

// ---------------------------------------------------------------- elements

// Relative error below 1e-6: a cap multiplies it. The exponential form cancels around 0, where the Taylor series takes
// over.
DEVICE_FN float tanh_fast(float x) {
    const float square = x * x;
    const float series = math::fma(math::fma(math::fma(62.0f / 2835.0f, square, -17.0f / 315.0f), square, 2.0f / 15.0f), square, -1.0f / 3.0f);
    const float exponential = 1.0f - 2.0f / (exp2_fast(x * (2.0f * LOG2E)) + 1.0f);
    return square < 0.0625f ? math::fma(x * square, series, x) : exponential;
}

struct alignas(16) Float4 {
    float v[4];
};
struct alignas(16) Bytes16 {
    u32 w[4];
};
struct alignas(8) Bytes8 {
    u32 w[2];
};

DEVICE_FN float low_f16(u32 pair) { return load(f16{(u16)pair}); }
DEVICE_FN float high_f16(u32 pair) { return load(f16{(u16)(pair >> 16)}); }
DEVICE_FN float low_bf16(u32 pair) { return bit_cast<float>(pair << 16); }
DEVICE_FN float high_bf16(u32 pair) { return bit_cast<float>(pair & 0xffff0000u); }

// Eight neighbouring elements as they lie in memory; their offset is a multiple of 8 elements.
template <u32 F> struct Raw8;
template <> struct Raw8<F16> {
    Bytes16 words;
    DEVICE_FN void load(const void* base, const f16*, u64 at) { words = *(const Bytes16*)((const u16*)base + at); }
    DEVICE_FN void widen(float* x) const {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            x[2 * i] = low_f16(words.w[i]);
            x[2 * i + 1] = high_f16(words.w[i]);
        }
    }
};
template <> struct Raw8<BF16> {
    Bytes16 words;
    DEVICE_FN void load(const void* base, const f16*, u64 at) { words = *(const Bytes16*)((const u16*)base + at); }
    DEVICE_FN void widen(float* x) const {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            x[2 * i] = low_bf16(words.w[i]);
            x[2 * i + 1] = high_bf16(words.w[i]);
        }
    }
};
template <> struct Raw8<F32> {
    Float4 low;
    Float4 high;
    DEVICE_FN void load(const void* base, const f16*, u64 at) {
        low = *(const Float4*)((const float*)base + at);
        high = *(const Float4*)((const float*)base + at + 4);
    }
    DEVICE_FN void widen(float* x) const {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            x[i] = low.v[i];
            x[4 + i] = high.v[i];
        }
    }
};
template <> struct Raw8<I8> {
    Bytes8 words;
    f16 scale;
    DEVICE_FN void load(const void* base, const f16* scales, u64 at) {
        words = *(const Bytes8*)((const u8*)base + at);
        scale = scales[at / SCALED];
    }
    DEVICE_FN void widen(float* x) const {
        const float factor = device::load(scale);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) x[i] = factor * (float)(i8)(words.w[i / 4] >> (i % 4 * 8));
    }
};

template <u32 F> DEVICE_FN void load8_as(const void* base, const f16* scales, u64 at, float* x) {
    Raw8<F> raw;
    raw.load(base, scales, at);
    raw.widen(x);
}
// Eight neighbouring elements of a format that is the same for the whole grid.
DEVICE_FN void load8(u32 format, const void* base, const f16* scales, u64 at, float* x) {
    switch (format) {
        case F16: return load8_as<F16>(base, scales, at, x);
        case BF16: return load8_as<BF16>(base, scales, at, x);
        case F32: return load8_as<F32>(base, scales, at, x);
        default: return load8_as<I8>(base, scales, at, x);
    }
}
DEVICE_FN float load1(u32 format, const void* base, u64 at) {
    switch (format) {
        case F16: return load(((const f16*)base)[at]);
        case BF16: return load(((const bf16*)base)[at]);
        case F32: return ((const float*)base)[at];
        default: return (float)((const double*)base)[at];
    }
}
DEVICE_FN void store1(u32 format, void* base, u64 at, float x) {
    switch (format) {
        case F16: ((f16*)base)[at] = store<f16>(x); break;
        case BF16: ((bf16*)base)[at] = store<bf16>(x); break;
        default: ((float*)base)[at] = x; break;
    }
}
// Four neighbours at a multiple of 4.
DEVICE_FN void store4(u32 format, void* base, u64 at, const float* x) {
    if (format == F32) {
        *(Float4*)((float*)base + at) = Float4{{x[0], x[1], x[2], x[3]}};
        return;
    }
    u16 half[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) half[i] = format == F16 ? store<f16>(x[i]).bits : store<bf16>(x[i]).bits;
    *(Bytes8*)((u16*)base + at) = Bytes8{{half[0] | (u32)half[1] << 16, half[2] | (u32)half[3] << 16}};
}

// ---------------------------------------------------------------- sequences and windows

// One sequence of the batch: its lengths, and where its first row, its first key and value of one head (with blocks,
// those of block 0) and its result begin, in elements.
struct Sequence {
    u32 index;
    u32 rows;
    u32 keys;
    u64 q;
    u64 k;
    u64 v;
    u64 out;
    u64 lse;
};

DEVICE_FN Sequence sequence(const Problem& a, u32 index, u32 kv_head) {
    const Shape& s = a.shape;
    Sequence seq{index, s.rows, s.keys, index * s.q_batch, index * s.k_batch, index * s.v_batch, index * s.o_batch, (u64)index * s.heads * s.rows};
    if (a.cu_rows) {
        const u32 row = a.cu_rows[index];
        const u32 key = a.cu_keys[index];
        const u32 before = s.block_size ? 0 : key;
        seq = Sequence{index, a.cu_rows[index + 1] - row, a.cu_keys[index + 1] - key, (u64)row * s.q_row, (u64)before * s.k_row, (u64)before * s.v_row, (u64)row * s.o_row, row};
    }
    seq.k += (u64)kv_head * s.k_head;
    seq.v += (u64)kv_head * s.v_head;
    return seq;
}

// Where a key and its value begin.
struct Entry {
    u64 k;
    u64 v;
};
DEVICE_FN Entry entry(const Problem& a, const Sequence& seq, u32 key) {
    const Shape& s = a.shape;
    const u32 block_size = opaque_uniform(s.block_size);
    if (block_size == 0) return Entry{seq.k + (u64)key * s.k_row, seq.v + (u64)key * s.v_row};
    const u32 block = key / block_size;
    const u32 in_block = key - block * block_size;
    const u64 number = a.table[(u64)seq.index * s.table_row + block];
    return Entry{seq.k + number * s.k_batch + (u64)in_block * s.k_row, seq.v + number * s.v_batch + (u64)in_block * s.v_row};
}

// Keys from `begin` to before `end`; none if begin >= end.
struct Span {
    u32 begin;
    u32 end;
};
// What a row sees through the window.
DEVICE_FN Span window(const Shape& s, const Sequence& seq, u32 row) {
    const i64 position = (i64)row + seq.keys - seq.rows;
    i64 begin = s.left == UNLIMITED ? 0 : position - s.left;
    i64 end = s.right == UNLIMITED ? seq.keys : position + s.right + 1;
    begin = begin < 0 ? 0 : begin;
    if (s.chunk != 0 && position > 0) {
        const i64 own = (u32)position / s.chunk * s.chunk;
        begin = begin < own ? own : begin;
    }
    end = end < 0 ? 0 : end > seq.keys ? seq.keys : end;
    return Span{(u32)begin, (u32)end};
}
// What rows from `first` to `last` see together, at most.
DEVICE_FN Span windows(const Problem& a, const Sequence& seq, u32 first, u32 last) {
    if (a.shape.ranges != 0) return Span{0, seq.keys};
    return Span{window(a.shape, seq, first).begin, window(a.shape, seq, last).end};
}

// What makes scores of one row out of products.
struct Row {
    Span span;
    i32 position;
    float slope;
    u64 mask;
    bool exists;
    // The head's score without a key; minus infinity if there is none.
    float sink;
};
DEVICE_FN Row row_of(const Problem& a, const Sequence& seq, u32 row, u32 head) {
    const Shape& s = a.shape;
    Row r{{0, 0}, (i32)row + (i32)seq.keys - (i32)seq.rows, 0.0f, 0, row < seq.rows, -math::infinity(0.0f)};
    if (r.exists) {
        r.span = window(s, seq, row);
        if (a.alibi) r.slope = a.alibi[head];
        if (a.sinks) r.sink = a.sinks[head];
        r.mask = seq.index * s.mask_batch + head * s.mask_head + row * s.mask_row;
    }
    return r;
}
DEVICE_FN bool in_prefix(const Problem& a, const Sequence& seq, i32 position, i32 key) {
    const i32* range = a.prefix + (u64)opaque_uniform(seq.index) * a.shape.ranges * 2;
    for (u32 i = 0; i < a.shape.ranges; ++i, range += 2) {
        if (range[0] <= position && position < range[1] && range[0] <= key && key < range[1]) return true;
    }
    return false;
}
// Turns a product into a score; minus infinity and false if the row does not see the key.
DEVICE_FN bool score(const Problem& a, const Sequence& seq, const Row& row, u32 key, float& x) {
    const Shape& s = a.shape;
    bool visible = key >= row.span.begin && key < row.span.end;
    if (opaque_uniform(s.ranges) != 0 && !visible && row.exists && key < seq.keys) visible = in_prefix(a, seq, row.position, (i32)key);
    x *= opaque_uniform(s.scale);
    const float cap = opaque_uniform(s.softcap);
    if (cap != 0.0f) x = cap * tanh_fast(x / cap);
    const i32 distance = row.position - (i32)key;
    x = math::fma(row.slope, -(float)(distance < 0 ? -distance : distance), x);
    const u32 mask_format = opaque_uniform(s.mask_format);
    if (mask_format != NONE && visible) {
        const float bias = load1(mask_format, a.mask, row.mask + key * opaque_uniform(s.mask_key));
        visible = bias != -math::infinity(0.0f);
        x += bias;
    }
    if (!visible) x = -math::infinity(0.0f);
    return visible;
}

// ---------------------------------------------------------------- online softmax

// The maximum over visible scores; minus infinity and NaN among them count as LOWEST, so that afterwards a maximum of
// minus infinity says that nothing was visible, and a sum of 0 otherwise that the formula is 0 / 0.
DEVICE_FN float visible_max(float max, bool visible, float x) {
    const float bounded = x >= LOWEST ? x : LOWEST;
    return visible && max < bounded ? bounded : max;
}
// e^(x - max); 0 for what is hidden, also before anything was visible.
DEVICE_FN float weight(float x, float max) {
    return exp2_fast((x - (max == -math::infinity(0.0f) ? 0.0f : max)) * LOG2E);
}
// A row's result out of its sum of weighted values: zero if nothing was visible.
DEVICE_FN float normalized(float value, float max, float inverse_sum) {
    return max == -math::infinity(0.0f) ? 0.0f : value * inverse_sum;
}
// Takes a sink, a score whose weight counts in the sum alone, into a row's maximum and sum. Gives the factor that brings
// sums of weighted values to the new maximum. Scores are in powers of e, or of 2 with `unit` 1.
DEVICE_FN float add_sink(float sink, float& max, float& sum, float unit) {
    if (sink == -math::infinity(0.0f)) return 1.0f;
    const float next = max < sink ? sink : max;
    const float shrink = exp2_fast((max - next) * unit);
    sum = sum * shrink + exp2_fast((sink - next) * unit);
    max = next;
    return shrink;
}
DEVICE_FN float log_sum_exp(float max, float sum) { return max == -math::infinity(0.0f) ? max : max + math::log(sum); }

#endif
