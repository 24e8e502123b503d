// cub: sorting the items of a block or a warp. Included by cub.h.
#ifndef CANDLE_ROCM_PORT_CUB_SORT_H
#define CANDLE_ROCM_PORT_CUB_SORT_H

#include "cub_load.h"

namespace cuda_port {
namespace cub {

// By two bits in each pass, whatever RADIX_BITS says, so that the counts of all four digits go through one scan of 64-bit
// words, 16 bits each: a block has less than 65536 items. Stable, ascending or descending.
template <typename Key, int X, int ITEMS, typename Value = NullType, int RADIX_BITS = 4, bool = true, BlockScanAlgorithm = BLOCK_SCAN_WARP_SCANS, int = 0,
          int Y = 1, int Z = 1, int = 0>
class BlockRadixSort {
    static constexpr int THREADS = X * Y * Z;
    static_assert(THREADS * ITEMS < 65536, "a block sorts less than 65536 items");
    static constexpr bool HAS_VALUES = !port::library::same<Value, NullType>;
    using Counts = unsigned long long;
    using Scan = BlockScan<Counts, X, BLOCK_SCAN_WARP_SCANS, Y, Z>;
    using Keys = BlockExchange<Key, X, ITEMS, false, Y, Z>;
    using Values = BlockExchange<Value, X, ITEMS, false, Y, Z>;

  public:
    union TempStorage {
        typename Scan::TempStorage scan;
        typename Keys::TempStorage keys;
        typename Values::TempStorage values;
    };

  private:
    TempStorage& storage;

    template <bool DESCENDING> PORT_FN void rank(Key (&keys)[ITEMS], int (&ranks)[ITEMS], int bit, int end) {
        const unsigned digits = end - bit >= 2 ? 3u : 1u;
        unsigned shifts[ITEMS];
        Counts counts = 0;
        for (int i = 0; i < ITEMS; ++i) {
            unsigned digit = (unsigned)(Traits<Key>::ordered(keys[i]) >> bit) & digits;
            if (DESCENDING) digit ^= digits;
            shifts[i] = 16 * digit;
            counts += (Counts)1 << shifts[i];
        }
        Counts before, total;
        Scan(storage.scan).ExclusiveSum(counts, before, total);
        // Behind the items of smaller digits: the sum of the fields below each one.
        before += (total << 16) + (total << 32) + (total << 48);
        for (int i = 0; i < ITEMS; ++i) {
            ranks[i] = (int)(before >> shifts[i] & 0xffffu);
            before += (Counts)1 << shifts[i];
        }
        __syncthreads();
    }
    template <typename Exchange, typename T> PORT_FN void move(typename Exchange::TempStorage& space, T (&items)[ITEMS], int (&ranks)[ITEMS], bool striped) {
        if (striped) {
            Exchange(space).ScatterToStriped(items, ranks);
        } else {
            Exchange(space).ScatterToBlocked(items, ranks);
        }
    }
    template <bool DESCENDING, bool STRIPED> PORT_FN void sort(Key (&keys)[ITEMS], Value (&values)[ITEMS], int begin, int end) {
        int bit = begin;
        do {
            int ranks[ITEMS];
            if (bit < end) {
                rank<DESCENDING>(keys, ranks, bit, end);
            } else {
                for (int i = 0; i < ITEMS; ++i) ranks[i] = port::library::thread_rank<X, Y, Z>() * ITEMS + i;
            }
            bit += 2;
            const bool striped = STRIPED && bit >= end;
            move<Keys>(storage.keys, keys, ranks, striped);
            if constexpr (HAS_VALUES) {
                __syncthreads();
                move<Values>(storage.values, values, ranks, striped);
            }
            if (bit < end) __syncthreads();
        } while (bit < end);
    }
    template <bool DESCENDING, bool STRIPED> PORT_FN void sort(Key (&keys)[ITEMS], int begin, int end) {
        static_assert(!HAS_VALUES, "this sort has values: pass them");
        Value none[ITEMS];
        sort<DESCENDING, STRIPED>(keys, none, begin, end);
    }

  public:
    PORT_FN BlockRadixSort() : storage(port::library::own_storage<BlockRadixSort>()) {}
    PORT_FN explicit BlockRadixSort(TempStorage& s) : storage(s) {}

#define PORT_SORT(name, DESCENDING, STRIPED)                                                                           \
    PORT_FN void name(Key (&keys)[ITEMS], int begin = 0, int end = Traits<Key>::BITS) { sort<DESCENDING, STRIPED>(keys, begin, end); }    \
    PORT_FN void name(Key (&keys)[ITEMS], Value (&values)[ITEMS], int begin = 0, int end = Traits<Key>::BITS) {      \
        sort<DESCENDING, STRIPED>(keys, values, begin, end);                                                           \
    }
    PORT_SORT(Sort, false, false)
    PORT_SORT(SortDescending, true, false)
    PORT_SORT(SortBlockedToStriped, false, true)
    PORT_SORT(SortDescendingBlockedToStriped, true, true)
#undef PORT_SORT
};

// Merging: each thread sorts its own items, then runs are merged in pairs. Stable.
template <typename Key, typename Value, int THREADS, int ITEMS> struct MergeSort {
    static constexpr int TOTAL = THREADS * ITEMS;
    static constexpr bool HAS_VALUES = !port::library::same<Value, NullType>;
    union Storage {
        port::library::Array<Key, TOTAL> keys;
        port::library::Array<Value, TOTAL> values;
    };

    template <typename Less> static PORT_FN void own(Key (&keys)[ITEMS], Value (&values)[ITEMS], Less less) {
        for (int i = 1; i < ITEMS; ++i) {
            for (int j = i; j > 0 && less(keys[j], keys[j - 1]); --j) {
                const Key key = keys[j];
                keys[j] = keys[j - 1];
                keys[j - 1] = key;
                if constexpr (HAS_VALUES) {
                    const Value value = values[j];
                    values[j] = values[j - 1];
                    values[j - 1] = value;
                }
            }
        }
    }
    // `sync` is a barrier of the threads that sort together.
    template <typename Less, typename Sync>
    static PORT_FN void sort(Storage& storage, int rank, Key (&keys)[ITEMS], Value (&values)[ITEMS], Less less, Sync sync) {
        own(keys, values, less);
        for (int run = ITEMS; run < TOTAL; run *= 2) {
            sync();
            for (int i = 0; i < ITEMS; ++i) storage.keys[rank * ITEMS + i] = keys[i];
            sync();
            const int begin = rank * ITEMS / (2 * run) * (2 * run);
            const int middle = begin + run < TOTAL ? begin + run : TOTAL;
            const int end = middle + run < TOTAL ? middle + run : TOTAL;
            // How many of this thread's predecessors in the merged run come from the first half.
            const int before = rank * ITEMS - begin;
            int low = before > end - middle ? before - (end - middle) : 0;
            int high = before < middle - begin ? before : middle - begin;
            while (low < high) {
                const int guess = (low + high) / 2;
                if (less(storage.keys[middle + before - 1 - guess], storage.keys[begin + guess])) {
                    high = guess;
                } else {
                    low = guess + 1;
                }
            }
            int first = begin + low, second = middle + before - low;
            int from[ITEMS];
            for (int i = 0; i < ITEMS; ++i) {
                const bool takes_second = first >= middle || (second < end && less(storage.keys[second], storage.keys[first]));
                from[i] = takes_second ? second++ : first++;
                keys[i] = storage.keys[from[i]];
            }
            if constexpr (HAS_VALUES) {
                sync();
                for (int i = 0; i < ITEMS; ++i) storage.values[rank * ITEMS + i] = values[i];
                sync();
                for (int i = 0; i < ITEMS; ++i) values[i] = storage.values[from[i]];
            }
        }
    }
};

// What BlockMergeSort and WarpMergeSort have in common: `Self` has `rank`, `sync()` and `storage`.
template <typename Self, typename Key, typename Value, int THREADS, int ITEMS> struct MergeSortMethods {
    using Sorter = MergeSort<Key, Value, THREADS, ITEMS>;
    using TempStorage = typename Sorter::Storage;

    template <typename Less> PORT_FN void Sort(Key (&keys)[ITEMS], Value (&values)[ITEMS], Less less) {
        Self& self = *(Self*)this;
        Sorter::sort(self.storage, self.rank, keys, values, less, [&self]() { self.sync(); });
    }
    template <typename Less> PORT_FN void Sort(Key (&keys)[ITEMS], Less less) {
        static_assert(!Sorter::HAS_VALUES, "this sort has values: pass them");
        Value none[ITEMS];
        Sort(keys, none, less);
    }
    // Of the first `valid` items; those behind become `last`, which is not before any of them.
    template <typename Less> PORT_FN void Sort(Key (&keys)[ITEMS], Value (&values)[ITEMS], Less less, int valid, Key last) {
        const int rank = ((Self*)this)->rank;
        for (int i = 0; i < ITEMS; ++i) {
            if (rank * ITEMS + i >= valid) keys[i] = last;
        }
        Sort(keys, values, less);
    }
    template <typename Less> PORT_FN void Sort(Key (&keys)[ITEMS], Less less, int valid, Key last) {
        Value none[ITEMS];
        Sort(keys, none, less, valid, last);
    }
    template <typename... Arguments> PORT_FN void StableSort(Key (&keys)[ITEMS], Arguments&&... arguments) {
        Sort(keys, static_cast<Arguments&&>(arguments)...);
    }
};

template <typename Key, int X, int ITEMS, typename Value = NullType, int Y = 1, int Z = 1>
struct BlockMergeSort : MergeSortMethods<BlockMergeSort<Key, X, ITEMS, Value, Y, Z>, Key, Value, X * Y * Z, ITEMS> {
    using TempStorage = typename MergeSort<Key, Value, X * Y * Z, ITEMS>::Storage;
    TempStorage& storage;
    int rank = port::library::thread_rank<X, Y, Z>();
    PORT_FN BlockMergeSort() : storage(port::library::own_storage<BlockMergeSort>()) {}
    PORT_FN explicit BlockMergeSort(TempStorage& s) : storage(s) {}
    PORT_FN void sync() const { __syncthreads(); }

  private:
};
template <typename Key, int ITEMS, int LANES = WARP, typename Value = NullType, int = 0>
struct WarpMergeSort : MergeSortMethods<WarpMergeSort<Key, ITEMS, LANES, Value>, Key, Value, LANES, ITEMS> {
    using TempStorage = typename MergeSort<Key, Value, LANES, ITEMS>::Storage;
    TempStorage& storage;
    LogicalWarp<LANES> warp;
    int rank = warp.lane;
    PORT_FN explicit WarpMergeSort(TempStorage& s) : storage(s) {}
    PORT_FN void sync() const { __syncwarp(warp.members); }
};

}  // namespace cub
}  // namespace cuda_port

#endif
