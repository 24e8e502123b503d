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

// Where the pairs of a rotary embedding lie. `src` is [batch, heads, time, 2 half] or [batch, time, heads, 2 half]; rows are counted over
// the first three. `rows_per_time` neighbouring rows share a time: 1, or the number of heads. `cos_batch` and `sin_batch` are the
// elements between batches of [batch, time, half] tables, 0 for [time, half] ones.
struct Rope {
    u32 pairs;
    u32 half;
    u32 time;
    u32 rows_per_time;
    u32 rows_per_batch;
    u32 cos_batch;
    u32 sin_batch;
    u32 interleaved;
};

// Turns each pair (a, b) by its angle, P neighbouring pairs at a time; P divides `half`. A pair is (i, i + half), or (2i, 2i + 1) if interleaved.
template <u32 P, typename T> DEVICE_FN void rotate(const T* src, const T* cos, const T* sin, T* dst, const Rope& layout) {
    using C = compute_t<T>;
    const u32 row_steps = layout.half / P;
    const u32 steps = layout.pairs / P;
    for (u64 index = global_index(); index < steps; index += global_size()) {
        const u32 row = (u32)index / row_steps;
        const u32 i = ((u32)index - row * row_steps) * P;
        const u32 batch = row / layout.rows_per_batch;
        const u32 angle = row / layout.rows_per_time % layout.time * layout.half + i;
        const Values<C, P> c = read<P>(cos + (u64)batch * layout.cos_batch + angle);
        const Values<C, P> s = read<P>(sin + (u64)batch * layout.sin_batch + angle);
        const u64 start = (u64)row * layout.half * 2;
        if (layout.interleaved) {
            const u64 at = start + 2 * i;
            Values<C, 2 * P> x = read<2 * P>(src + at);
            for (u32 j = 0; j < P; ++j) {
                const C a = x.v[2 * j];
                const C b = x.v[2 * j + 1];
                x.v[2 * j] = a * c.v[j] - b * s.v[j];
                x.v[2 * j + 1] = a * s.v[j] + b * c.v[j];
            }
            write(dst + at, x);
        } else {
            const u64 at = start + i;
            Values<C, P> x = read<P>(src + at);
            Values<C, P> y = read<P>(src + at + layout.half);
            for (u32 j = 0; j < P; ++j) {
                const C a = x.v[j];
                const C b = y.v[j];
                x.v[j] = a * c.v[j] - b * s.v[j];
                y.v[j] = a * s.v[j] + b * c.v[j];
            }
            write(dst + at, x);
            write(dst + at + layout.half, y);
        }
    }
}
template <typename T> DEVICE_FN void rope(const T* src, const T* cos, const T* sin, T* dst, const Rope& layout) {
    if (layout.half % PACK<T> == 0) {
        rotate<PACK<T>>(src, cos, sin, dst, layout);
    } else {
        rotate<1>(src, cos, sin, dst, layout);
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
