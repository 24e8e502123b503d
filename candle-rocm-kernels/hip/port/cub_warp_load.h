// cub: items of logical warps between arrangements, and between memory and registers. Included by cub.h.
//
// Of ITEMS items a lane, item i has the place lane ITEMS + i if they are "blocked", and i LANES + lane if "striped".
#ifndef CANDLE_ROCM_PORT_CUB_WARP_LOAD_H
#define CANDLE_ROCM_PORT_CUB_WARP_LOAD_H

#include "cub_load.h"

namespace cuda_port {
namespace cub {

enum WarpLoadAlgorithm { WARP_LOAD_DIRECT, WARP_LOAD_STRIPED, WARP_LOAD_VECTORIZE, WARP_LOAD_TRANSPOSE };
enum WarpStoreAlgorithm { WARP_STORE_DIRECT, WARP_STORE_STRIPED, WARP_STORE_VECTORIZE, WARP_STORE_TRANSPOSE };
enum WarpExchangeAlgorithm { WARP_EXCHANGE_SMEM, WARP_EXCHANGE_SHUFFLE };

template <typename T, int ITEMS, int LANES = WARP, int = 0, WarpExchangeAlgorithm = WARP_EXCHANGE_SMEM> class WarpExchange {
  public:
    struct TempStorage { port::library::Array<T, LANES * ITEMS> items; };

  private:
    TempStorage& storage;
    LogicalWarp<LANES> warp;

    template <typename Arrangement, typename Out> PORT_FN void read(Out (&out)[ITEMS]) {
        __syncwarp(warp.members);
        for (int i = 0; i < ITEMS; ++i) out[i] = storage.items[Arrangement::template at<ITEMS>(warp.lane, i, LANES)];
    }
    template <typename From, typename To, typename Out> PORT_FN void exchange(const T (&in)[ITEMS], Out (&out)[ITEMS]) {
        for (int i = 0; i < ITEMS; ++i) storage.items[From::template at<ITEMS>(warp.lane, i, LANES)] = in[i];
        read<To>(out);
    }

  public:
    PORT_FN explicit WarpExchange(TempStorage& s) : storage(s) {}
    template <typename Out> PORT_FN void BlockedToStriped(const T (&in)[ITEMS], Out (&out)[ITEMS]) {
        exchange<arrangement::Blocked, arrangement::Striped>(in, out);
    }
    template <typename Out> PORT_FN void StripedToBlocked(const T (&in)[ITEMS], Out (&out)[ITEMS]) {
        exchange<arrangement::Striped, arrangement::Blocked>(in, out);
    }
    template <typename Out, typename Rank> PORT_FN void ScatterToStriped(const T (&in)[ITEMS], Out (&out)[ITEMS], Rank (&ranks)[ITEMS]) {
        for (int i = 0; i < ITEMS; ++i) storage.items[(int)ranks[i]] = in[i];
        read<arrangement::Striped>(out);
    }
    template <typename Rank> PORT_FN void ScatterToStriped(T (&items)[ITEMS], Rank (&ranks)[ITEMS]) { ScatterToStriped(items, items, ranks); }
};

template <typename T, int ITEMS, WarpLoadAlgorithm ALGORITHM = WARP_LOAD_DIRECT, int LANES = WARP, int = 0> class WarpLoad {
    using Exchange = WarpExchange<T, ITEMS, LANES>;

  public:
    using TempStorage = typename Exchange::TempStorage;

  private:
    TempStorage& storage;
    LogicalWarp<LANES> warp;

  public:
    PORT_FN explicit WarpLoad(TempStorage& s) : storage(s) {}
    // Of the first `valid` items, if there is such a number; those behind become `otherwise`, if that is there.
    template <typename From, typename... Rest> PORT_FN void Load(From from, T (&items)[ITEMS], Rest... rest) {
        if constexpr (ALGORITHM == WARP_LOAD_STRIPED || ALGORITHM == WARP_LOAD_TRANSPOSE) {
            LoadDirectStriped<LANES>(warp.lane, from, items, rest...);
        } else {
            LoadDirectBlocked(warp.lane, from, items, rest...);
        }
        if constexpr (ALGORITHM == WARP_LOAD_TRANSPOSE) Exchange(storage).StripedToBlocked(items, items);
    }
};

template <typename T, int ITEMS, WarpStoreAlgorithm ALGORITHM = WARP_STORE_DIRECT, int LANES = WARP, int = 0> class WarpStore {
    using Exchange = WarpExchange<T, ITEMS, LANES>;

  public:
    using TempStorage = typename Exchange::TempStorage;

  private:
    TempStorage& storage;
    LogicalWarp<LANES> warp;

  public:
    PORT_FN explicit WarpStore(TempStorage& s) : storage(s) {}
    template <typename To> PORT_FN void Store(To to, T (&items)[ITEMS], int valid = arrangement::ALL) {
        if constexpr (ALGORITHM == WARP_STORE_TRANSPOSE) {
            T moved[ITEMS];
            Exchange(storage).BlockedToStriped(items, moved);
            StoreDirectStriped<LANES>(warp.lane, to, moved, valid);
        } else if constexpr (ALGORITHM == WARP_STORE_STRIPED) {
            StoreDirectStriped<LANES>(warp.lane, to, items, valid);
        } else {
            StoreDirectBlocked(warp.lane, to, items, valid);
        }
    }
};

}  // namespace cub
}  // namespace cuda_port

#endif
