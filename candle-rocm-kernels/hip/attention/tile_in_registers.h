// Tiles of keys and values for matrix_attend.h: a tile waits in registers while the one before is multiplied; values
// are transposed on the way into LDS.
#ifndef CANDLE_ROCM_ATTENTION_TILE_IN_REGISTERS_H
#define CANDLE_ROCM_ATTENTION_TILE_IN_REGISTERS_H

namespace flash {

template <typename T, u32 WIDTH> struct Plan {
    // CDNA has 512 registers per lane, and its LDS feeds the matrix units only if a fragment of keys or values serves
    // two tiles of queries.
    static constexpr u32 QUERIES = WAVE == 64 && WIDTH <= 128 ? 2 : 1;
    static constexpr u32 ROWS = WAVES * QUERIES * matrix::TILE;
    // Waves of 32 have 256 registers, which results of more than 128 columns leave no room in for queries: these wait
    // in LDS, beside fewer keys.
    static constexpr bool STAGED = WAVE == 32 && WIDTH > 128;
    static constexpr u32 KEYS = WAVE == 64 && WIDTH <= 64 ? 64 : STAGED ? 16 : 32;
    // Elements between rows in LDS, so that 16 of them start in different banks.
    static constexpr u32 K_STRIDE = WIDTH + VECTOR;
    static constexpr u32 V_STRIDE = KEYS + (matrix::Fragment<T>::ALIGNMENT < 16 ? 4 : VECTOR);
    static constexpr u32 PLACES = 1;
    static constexpr u32 K_LDS = KEYS * K_STRIDE;
    static constexpr u32 V_LDS = WIDTH * V_STRIDE;
    // Steps of the product of queries and keys that are loaded ahead.
    static constexpr u32 STEPS = STAGED ? 2 : WIDTH / matrix::K<T>;
    static constexpr u32 Q_LDS = STAGED ? ROWS * WIDTH : VECTOR;
};

DEVICE_FN Bytes16 where(bool exists, const Bytes16& x) {
    return Bytes16{{exists ? x.w[0] : 0u, exists ? x.w[1] : 0u, exists ? x.w[2] : 0u, exists ? x.w[3] : 0u}};
}

// Rows of a tile on their way into LDS as they lie in memory, 16 bytes at a time; neighbouring threads have
// neighbouring parts. Rows that do not exist and columns beyond the head repeat others, and become zeros in `store`.
// start(key) is where a row begins.
template <typename T, u32 WIDTH> struct Rows {
    using Sizes = Plan<T, WIDTH>;
    static constexpr u32 PARTS = WIDTH / VECTOR;
    static constexpr u32 COUNT = Sizes::KEYS * PARTS;
    static constexpr u32 LOADS = (COUNT + THREADS - 1) / THREADS;
    Bytes16 parts[LOADS];

    template <typename F> DEVICE_FN void load(u32 key0, u32 last, u32 width, F start) {
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            const u32 part = thread_x() + i * THREADS;
            if (COUNT % THREADS != 0 && part >= COUNT) break;
            const u32 key = key0 + part / PARTS;
            const u32 column = part % PARTS * VECTOR;
            parts[i] = *(const Bytes16*)(start(key < last ? key : last) + (column < width ? column : 0u));
        }
    }
    DEVICE_FN void store(u32 key0, u32 keys, u32 width, T* lds, u32 stride) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            const u32 part = thread_x() + i * THREADS;
            if (COUNT % THREADS != 0 && part >= COUNT) break;
            const u32 column = part % PARTS * VECTOR;
            const bool exists = key0 + part / PARTS < keys && column < width;
            *(Bytes16*)(lds + part / PARTS * stride + column) = where(exists, parts[i]);
        }
    }
};

// The same, transposed on the way: a thread has a part of two rows, whose elements are interleaved.
template <typename T, u32 WIDTH> struct Transposed {
    using Sizes = Plan<T, WIDTH>;
    static constexpr u32 PAIRS = Sizes::KEYS / 2;
    static constexpr u32 COUNT = PAIRS * (WIDTH / VECTOR);
    static constexpr u32 LOADS = (COUNT + THREADS - 1) / THREADS;
    Bytes16 parts[LOADS][2];

    template <typename F> DEVICE_FN void load(u32 key0, u32 last, u32 width, F start) {
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            const u32 part = thread_x() + i * THREADS;
            if (COUNT % THREADS != 0 && part >= COUNT) break;
            const u32 column = part / PAIRS * VECTOR;
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                const u32 key = key0 + part % PAIRS * 2 + n;
                parts[i][n] = *(const Bytes16*)(start(key < last ? key : last) + (column < width ? column : 0u));
            }
        }
    }
    // Columns beyond the head are not zeroed: what is computed of them is not stored.
    DEVICE_FN void store(u32 key0, u32 keys, T* lds, u32 stride) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            const u32 part = thread_x() + i * THREADS;
            if (COUNT % THREADS != 0 && part >= COUNT) break;
            const u32 pair = part % PAIRS * 2;
            const u32 column = part / PAIRS * VECTOR;
            const Bytes16 even = where(key0 + pair < keys, parts[i][0]);
            const Bytes16 odd = where(key0 + pair + 1 < keys, parts[i][1]);
#pragma unroll
            for (u32 n = 0; n < VECTOR; n += 2) {
                const u32 x = even.w[n / 2];
                const u32 y = odd.w[n / 2];
                *(u32*)(lds + (column + n) * stride + pair) = low_halves(x, y);
                *(u32*)(lds + (column + n + 1) * stride + pair) = high_halves(x, y);
            }
        }
    }
};

// A tile of keys and values, in registers while the one before is multiplied.
template <typename T, u32 WIDTH> struct Tile {
    using Sizes = Plan<T, WIDTH>;
    Rows<T, WIDTH> k;
    Transposed<T, WIDTH> v;

    DEVICE_FN void load(const Problem& a, const Sequence& seq, u32 key0, T*, T*) {
        const Shape& s = a.shape;
        const u32 last = seq.keys - 1;
        k.load(key0, last, s.width, [&](u32 key) { return (const T*)a.k + entry(a, seq, key).k; });
        v.load(key0, last, s.v_width, [&](u32 key) { return (const T*)a.v + entry(a, seq, key).v; });
    }
    // Brings the tile into LDS when no wave reads the one before; gives its place.
    DEVICE_FN u32 arrive(const Shape& s, u32 keys, u32 key0, T* k_lds, T* v_lds) const {
        barrier();
        k.store(key0, keys, s.width, k_lds, Sizes::K_STRIDE);
        v.store(key0, keys, v_lds, Sizes::V_STRIDE);
        barrier();
        return 0;
    }
};

// Values of one tile of columns and one step of keys, as the first operand.
template <typename T, u32 WIDTH> DEVICE_FN matrix::FragmentA<T> load_values(const T* v_lds, u32 column, u32 key) {
    using Sizes = Plan<T, WIDTH>;
    return matrix::FragmentA<T>::load(v_lds + column * Sizes::V_STRIDE + key, Sizes::V_STRIDE);
}

}  // namespace flash

#define ATTENTION_LDS                                                          \
    alignas(16) __shared__ flash::Waiting rows[Sizes::ROWS];                   \
    alignas(32) __shared__ Element queries[Sizes::Q_LDS];                      \
    alignas(16) __shared__ Element keys[Sizes::K_LDS];                         \
    alignas(16) __shared__ Element values[Sizes::V_LDS];

#endif
