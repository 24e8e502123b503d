// What device.h and matrix.h make of known values: the host compares it with what they promise and has everything
// compiled without those that do not keep it (plain.h).
//
// Of n threads, each has a word of `in` and writes its results to out[i], out[n + i], and so on.
#include "rows.h"

#include "matrix.h"
#include "quantized/dot.h"

// Threads of a block.
#define THREADS 256

struct Results {
    u32* next;
    const u64 threads = global_size();

    DEVICE_FN explicit Results(u32* out) : next(out + global_index()) {}
    DEVICE_FN void add(u32 word) {
        *next = word;
        next += threads;
    }
    template <typename T> DEVICE_FN void add_words(T value) {
        struct {
            u32 w[sizeof(T) / 4];
        } words = bit_cast<decltype(words)>(value);
        for (const u32 word : words.w) add(word);
    }
};

// Words between lanes: from lane ^ 1, 2, 7, 8, 16, 32 (the own one in waves of 32), from the other half, and the sum.
extern "C" __global__ MAX_BLOCK(THREADS) void instructions_lanes(const u32* in, u32* out) {
    const u32 v = in[global_index()];
    Results results(out);
    results.add(word_across<1>(v));
    results.add(word_across<2>(v));
    results.add(word_across<7>(v));
    results.add(word_across<8>(v));
    results.add(word_across<16>(v));
    if constexpr (WAVE == 64) {
        results.add(word_across<32>(v));
    } else {
        results.add(v);
    }
    results.add(other_half(v));
    results.add(wave_reduce<Sum>(v));
}

// What has no plainer form: the word of lane 5 i + 3, the votes for odd words, the first lane's word, whether a lane
// has 7; then of the whole block the sum, the word of thread 7 i + 1 by way of LDS, and the counter that all counted up.
extern "C" __global__ MAX_BLOCK(THREADS) void instructions_waves(const u32* in, u32* out) {
    __shared__ u32 sums[MAX_WAVES];
    __shared__ u32 words[THREADS];
    __shared__ u32 counter;
    const u32 t = thread_x();
    const u32 v = in[global_index()];
    Results results(out);
    results.add(shfl(v, lane() * 5 + 3));
    const u64 votes = device::ballot((v & 1u) != 0);
    results.add((u32)votes);
    results.add((u32)(votes >> 32));
    results.add(uniform(shfl(v, 0u)));
    results.add(any_lane(v % 64 == 7));
    results.add(block_reduce<Sum>(v, sums));
    words[t] = v;
    if (t == 0) counter = 0;
    barrier();
    results.add(words[(t * 7 + 1) % THREADS]);
    count_up(&counter, t + 1);
    barrier();
    results.add(counter);
}

// Words between the lanes of a wave by way of LDS, four times.
extern "C" __global__ MAX_BLOCK(THREADS) void instructions_lds(const u32* in, u32* out) {
    __shared__ u32 words[THREADS];
    const u32 t = thread_x();
    u32 v = in[global_index()];
    for (u32 round = 0; round < 4; ++round) {
        words[t] = v;
        wave_sync();
        const u32 other = words[t - lane() + (lane() * 7 + round + 1) % WAVE];
        wave_sync();
        v = v * 3 + other;
    }
    Results(out).add(v);
}

// Bytes and halves of two words, and numbers as pairs: x / 48 and its opposite of the lower halves of both.
extern "C" __global__ MAX_BLOCK(THREADS) void instructions_bytes(const u32* in, u32* out) {
    const u64 i = global_index(), n = global_size();
    const u32 a = in[i], b = in[(i + 1) % n], selector = in[(i + 2) % n] & 0x07070707u;
    const float x = (float)(a & 0xffffu) / 48.0f, y = -(float)(b & 0xffffu) / 48.0f;
    Results results(out);
    results.add(permute_bytes(a, b, selector));
    results.add(low_halves(a, b));
    results.add(high_halves(a, b));
    results.add(narrow_pair<f16>(x, y));
    results.add(narrow_pair<bf16>(x, y));
}

// The products of the signed bytes of two neighbours, on top of a third.
extern "C" __global__ MAX_BLOCK(THREADS) void instructions_dot(const u32* in, u32* out) {
    const u64 i = global_index(), n = global_size();
    Results(out).add((u32)dot4(in[i], in[(i + 1) % n], (i32)(in[(i + 2) % n] >> 8)));
}

// Values of 2, 4, 8 and 16 bytes from thread i's byte on, and packs from element i on.
extern "C" __global__ MAX_BLOCK(THREADS) void instructions_loads(const u8* in, u32* out) {
    const u8* const at = in + global_index();
    Results results(out);
    results.add(load_unaligned<u16>(at));
    results.add(load_unaligned<u32>(at));
    results.add_words(load_unaligned<u64>(at));
    results.add_words(load_unaligned<u32x4>(at));
    struct Words {
        u32 w[4];
    };
    results.add_words(bit_cast<Words>(copy_from<8>((const u16*)in + global_index())));
    results.add_words(bit_cast<Words>(copy_from<4>((const u32*)in + global_index())));
}

#if MATRIX
struct Largest {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a < b ? b : a; }
};

// With rows of K elements each: D = A B of 16 rows of `a` and 16 columns of `b`, to 16 x 16 of `out`, and K behind it.
template <typename T, typename S> DEVICE_FN void products(const T* a, const T* b, S* out) {
    constexpr u32 K = matrix::K<T>;
    using Sums = matrix::Accumulator<S>;
    Sums sums = Sums::zero();
    matrix::multiply<T>(matrix::FragmentA<T>::load(a, K), matrix::FragmentB<T>::load(b, K), sums);
    for (u32 i = 0; i < Sums::VALUES; ++i) out[Sums::row(i) * matrix::TILE + Sums::column(i)] = sums.values[i];
    out[256] = (S)K;
}

// D = A B and K as above, E = C P with P = A B of all K rows of `a` as the second operand, and the largest of each
// column of D. (Of mma.sync, whose second operand has another order, E is D.)
template <typename T> DEVICE_FN void all_products(const T* a, const T* b, const T* c, float* out) {
    using namespace device::matrix;
    using Sums = Accumulator<float>;
    products(a, b, out);
    Sums tiles[TILES<T>];
    const FragmentB<T> columns = FragmentB<T>::load(b, K<T>);
    for (u32 t = 0; t < TILES<T>; ++t) {
        tiles[t] = Sums::zero();
        multiply<T>(FragmentA<T>::load_from([=](u32 row) { return a + operand_row<T>(t, row) * K<T>; }), columns, tiles[t]);
    }
    Sums sums = Sums::zero();
    if constexpr (COLUMNS == 1) {
        multiply<T>(FragmentA<T>::load(c, K<T>), operand<T>(tiles), sums);
    } else {
        sums = tiles[0];
    }
    for (u32 i = 0; i < Sums::VALUES; ++i) out[257 + Sums::row(i) * TILE + Sums::column(i)] = sums.values[i];
    Sums first = Sums::zero();
    multiply<T>(FragmentA<T>::load(a, K<T>), columns, first);
    for (u32 column = 0; column < COLUMNS; ++column) {
        float largest = first.values[column * Sums::ROWS];
        for (u32 i = 1; i < Sums::ROWS; ++i) largest = Largest::apply(largest, first.values[column * Sums::ROWS + i]);
        largest = column_reduce<Largest>(largest);
        if (is_first()) out[513 + held(column)] = largest;
    }
}

extern "C" __global__ MAX_BLOCK(64) void instructions_matrix_f16(const f16* a, const f16* b, const f16* c, float* out) { all_products(a, b, c, out); }
extern "C" __global__ MAX_BLOCK(64) void instructions_matrix_bf16(const bf16* a, const bf16* b, const bf16* c, float* out) { all_products(a, b, c, out); }
extern "C" __global__ MAX_BLOCK(64) void instructions_matrix_i8(const i8* a, const i8* b, i32* out) { products(a, b, out); }
#endif
