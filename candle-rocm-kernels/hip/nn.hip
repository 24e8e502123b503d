// Softmax along the last dimension, and rotary embeddings.
#include "narrow.h"
#include "rows.h"

struct Max {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a < b ? b : a; }
    template <typename T> static DEVICE_FN T identity() { return -math::infinity(T(0)); }
};

template <typename T> DEVICE_FN compute_t<T> power_of(compute_t<T> x) {
    if constexpr (NARROW<T>) {
        return narrow::exp<f16>(x);
    } else {
        return math::exp(x);
    }
}

// exp(x - max) / sum of these, with statistics in f32 (for f64 in f64). What a thread keeps is read once; beyond that, the maximum and the sum are
// taken together, rescaling the sum whenever the maximum grows, and a second reading gives the results.
// A row of -inf only, or one that holds +inf or NaN, gives NaN everywhere, as on the CPU.
template <typename Team, typename T> DEVICE_FN void softmax(const T* src, T* dst, u64 rows, u32 columns, u64 row_stride) {
    using C = compute_t<T>;
    const C lowest = Max::identity<C>();
    Team team;
    for (u64 r = Team::index(); r < rows; r += Team::count()) {
        const Plain<T> source{src + r * row_stride};
        T* const out = dst + r * columns;
        const Row<Team, T, Plain<T>> row(team, source, columns, are_in_packs(source.src, out));
        C max = lowest;
        C sum = C(0);
        row.each_beyond([&](u32, const auto& values) {
            C top = max;
            for (const C value : values.v) top = Max::apply(top, value);
            // As long as all is -inf, differences to 0 keep the sum at 0.
            const C base = top == lowest ? C(0) : top;
            sum *= power_of<T>(max - base);
            for (const C value : values.v) sum += power_of<T>(value - base);
            max = top;
        });
        C top = max;
        row.each_kept([&](u32, const auto& values) {
            for (const C value : values.v) top = Max::apply(top, value);
        });
        top = team.template join<Max>(top);
        sum *= power_of<T>(max - top);
        auto powers = row.values();
        row.each_of(powers, [&](u32, auto& values) {
            for (C& value : values.v) sum += value = power_of<T>(value - top);
        });
        const C scale = C(1) / team.template join<Sum>(sum);
        row.each_of(powers, [&](u32 i, auto& values) {
            for (C& value : values.v) value *= scale;
            write_aligned(out + i, values);
        });
        row.each_beyond([&](u32 i, auto values) {
            for (C& value : values.v) value = power_of<T>(value - top) * scale;
            write_aligned(out + i, values);
        });
    }
}

// Where the pairs of a rotary embedding lie. `src` is [batch, heads, time, 2 half], `time_inner`, or [batch, time, heads, 2 half]. A thread turns the
// same pairs of every `group`-th head with one reading of the tables. `cos_batch` and `sin_batch` are the elements between batches of
// [batch, time, half] tables, 0 for [time, half] ones.
struct Rope {
    u32 pairs;  // of the first `group` heads
    u32 half;
    u32 time;
    u32 heads;
    u32 group;
    u32 time_inner;
    u32 cos_batch;
    u32 sin_batch;
    u32 interleaved;
};

// Turns each pair (a, b) by its angle, P neighbouring pairs at a time; P divides `half`. A pair is (i, i + half), or (2i, 2i + 1) if interleaved.
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

#define SOFTMAX(name, Team, T)                                                                                                  \
    extern "C" __global__ void softmax_##name(const T* src, T* dst, u64 rows, u32 columns, u64 row_stride) {                     \
        softmax<Team>(src, dst, rows, columns, row_stride);                                                                     \
    }
#define ROPE(dtype, T)                                                                                                          \
    extern "C" __global__ void rope_##dtype(const T* src, const T* cos, const T* sin, T* dst, Rope layout) {                     \
        rope(src, cos, sin, dst, layout);                                                                                       \
    }
#define NN(dtype, T)                          \
    SOFTMAX(dtype, BlockTeam, T)              \
    SOFTMAX(wave_##dtype, WaveTeam, T)        \
    ROPE(dtype, T)
NN(f16, f16)
NN(bf16, bf16)
NN(f32, float)
NN(f64, double)
