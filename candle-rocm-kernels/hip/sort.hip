// argsort of rows: a bitonic network over (key, index) pairs.
//
// A key is an unsigned integer in the order of the values, so every dtype sorts by the same code; equal keys are
// ordered by index, so the outcome does not depend on the network. Merging starts with a mirrored step, which makes
// every comparison put the smaller pair at the lower position. Therefore positions past the end of a row can be left
// out as if they held infinity: rows of any width need no padding.
//
// Rows of up to TILE elements are sorted in LDS, several of them at a time if they are short. Wider ones are sorted in
// tiles, which further launches merge in global memory: `argsort_step` while partners are further apart than a tile,
// then `argsort_tile`.
#include "device.h"
#include "shared/sort.h"

// Keys of up to 32 bits share a word with the index.
struct Narrow {
    u64 word;
    DEVICE_FN static Narrow make(u32 key, u32 index) { return Narrow{(u64)key << 32 | index}; }
    DEVICE_FN u32 index() const { return (u32)word; }
    DEVICE_FN bool operator<(const Narrow& other) const { return word < other.word; }
};
struct Wide {
    u64 key;
    u64 at;
    DEVICE_FN static Wide make(u64 key, u32 index) { return Wide{key, index}; }
    DEVICE_FN u32 index() const { return (u32)at; }
    DEVICE_FN bool operator<(const Wide& other) const { return key < other.key || (key == other.key && at < other.at); }
};

// Integers: the sign bit flipped.
template <typename T> struct Key {
    using Pair = Narrow;
    static DEVICE_FN u32 of(T v) { return T(-1) < T(0) ? (u32)(i32)v ^ 0x80000000u : (u32)v; }
};
template <> struct Key<i64> {
    using Pair = Wide;
    static DEVICE_FN u64 of(i64 v) { return (u64)v ^ 1ull << 63; }
};
// Floats: negative ones have all bits flipped. Zeros are equal, NaN is greater than everything and equal to itself.
template <> struct Key<float> {
    using Pair = Narrow;
    static DEVICE_FN u32 of(float v) {
        if (is_nan(v)) return ~0u;
        const u32 bits = v == 0 ? 0u : bit_cast<u32>(v);
        return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    }
};
template <> struct Key<double> {
    using Pair = Wide;
    static DEVICE_FN u64 of(double v) {
        if (is_nan(v)) return ~0ull;
        const u64 bits = v == 0 ? 0ull : bit_cast<u64>(v);
        return bits & 1ull << 63 ? ~bits : bits | 1ull << 63;
    }
};

template <typename Pair> DEVICE_FN void order(Pair& low, Pair& high) {
    const Pair a = low, b = high;
    if (b < a) {
        low = b;
        high = a;
    }
}

// Position of the lower partner of comparison `i`, partners being in different halves of groups of 2 * distance (a
// power of two).
DEVICE_FN u32 lower(u32 i, u32 distance) { return 2 * i - (i & (distance - 1)); }

// One step over the `used` first elements in LDS, which are rows of `width`, a power of two, each with `valid`
// elements. The partner of position p is p ^ mask.
template <typename Pair> DEVICE_FN void step(Pair* tile, u32 used, u32 width, u32 valid, u32 distance, u32 mask) {
    barrier();
    for (u32 i = thread_x(); i < used / 2; i += SORT_BLOCK) {
        const u32 low = lower(i, distance);
        const u32 high = low ^ mask;
        if ((high & (width - 1)) < valid) order(tile[low], tile[high]);
    }
}

// Where a tile begins and how much it has.
struct Place {
    u32 row;
    u32 column;
    u32 used;   // positions in LDS
    u32 valid;  // elements of each of its rows

    DEVICE_FN Place(const Rows& r, u32 tile) {
        const u32 rows_per_tile = TILE >> r.log_width;
        row = tile / r.tiles_per_row * rows_per_tile;
        column = tile % r.tiles_per_row * TILE;
        used = (r.rows - row < rows_per_tile ? r.rows - row : rows_per_tile) << r.log_width;
        valid = r.columns - column < TILE ? r.columns - column : TILE;
    }
    // Offset in the rows of the element at position i in LDS.
    DEVICE_FN u64 offset(const Rows& r, u32 i) const { return (u64)(row + (i >> r.log_width)) * r.columns + column + (i & (1u << r.log_width) - 1); }
};

DEVICE_FN u32 tiles_of(const Rows& r) {
    const u32 rows_per_tile = TILE >> r.log_width;
    return (r.rows / rows_per_tile + (r.rows % rows_per_tile != 0)) * r.tiles_per_row;
}

// Sorts each tile. Gives the indices to `dst` or, if that is null, the pairs to `pairs`.
template <typename T, typename C> DEVICE_FN void sort_tiles(const T* src, u32* dst, typename Key<C>::Pair* pairs, const Rows& r) {
    using Pair = typename Key<C>::Pair;
    __shared__ Pair tile[TILE];
    const u32 width = 1u << r.log_width;
    const u32 tiles = tiles_of(r);
    for (u32 t = block_x(); t < tiles; t += grid_dim()) {
        const Place place(r, t);
        for (u32 i = thread_x(); i < place.used; i += SORT_BLOCK) {
            const u32 column = i & (width - 1);
            if (column >= place.valid) continue;
            const auto key = Key<C>::of(load(src[place.offset(r, i)]));
            tile[i] = Pair::make(r.descending ? ~key : key, place.column + column);
        }
        for (u32 group = 2; group <= width; group *= 2) {
            step(tile, place.used, width, place.valid, group / 2, group - 1);
            for (u32 distance = group / 4; distance > 0; distance /= 2) step(tile, place.used, width, place.valid, distance, distance);
        }
        barrier();
        for (u32 i = thread_x(); i < place.used; i += SORT_BLOCK) {
            if ((i & (width - 1)) >= place.valid) continue;
            if (dst) {
                dst[place.offset(r, i)] = tile[i].index();
            } else {
                pairs[place.offset(r, i)] = tile[i];
            }
        }
        barrier();
    }
}

// One step across tiles: log_comparisons is that of half the columns rounded up to a power of two.
template <typename Pair> DEVICE_FN void step_across(Pair* pairs, const Rows& r, u32 log_comparisons, u32 distance, u32 mask) {
    const u64 comparisons = (u64)r.rows << log_comparisons;
    for (u64 c = global_index(); c < comparisons; c += global_size()) {
        const u32 low = lower((u32)(c & ((1ull << log_comparisons) - 1)), distance);
        const u32 high = low ^ mask;
        Pair* row = pairs + (c >> log_comparisons) * r.columns;
        if (high < r.columns) order(row[low], row[high]);
    }
}

// The steps within tiles that end a merge. After the last merge `dst` takes the indices; before, it is null.
template <typename Pair> DEVICE_FN void merge_tiles(Pair* pairs, u32* dst, const Rows& r) {
    __shared__ Pair tile[TILE];
    const u32 tiles = tiles_of(r);
    for (u32 t = block_x(); t < tiles; t += grid_dim()) {
        const Place place(r, t);
        for (u32 i = thread_x(); i < place.valid; i += SORT_BLOCK) tile[i] = pairs[place.offset(r, i)];
        for (u32 distance = TILE / 2; distance > 0; distance /= 2) step(tile, TILE, TILE, place.valid, distance, distance);
        barrier();
        for (u32 i = thread_x(); i < place.valid; i += SORT_BLOCK) {
            if (dst) {
                dst[place.offset(r, i)] = tile[i].index();
            } else {
                pairs[place.offset(r, i)] = tile[i];
            }
        }
        barrier();
    }
}

#define ARGSORT(dtype, T, C)                                                                                                         \
    extern "C" __global__ MAX_BLOCK(SORT_BLOCK) void argsort_##dtype(const T* src, u32* dst, Key<C>::Pair* pairs, Rows r) {            \
        sort_tiles<T, C>(src, dst, pairs, r);                                                                                        \
    }
ARGSORT(u8, u8, u8)
ARGSORT(u32, u32, u32)
ARGSORT(i16, i16, i16)
ARGSORT(i32, i32, i32)
ARGSORT(i64, i64, i64)
ARGSORT(f16, f16, float)
ARGSORT(bf16, bf16, float)
ARGSORT(f32, float, float)
ARGSORT(f64, double, double)
ARGSORT(f8e4m3, f8e4m3, float)

#define MERGE(name, Pair)                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void argsort_step_##name(Pair* pairs, Rows r, u32 log_comparisons, u32 distance, u32 mask) {  \
        step_across(pairs, r, log_comparisons, distance, mask);                                                                      \
    }                                                                                                                                \
    extern "C" __global__ MAX_BLOCK(SORT_BLOCK) void argsort_tile_##name(Pair* pairs, u32* dst, Rows r) { merge_tiles(pairs, dst, r); }
MERGE(narrow, Narrow)
MERGE(wide, Wide)
