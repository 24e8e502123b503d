// Softmax along the last dimension.
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

// exp(x - max) / sum of these, with statistics in f32 (for f64 in f64). What a thread keeps is read once; beyond that,
// the maximum and the sum are taken together, rescaling the sum whenever the maximum grows, and a second reading gives
// the results. A row of -inf only, or one that holds +inf or NaN, gives NaN everywhere, as on the CPU.
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

#define SOFTMAX(name, Team, T)                                                                                                  \
    extern "C" __global__ void softmax_##name(const T* src, T* dst, u64 rows, u32 columns, u64 row_stride) {                     \
        softmax<Team>(src, dst, rows, columns, row_stride);                                                                     \
    }
#define SOFTMAXES(dtype, T)              \
    SOFTMAX(dtype, BlockTeam, T)         \
    SOFTMAX(wave_##dtype, WaveTeam, T)
SOFTMAXES(f16, f16)
SOFTMAXES(bf16, bf16)
SOFTMAXES(f32, float)
SOFTMAXES(f64, double)
