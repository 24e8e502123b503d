// What gather and scatter share: how an index tensor names places.
//
// Every operand comes as strides over common dimensions; the strides along the indexed dimension are 0 for the operand
// that is indexed, whose place is then moved by `index * stride`. The largest u32 and the largest i64, which no
// dimension is long enough for, stand for no place: gather gives zero, scatter leaves it out. Any other index beyond
// `size` does the same and reports itself, for the host to raise when it next waits.
#ifndef CANDLE_ROCM_INDEXING_H
#define CANDLE_ROCM_INDEXING_H

#include "index_error.h"
#include "shared/indexing.h"

namespace device {

using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
struct alignas(16) b128 { u64 low, high; };

// `with` says what is indexed.
struct Indexed {
    const void* ids;
    IndexError* error;
    const Indexing& with;
};

constexpr i64 NO_INDEX = 0x7fffffffffffffffll;
// No index below a size of 32 bits.
constexpr u32 NOWHERE = ~0u;

// Indices as they come from memory, so that nobody waits for them before they are needed: their lower words, and the
// upper ones of i64.
template <u32 N> struct Ids {
    u32 low[N];
    u32 high[N];
};

// N of the `count` indices from `first` on, `stride` apart: that at `k` and each `step` further; the last one, of any
// that are beyond.
template <typename T, u32 N>
DEVICE_FN void load_ids(const void* ids, u32 first, u32 stride, u32 count, u32 k, u32 step, Ids<N>& out) {
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        const u32 at = k + n * step;
        const T id = ((const T*)ids)[first + (at < count ? at : count - 1) * stride];
        out.low[n] = (u32)id;
        if constexpr (sizeof(T) == 8) out.high[n] = (u32)(id >> 32);
    }
}
template <u32 N> DEVICE_FN Ids<N> load_ids(const Indexed& indexed, u32 first, u32 stride, u32 count, u32 k, u32 step) {
    Ids<N> out{};
    switch (indexed.with.id_type) {
        case ID_U8: load_ids<u8>(indexed.ids, first, stride, count, k, step, out); break;
        case ID_U32:
        case ID_I32: load_ids<u32>(indexed.ids, first, stride, count, k, step, out); break;
        case ID_I16: load_ids<i16>(indexed.ids, first, stride, count, k, step, out); break;
        case ID_I64: load_ids<u64>(indexed.ids, first, stride, count, k, step, out); break;
    }
    return out;
}
// Their places; NOWHERE for what names none and for all but the first `count`.
template <u32 N> DEVICE_FN void find(const Indexed& indexed, const Ids<N>& ids, u32 count, u32 (&places)[N]) {
    const u32 type = indexed.with.id_type;
    // No index of the smaller types is as large as i64's.
    const u64 none = type == ID_U32 ? 0xffffffffu : (u64)NO_INDEX;
    const u32 sign = type == ID_I16 || type == ID_I32 ? ~0u : 0;
    u64 bad = none;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        const u32 high = type == ID_I64 ? ids.high[n] : (u32)((i32)ids.low[n] >> 31) & sign;
        const u64 index = (u64)high << 32 | ids.low[n];
        const bool exists = n < count && index != none;
        const bool known = exists && index < indexed.with.size;
        places[n] = known ? ids.low[n] : NOWHERE;
        if (exists && !known) bad = index;
    }
    if (bad != none) report_index(indexed.error, indexed.with.op, indexed.with.size, (i64)bad);
}
// One index, checked in the type that it is read in: fewer instructions than for several at once.
template <typename T> DEVICE_FN u32 find_typed(const Indexed& indexed, i64 none, u32 at) {
    const T id = ((const T*)indexed.ids)[at];
    const bool known = (u64)(i64)id < indexed.with.size;
    if (!known && (i64)id != none) report_index(indexed.error, indexed.with.op, indexed.with.size, (i64)id);
    return known ? (u32)id : NOWHERE;
}
DEVICE_FN u32 find(const Indexed& indexed, u32 at) {
    switch (indexed.with.id_type) {
        case ID_U8: return find_typed<u8>(indexed, NO_INDEX, at);
        case ID_U32: return find_typed<u32>(indexed, 0xffffffffu, at);
        case ID_I64: return find_typed<i64>(indexed, NO_INDEX, at);
        case ID_I16: return find_typed<i16>(indexed, NO_INDEX, at);
        case ID_I32: return find_typed<i32>(indexed, NO_INDEX, at);
    }
    return NOWHERE;
}

// Integers wrap on overflow.
template <typename C> DEVICE_FN C plus(C a, C b) { return a + b; }
DEVICE_FN i32 plus(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE_FN i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }

// What becomes of a value to which another comes.
struct Add {
    template <typename T> static DEVICE_FN T apply(T old, T value) { return store<T>(plus(load(old), load(value))); }
};
struct Replace {
    template <typename T> static DEVICE_FN T apply(T, T value) { return value; }
};

}  // namespace device

#endif
