// New keys and values into a paged cache, with rotary embedding on the way, and a cache's keys or values as a plain
// matrix.
#include "packed.h"

// Eight neighbours of a head's vector from `first` on, turned by the token's angles. The pair of i is i + rotary / 2,
// or its neighbour if interleaved.
DEVICE_FN void turned8(const Write& w, const void* base, u64 start, u32 first, const float* cos, const float* sin, float* x) {
    load8(w.format, base, nullptr, start + first, x);
    if (first >= w.rotary) return;
    const u32 half = w.rotary / 2;
    if (w.interleaved) {
        const Float4 c = *(const Float4*)(cos + first / 2);
        const Float4 s = *(const Float4*)(sin + first / 2);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float a = x[2 * i];
            const float b = x[2 * i + 1];
            x[2 * i] = a * c.v[i] - b * s.v[i];
            x[2 * i + 1] = a * s.v[i] + b * c.v[i];
        }
        return;
    }
    const bool upper = first >= half;
    const u32 angle = upper ? first - half : first;
    float pair[8];
    float c[8];
    float s[8];
    load8(w.format, base, nullptr, start + (upper ? angle : first + half), pair);
    load8_as<F32>(cos, nullptr, angle, c);
    load8_as<F32>(sin, nullptr, angle, s);
#pragma unroll
    for (u32 i = 0; i < 8; ++i) x[i] = upper ? pair[i] * s[i] + x[i] * c[i] : x[i] * c[i] - pair[i] * s[i];
}

DEVICE_FN void store8(u32 format, void* base, u64 at, const float* x) {
    store4(format, base, at, x);
    store4(format, base, at + 4, x + 4);
}

// A block of SCALED elements becomes bytes with the factor that makes the largest 127.
template <typename Load> DEVICE_FN void store_scaled(void* base, f16* scales, u64 at, Load load_eight) {
    float largest = 0.0f;
#pragma unroll
    for (u32 g = 0; g < SCALED; g += 8) {
        float x[8];
        load_eight(g, x);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const float magnitude = x[i] < 0.0f ? -x[i] : x[i];
            largest = largest < magnitude ? magnitude : largest;
        }
    }
    const float factor = largest / 127.0f;
    const float inverse = factor == 0.0f ? 0.0f : 1.0f / factor;
    scales[at / SCALED] = store<f16>(factor);
#pragma unroll
    for (u32 g = 0; g < SCALED; g += 8) {
        float x[8];
        load_eight(g, x);
        u32 words[2] = {};
#pragma unroll
        for (u32 i = 0; i < 8; ++i) words[i / 4] |= (u32)(u8)(i8)__builtin_rintf(x[i] * inverse) << (i % 4 * 8);
        *(Bytes8*)((u8*)base + at + g) = Bytes8{{words[0], words[1]}};
    }
}

// A thread has eight elements of one head of one token (SCALED of them, if the cache has scales): queries, keys, then
// values.
extern "C" __global__ MAX_BLOCK(256) void kv_cache_write(const void* q, const void* k, const void* v, const float* cos, const float* sin,
                                                         const u32* positions, const u32* slots, void* q_out, void* k_cache, void* v_cache,
                                                         f16* k_scales, f16* v_scales, Write w) {
    const u32 share = w.k_format == I8 ? SCALED : 8;
    const u32 shares = w.width / share;
    const u32 v_shares = w.v_width / share;
    const u32 queries = q ? w.heads * shares : 0;
    const u32 keys = w.kv_heads * shares;
    const u32 per_token = queries + keys + w.kv_heads * v_shares;
    for (u64 i = global_index(); i < (u64)w.tokens * per_token; i += global_size()) {
        const u32 token = (u32)(i / per_token);
        u32 part = (u32)(i % per_token);
        const u64 angles = w.rotary ? (u64)positions[token] * (w.rotary / 2) : 0;
        if (part < queries) {
            const u32 head = part / shares;
            const u32 first = part % shares * share;
            const u64 start = (u64)token * w.q_token + (u64)head * w.q_head;
            const u64 to = ((u64)token * w.heads + head) * w.width;
            for (u32 g = first; g < first + share; g += 8) {
                float x[8];
                turned8(w, q, start, g, cos + angles, sin + angles, x);
                store8(w.format, q_out, to + g, x);
            }
            continue;
        }
        const u32 slot = slots[token];
        if (slot == UNLIMITED) continue;
        const u32 block = slot / w.block_size;
        const u32 entry = slot - block * w.block_size;
        part -= queries;
        if (part < keys) {
            const u32 head = part / shares;
            const u32 first = part % shares * share;
            const u64 start = (u64)token * w.k_token + (u64)head * w.k_head;
            const u64 to = block * w.k_block + (u64)entry * w.k_entry + (u64)head * w.k_cache_head + first;
            if (share == SCALED) {
                store_scaled(k_cache, k_scales, to, [&](u32 g, float* x) { turned8(w, k, start, first + g, cos + angles, sin + angles, x); });
            } else {
                float x[8];
                turned8(w, k, start, first, cos + angles, sin + angles, x);
                store8(w.k_format, k_cache, to, x);
            }
            continue;
        }
        part -= keys;
        const u32 head = part / v_shares;
        const u32 first = part % v_shares * share;
        const u64 start = (u64)token * w.v_token + (u64)head * w.v_head;
        const u64 to = block * w.v_block + (u64)entry * w.v_entry + (u64)head * w.v_cache_head + first;
        if (share == SCALED) {
            store_scaled(v_cache, v_scales, to, [&](u32 g, float* x) { load8(w.format, v, nullptr, start + first + g, x); });
        } else {
            float x[8];
            load8(w.format, v, nullptr, start + first, x);
            store8(w.k_format, v_cache, to, x);
        }
    }
}

// Lanes of a token's queries, keys or values, so that what shares a factor or turns together does not straddle waves.
DEVICE_FN u32 whole_waves(u32 lanes) { return (lanes + 31) / 32 * 32; }
// Lanes that store a vector: rows end with whole blocks.
DEVICE_FN u32 stored_lanes(u32 width) { return (width + SCALED - 1) / SCALED * (SCALED / 8); }

// As kv_cache_write into a packed cache: a lane has eight elements, of which keys and values are turned as the cache
// says before they are stored.
extern "C" __global__ MAX_BLOCK(256) void kv_cache_write_packed(const void* q, const void* k, const void* v, const float* cos, const float* sin,
                                                                const u32* positions, const u32* slots, void* q_out, void* k_cache, void* v_cache,
                                                                f16* k_scales, f16* v_scales, Write layout) {
    // There are too few scalar registers for all of these.
    Write w = layout;
    w.q_token = opaque(w.q_token);
    w.q_head = opaque(w.q_head);
    w.k_token = opaque(w.k_token);
    w.k_head = opaque(w.k_head);
    w.v_token = opaque(w.v_token);
    w.v_head = opaque(w.v_head);
    w.k_block = opaque(w.k_block);
    w.v_block = opaque(w.v_block);
    w.k_entry = opaque(w.k_entry);
    w.v_entry = opaque(w.v_entry);
    w.k_cache_head = opaque(w.k_cache_head);
    w.v_cache_head = opaque(w.v_cache_head);
    k_cache = opaque(k_cache);
    v_cache = opaque(v_cache);
    k_scales = opaque(k_scales);
    v_scales = opaque(v_scales);
    const u32 q_lanes = w.width / 8;
    const u32 k_lanes = stored_lanes(w.width);
    const u32 v_lanes = stored_lanes(w.v_width);
    const u32 queries = q ? whole_waves(w.heads * q_lanes) : 0;
    const u32 keys = whole_waves(w.kv_heads * k_lanes);
    const u32 per_token = queries + keys + whole_waves(w.kv_heads * v_lanes);
    for (u64 i = global_index(); i < (u64)w.tokens * per_token; i += global_size()) {
        const u32 token = (u32)(i / per_token);
        u32 part = (u32)(i % per_token);
        const u64 angles = w.rotary ? (u64)positions[token] * (w.rotary / 2) : 0;
        float x[8] = {};
        if (part < queries) {
            const u32 head = part / q_lanes;
            const u32 first = part % q_lanes * 8;
            if (head >= w.heads) continue;
            turned8(w, q, (u64)token * w.q_token + (u64)head * w.q_head, first, cos + angles, sin + angles, x);
            store8(w.format, q_out, ((u64)token * w.heads + head) * w.width + first, x);
            continue;
        }
        part -= queries;
        const bool is_value = part >= keys;
        part -= is_value ? keys : 0;
        const u32 lanes = is_value ? v_lanes : k_lanes;
        const u32 head = part / lanes;
        const u32 first = part % lanes * 8;
        const u32 slot = slots[token];
        const bool exists = head < w.kv_heads && slot != UNLIMITED;
        if (exists && first < (is_value ? w.v_width : w.width)) {
            const u64 start = (u64)token * (is_value ? w.v_token : w.k_token) + (u64)head * (is_value ? w.v_head : w.k_head);
            if (is_value) {
                load8(w.format, v, nullptr, start + first, x);
            } else {
                turned8(w, k, start, first, cos + angles, sin + angles, x);
            }
        }
        rotate(x, is_value ? w.v_rotation : w.k_rotation);
        const u32 block = slot / w.block_size;
        const u32 entry = slot - block * w.block_size;
        const u64 to = block * (is_value ? w.v_block : w.k_block) + (u64)entry * (is_value ? w.v_entry : w.k_entry) +
                       (u64)head * (is_value ? w.v_cache_head : w.k_cache_head) + first;
        store8_packed(is_value ? w.v_format : w.k_format, is_value ? w.v_shift : w.k_shift, is_value ? v_cache : k_cache,
                      is_value ? v_scales : k_scales, to, exists, x);
    }
}

// Turns queries as the keys of a cache were turned, or results back as its values were: [tokens, heads, width] with any
// strides to the same without gaps. What is read and written may be the same.
extern "C" __global__ MAX_BLOCK(256) void kv_cache_rotate(const void* from, void* to, Turn t) {
    const u32 lanes = t.width / 8;
    const u64 count = (u64)t.tokens * t.heads * lanes;
    // Waves are whole: all lanes of a group arrive.
    for (u64 i = global_index(); i < (count + 63) / 64 * 64; i += global_size()) {
        const bool exists = i < count;
        const u64 line = exists ? i / lanes : 0;
        const u32 column = (u32)(i % lanes) * 8;
        float x[8] = {};
        if (exists) load8(t.format, from, nullptr, line / t.heads * t.row + line % t.heads * t.head + column, x);
        rotate(x, t.size);
        if (exists) store8(t.format, to, line * t.width + column, x);
    }
}

// The keys or values of one sequence as f32 [keys, kv_heads, width]: the naive form's input.
extern "C" __global__ MAX_BLOCK(256) void kv_cache_gather(ATTENTION_PARAMETERS, float* to, u32 index, u32 values) {
    const Problem a = ATTENTION_PROBLEM;
    const u32 width = values ? shape.v_width : shape.width;
    const u32 heads = shape.kv_heads;
    const Sequence seq = sequence(a, index, 0);
    const u64 count = (u64)seq.keys * heads * (width / 8);
    for (u64 i = global_index(); i < count; i += global_size()) {
        const u32 column = (u32)(i % (width / 8)) * 8;
        const u64 line = i / (width / 8);
        const Entry at = entry(a, seq, (u32)(line / heads));
        const u32 head = (u32)(line % heads);
        float x[8];
        if (values) {
            load8_cached(shape.v_format, shape.v_shift, v, v_scales, at.v + (u64)head * shape.v_head + column, x);
        } else {
            load8_cached(shape.k_format, shape.k_shift, k, k_scales, at.k + (u64)head * shape.k_head + column, x);
        }
        store8(F32, to, line * width + column, x);
    }
}
