// What the element-wise families share: walking one, two or three strided inputs in packs, and arithmetic that rounds
// as Rust does.
#ifndef CANDLE_ROCM_ELEMENTWISE_H
#define CANDLE_ROCM_ELEMENTWISE_H

#include "narrow.h"

namespace device {

// Elements that one thread handles at a time: 16 bytes of the widest type involved, at most 8. The launchers count on
// the same numbers.
constexpr u32 pack_length(u32 bytes) { return bytes <= 2 ? 8 : 16 / bytes; }
constexpr u32 wider(u32 a, u32 b) { return a > b ? a : b; }

template <typename T, u32 N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T v[N];
};

// Where the element with the given row-major index lies in inputs of these strides. With one dimension, indices may
// exceed 32 bits.
template <u32 K> struct Offsets { u64 at[K]; };
template <typename... S> DEVICE_FN Offsets<sizeof...(S)> offsets(const Dims& dims, u64 index, const S&... strides) {
    constexpr u32 K = sizeof...(S);
    const u32* const steps[K] = {strides.s...};
    Offsets<K> offsets;
    if (dims.rank == 1) {
        for (u32 k = 0; k < K; ++k) offsets.at[k] = index * steps[k][0];
        return offsets;
    }
    u32 at[K] = {};
    u32 rest = (u32)index;
    for (u32 d = dims.rank; d-- > 1;) {
        const u32 next = rest / dims.size[d];
        const u32 here = rest - next * dims.size[d];
        for (u32 k = 0; k < K; ++k) at[k] += here * steps[k][d];
        rest = next;
    }
    for (u32 k = 0; k < K; ++k) offsets.at[k] = at[k] + rest * steps[k][0];
    return offsets;
}

// An input of `dims` (of rank 1 at least) and `strides`, read in row-major order: element by element, or N neighbours
// at a time where the layout allows it. Which is the same for all threads, so choosing costs a few scalar instructions
// and no divergence.
template <typename T, u32 N> struct Input {
    enum Way {
        WIDE,    // N neighbours are adjacent and aligned: one load
        REPEAT,  // N neighbours are one element
        GATHER,  // none of these: only element by element
    };

    const T* data;
    const Dims& dims;
    const Strides& strides;
    Way way;

    DEVICE_FN Input(const T* data, const Dims& dims, const Strides& strides) : data(data), dims(dims), strides(strides), way(choose()) {}

    DEVICE_FN Way choose() const {
        const u32 last = dims.rank - 1;
        // Of several rows, packs must not straddle two.
        if (last > 0 && dims.size[last] % N != 0) return GATHER;
        if (strides.s[last] == 0) return REPEAT;
        if (strides.s[last] != 1 || (u64)data % alignof(Pack<T, N>) != 0) return GATHER;
        for (u32 d = 0; d < last; d++) {
            if (strides.s[d] % N != 0) return GATHER;
        }
        return WIDE;
    }

    DEVICE_FN T element(u64 index) const { return data[offsets(dims, index, strides).at[0]]; }

    // N elements from `offset` on, that of the element whose index is a multiple of N. Not for GATHER.
    DEVICE_FN Pack<T, N> pack(u64 offset) const {
        const T* at = data + offset;
        Pack<T, N> pack;
        if (way == REPEAT) {
            const T v = *at;
            for (u32 j = 0; j < N; j++) pack.v[j] = v;
        } else {
            pack = *(const Pack<T, N>*)at;
        }
        return pack;
    }
};

// The outputs of map and map2 are contiguous and start at the beginning of a buffer, so packs of them are aligned.
// Whole packs come first; what is left of n, or everything if an input can only be gathered, goes element by element.

// out[i] = f(x[i]) for i < n; whole packs by `of_pack`.
template <u32 N, typename X, typename Y, typename F, typename OfPack>
DEVICE_FN void map(u64 n, const Dims& dims, const Strides& xs, const X* x, Y* out, F f, OfPack of_pack) {
    const Input<X, N> input(x, dims, xs);
    const u64 packs = input.way == input.GATHER ? 0 : n / N;
    for (u64 p = global_index(); p < packs; p += global_size()) *(Pack<Y, N>*)(out + p * N) = of_pack(input.pack(offsets(dims, p * N, xs).at[0]));
    for (u64 i = packs * N + global_index(); i < n; i += global_size()) out[i] = f(input.element(i));
}
template <u32 N, typename X, typename Y, typename F>
DEVICE_FN void map(u64 n, const Dims& dims, const Strides& xs, const X* x, Y* out, F f) {
    map<N>(n, dims, xs, x, out, f, [f](const Pack<X, N>& a) -> Pack<Y, N> {
        Pack<Y, N> r;
        for (u32 j = 0; j < N; j++) r.v[j] = f(a.v[j]);
        return r;
    });
}

// out[i] = f(x[i], y[i]) for i < n; whole packs by `of_packs`.
template <u32 N, typename X, typename Y, typename Z, typename F, typename OfPacks>
DEVICE_FN void map2(u64 n, const Dims& dims, const Strides& xs, const Strides& ys, const X* x, const Y* y, Z* out, F f, OfPacks of_packs) {
    const Input<X, N> left(x, dims, xs);
    const Input<Y, N> right(y, dims, ys);
    const u64 packs = left.way == left.GATHER || right.way == right.GATHER ? 0 : n / N;
    for (u64 p = global_index(); p < packs; p += global_size()) {
        const Offsets<2> place = offsets(dims, p * N, xs, ys);
        *(Pack<Z, N>*)(out + p * N) = of_packs(left.pack(place.at[0]), right.pack(place.at[1]));
    }
    for (u64 i = packs * N + global_index(); i < n; i += global_size()) out[i] = f(left.element(i), right.element(i));
}
template <u32 N, typename X, typename Y, typename Z, typename F>
DEVICE_FN void map2(u64 n, const Dims& dims, const Strides& xs, const Strides& ys, const X* x, const Y* y, Z* out, F f) {
    map2<N>(n, dims, xs, ys, x, y, out, f, [f](const Pack<X, N>& a, const Pack<Y, N>& b) -> Pack<Z, N> {
        Pack<Z, N> r;
        for (u32 j = 0; j < N; j++) r.v[j] = f(a.v[j], b.v[j]);
        return r;
    });
}

// Integer arithmetic wraps, which in C++ only unsigned types do.
template <typename T> struct wrapping { using type = T; };
template <> struct wrapping<u8> { using type = u32; };
template <> struct wrapping<i16> { using type = u32; };
template <> struct wrapping<i32> { using type = u32; };
template <> struct wrapping<i64> { using type = u64; };

// Arithmetic on stored values: small floats are computed in float and rounded after every operation, as Rust's `half`
// and `float8` do.
template <typename T, bool FLOAT = is_float<T>::value> struct Arithmetic {
    static DEVICE_FN T add(T a, T b) { return store<T>(load(a) + load(b)); }
    static DEVICE_FN T sub(T a, T b) { return store<T>(load(a) - load(b)); }
    static DEVICE_FN T mul(T a, T b) { return store<T>(load(a) * load(b)); }
    static DEVICE_FN T div(T a, T b) {
        if constexpr (NARROW<T> && !is_same<T, bf16>::value) return store<T>(narrow::quotient(load(a), load(b)));
        else return store<T>(load(a) / load(b));
    }
};
template <typename T> struct Arithmetic<T, false> {
    using W = typename wrapping<T>::type;
    static DEVICE_FN T add(T a, T b) { return (T)((W)a + (W)b); }
    static DEVICE_FN T sub(T a, T b) { return (T)((W)a - (W)b); }
    static DEVICE_FN T mul(T a, T b) { return (T)((W)a * (W)b); }
    // Division by zero gives zero; the smallest value over -1 wraps to itself.
    static DEVICE_FN T div(T a, T b) {
        if (b == 0) return 0;
        if (T(-1) < T(0) && b == T(-1)) return sub(0, a);
        return (T)(a / b);
    }
};

}  // namespace device

#endif
