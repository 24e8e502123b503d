// Rows along the last dimension: who works on one, and how it is read. A wave has a row (several rows a block, for short rows) or a block has one.
//
// A row moves in packs of 16 bytes from its first element on; AMD GPUs access memory unaligned, so rows may start anywhere. What is left
// after the last whole pack, less than a pack, is one element each for the first threads.
#ifndef CANDLE_ROCM_ROWS_H
#define CANDLE_ROCM_ROWS_H

#include "device.h"

namespace device {

// N neighbours in the compute type.
template <typename C, u32 N> struct Values {
    C v[N];
};

template <typename T> constexpr u32 PACK = 16 / sizeof(T);

#ifdef __CUDACC__
// NVIDIA GPUs access aligned memory only: rows that start elsewhere go element by element.
template <u32 N, typename T> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Neighbours {
    T v[N];
    static DEVICE_FN bool are_aligned(const T* at) { return (u64)at % alignof(Neighbours) == 0; }
};
template <u32 N, typename T> DEVICE_FN Neighbours<N, T> copy_from_aligned(const T* at) { return *(const Neighbours<N, T>*)at; }
template <u32 N, typename T> DEVICE_FN Neighbours<N, T> copy_from(const T* at) {
    Neighbours<N, T> pack;
    if (Neighbours<N, T>::are_aligned(at)) {
        pack = *(const Neighbours<N, T>*)at;
    } else {
        for (u32 j = 0; j < N; ++j) pack.v[j] = at[j];
    }
    return pack;
}
template <u32 N, typename T> DEVICE_FN void copy_to_aligned(T* at, const Neighbours<N, T>& pack) { *(Neighbours<N, T>*)at = pack; }
template <u32 N, typename T> DEVICE_FN void copy_to(T* at, const Neighbours<N, T>& pack) {
    if (Neighbours<N, T>::are_aligned(at)) {
        *(Neighbours<N, T>*)at = pack;
    } else {
        for (u32 j = 0; j < N; ++j) at[j] = pack.v[j];
    }
}
#else
template <u32 N, typename T> struct Neighbours {
    T v[N];
    static DEVICE_FN bool are_aligned(const T*) { return true; }
};
template <u32 N, typename T> DEVICE_FN Neighbours<N, T> copy_from(const T* at) {
    Neighbours<N, T> pack;
    __builtin_memcpy(pack.v, at, sizeof(pack.v));
    return pack;
}
template <u32 N, typename T> DEVICE_FN Neighbours<N, T> copy_from_aligned(const T* at) { return copy_from<N>(at); }
template <u32 N, typename T> DEVICE_FN void copy_to(T* at, const Neighbours<N, T>& pack) { __builtin_memcpy(at, pack.v, sizeof(pack.v)); }
template <u32 N, typename T> DEVICE_FN void copy_to_aligned(T* at, const Neighbours<N, T>& pack) { copy_to(at, pack); }
#endif

template <u32 N, typename T> DEVICE_FN Values<compute_t<T>, N> read(const T* at) {
    const Neighbours<N, T> pack = copy_from<N>(at);
    Values<compute_t<T>, N> values;
    for (u32 j = 0; j < N; ++j) values.v[j] = load(pack.v[j]);
    return values;
}
template <typename T, typename C, u32 N> DEVICE_FN void write(T* at, const Values<C, N>& values) {
    Neighbours<N, T> pack;
    for (u32 j = 0; j < N; ++j) pack.v[j] = store<T>(values.v[j]);
    copy_to(at, pack);
}

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

// Elements of a row that each thread keeps in registers: rows of up to this many times the team's size are read once.
constexpr u32 KEPT = 16;

// One thread's share of a row of T: what it keeps, and what is read again each time. A Source has `first<N>(i)`, called once for each
// kept element, and `again<N>(i)`, for the others.
template <typename Team, typename T, typename Source, u32 KEEP = KEPT> struct Row {
    using C = compute_t<T>;
    static constexpr u32 N = PACK<T>;
    static constexpr u32 PACKS = KEEP / N;

    const Source& source;
    const u32 packs;
    const u32 rest;  // elements after the last whole pack
    Values<C, N> kept[PACKS];
    Values<C, 1> last;

    DEVICE_FN Row(const Source& from, u32 columns) : source(from), packs(columns / N), rest(columns % N) {
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) {
            const u32 p = Team::rank() + k * Team::size();
            if (p < packs) kept[k] = source.template first<N>(p * N);
        }
        if (Team::rank() < rest) last = source.template first<1>(packs * N + Team::rank());
    }

    // Calls f(column, values) for what is kept; f may change the values.
    template <typename F> DEVICE_FN void each_kept(F f) {
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) {
            const u32 p = Team::rank() + k * Team::size();
            if (p < packs) f(p * N, kept[k]);
        }
        if (Team::rank() < rest) f(packs * N + Team::rank(), last);
    }
    // The same for what lies beyond, where a change is lost.
    template <typename F> DEVICE_FN void each_beyond(F f) const {
        for (u32 p = Team::rank() + PACKS * Team::size(); p < packs; p += Team::size()) {
            Values<C, N> values = source.template again<N>(p * N);
            f(p * N, values);
        }
    }
    template <typename F> DEVICE_FN void each(F f) {
        each_kept(f);
        each_beyond(f);
    }
    // The same for rows of whole packs, by whole waves and up to `end` packs at least, so that f can exchange values between lanes: those beyond the row are zero.
    template <typename F> DEVICE_FN void each_together(u32 end, F f) {
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) {
            const u32 p = Team::rank() + k * Team::size();
            if (k * Team::size() >= end) break;
            if (p >= packs) kept[k] = {};
            f(p * N, kept[k]);
        }
        for (u32 p = Team::rank() + PACKS * Team::size(); p - Team::rank() < end; p += Team::size()) {
            Values<C, N> values = {};
            if (p < packs) values = source.template again<N>(p * N);
            f(p * N, values);
        }
    }

    // The sum over the row of f(value).
    template <typename F> DEVICE_FN C sum(F f) {
        C result = C(0);
        each([&](u32, const auto& values) {
            for (const C value : values.v) result += f(value);
        });
        return Team::template join<Sum>(result);
    }
};

// A row as it lies in memory.
template <typename T> struct Plain {
    const T* src;
    template <u32 N> DEVICE_FN Values<compute_t<T>, N> first(u32 i) const { return read<N>(src + i); }
    template <u32 N> DEVICE_FN Values<compute_t<T>, N> again(u32 i) const { return read<N>(src + i); }
};

}  // namespace device

#endif
