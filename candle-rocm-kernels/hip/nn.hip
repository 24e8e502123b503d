// Softmax, RMS norm, layer norm and rotary embeddings.
//
// The first three work on rows: a wave has a row (`<op>_wave_<dtype>`, several rows a block, for short rows) or a block has one. Each
// thread keeps up to ITEMS elements of its row in registers, so that rows of up to ITEMS * threads elements are read once; what lies
// beyond is read again for each pass. Statistics are taken in f32, for f64 in f64.
#include "device.h"

constexpr u32 ITEMS = 8;

struct Max {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a < b ? b : a; }
    template <typename T> static DEVICE_FN T identity() { return -math::infinity(T(0)); }
};

// The threads that share a row.
struct WaveTeam {
    static DEVICE_FN u32 rank() { return lane(); }
    static DEVICE_FN u32 size() { return WAVE; }
    static DEVICE_FN u64 index() { return global_index() / WAVE; }
    static DEVICE_FN u64 count() { return global_size() / WAVE; }
    template <typename Op, typename C> static DEVICE_FN C join(C v) { return wave_reduce<Op>(v); }
};
struct BlockTeam {
    static DEVICE_FN u32 rank() { return thread_x(); }
    static DEVICE_FN u32 size() { return block_dim(); }
    static DEVICE_FN u64 index() { return block_x(); }
    static DEVICE_FN u64 count() { return grid_dim(); }
    template <typename Op, typename C> static DEVICE_FN C join(C v) {
        __shared__ C scratch[MAX_WAVES];
        return block_reduce<Op>(v, scratch);
    }
};

// One thread's share of a row.
template <typename Team, typename T> struct Row {
    using C = compute_t<T>;
    const T* src;
    u32 columns;
    C kept[ITEMS];

    DEVICE_FN Row(const T* row, u32 n) : src(row), columns(n) {
#pragma unroll
        for (u32 k = 0; k < ITEMS; ++k) {
            const u32 i = Team::rank() + k * Team::size();
            kept[k] = i < columns ? load(src[i]) : C(0);
        }
    }
    // Calls f(column, value) for each element of the share.
    template <typename F> DEVICE_FN void each(F f) const {
#pragma unroll
        for (u32 k = 0; k < ITEMS; ++k) {
            const u32 i = Team::rank() + k * Team::size();
            if (i < columns) f(i, kept[k]);
        }
        for (u64 i = Team::rank() + ITEMS * Team::size(); i < columns; i += Team::size()) f((u32)i, load(src[i]));
    }
    // The row's reduction of f(value).
    template <typename Op, typename F> DEVICE_FN C reduce(F f) const {
        C result = Op::template identity<C>();
        each([&](u32, C value) { result = Op::apply(result, f(value)); });
        return Team::template join<Op>(result);
    }
};

// A row of -inf only, or one that holds +inf or NaN, gives NaN everywhere, as on the CPU.
template <typename Team, typename T> DEVICE_FN void softmax(const T* src, T* dst, u64 rows, u32 columns, u64 row_stride) {
    using C = compute_t<T>;
    for (u64 r = Team::index(); r < rows; r += Team::count()) {
        const Row<Team, T> row(src + r * row_stride, columns);
        const C max = row.template reduce<Max>([](C value) { return value; });
        const C sum = row.template reduce<Sum>([=](C value) { return math::exp(value - max); });
        const C scale = C(1) / sum;
        row.each([=](u32 i, C value) { dst[r * columns + i] = store<T>(math::exp(value - max) * scale); });
    }
}

template <typename Team, typename T>
DEVICE_FN void rms_norm(const T* src, const T* weight, T* dst, u64 rows, u32 columns, u64 row_stride, float eps) {
    using C = compute_t<T>;
    for (u64 r = Team::index(); r < rows; r += Team::count()) {
        const Row<Team, T> row(src + r * row_stride, columns);
        const C squares = row.template reduce<Sum>([](C value) { return value * value; });
        const C scale = C(1) / math::sqrt(squares / (C)columns + (C)eps);
        row.each([=](u32 i, C value) { dst[r * columns + i] = store<T>(value * scale * load(weight[i])); });
    }
}

// `bias` may be null. The variance is that of the differences to the mean: no cancellation.
template <typename Team, typename T>
DEVICE_FN void layer_norm(const T* src, const T* weight, const T* bias, T* dst, u64 rows, u32 columns, u64 row_stride, float eps) {
    using C = compute_t<T>;
    for (u64 r = Team::index(); r < rows; r += Team::count()) {
        const Row<Team, T> row(src + r * row_stride, columns);
        const C mean = row.template reduce<Sum>([](C value) { return value; }) / (C)columns;
        const C squares = row.template reduce<Sum>([=](C value) { return (value - mean) * (value - mean); });
        const C scale = C(1) / math::sqrt(squares / (C)columns + (C)eps);
        row.each([=](u32 i, C value) {
            const C scaled = (value - mean) * scale * load(weight[i]);
            dst[r * columns + i] = store<T>(bias ? scaled + load(bias[i]) : scaled);
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

// Turns each pair (a, b) by its angle. A pair is (i, i + half), or (2i, 2i + 1) if interleaved.
template <typename T> DEVICE_FN void rope(const T* src, const T* cos, const T* sin, T* dst, const Rope& layout) {
    using C = compute_t<T>;
    for (u64 pair = global_index(); pair < layout.pairs; pair += global_size()) {
        const u32 row = (u32)pair / layout.half;
        const u32 i = (u32)pair - row * layout.half;
        const u32 batch = row / layout.rows_per_batch;
        const u32 angle = row / layout.rows_per_time % layout.time * layout.half + i;
        const u64 start = (u64)row * layout.half * 2;
        const u64 first = start + (layout.interleaved ? 2 * i : i);
        const u64 second = first + (layout.interleaved ? 1 : layout.half);
        const C a = load(src[first]);
        const C b = load(src[second]);
        const C c = load(cos[(u64)batch * layout.cos_batch + angle]);
        const C s = load(sin[(u64)batch * layout.sin_batch + angle]);
        dst[first] = store<T>(a * c - b * s);
        dst[second] = store<T>(a * s + b * c);
    }
}

#define SOFTMAX(name, Team, T)                                                                                                  \
    extern "C" __global__ void softmax_##name(const T* src, T* dst, u64 rows, u32 columns, u64 row_stride) {                     \
        softmax<Team>(src, dst, rows, columns, row_stride);                                                                     \
    }
#define NORMS(name, Team, T)                                                                                                    \
    extern "C" __global__ void rms_norm_##name(const T* src, const T* weight, T* dst, u64 rows, u32 columns, u64 row_stride,     \
                                               float eps) {                                                                     \
        rms_norm<Team>(src, weight, dst, rows, columns, row_stride, eps);                                                       \
    }                                                                                                                           \
    extern "C" __global__ void layer_norm_##name(const T* src, const T* weight, const T* bias, T* dst, u64 rows, u32 columns,    \
                                                 u64 row_stride, float eps) {                                                   \
        layer_norm<Team>(src, weight, bias, dst, rows, columns, row_stride, eps);                                               \
    }
#define ROPE(dtype, T)                                                                                                          \
    extern "C" __global__ void rope_##dtype(const T* src, const T* cos, const T* sin, T* dst, Rope layout) {                     \
        rope(src, cos, sin, dst, layout);                                                                                       \
    }
#define NN(dtype, T)                          \
    SOFTMAX(dtype, BlockTeam, T)              \
    SOFTMAX(wave_##dtype, WaveTeam, T)        \
    NORMS(dtype, BlockTeam, T)                \
    NORMS(wave_##dtype, WaveTeam, T)          \
    ROPE(dtype, T)
NN(f16, f16)
NN(bf16, bf16)
NN(f32, float)
SOFTMAX(f64, BlockTeam, double)
SOFTMAX(wave_f64, WaveTeam, double)
ROPE(f64, double)
