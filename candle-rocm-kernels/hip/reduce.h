// What reductions do with elements: sums, extrema and the indices of extrema.
//
// An operation has `identity`, what a lane begins with; `start`, what the lane with the first element does; `of` an
// element and its number among the reduced ones; `combine`, whose left operand is the earlier one; `append`, which
// combines with a lane's next element of a row; and `finish`, which stores a result or a part's. Of a row, ROW_BATCH
// packs of a thread are under way at once, as many as registers allow; across rows a thread has up to MOST_COLUMNS
// columns.
#ifndef CANDLE_ROCM_REDUCE_H
#define CANDLE_ROCM_REDUCE_H

#include "rows.h"
#include "shared/reduce.h"

namespace device {

// Elements that a thread adds up before it carries the partial sum over: keeps rounding errors of long sums small.
constexpr u32 CARRY = 64;

// Integers add up in the unsigned type, where overflow wraps. Sums of floats are divided before they are rounded: a mean
// does not overflow where its sum would.
template <typename T, typename A, typename Out> struct SumOf {
    static constexpr u32 ROW_BATCH = 4;
    static constexpr u32 MOST_COLUMNS = 8;
    using Element = T;
    using Acc = A;
    const T* src;
    Out* dst;
    double divisor;
    DEVICE_FN Acc identity() const { return Acc(0); }
    DEVICE_FN Acc start(u64) const { return Acc(0); }
    DEVICE_FN u64 number(u64, u64 r) const { return r; }
    DEVICE_FN Acc of(T element, u64) const { return (Acc)load(element); }
    DEVICE_FN Acc combine(Acc a, Acc b) const { return a + b; }
    DEVICE_FN Acc append(Acc a, T element, u64 number) const { return combine(a, of(element, number)); }
    DEVICE_FN void finish(u64 at, Acc acc) const {
        if constexpr (is_float<Acc>::value) acc /= (Acc)divisor;
        dst[at] = store<Out>(acc);
    }
};

// The value that loses against every other: the largest for a minimum, the smallest for a maximum.
template <bool MIN, typename C> DEVICE_FN C worst() {
    if constexpr (is_float<C>::value) {
        return MIN ? (C)__builtin_inff() : -(C)__builtin_inff();
    } else {
        constexpr bool is_signed = C(-1) < C(0);
        constexpr u64 top = is_signed ? (1ull << (8 * sizeof(C) - 1)) - 1 : ~0ull >> (64 - 8 * sizeof(C));
        return MIN ? (C)top : (C)(is_signed ? ~top : 0ull);
    }
}

// NaN is better than every number, and of two that are alike the first one stays: the tree keeps its left operand unless
// the right one is better.
template <bool MIN, typename C> DEVICE_FN bool better(C a, C than) {
    // Not behind, of floats, is ahead or NaN: two comparisons instead of three.
    if constexpr (is_float<C>::value) return !(MIN ? a >= than : a <= than) && than == than;
    return MIN ? a < than : a > than;
}
template <typename C> DEVICE_FN bool alike(C a, C b) {
    if constexpr (is_float<C>::value) return a == b || (is_nan(a) && is_nan(b));
    return a == b;
}

// Of two numbers.
template <bool MIN> DEVICE_FN float extreme(float a, float b) { return MIN ? __builtin_fminf(a, b) : __builtin_fmaxf(a, b); }
template <bool MIN> DEVICE_FN double extreme(double a, double b) { return MIN ? __builtin_fmin(a, b) : __builtin_fmax(a, b); }

template <bool MIN, typename T> struct Extremum {
    static constexpr u32 ROW_BATCH = 4;
    static constexpr u32 MOST_COLUMNS = 8;
    using Element = T;
    using Acc = compute_t<T>;
    const T* src;
    T* dst;
    DEVICE_FN Acc identity() const { return worst<MIN, Acc>(); }
    DEVICE_FN Acc start(u64 at) const { return load(src[at]); }
    DEVICE_FN u64 number(u64, u64 r) const { return r; }
    DEVICE_FN Acc of(T element, u64) const { return load(element); }
    // As if by `better`, but with one mask for each comparison of floats, of which a thread has many at once.
    DEVICE_FN Acc combine(Acc a, Acc b) const {
        if constexpr (is_float<Acc>::value) return __builtin_isunordered(a, b) ? a + b : extreme<MIN>(a, b);
        return better<MIN>(b, a) ? b : a;
    }
    DEVICE_FN Acc append(Acc a, T element, u64 number) const { return combine(a, of(element, number)); }
    DEVICE_FN void finish(u64 at, Acc acc) const { dst[at] = store<T>(acc); }
};

template <typename C> struct Candidate {
    C value;
    u32 index;
};
template <typename C> DEVICE_FN Candidate<C> shfl(const Candidate<C>& v, u32 source) { return {shfl(v.value, source), shfl(v.index, source)}; }

// `indices` gives the index of each element when partial results are joined, and is null before. `values` takes the
// partial results' values, and is null in the last launch.
template <bool MIN, typename T> struct ArgExtremum {
    static constexpr u32 ROW_BATCH = 2;
    static constexpr u32 MOST_COLUMNS = 4;
    using Element = T;
    using Acc = Candidate<compute_t<T>>;
    const T* src;
    const u32* indices;
    u32* dst;
    T* values;
    DEVICE_FN Acc identity() const { return Acc{worst<MIN, compute_t<T>>(), ~0u}; }
    DEVICE_FN Acc start(u64 at) const { return of(src[at], number(at, 0)); }
    DEVICE_FN u64 number(u64 at, u64 r) const { return indices ? indices[at] : r; }
    DEVICE_FN Acc of(T element, u64 number) const { return Acc{load(element), (u32)number}; }
    DEVICE_FN Acc combine(Acc a, Acc b) const {
        return better<MIN>(b.value, a.value) || (alike(b.value, a.value) && b.index < a.index) ? b : a;
    }
    // What equals the worst value keeps the index ~0, which loses against the first element's.
    DEVICE_FN Acc append(Acc a, T element, u64 number) const {
        const Acc b = of(element, number);
        return better<MIN>(b.value, a.value) ? b : a;
    }
    DEVICE_FN void finish(u64 at, Acc acc) const {
        dst[at] = acc.index;
        if (values) values[at] = store<T>(acc.value);
    }
};

}  // namespace device

#endif
