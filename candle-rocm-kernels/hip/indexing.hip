// Reading and writing at places that another tensor names: gather (of which index_select is a case), scatter_set and scatter_add (of
// which index_add is a case).
//
// Every operand comes as strides over common dimensions; the strides along the indexed dimension are 0 for the operand that is indexed,
// whose place is then moved by `index * stride`. An index equal to the largest value of its type stands for no place: gather gives zero,
// scatter leaves it out. Any other index beyond `size` does the same and reports itself, for the host to raise when it next waits.
#include "index_error.h"

using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
struct alignas(16) b128 { u64 low, high; };

// The indexed dimension, the type of the indices, and the operation's number in IndexError.
struct Indexing {
    u32 op;
    u32 id_type;
    u32 size;
    u32 stride;
};
struct Indexed {
    const void* ids;
    IndexError* error;
    const Indexing& with;
};

enum IdType : u32 { ID_U8, ID_U32, ID_I64, ID_I16, ID_I32 };
constexpr i64 NO_INDEX = 0x7fffffffffffffffll;

template <typename T> DEVICE_FN i64 id_at(const void* ids, u32 at, T none) {
    const T id = ((const T*)ids)[at];
    return id == none ? NO_INDEX : (i64)id;
}

// Finds the place that the id at `at` names; false if it names none.
DEVICE_FN bool find(const Indexed& indexed, u32 at, u32& place) {
    i64 index = NO_INDEX;
    switch (indexed.with.id_type) {
        case ID_U8: index = id_at<u8>(indexed.ids, at, 0xff); break;
        case ID_U32: index = id_at<u32>(indexed.ids, at, 0xffffffffu); break;
        case ID_I64: index = id_at<i64>(indexed.ids, at, NO_INDEX); break;
        case ID_I16: index = id_at<i16>(indexed.ids, at, 0x7fff); break;
        case ID_I32: index = id_at<i32>(indexed.ids, at, 0x7fffffff); break;
    }
    if ((u64)index < indexed.with.size) {
        place = (u32)index * indexed.with.stride;
        return true;
    }
    if (index != NO_INDEX) report_index(indexed.error, indexed.with.op, indexed.with.size, index);
    return false;
}

template <typename T>
DEVICE_FN void gather(const T* src, T* dst, u64 n, const Indexed& indexed, const Dims& dims, const Strides& src_strides,
                      const Strides& id_strides) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        u32 place;
        const bool found = find(indexed, strided_offset(dims, id_strides, (u32)i), place);
        dst[i] = found ? src[strided_offset(dims, src_strides, (u32)i) + place] : T{};
    }
}

// ---------------------------------------------------------------- scatter in order
// One thread per column, that is, per place outside of the indexed dimension, follows that dimension in order: the last of several
// writes to a place stays, and sums are added up in the CPU's order.

// Steps along the indexed dimension.
struct Along {
    u32 count;
    u32 id_stride;
    u32 src_stride;
};

template <typename T, typename Update>
DEVICE_FN void scatter_in_order(const T* src, T* dst, u64 columns, const Indexed& indexed, const Along& along, const Dims& dims,
                                const Strides& dst_strides, const Strides& src_strides, const Strides& id_strides, Update update) {
    for (u64 column = global_index(); column < columns; column += global_size()) {
        T* const to = dst + strided_offset(dims, dst_strides, (u32)column);
        u32 from = strided_offset(dims, src_strides, (u32)column);
        u32 id = strided_offset(dims, id_strides, (u32)column);
        for (u32 k = 0; k < along.count; ++k, from += along.src_stride, id += along.id_stride) {
            u32 place;
            if (find(indexed, id, place)) update(to + place, src[from]);
        }
    }
}

// ---------------------------------------------------------------- scatter by sorted ids
// `order` sorts the ids, which are the same for all columns, equal ones in their order. A thread for each id and column: the one with the first of
// equal ids adds up what they bring, in that order; as rounded as if one thread had gone through all.
template <typename T, typename Plus>
DEVICE_FN void add_sorted(const T* src, T* dst, const u32* order, u32 columns, const Indexed& indexed, const Along& along, const Dims& dims,
                          const Strides& dst_strides, const Strides& src_strides, Plus plus) {
    const u32 n = along.count * columns;
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 first = (u32)i / columns;
        const u32 column = (u32)i - first * columns;
        u32 place, other;
        if (!find(indexed, order[first] * along.id_stride, place)) continue;
        if (first > 0 && find(indexed, order[first - 1] * along.id_stride, other) && other == place) continue;
        T* const to = dst + strided_offset(dims, dst_strides, column) + place;
        const T* const from = src + strided_offset(dims, src_strides, column);
        T sum = *to;
        u32 k = first;
        do {
            sum = plus(sum, from[order[k] * along.src_stride]);
            ++k;
        } while (k < along.count && find(indexed, order[k] * along.id_stride, other) && other == place);
        *to = sum;
    }
}

// ---------------------------------------------------------------- scatter in parallel
// For few columns: one thread per element of `src`.

// Marks each written place with the last position along the indexed dimension that writes to it, counted from 1. `owners` has the
// layout of `dst` and comes zeroed; `position_strides` are 1 along the indexed dimension and 0 elsewhere.
extern "C" __global__ void scatter_claim(u32* owners, const void* ids, IndexError* error, u64 n, Indexing indexing, Dims dims,
                                         Strides dst_strides, Strides id_strides, Strides position_strides) {
    const Indexed indexed{ids, error, indexing};
    for (u64 i = global_index(); i < n; i += global_size()) {
        u32 place;
        if (!find(indexed, strided_offset(dims, id_strides, (u32)i), place)) continue;
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
        u32 place;
        if (!find(indexed, strided_offset(dims, id_strides, (u32)i), place)) continue;
        const u32 to = strided_offset(dims, dst_strides, (u32)i) + place;
        if (owners[to] == strided_offset(dims, position_strides, (u32)i) + 1) dst[to] = src[strided_offset(dims, src_strides, (u32)i)];
    }
}

// The order of float additions to one place, and with it the rounding, is not fixed.
template <typename T>
DEVICE_FN void scatter_add_atomic(const T* src, T* dst, u64 n, const Indexed& indexed, const Dims& dims, const Strides& dst_strides,
                                  const Strides& src_strides, const Strides& id_strides) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        u32 place;
        if (!find(indexed, strided_offset(dims, id_strides, (u32)i), place)) continue;
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

#define SCATTER_SET(T)                                                                                                          \
    extern "C" __global__ void scatter_set_##T(const T* src, T* dst, const void* ids, IndexError* error, u64 columns,            \
                                               Indexing indexing, Along along, Dims dims, Strides dst_strides,                  \
                                               Strides src_strides, Strides id_strides) {                                       \
        scatter_in_order(src, dst, columns, Indexed{ids, error, indexing}, along, dims, dst_strides, src_strides, id_strides,   \
                         [](T* to, T value) { *to = value; });                                                                  \
    }                                                                                                                           \
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

// Integers wrap on overflow.
template <typename C> DEVICE_FN C plus(C a, C b) { return a + b; }
DEVICE_FN i32 plus(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE_FN i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }

#define SCATTER_ADD(dtype, T)                                                                                                   \
    extern "C" __global__ void scatter_add_##dtype(const T* src, T* dst, const void* ids, IndexError* error, u64 columns,        \
                                                   Indexing indexing, Along along, Dims dims, Strides dst_strides,              \
                                                   Strides src_strides, Strides id_strides) {                                   \
        scatter_in_order(src, dst, columns, Indexed{ids, error, indexing}, along, dims, dst_strides, src_strides, id_strides,   \
                         [](T* to, T value) { *to = store<T>(plus(load(*to), load(value))); });                                 \
    }                                                                                                                           \
    extern "C" __global__ void index_add_##dtype(const T* src, T* dst, const void* ids, IndexError* error, const u32* order,     \
                                                 u32 columns, Indexing indexing, Along along, Dims dims, Strides dst_strides,   \
                                                 Strides src_strides) {                                                         \
        add_sorted(src, dst, order, columns, Indexed{ids, error, indexing}, along, dims, dst_strides, src_strides,              \
                   [](T sum, T value) { return store<T>(plus(load(sum), load(value))); });                                      \
    }                                                                                                                           \
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
SCATTER_ADD(f16, f16)
SCATTER_ADD(bf16, bf16)
SCATTER_ADD(f32, float)
SCATTER_ADD(f64, double)
SCATTER_ADD(f8e4m3, f8e4m3)
