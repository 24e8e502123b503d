// Reading and writing at places that another tensor names: gather (of which index_select is a case), scatter_set and
// scatter_add (of which index_add is a case). Along dense dimensions, indexing_rows.hip does most of it.
#include "indexing.h"

template <typename T>
DEVICE_FN void gather(const T* src, T* dst, u64 n, const Indexed& indexed, const Dims& dims, const Strides& src_strides,
                      const Strides& id_strides) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 place = find(indexed, strided_offset(dims, id_strides, (u32)i));
        dst[i] = place == NOWHERE ? T{} : src[strided_offset(dims, src_strides, (u32)i) + place * indexed.with.stride];
    }
}

// ---------------------------------------------------------------- scatter in order A thread has a column, that is, a
// place outside of the indexed dimension, and one of `parts` of the places along that. It follows the column in order:
// the last of several writes to a place stays, and sums are added up in the CPU's order.
constexpr u32 STEPS = 4;

template <typename T, typename Update>
DEVICE_FN void scatter_in_order(const T* src, T* dst, u32 columns, u32 parts, const Indexed& indexed, const Along& along, const Dims& dims,
                                const Strides& dst_strides, const Strides& src_strides, const Strides& id_strides, Update) {
    for (u64 i = global_index(); i < (u64)columns * parts; i += global_size()) {
        const u32 part = (u32)(i / columns);
        const u32 column = (u32)(i - (u64)part * columns);
        const u32 first = (u32)((u64)indexed.with.size * part / parts);
        const u32 size = (u32)((u64)indexed.with.size * (part + 1) / parts) - first;
        T* const to = dst + strided_offset(dims, dst_strides, column);
        const T* const from = src + strided_offset(dims, src_strides, column);
        const u32 ids = strided_offset(dims, id_strides, column);
        for (u32 k = 0; k < along.count; k += STEPS) {
            // What several steps bring is asked for at once.
            u32 places[STEPS];
            const u32 left = along.count - k;
            find(indexed, load_ids<STEPS>(indexed, ids, along.id_stride, along.count, k, 1), left, places);
            T values[STEPS];
#pragma unroll
            for (u32 n = 0; n < STEPS; ++n) {
                if (places[n] == NOWHERE || places[n] - first >= size) places[n] = NOWHERE;
                values[n] = places[n] == NOWHERE ? T{} : from[(k + n) * along.src_stride];
            }
#pragma unroll
            for (u32 n = 0; n < STEPS; ++n) {
                if (places[n] == NOWHERE) continue;
                T* const at = to + places[n] * indexed.with.stride;
                *at = Update::apply(*at, values[n]);
            }
        }
    }
}

// ---------------------------------------------------------------- scatter by sorted ids `order` sorts the ids, which
// are the same for all columns, equal ones in their order. A thread for each id and N neighbouring columns: the one
// with the first of equal ids adds up what they bring, in that order and in the compute type, and rounds once.
template <typename T, u32 N> struct alignas(sizeof(T) * N) Pack { T v[N]; };

template <typename T, u32 N>
DEVICE_FN void add_sorted(const Pack<T, N>* src, Pack<T, N>* dst, const u32* order, u32 columns, const Indexed& indexed, const Along& along,
                          const Dims& dims, const Strides& dst_strides, const Strides& src_strides) {
    const u32 n = along.count * columns;
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 first = (u32)i / columns;
        const u32 column = (u32)i - first * columns;
        const u32 place = find(indexed, order[first] * along.id_stride);
        if (place == NOWHERE) continue;
        if (first > 0 && find(indexed, order[first - 1] * along.id_stride) == place) continue;
        Pack<T, N>* const to = dst + strided_offset(dims, dst_strides, column) + place * indexed.with.stride;
        const Pack<T, N>* const from = src + strided_offset(dims, src_strides, column);
        Pack<T, N> rounded = *to;
        compute_t<T> sums[N];
        for (u32 j = 0; j < N; ++j) sums[j] = load(rounded.v[j]);
        u32 k = first;
        do {
            const Pack<T, N> value = from[order[k] * along.src_stride];
            for (u32 j = 0; j < N; ++j) sums[j] = (compute_t<T>)plus(sums[j], load(value.v[j]));
            ++k;
        } while (k < along.count && find(indexed, order[k] * along.id_stride) == place);
        for (u32 j = 0; j < N; ++j) rounded.v[j] = store<T>(sums[j]);
        *to = rounded;
    }
}

// ---------------------------------------------------------------- scatter in parallel
// For few columns: one thread per element of `src`.

// Marks each written place with the last position along the indexed dimension that writes to it, counted from 1.
// `owners` has the layout of `dst` and comes zeroed; `position_strides` are 1 along the indexed dimension and 0
// elsewhere.
extern "C" __global__ void scatter_claim(u32* owners, const void* ids, IndexError* error, u64 n, Indexing indexing, Dims dims,
                                         Strides dst_strides, Strides id_strides, Strides position_strides) {
    const Indexed indexed{ids, error, indexing};
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 index = find(indexed, strided_offset(dims, id_strides, (u32)i));
        if (index == NOWHERE) continue;
        const u32 place = index * indexed.with.stride;
        const u32 position = strided_offset(dims, position_strides, (u32)i) + 1;
        atomic_update(owners + strided_offset(dims, dst_strides, (u32)i) + place,
                      [=](u32 owner) -> u32 { return owner > position ? owner : position; });
    }
}

template <typename T>
DEVICE_FN void scatter_place(const T* src, T* dst, const u32* owners, u64 n, const Indexed& indexed, const Dims& dims,
                             const Strides& dst_strides, const Strides& src_strides, const Strides& id_strides,
                             const Strides& position_strides) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 index = find(indexed, strided_offset(dims, id_strides, (u32)i));
        if (index == NOWHERE) continue;
        const u32 place = index * indexed.with.stride;
        const u32 to = strided_offset(dims, dst_strides, (u32)i) + place;
        if (owners[to] == strided_offset(dims, position_strides, (u32)i) + 1) dst[to] = src[strided_offset(dims, src_strides, (u32)i)];
    }
}

// The order of float additions to one place, and with it the rounding, is not fixed.
template <typename T>
DEVICE_FN void scatter_add_atomic(const T* src, T* dst, u64 n, const Indexed& indexed, const Dims& dims, const Strides& dst_strides,
                                  const Strides& src_strides, const Strides& id_strides) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 index = find(indexed, strided_offset(dims, id_strides, (u32)i));
        if (index == NOWHERE) continue;
        const u32 place = index * indexed.with.stride;
        atomic_add(dst + strided_offset(dims, dst_strides, (u32)i) + place, load(src[strided_offset(dims, src_strides, (u32)i)]));
    }
}

#define GATHER(T)                                                                                                               \
    extern "C" __global__ void gather_##T(const T* src, T* dst, const void* ids, IndexError* error, u64 n, Indexing indexing,    \
                                          Dims dims, Strides src_strides, Strides id_strides) {                                 \
        gather(src, dst, n, Indexed{ids, error, indexing}, dims, src_strides, id_strides);                                      \
    }
GATHER(b8)
GATHER(b16)
GATHER(b32)
GATHER(b64)
GATHER(b128)

#define SCATTER_IN_ORDER(op, name, T, Update)                                                                                    \
    extern "C" __global__ void scatter_##op##_##name(const T* src, T* dst, const void* ids, IndexError* error, u32 columns,        \
                                                     u32 parts, Indexing indexing, Along along, Dims dims, Strides dst_strides,  \
                                                     Strides src_strides, Strides id_strides) {                                  \
        scatter_in_order(src, dst, columns, parts, Indexed{ids, error, indexing}, along, dims, dst_strides, src_strides,         \
                         id_strides, Update{});                                                                                  \
    }

#define SCATTER_SET(T)                                                                                                          \
    SCATTER_IN_ORDER(set, T, T, Replace)                                                                                        \
    extern "C" __global__ void scatter_place_##T(const T* src, T* dst, const u32* owners, const void* ids, IndexError* error,    \
                                                 u64 n, Indexing indexing, Dims dims, Strides dst_strides,                      \
                                                 Strides src_strides, Strides id_strides, Strides position_strides) {           \
        scatter_place(src, dst, owners, n, Indexed{ids, error, indexing}, dims, dst_strides, src_strides, id_strides,           \
                      position_strides);                                                                                        \
    }
SCATTER_SET(b8)
SCATTER_SET(b16)
SCATTER_SET(b32)
SCATTER_SET(b64)

#define INDEX_ADD(name, T, N)                                                                                                    \
    extern "C" __global__ MAX_BLOCK(256) void index_add_##name(                                                                   \
        const Pack<T, N>* src, Pack<T, N>* dst, const void* ids, IndexError* error, const u32* order, u32 columns,               \
        Indexing indexing, Along along, Dims dims, Strides dst_strides, Strides src_strides) {                                   \
        add_sorted<T, N>(src, dst, order, columns, Indexed{ids, error, indexing}, along, dims, dst_strides, src_strides);        \
    }

// Sums of small floats would be rounded each time: scatter_add of them is one of f32.
#define SCATTER_ADD(dtype, T)                                                                                                   \
    SCATTER_IN_ORDER(add, dtype, T, Add)                                                                                        \
    extern "C" __global__ void scatter_add_atomic_##dtype(const T* src, T* dst, const void* ids, IndexError* error, u64 n,       \
                                                          Indexing indexing, Dims dims, Strides dst_strides,                    \
                                                          Strides src_strides, Strides id_strides) {                            \
        scatter_add_atomic(src, dst, n, Indexed{ids, error, indexing}, dims, dst_strides, src_strides, id_strides);             \
    }
SCATTER_ADD(u8, u8)
SCATTER_ADD(u32, u32)
SCATTER_ADD(i16, i16)
SCATTER_ADD(i32, i32)
SCATTER_ADD(i64, i64)
SCATTER_ADD(f32, float)
SCATTER_ADD(f64, double)

#define INDEX_ADDS(dtype, T)         \
    INDEX_ADD(dtype, T, 1)           \
    INDEX_ADD(packs_##dtype, T, 16 / sizeof(T))
INDEX_ADDS(u8, u8)
INDEX_ADDS(u32, u32)
INDEX_ADDS(i16, i16)
INDEX_ADDS(i32, i32)
INDEX_ADDS(i64, i64)
INDEX_ADDS(f16, f16)
INDEX_ADDS(bf16, bf16)
INDEX_ADDS(f32, float)
INDEX_ADDS(f64, double)
INDEX_ADDS(f8e4m3, f8e4m3)
