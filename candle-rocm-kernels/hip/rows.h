// Rows along the last dimension: who works on one, and how it is read. A wave has a row (several rows a block, for
// short rows) or a block has one.
//
// A row moves in packs of 16 bytes from its first element on; AMD GPUs access memory unaligned, so rows may start
// anywhere. What is left after the last whole pack, less than a pack, is one element each for the first threads.
#ifndef CANDLE_ROCM_ROWS_H
#define CANDLE_ROCM_ROWS_H

#include "device.h"
#include "shared/rows.h"

namespace device {

// N neighbours in the compute type.
template <typename C, u32 N> struct Values {
    C v[N];
};

template <typename T> constexpr u32 PACK = 16 / sizeof(T);

// Where only aligned memory can be accessed, rows that start elsewhere go element by element.
constexpr bool ALWAYS_IN_PACKS = target::ANY_ALIGNMENT;
template <u32 N, typename T> constexpr u32 PACK_ALIGNMENT = ALWAYS_IN_PACKS ? alignof(T) : N * sizeof(T) < 16 ? N * sizeof(T) : 16;
template <u32 N, typename T> struct alignas(PACK_ALIGNMENT<N, T>) Neighbours {
    T v[N];
    static DEVICE_FN bool are_aligned(const T* at) { return ALWAYS_IN_PACKS || (u64)at % alignof(Neighbours) == 0; }
};
template <u32 N, typename T> DEVICE_FN Neighbours<N, T> copy_from(const T* at) {
    Neighbours<N, T> pack;
    if constexpr (ALWAYS_IN_PACKS) {
        __builtin_memcpy(pack.v, at, sizeof(pack.v));
    } else if (Neighbours<N, T>::are_aligned(at)) {
        pack = *(const Neighbours<N, T>*)at;
    } else {
        for (u32 j = 0; j < N; ++j) pack.v[j] = at[j];
    }
    return pack;
}
template <u32 N, typename T> DEVICE_FN Neighbours<N, T> copy_from_aligned(const T* at) {
    if constexpr (ALWAYS_IN_PACKS) {
        return copy_from<N>(at);
    } else {
        return *(const Neighbours<N, T>*)at;
    }
}
template <u32 N, typename T> DEVICE_FN void copy_to(T* at, const Neighbours<N, T>& pack) {
    if constexpr (ALWAYS_IN_PACKS) {
        __builtin_memcpy(at, pack.v, sizeof(pack.v));
    } else if (Neighbours<N, T>::are_aligned(at)) {
        *(Neighbours<N, T>*)at = pack;
    } else {
        for (u32 j = 0; j < N; ++j) at[j] = pack.v[j];
    }
}
template <u32 N, typename T> DEVICE_FN void copy_to_aligned(T* at, const Neighbours<N, T>& pack) {
    if constexpr (ALWAYS_IN_PACKS) {
        copy_to(at, pack);
    } else {
        *(Neighbours<N, T>*)at = pack;
    }
}

template <u32 N, typename T> DEVICE_FN Values<compute_t<T>, N> widened(const Neighbours<N, T>& pack) {
    Values<compute_t<T>, N> values;
    for (u32 j = 0; j < N; ++j) values.v[j] = load(pack.v[j]);
    return values;
}
template <typename T, typename C, u32 N> DEVICE_FN Neighbours<N, T> narrowed(const Values<C, N>& values) {
    Neighbours<N, T> pack;
    for (u32 j = 0; j < N; ++j) pack.v[j] = store<T>(values.v[j]);
    return pack;
}
template <u32 N, typename T> DEVICE_FN Values<compute_t<T>, N> read(const T* at) { return widened(copy_from<N>(at)); }
template <typename T, typename C, u32 N> DEVICE_FN void write(T* at, const Values<C, N>& values) { copy_to(at, narrowed<T>(values)); }
template <typename T, typename C, u32 N> DEVICE_FN void write_aligned(T* at, const Values<C, N>& values) { copy_to_aligned(at, narrowed<T>(values)); }

// A pack in registers: narrow elements stay as they lie in memory, two or four to a register, until their values are
// wanted.
template <u32 N, typename T> struct Held {
    static constexpr bool IN_WORDS = sizeof(T) < 4 && N * sizeof(T) % 4 == 0;
    struct Words {
        u32 v[IN_WORDS ? N * sizeof(T) / 4 : 1];
    };
    template <bool FIRST, typename A, typename B> struct Either { using type = A; };
    template <typename A, typename B> struct Either<false, A, B> { using type = B; };
    using Bits = typename Either<IN_WORDS, Words, Neighbours<N, T>>::type;
    Bits bits;

    DEVICE_FN void operator=(const Neighbours<N, T>& pack) { bits = bit_cast<Bits>(pack); }
    // Values of narrow elements are made anew each time: kept by the compiler, they would take the registers that
    // holding the pack saves.
    DEVICE_FN Values<compute_t<T>, N> values() const {
        Bits copy = bits;
        if constexpr (IN_WORDS) {
            for (u32& word : copy.v) word = anew(word);
        }
        return widened(bit_cast<Neighbours<N, T>>(copy));
    }
};

// The threads that share a row. A join gives its result to all of them.
struct WaveTeam {
    static constexpr u32 MOST_KEPT = MOST_KEPT_BY_WAVE;
    static DEVICE_FN u32 rank() { return lane(); }
    static DEVICE_FN u32 size() { return WAVE; }
    static DEVICE_FN u64 index() { return global_index() / WAVE; }
    static DEVICE_FN u64 count() { return global_size() / WAVE; }
    template <typename Op, typename C> DEVICE_FN C join(C v) { return wave_reduce<Op>(v); }
};
struct BlockTeam {
    static constexpr u32 MOST_KEPT = 32;
    // Joins take turns at two places, so that one barrier is enough: who writes to a place again has met the others,
    // after they read it, at the join between.
    u32 turn = 0;
    static DEVICE_FN u32 rank() { return thread_x(); }
    static DEVICE_FN u32 size() { return block_dim(); }
    static DEVICE_FN u64 index() { return block_x(); }
    static DEVICE_FN u64 count() { return grid_dim(); }
    template <typename Op, typename C> DEVICE_FN C join(C v) {
        __shared__ C scratch[2 * MAX_WAVES];
        v = wave_reduce<Op>(v);
        const u32 waves = block_dim() / WAVE;
        if (waves == 1) return v;
        C* const parts = scratch + turn * MAX_WAVES;
        turn ^= 1;
        if (lane() == 0) parts[thread_x() / WAVE] = v;
        barrier();
        v = parts[0];
#pragma unroll 4
        for (u32 w = 1; w < waves; ++w) v = Op::apply(v, parts[w]);
        return v;
    }
};

// Elements of a row that each thread keeps in registers: rows of up to this many times the team's size are read once.
// Four packs, but of narrow elements only two where a wave has a row.
template <typename Team, typename T> constexpr u32 KEPT = KEPT_BYTES / sizeof(T) < Team::MOST_KEPT ? KEPT_BYTES / sizeof(T) : Team::MOST_KEPT;

// One thread's share of a row of T: the packs and the one element after the last whole pack that it keeps, and what is
// read again each time. A Source has `first<N>(i)`, called once for each kept element, and `again<N>(i)`, for the
// others. A row that is not `in_packs`, as the GPU cannot access it so, is one of single elements.
template <typename Team, typename T, typename Source, u32 KEEP = KEPT<Team, T>> struct Row {
    using C = compute_t<T>;
    static constexpr u32 N = PACK<T>;
    static constexpr u32 PACKS = KEEP / N;

    Team& team;
    const Source& source;
    const u32 columns;
    const u32 packs;
    Held<N, T> kept[PACKS];
    Held<1, T> last;

    DEVICE_FN Row(Team& of, const Source& from, u32 row_columns, bool in_packs)
        : team(of), source(from), columns(row_columns), packs(in_packs ? row_columns / N : 0) {
        // All are asked for before one is used.
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) {
            if (pack(k) < packs) kept[k] = source.template first<N>(pack(k) * N);
        }
        if (single() < columns) last = source.template first<1>(single());
    }
    // This thread's k-th pack, and its first element after all packs.
    static DEVICE_FN u32 pack(u32 k) { return Team::rank() + k * Team::size(); }
    DEVICE_FN u32 single() const { return packs * N + Team::rank(); }

    // The values of what is kept.
    struct Kept {
        Values<C, N> packs[PACKS];
        Values<C, 1> last;
    };
    DEVICE_FN Kept values() const {
        Kept values;
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) values.packs[k] = kept[k].values();
        values.last = last.values();
        return values;
    }
    // Calls f(column, values) for each pack of them; f may change the values.
    template <typename F> DEVICE_FN void each_of(Kept& values, F f) const {
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) {
            if (pack(k) < packs) f(pack(k) * N, values.packs[k]);
        }
        if (single() < columns) f(single(), values.last);
    }
    // The same with new values each time.
    template <typename F> DEVICE_FN void each_kept(F f) const {
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) {
            if (pack(k) < packs) f(pack(k) * N, kept[k].values());
        }
        if (single() < columns) f(single(), last.values());
    }
    // The same for what lies beyond.
    template <typename F> DEVICE_FN void each_beyond(F f) const {
        for (u32 p = pack(PACKS); p < packs; p += Team::size()) f(p * N, source.template again<N>(p * N));
        if constexpr (!ALWAYS_IN_PACKS) {
            for (u32 i = single() + Team::size(); i < columns; i += Team::size()) f(i, source.template again<1>(i));
        }
    }
    template <typename F> DEVICE_FN void each(F f) const {
        each_kept(f);
        each_beyond(f);
    }
    // The same for rows of whole packs, by whole waves and up to `end` packs at least, so that f can exchange values
    // between lanes: those beyond the row are zero.
    template <typename F> DEVICE_FN void each_together(u32 end, F f) const {
#pragma unroll
        for (u32 k = 0; k < PACKS; ++k) {
            if (k * Team::size() >= end) break;
            Values<C, N> values = {};
            if (pack(k) < packs) values = kept[k].values();
            f(pack(k) * N, values);
        }
        for (u32 p = pack(PACKS); p - Team::rank() < end; p += Team::size()) {
            Values<C, N> values = {};
            if (p < packs) values = source.template again<N>(p * N);
            f(p * N, values);
        }
    }

    // The sum over the row of f(value).
    template <typename F> DEVICE_FN C sum(F f) const {
        C result = C(0);
        each([&](u32, const auto& values) {
            for (const C value : values.v) result += f(value);
        });
        return team.template join<Sum>(result);
    }
};

// Whether all of these may be accessed in packs.
template <typename... T> DEVICE_FN bool are_in_packs(const T*... rows) { return (... && Neighbours<PACK<T>, T>::are_aligned(rows)); }

// The vector beside a row, or null.
template <typename T> DEVICE_FN const T* of_row(const T* vectors, u32 row, const RowVectors& beside) {
    const u32 outer = row / beside.inner;
    return vectors ? vectors + (u64)outer * beside.outer + (u64)(row - outer * beside.inner) * beside.step : nullptr;
}

// A row as it lies in memory; if it lies ANYWHERE, that is asked with each pack.
template <typename T, bool ANYWHERE = false> struct Plain {
    static constexpr bool IS_SUM = false;
    const T* src;
    DEVICE_FN bool in_packs() const { return ANYWHERE || are_in_packs(src); }
    template <u32 N> DEVICE_FN Neighbours<N, T> first(u32 i) const { return ANYWHERE ? copy_from<N>(src + i) : copy_from_aligned<N>(src + i); }
    template <u32 N> DEVICE_FN Values<compute_t<T>, N> again(u32 i) const { return widened(first<N>(i)); }
};

}  // namespace device

#endif
