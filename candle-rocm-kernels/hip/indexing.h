// What gather and scatter share: how an index tensor names places.
//
// Every operand comes as strides over common dimensions; the strides along the indexed dimension are 0 for the operand that is indexed,
// whose place is then moved by `index * stride`. An index equal to the largest value of its type stands for no place: gather gives zero,
// scatter leaves it out. Any other index beyond `size` does the same and reports itself, for the host to raise when it next waits.
#ifndef CANDLE_ROCM_INDEXING_H
#define CANDLE_ROCM_INDEXING_H

#include "index_error.h"

namespace device {

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

// Steps along the indexed dimension.
struct Along {
    u32 count;
    u32 id_stride;
    u32 src_stride;
};

enum IdType : u32 { ID_U8, ID_U32, ID_I64, ID_I16, ID_I32 };
constexpr i64 NO_INDEX = 0x7fffffffffffffffll;
// No index below a size of 32 bits.
constexpr u32 NOWHERE = ~0u;

// The indices at `at`, `at + step` and so on, `count` of them at most; what names no place and what is beyond `count` is NOWHERE. Gives an index
// that is out of range, or NO_INDEX.
template <u32 N, typename T>
DEVICE_FN i64 find_typed(const Indexed& indexed, T none, u32 at, u32 step, u32 count, u32 (&places)[N]) {
    T ids[N];
#pragma unroll
    for (u32 n = 0; n < N; ++n) ids[n] = n < count ? ((const T*)indexed.ids)[at + n * step] : none;
    T bad = none;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
        const bool known = (u64)(i64)ids[n] < indexed.with.size && ids[n] != none;
        places[n] = known ? (u32)ids[n] : NOWHERE;
        if (!known && ids[n] != none) bad = ids[n];
    }
    return bad == none ? NO_INDEX : (i64)bad;
}
template <u32 N> DEVICE_FN void find(const Indexed& indexed, u32 at, u32 step, u32 count, u32 (&places)[N]) {
    i64 bad = NO_INDEX;
    switch (indexed.with.id_type) {
        case ID_U8: bad = find_typed<N, u8>(indexed, 0xff, at, step, count, places); break;
        case ID_U32: bad = find_typed<N, u32>(indexed, 0xffffffffu, at, step, count, places); break;
        case ID_I64: bad = find_typed<N, i64>(indexed, NO_INDEX, at, step, count, places); break;
        case ID_I16: bad = find_typed<N, i16>(indexed, 0x7fff, at, step, count, places); break;
        case ID_I32: bad = find_typed<N, i32>(indexed, 0x7fffffff, at, step, count, places); break;
    }
    if (bad != NO_INDEX) report_index(indexed.error, indexed.with.op, indexed.with.size, bad);
}
// One index.
DEVICE_FN u32 find(const Indexed& indexed, u32 at) {
    u32 places[1] = {NOWHERE};
    find<1>(indexed, at, 0, 1, places);
    return places[0];
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
