// gather and scatter along a dense dimension, row by row in LDS, where places are random but each row comes and goes as
// it lies in memory.
#include "indexing.h"

template <typename T> constexpr u32 ROW = ROW_BYTES / sizeof(T);

// Copies between global memory and LDS, COUNT elements under way at a time. Beyond the last element, it is copied
// again.
template <u32 COUNT, typename T> DEVICE_FN void copy_row(const T* from, T* to, u32 size, u32 first, u32 step) {
    for (u32 i = first; i < size; i += COUNT * step) {
        T values[COUNT];
        const auto at = [=](u32 n) -> u32 { return i + n * step < size ? i + n * step : size - 1; };
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) values[n] = from[at(n)];
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) to[at(n)] = values[n];
    }
}

// ---------------------------------------------------------------- gather

constexpr u32 GATHER_BATCH = 8;

// A block has a row of `src` with at most ROW<T> elements, of which `along.count` are asked for. `dst` is dense along
// the rows as well.
template <typename T>
DEVICE_FN void gather_rows(const T* src, T* dst, u32 columns, const Indexed& indexed, const Along& along, const Dims& dims, const Strides& dst_strides,
                           const Strides& src_strides, const Strides& id_strides) {
    __shared__ T row[ROW<T>];
    constexpr u32 STEP = GATHER_BLOCK * GATHER_BATCH;
    for (u32 column = block_x(); column < columns; column += grid_dim()) {
        const T* const from = src + strided_offset(dims, src_strides, column);
        const u32 at = strided_offset(dims, id_strides, column);
        T* const to = dst + strided_offset(dims, dst_strides, column);
        // Ids come a batch ahead, the first one with the row. Beyond the last one, its element is written again.
        Ids<GATHER_BATCH> next = load_ids<GATHER_BATCH>(indexed, at, along.id_stride, along.count, thread_x(), GATHER_BLOCK);
        copy_row<8>(from, row, indexed.with.size, thread_x(), GATHER_BLOCK);
        barrier();
        for (u32 k = thread_x(); k < along.count; k += STEP) {
            const Ids<GATHER_BATCH> ids = next;
            next = load_ids<GATHER_BATCH>(indexed, at, along.id_stride, along.count, k + STEP, GATHER_BLOCK);
            u32 places[GATHER_BATCH];
            find(indexed, ids, GATHER_BATCH, places);
#pragma unroll
            for (u32 b = 0; b < GATHER_BATCH; ++b) {
                const u32 place = k + b * GATHER_BLOCK;
                to[place < along.count ? place : along.count - 1] = places[b] == NOWHERE ? T{} : row[places[b]];
            }
        }
        barrier();
    }
}

// ---------------------------------------------------------------- scatter

template <u32 BYTES> struct BitsOf;
template <> struct BitsOf<1> { using type = u8; using wide = u32; };
template <> struct BitsOf<2> { using type = u16; using wide = u32; };
template <> struct BitsOf<4> { using type = u32; using wide = u32; };
template <> struct BitsOf<8> { using type = u64; using wide = u64; };

// Of 64 lanes, or of bytes, fewer: masks take scalar registers, of which gfx9 would run out.
template <typename T> constexpr u32 SCATTER_BATCH = sizeof(T) == 1 ? 4 : WAVE == 64 ? 6 : 8;

// What a lane has of the next WAVE * SCATTER_BATCH<T> values of a row.
template <typename T> struct Batch {
    Ids<SCATTER_BATCH<T>> ids;
    T values[SCATTER_BATCH<T>];
    u32 count;

    // Asks for those from `k` on.
    DEVICE_FN void read(const Indexed& indexed, u32 at, const T* from, const Along& along, u32 k) {
        k += lane();
        count = k < along.count ? (along.count - k - 1) / WAVE + 1 : 0;
        ids = load_ids<SCATTER_BATCH<T>>(indexed, at, along.id_stride, along.count, k, WAVE);
#pragma unroll
        for (u32 b = 0; b < SCATTER_BATCH<T>; ++b) values[b] = from[(b < count ? k + b * WAVE : along.count - 1) * along.src_stride];
    }
    // Their places, counted from `first` and below `size`.
    DEVICE_FN void find_from(const Indexed& indexed, u32 first, u32 size, u32 (&places)[SCATTER_BATCH<T>]) const {
        find(indexed, ids, count, places);
#pragma unroll
        for (u32 b = 0; b < SCATTER_BATCH<T>; ++b) {
            // What lies before the window wraps around to beyond it.
            const bool here = places[b] != NOWHERE && places[b] - first < size;
            places[b] = here ? places[b] - first : NOWHERE;
        }
    }
};

// The next WAVE values in order, one a lane: first go the numbers of lanes to their places, from where each lane reads
// who shares its own. Of these lanes, the one whose number stayed takes up all values, from the lowest lane to the
// highest.
template <typename T, typename Update>
DEVICE_FN void scatter_wave(typename BitsOf<sizeof(T)>::type* row, u32 place, T value, Update) {
    using Bits = typename BitsOf<sizeof(T)>::type;
    using Wide = typename BitsOf<sizeof(T)>::wide;
    const bool exists = place != NOWHERE;
    T sum{};
    if (exists) sum = bit_cast<T>(row[place]);
    wave_sync();
    if (exists) row[place] = (Bits)lane();
    wave_sync();
    const u32 owner = exists ? (u32)row[place] : lane();
    if (device::ballot(owner != lane()) == 0) {
        sum = Update::apply(sum, value);
    } else {
        Mask sharing = device::ballot(exists);
#pragma unroll
        for (u32 bit = 1; bit < WAVE; bit *= 2) {
            const Mask set = device::ballot((owner & bit) != 0);
            sharing &= owner & bit ? set : ~set;
        }
        if (owner != lane() || !exists) sharing = 0;
        while (device::ballot(sharing != 0) != 0) {
            const u32 source = sharing != 0 ? lowest(sharing) : lane();
            const T next = bit_cast<T>((Bits)shfl((Wide)bit_cast<Bits>(value), source));
            if (sharing != 0) sum = Update::apply(sum, next);
            sharing &= sharing - 1;
        }
    }
    if (exists && owner == lane()) row[place] = bit_cast<Bits>(sum);
    wave_sync();
}

// The waves of a block share ROW<T> places of LDS. Each has a window of so many places of a row of `dst` and goes
// through all that comes to the row. The

template <typename T, typename Update>
DEVICE_FN void scatter_rows(const T* src, T* dst, u32 columns, u32 windows, const Indexed& indexed, const Along& along, const Dims& dims,
                            const Strides& dst_strides, const Strides& src_strides, const Strides& id_strides, Update update) {
    using Bits = typename BitsOf<sizeof(T)>::type;
    __shared__ Bits rows[ROW<T>];
    const u32 waves = block_dim() / WAVE;
    const u32 wave = thread_x() / WAVE;
    const u32 window = ROW<T> / waves;
    Bits* const row = rows + wave * window;
    for (u32 task = block_x() * waves + wave; task < columns * windows; task += grid_dim() * waves) {
        const u32 column = task / windows;
        const u32 first = (task - column * windows) * window;
        const u32 size = indexed.with.size - first < window ? indexed.with.size - first : window;
        Bits* const to = (Bits*)(dst + strided_offset(dims, dst_strides, column)) + first;
        const T* const from = src + strided_offset(dims, src_strides, column);
        const u32 ids = strided_offset(dims, id_strides, column);
        Batch<T> next{};
        next.read(indexed, ids, from, along, 0);
        copy_row<16>(to, row, size, lane(), WAVE);
        wave_sync();
        for (u32 k = 0; k < along.count; k += WAVE * SCATTER_BATCH<T>) {
            // The next batch is asked for before one is worked on.
            const Batch<T> batch = next;
            next.read(indexed, ids, from, along, k + WAVE * SCATTER_BATCH<T>);
            u32 places[SCATTER_BATCH<T>];
            batch.find_from(indexed, first, size, places);
#pragma unroll
            for (u32 b = 0; b < SCATTER_BATCH<T>; ++b) scatter_wave(row, places[b], batch.values[b], update);
        }
        copy_row<16>(row, to, size, lane(), WAVE);
        wave_sync();
    }
}

#define GATHER_ROWS(T)                                                                                                          \
    extern "C" __global__ MAX_BLOCK(GATHER_BLOCK) void gather_rows_##T(                                                          \
        const T* src, T* dst, const void* ids, IndexError* error, u32 columns, Indexing indexing, Along along, Dims dims,        \
        Strides dst_strides, Strides src_strides, Strides id_strides) {                                                         \
        gather_rows(src, dst, columns, Indexed{ids, error, indexing}, along, dims, dst_strides, src_strides, id_strides);        \
    }
GATHER_ROWS(b8)
GATHER_ROWS(b16)
GATHER_ROWS(b32)
GATHER_ROWS(b64)

#define SCATTER_ROWS(op, name, T, Update)                                                                                        \
    extern "C" __global__ MAX_BLOCK_OF(SCATTER_WAVES * WAVE, (sizeof(T) == 8 ? 2 : 3)) void scatter_rows_##op##_##name(     \
        const T* src, T* dst, const void* ids, IndexError* error, u32 columns, u32 windows, Indexing indexing, Along along,      \
        Dims dims, Strides dst_strides, Strides src_strides, Strides id_strides) {                                              \
        scatter_rows(src, dst, columns, windows, Indexed{ids, error, indexing}, along, dims, dst_strides, src_strides,           \
                     id_strides, Update{});                                                                                     \
    }
SCATTER_ROWS(set, b8, b8, Replace)
SCATTER_ROWS(set, b16, b16, Replace)
SCATTER_ROWS(set, b32, b32, Replace)
SCATTER_ROWS(set, b64, b64, Replace)
SCATTER_ROWS(add, u8, u8, Add)
SCATTER_ROWS(add, u32, u32, Add)
SCATTER_ROWS(add, i16, i16, Add)
SCATTER_ROWS(add, i32, i32, Add)
SCATTER_ROWS(add, i64, i64, Add)
SCATTER_ROWS(add, f32, float, Add)
SCATTER_ROWS(add, f64, double, Add)
