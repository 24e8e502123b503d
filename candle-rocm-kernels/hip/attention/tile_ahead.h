// Tiles of keys and values for matrix_attend.h where memory is copied into LDS without registers: into one of two
// places, a tile ahead; values are transposed on the way out of LDS.
#ifndef CANDLE_ROCM_ATTENTION_TILE_AHEAD_H
#define CANDLE_ROCM_ATTENTION_TILE_AHEAD_H

namespace flash {

template <typename T, u32 WIDTH> struct Plan {
    // A fragment of keys or values serves two tiles of queries: LDS has less to give than the matrix units can take. Of
    // 255 registers, results of more than 64 columns leave no room for queries, which wait in LDS, and of more than 128
    // columns none for a second tile.
    static constexpr u32 QUERIES = WIDTH <= 128 ? 2 : 1;
    static constexpr u32 ROWS = WAVES * QUERIES * matrix::TILE;
    static constexpr bool STAGED = WIDTH > 64;
    static constexpr u32 KEYS = WIDTH > 128 ? 16 : 32;
    // Elements between rows in LDS: of keys, 32 bytes of four rows are read at once, of values, 16 bytes of eight.
    static constexpr u32 K_STRIDE = WIDTH + 2 * VECTOR;
    static constexpr u32 V_STRIDE = WIDTH + VECTOR;
    static constexpr u32 PLACES = 2;
    static constexpr u32 K_LDS = KEYS * K_STRIDE;
    static constexpr u32 V_LDS = KEYS * V_STRIDE;
    // Blocks at once on a multiprocessor, which share its 64 Ki registers.
    static constexpr u32 BLOCKS = WIDTH > 64 ? 2 : 3;
    // Steps of the product of queries and keys that are loaded ahead: all.
    static constexpr u32 STEPS = WIDTH / matrix::K<T>;
    static constexpr u32 Q_LDS = STAGED ? ROWS * WIDTH : VECTOR;
};

// A tile of keys and values, copied as they lie in memory while the one before is multiplied, 16 bytes at a time;
// neighbouring threads have neighbouring parts. Keys that do not exist and columns beyond the head become zeros.
template <typename T, u32 WIDTH> struct Tile {
    using Sizes = Plan<T, WIDTH>;
    static constexpr u32 PARTS = WIDTH / VECTOR;
    static constexpr u32 COUNT = Sizes::KEYS * PARTS;
    static constexpr u32 LOADS = (COUNT + THREADS - 1) / THREADS;
    // Where the next tile goes.
    u32 place = 0;

    DEVICE_FN void load(const Problem& a, const Sequence& seq, u32 key0, T* k_lds, T* v_lds) {
        const Shape& s = a.shape;
        k_lds += place * Sizes::K_LDS;
        v_lds += place * Sizes::V_LDS;
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            const u32 part = thread_x() + i * THREADS;
            if (COUNT % THREADS != 0 && part >= COUNT) break;
            const u32 row = part / PARTS;
            const u32 column = part % PARTS * VECTOR;
            const bool exists = key0 + row < seq.keys;
            const Entry e = entry(a, seq, exists ? key0 + row : seq.keys - 1);
            target::copy_ahead(k_lds + row * Sizes::K_STRIDE + column, (const T*)a.k + e.k + (column < s.width ? column : 0u), exists && column < s.width);
            target::copy_ahead(v_lds + row * Sizes::V_STRIDE + column, (const T*)a.v + e.v + (column < s.v_width ? column : 0u), exists && column < s.v_width);
        }
    }
    // Waits until the tile is there and no wave reads the one before; gives its place.
    DEVICE_FN u32 arrive(const Shape&, u32, u32, T*, T*) {
        target::copies_arrive();
        barrier();
        place ^= 1;
        return place ^ 1;
    }
};

// Values of one tile of columns and one step of keys, as the first operand.
template <typename T, u32 WIDTH> DEVICE_FN matrix::FragmentA<T> load_values(const T* v_lds, u32 column, u32 key) {
    using Sizes = Plan<T, WIDTH>;
    return matrix::load_transposing(v_lds + key * Sizes::V_STRIDE + column, Sizes::V_STRIDE);
}

}  // namespace flash

// More than the 48 KiB that a block has without being asked: `shared_bytes` of ops/attention/matrix.rs.
#define ATTENTION_LDS                                                          \
    extern __shared__ flash::Waiting dynamic_lds[];                            \
    flash::Waiting* const rows = dynamic_lds;                                  \
    Element* const queries = (Element*)(rows + Sizes::ROWS);                   \
    Element* const keys = queries + Sizes::Q_LDS;                              \
    Element* const values = keys + Sizes::PLACES * Sizes::K_LDS;

#endif
