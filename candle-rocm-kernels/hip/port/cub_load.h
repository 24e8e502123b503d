// cub: items of a block between arrangements, and between memory and registers. Included by cub.h.
//
// Of ITEMS items a thread, item i of thread t has the place t ITEMS + i if they are "blocked", i THREADS + t if
// "striped", and, "warp-striped", i 32 + lane behind the items of the warps before its own.
#ifndef CANDLE_ROCM_PORT_CUB_LOAD_H
#define CANDLE_ROCM_PORT_CUB_LOAD_H

#include "cub_scan.h"

namespace cuda_port {
namespace cub {

enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT,
    BLOCK_LOAD_STRIPED,
    BLOCK_LOAD_VECTORIZE,
    BLOCK_LOAD_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT,
    BLOCK_STORE_STRIPED,
    BLOCK_STORE_VECTORIZE,
    BLOCK_STORE_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};
enum CacheLoadModifier { LOAD_DEFAULT, LOAD_CA, LOAD_CG, LOAD_CS, LOAD_CV, LOAD_LDG, LOAD_VOLATILE };
enum CacheStoreModifier { STORE_DEFAULT, STORE_WB, STORE_CG, STORE_CS, STORE_WT, STORE_VOLATILE };

// The caches are the GPU's own business here: only volatile means something.
template <CacheLoadModifier MODIFIER, typename T> PORT_FN T ThreadLoad(const T* from) {
    if constexpr (MODIFIER == LOAD_VOLATILE || MODIFIER == LOAD_CV) return *(const volatile T*)from;
    return *from;
}
template <CacheStoreModifier MODIFIER, typename T, typename V> PORT_FN void ThreadStore(T* to, V value) {
    if constexpr (MODIFIER == STORE_VOLATILE || MODIFIER == STORE_WT) {
        *(volatile T*)to = value;
    } else {
        *to = value;
    }
}

namespace arrangement {
struct Blocked { template <int ITEMS> static PORT_FN int at(int rank, int i, int) { return rank * ITEMS + i; } };
struct Striped { template <int> static PORT_FN int at(int rank, int i, int threads) { return i * threads + rank; } };
struct WarpStriped {
    template <int ITEMS> static PORT_FN int at(int rank, int i, int) { return rank / WARP * WARP * ITEMS + i * WARP + rank % WARP; }
};

// Items below `valid`; the others stay as they are.
template <typename Arrangement, int ITEMS, typename T, typename From>
PORT_FN void load(int rank, int threads, From from, T (&items)[ITEMS], int valid) {
    for (int i = 0; i < ITEMS; ++i) {
        const int at = Arrangement::template at<ITEMS>(rank, i, threads);
        if (at < valid) items[i] = from[at];
    }
}
template <typename Arrangement, int ITEMS, typename T, typename To>
PORT_FN void store(int rank, int threads, To to, T (&items)[ITEMS], int valid) {
    for (int i = 0; i < ITEMS; ++i) {
        const int at = Arrangement::template at<ITEMS>(rank, i, threads);
        if (at < valid) to[at] = items[i];
    }
}
constexpr int ALL = 0x7fffffff;
}  // namespace arrangement

// The forms that need no shared memory: of all items, of the first `valid`, and with a value for those behind.
#define PORT_DIRECT(name, Arrangement, template_of, threads)                                                           \
    template <template_of int ITEMS, typename T, typename From> PORT_FN void LoadDirect##name(int rank, From from, T (&items)[ITEMS]) {  \
        arrangement::load<arrangement::Arrangement>(rank, threads, from, items, arrangement::ALL);                     \
    }                                                                                                                  \
    template <template_of int ITEMS, typename T, typename From>                                                        \
    PORT_FN void LoadDirect##name(int rank, From from, T (&items)[ITEMS], int valid) {                               \
        arrangement::load<arrangement::Arrangement>(rank, threads, from, items, valid);                                \
    }                                                                                                                  \
    template <template_of int ITEMS, typename T, typename Else, typename From>                                         \
    PORT_FN void LoadDirect##name(int rank, From from, T (&items)[ITEMS], int valid, Else otherwise) {               \
        for (int i = 0; i < ITEMS; ++i) items[i] = otherwise;                                                          \
        arrangement::load<arrangement::Arrangement>(rank, threads, from, items, valid);                                \
    }                                                                                                                  \
    template <template_of int ITEMS, typename T, typename To> PORT_FN void StoreDirect##name(int rank, To to, T (&items)[ITEMS]) {       \
        arrangement::store<arrangement::Arrangement>(rank, threads, to, items, arrangement::ALL);                      \
    }                                                                                                                  \
    template <template_of int ITEMS, typename T, typename To>                                                          \
    PORT_FN void StoreDirect##name(int rank, To to, T (&items)[ITEMS], int valid) {                                  \
        arrangement::store<arrangement::Arrangement>(rank, threads, to, items, valid);                                 \
    }
#define PORT_THREADS int THREADS,
#define PORT_NONE
PORT_DIRECT(Blocked, Blocked, PORT_NONE, 0)
PORT_DIRECT(Striped, Striped, PORT_THREADS, THREADS)
PORT_DIRECT(WarpStriped, WarpStriped, PORT_NONE, 0)
#undef PORT_DIRECT
#undef PORT_THREADS
#undef PORT_NONE
template <typename T, int ITEMS> PORT_FN void LoadDirectBlockedVectorized(int rank, const T* from, T (&items)[ITEMS]) { LoadDirectBlocked(rank, from, items); }
template <typename T, int ITEMS> PORT_FN void StoreDirectBlockedVectorized(int rank, T* to, T (&items)[ITEMS]) { StoreDirectBlocked(rank, to, items); }

template <typename T, int X, int ITEMS, bool = false, int Y = 1, int Z = 1, int = 0> class BlockExchange {
    using Shape = BlockShape<X, Y, Z>;
    static constexpr int THREADS = Shape::THREADS;

  public:
    struct TempStorage { port::library::Array<T, THREADS * ITEMS> items; };

  private:
    TempStorage& storage;
    int rank = port::library::thread_rank<X, Y, Z>();

    // Of a warp that is not whole, the items would have no place.
    template <typename Arrangement> static constexpr bool fits = !port::library::same<Arrangement, arrangement::WarpStriped> || THREADS % WARP == 0;

    template <typename Arrangement, typename Out> PORT_FN void read(Out (&out)[ITEMS]) {
        static_assert(fits<Arrangement>, "warp-striped items need whole warps");
        __syncthreads();
        for (int i = 0; i < ITEMS; ++i) out[i] = storage.items[Arrangement::template at<ITEMS>(rank, i, THREADS)];
    }
    template <typename From, typename To, typename Out> PORT_FN void exchange(const T (&in)[ITEMS], Out (&out)[ITEMS]) {
        static_assert(fits<From>, "warp-striped items need whole warps");
        for (int i = 0; i < ITEMS; ++i) storage.items[From::template at<ITEMS>(rank, i, THREADS)] = in[i];
        read<To>(out);
    }

  public:
    PORT_FN BlockExchange() : storage(port::library::own_storage<BlockExchange>()) {}
    PORT_FN explicit BlockExchange(TempStorage& s) : storage(s) {}

#define PORT_EXCHANGE(before, after)                                                                                        \
    template <typename Out> PORT_FN void before##To##after(const T (&in)[ITEMS], Out (&out)[ITEMS]) {                     \
        exchange<arrangement::before, arrangement::after>(in, out);                                                         \
    }                                                                                                                  \
    PORT_FN void before##To##after(T (&items)[ITEMS]) { exchange<arrangement::before, arrangement::after>(items, items); }
    PORT_EXCHANGE(Striped, Blocked)
    PORT_EXCHANGE(Blocked, Striped)
    PORT_EXCHANGE(WarpStriped, Blocked)
    PORT_EXCHANGE(Blocked, WarpStriped)
#undef PORT_EXCHANGE

    template <typename Out, typename Rank> PORT_FN void ScatterToBlocked(const T (&in)[ITEMS], Out (&out)[ITEMS], Rank (&ranks)[ITEMS]) {
        for (int i = 0; i < ITEMS; ++i) storage.items[(int)ranks[i]] = in[i];
        read<arrangement::Blocked>(out);
    }
    template <typename Out, typename Rank> PORT_FN void ScatterToStriped(const T (&in)[ITEMS], Out (&out)[ITEMS], Rank (&ranks)[ITEMS]) {
        for (int i = 0; i < ITEMS; ++i) storage.items[(int)ranks[i]] = in[i];
        read<arrangement::Striped>(out);
    }
    template <typename Rank> PORT_FN void ScatterToBlocked(T (&items)[ITEMS], Rank (&ranks)[ITEMS]) { ScatterToBlocked(items, items, ranks); }
    template <typename Rank> PORT_FN void ScatterToStriped(T (&items)[ITEMS], Rank (&ranks)[ITEMS]) { ScatterToStriped(items, items, ranks); }
    // Only items with a rank of 0 or more, or with a flag, go anywhere; places that none goes to are undefined.
    template <typename Out, typename Rank> PORT_FN void ScatterToStripedGuarded(const T (&in)[ITEMS], Out (&out)[ITEMS], Rank (&ranks)[ITEMS]) {
        for (int i = 0; i < ITEMS; ++i) {
            if (ranks[i] >= 0) storage.items[(int)ranks[i]] = in[i];
        }
        read<arrangement::Striped>(out);
    }
    template <typename Out, typename Rank, typename Flag>
    PORT_FN void ScatterToStripedFlagged(const T (&in)[ITEMS], Out (&out)[ITEMS], Rank (&ranks)[ITEMS], Flag (&flags)[ITEMS]) {
        for (int i = 0; i < ITEMS; ++i) {
            if (flags[i]) storage.items[(int)ranks[i]] = in[i];
        }
        read<arrangement::Striped>(out);
    }
};

// What transposes goes through shared memory, so that neighbouring threads load and store neighbouring elements.
template <typename T, int X, int ITEMS, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0> class BlockLoad {
    using Exchange = BlockExchange<T, X, ITEMS, false, Y, Z>;
    static constexpr bool TRANSPOSES = ALGORITHM == BLOCK_LOAD_TRANSPOSE;
    static constexpr bool WARP_TRANSPOSES = ALGORITHM == BLOCK_LOAD_WARP_TRANSPOSE || ALGORITHM == BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED;
    struct Nothing { unsigned char unused; };

  public:
    using TempStorage = typename port::library::Choose<TRANSPOSES || WARP_TRANSPOSES, typename Exchange::TempStorage, Nothing>::type;

  private:
    TempStorage& storage;
    int rank = port::library::thread_rank<X, Y, Z>();
    template <typename From, typename... Rest> PORT_FN void load(From from, T (&items)[ITEMS], Rest... rest) {
        if constexpr (TRANSPOSES || ALGORITHM == BLOCK_LOAD_STRIPED) {
            LoadDirectStriped<X * Y * Z>(rank, from, items, rest...);
        } else if constexpr (WARP_TRANSPOSES) {
            LoadDirectWarpStriped(rank, from, items, rest...);
        } else {
            LoadDirectBlocked(rank, from, items, rest...);
        }
        if constexpr (TRANSPOSES) Exchange(storage).StripedToBlocked(items);
        if constexpr (WARP_TRANSPOSES) Exchange(storage).WarpStripedToBlocked(items);
    }

  public:
    PORT_FN BlockLoad() : storage(port::library::own_storage<BlockLoad>()) {}
    PORT_FN explicit BlockLoad(TempStorage& s) : storage(s) {}
    template <typename From> PORT_FN void Load(From from, T (&items)[ITEMS]) { load(from, items); }
    template <typename From> PORT_FN void Load(From from, T (&items)[ITEMS], int valid) { load(from, items, valid); }
    template <typename From, typename Else> PORT_FN void Load(From from, T (&items)[ITEMS], int valid, Else otherwise) {
        load(from, items, valid, otherwise);
    }
};

template <typename T, int X, int ITEMS, BlockStoreAlgorithm ALGORITHM = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0> class BlockStore {
    using Exchange = BlockExchange<T, X, ITEMS, false, Y, Z>;
    static constexpr bool TRANSPOSES = ALGORITHM == BLOCK_STORE_TRANSPOSE;
    static constexpr bool WARP_TRANSPOSES = ALGORITHM == BLOCK_STORE_WARP_TRANSPOSE || ALGORITHM == BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED;
    struct Nothing { unsigned char unused; };

  public:
    using TempStorage = typename port::library::Choose<TRANSPOSES || WARP_TRANSPOSES, typename Exchange::TempStorage, Nothing>::type;

  private:
    TempStorage& storage;
    int rank = port::library::thread_rank<X, Y, Z>();

  public:
    PORT_FN BlockStore() : storage(port::library::own_storage<BlockStore>()) {}
    PORT_FN explicit BlockStore(TempStorage& s) : storage(s) {}
    template <typename To> PORT_FN void Store(To to, T (&items)[ITEMS], int valid = arrangement::ALL) {
        if constexpr (TRANSPOSES) {
            T moved[ITEMS];
            Exchange(storage).BlockedToStriped(items, moved);
            StoreDirectStriped<X * Y * Z>(rank, to, moved, valid);
        } else if constexpr (WARP_TRANSPOSES) {
            T moved[ITEMS];
            Exchange(storage).BlockedToWarpStriped(items, moved);
            StoreDirectWarpStriped(rank, to, moved, valid);
        } else if constexpr (ALGORITHM == BLOCK_STORE_STRIPED) {
            StoreDirectStriped<X * Y * Z>(rank, to, items, valid);
        } else {
            StoreDirectBlocked(rank, to, items, valid);
        }
    }
};

}  // namespace cub
}  // namespace cuda_port

#endif
