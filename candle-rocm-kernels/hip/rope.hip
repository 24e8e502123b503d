// Rotary embeddings.
#include "rows.h"
#include "shared/rope.h"

// Turns each pair (a, b) by its angle, P neighbouring pairs at a time; P divides `half`. A pair is (i, i + half), or
// (2i, 2i + 1) if interleaved.
template <u32 P, bool INTERLEAVED, typename T> DEVICE_FN void rotate(const T* src, const T* cos, const T* sin, T* dst, const Rope& layout) {
    using C = compute_t<T>;
    const u32 row_steps = layout.half / P;
    const u32 steps = layout.pairs / P;
    const u32 width = 2 * layout.half;
    const u32 inner = layout.time_inner ? layout.time : layout.group;
    const u32 outer = layout.time_inner ? layout.group : layout.time;
    const u64 head_stride = layout.time_inner ? (u64)layout.time * width : width;
    const u32 time_stride = layout.time_inner ? width : layout.heads * width;
    for (u64 index = global_index(); index < steps; index += global_size()) {
        const u32 row = (u32)index / row_steps;
        const u32 i = ((u32)index - row * row_steps) * P;
        const u32 line = row / inner;
        const u32 batch = line / outer;
        const u32 at_inner = row - line * inner, at_outer = line - batch * outer;
        const u32 time = layout.time_inner ? at_inner : at_outer;
        const u32 angle = time * layout.half + i;
        Held<P, T> c, s;
        c = copy_from_aligned<P>(cos + (u64)batch * layout.cos_batch + angle);
        s = copy_from_aligned<P>(sin + (u64)batch * layout.sin_batch + angle);
        u32 head = layout.time_inner ? at_outer : at_inner;
        u64 at = (u64)batch * layout.heads * layout.time * width + head * head_stride + (u64)time * time_stride + (INTERLEAVED ? 2 * i : i);
        const u32 apart = INTERLEAVED ? P : layout.half;
        for (; head < layout.heads; head += layout.group, at += layout.group * head_stride) {
            Held<P, T> first, second;
            first = copy_from_aligned<P>(src + at);
            second = copy_from_aligned<P>(src + at + apart);
            const Values<C, P> cs = c.values(), sn = s.values();
            Values<C, P> x = first.values(), y = second.values();
#pragma unroll
            for (u32 j = 0; j < P; ++j) {
                // Interleaved, the two packs are 2P neighbours.
                C& a = INTERLEAVED ? (2 * j < P ? x.v[2 * j % P] : y.v[2 * j % P]) : x.v[j];
                C& b = INTERLEAVED ? (2 * j + 1 < P ? x.v[(2 * j + 1) % P] : y.v[(2 * j + 1) % P]) : y.v[j];
                const C before = a;
                a = before * cs.v[j] - b * sn.v[j];
                b = before * sn.v[j] + b * cs.v[j];
            }
            write_aligned(dst + at, x);
            write_aligned(dst + at + apart, y);
        }
    }
}
template <u32 P, typename T> DEVICE_FN void rotate_by(const T* src, const T* cos, const T* sin, T* dst, const Rope& layout) {
    if (layout.interleaved) {
        rotate<P, true>(src, cos, sin, dst, layout);
    } else {
        rotate<P, false>(src, cos, sin, dst, layout);
    }
}
template <typename T> DEVICE_FN void rope(const T* src, const T* cos, const T* sin, T* dst, const Rope& layout) {
    if (layout.half % PACK<T> == 0 && are_in_packs(src, cos, sin, dst)) {
        rotate_by<PACK<T>>(src, cos, sin, dst, layout);
    } else {
        rotate_by<1>(src, cos, sin, dst, layout);
    }
}

#define ROPE(dtype, T)                                                                                                          \
    extern "C" __global__ void rope_##dtype(const T* src, const T* cos, const T* sin, T* dst, Rope layout) {                     \
        rope(src, cos, sin, dst, layout);                                                                                       \
    }
ROPE(f16, f16)
ROPE(bf16, bf16)
ROPE(f32, float)
ROPE(f64, double)
