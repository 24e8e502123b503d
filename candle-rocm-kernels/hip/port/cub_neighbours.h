// cub: what the threads of a block do with their neighbours' items, and histograms. Included by cub.h.
#ifndef CANDLE_ROCM_PORT_CUB_NEIGHBOURS_H
#define CANDLE_ROCM_PORT_CUB_NEIGHBOURS_H

#include "cub_sort.h"

namespace cuda_port {
namespace cub {

// The first and the last item of each thread, for its neighbours.
template <typename T, int THREADS> struct Edges {
    port::library::Array<T, THREADS> first, last;
};

template <typename T, int X, int Y = 1, int Z = 1, int = 0> class BlockDiscontinuity {
    static constexpr int THREADS = X * Y * Z;

  public:
    using TempStorage = Edges<T, THREADS>;

  private:
    TempStorage& storage;
    int rank = port::library::thread_rank<X, Y, Z>();
    // An operator may take the index of its second item, too.
    template <typename Op> static PORT_FN auto differ(Op& op, const T& a, const T& b, int at, int) -> decltype(op(a, b, at), true) { return op(a, b, at); }
    template <typename Op> static PORT_FN bool differ(Op& op, const T& a, const T& b, int, long) { return op(a, b); }

    template <int ITEMS> PORT_FN void share(T (&in)[ITEMS]) {
        storage.first[rank] = in[0];
        storage.last[rank] = in[ITEMS - 1];
        __syncthreads();
    }
    // Without a neighbour, the flag is set.
    template <int ITEMS, typename Flag, typename Op> PORT_FN void heads(Flag (&flags)[ITEMS], T (&in)[ITEMS], Op& op, const T* before) {
        for (int i = ITEMS - 1; i > 0; --i) flags[i] = differ(op, in[i - 1], in[i], rank * ITEMS + i, 0);
        if (rank > 0) {
            flags[0] = differ(op, storage.last[rank - 1], in[0], rank * ITEMS, 0);
        } else {
            flags[0] = before ? differ(op, *before, in[0], 0, 0) : true;
        }
    }
    template <int ITEMS, typename Flag, typename Op> PORT_FN void tails(Flag (&flags)[ITEMS], T (&in)[ITEMS], Op& op, const T* after) {
        for (int i = 0; i < ITEMS - 1; ++i) flags[i] = differ(op, in[i], in[i + 1], rank * ITEMS + i + 1, 0);
        if (rank < THREADS - 1) {
            flags[ITEMS - 1] = differ(op, in[ITEMS - 1], storage.first[rank + 1], (rank + 1) * ITEMS, 0);
        } else {
            flags[ITEMS - 1] = after ? differ(op, in[ITEMS - 1], *after, THREADS * ITEMS, 0) : true;
        }
    }
    template <int ITEMS, typename Flag, typename Op>
    PORT_FN void both(Flag (&head)[ITEMS], const T* before, Flag (&tail)[ITEMS], const T* after, T (&in)[ITEMS], Op& op) {
        share(in);
        heads(head, in, op, before);
        tails(tail, in, op, after);
    }

  public:
    PORT_FN BlockDiscontinuity() : storage(port::library::own_storage<BlockDiscontinuity>()) {}
    PORT_FN explicit BlockDiscontinuity(TempStorage& s) : storage(s) {}

    template <int N, typename Flag, typename Op> PORT_FN void FlagHeads(Flag (&flags)[N], T (&in)[N], Op op) { share(in), heads(flags, in, op, nullptr); }
    template <int N, typename Flag, typename Op> PORT_FN void FlagHeads(Flag (&flags)[N], T (&in)[N], Op op, T before) {
        share(in);
        heads(flags, in, op, &before);
    }
    template <int N, typename Flag, typename Op> PORT_FN void FlagTails(Flag (&flags)[N], T (&in)[N], Op op) { share(in), tails(flags, in, op, nullptr); }
    template <int N, typename Flag, typename Op> PORT_FN void FlagTails(Flag (&flags)[N], T (&in)[N], Op op, T after) {
        share(in);
        tails(flags, in, op, &after);
    }
    template <int N, typename Flag, typename Op> PORT_FN void FlagHeadsAndTails(Flag (&head)[N], Flag (&tail)[N], T (&in)[N], Op op) {
        both(head, nullptr, tail, nullptr, in, op);
    }
    template <int N, typename Flag, typename Op> PORT_FN void FlagHeadsAndTails(Flag (&head)[N], Flag (&tail)[N], T after, T (&in)[N], Op op) {
        both(head, nullptr, tail, &after, in, op);
    }
    template <int N, typename Flag, typename Op> PORT_FN void FlagHeadsAndTails(Flag (&head)[N], T before, Flag (&tail)[N], T (&in)[N], Op op) {
        both(head, &before, tail, nullptr, in, op);
    }
    template <int N, typename Flag, typename Op>
    PORT_FN void FlagHeadsAndTails(Flag (&head)[N], T before, Flag (&tail)[N], T after, T (&in)[N], Op op) {
        both(head, &before, tail, &after, in, op);
    }
};

template <typename T, int X, int Y = 1, int Z = 1, int = 0> class BlockAdjacentDifference {
    static constexpr int THREADS = X * Y * Z;

  public:
    using TempStorage = Edges<T, THREADS>;

  private:
    TempStorage& storage;
    int rank = port::library::thread_rank<X, Y, Z>();
    // Items from `valid` on, and one without a neighbour, stay as they are.
    template <int N, typename Out, typename Op> PORT_FN void left(T (&in)[N], Out (&out)[N], Op op, int valid, const T* before) {
        storage.last[rank] = in[N - 1];
        __syncthreads();
        for (int i = N - 1; i >= 0; --i) {
            const int at = rank * N + i;
            const bool has = i > 0 || rank > 0 || before;
            const T previous = i > 0 ? in[i - 1] : rank > 0 ? storage.last[rank - 1] : before ? *before : in[0];
            out[i] = at < valid && has ? (Out)op(in[i], previous) : (Out)in[i];
        }
    }
    template <int N, typename Out, typename Op> PORT_FN void right(T (&in)[N], Out (&out)[N], Op op, int valid, const T* after) {
        storage.first[rank] = in[0];
        __syncthreads();
        for (int i = 0; i < N; ++i) {
            const int at = rank * N + i;
            const bool inside = at + 1 < valid && at + 1 < THREADS * N;
            const bool has = inside || (after && at + 1 == THREADS * N);
            const T next = i < N - 1 ? in[i + 1] : rank < THREADS - 1 ? storage.first[rank + 1] : after ? *after : in[N - 1];
            out[i] = has ? (Out)op(in[i], next) : (Out)in[i];
        }
    }
    static constexpr int ALL = arrangement::ALL;

  public:
    PORT_FN BlockAdjacentDifference() : storage(port::library::own_storage<BlockAdjacentDifference>()) {}
    PORT_FN explicit BlockAdjacentDifference(TempStorage& s) : storage(s) {}
    template <int N, typename Out, typename Op> PORT_FN void SubtractLeft(T (&in)[N], Out (&out)[N], Op op) { left(in, out, op, ALL, nullptr); }
    template <int N, typename Out, typename Op> PORT_FN void SubtractLeft(T (&in)[N], Out (&out)[N], Op op, T before) { left(in, out, op, ALL, &before); }
    template <int N, typename Out, typename Op> PORT_FN void SubtractLeftPartialTile(T (&in)[N], Out (&out)[N], Op op, int valid) {
        left(in, out, op, valid, nullptr);
    }
    template <int N, typename Out, typename Op> PORT_FN void SubtractLeftPartialTile(T (&in)[N], Out (&out)[N], Op op, int valid, T before) {
        left(in, out, op, valid, &before);
    }
    template <int N, typename Out, typename Op> PORT_FN void SubtractRight(T (&in)[N], Out (&out)[N], Op op) { right(in, out, op, ALL, nullptr); }
    template <int N, typename Out, typename Op> PORT_FN void SubtractRight(T (&in)[N], Out (&out)[N], Op op, T after) { right(in, out, op, ALL, &after); }
    template <int N, typename Out, typename Op> PORT_FN void SubtractRightPartialTile(T (&in)[N], Out (&out)[N], Op op, int valid) {
        right(in, out, op, valid, nullptr);
    }
};

template <typename T, int X, int Y = 1, int Z = 1, int = 0> class BlockShuffle {
    static constexpr int THREADS = X * Y * Z;

  public:
    using TempStorage = Edges<T, THREADS>;

  private:
    TempStorage& storage;
    int rank = port::library::thread_rank<X, Y, Z>();

  public:
    PORT_FN BlockShuffle() : storage(port::library::own_storage<BlockShuffle>()) {}
    PORT_FN explicit BlockShuffle(TempStorage& s) : storage(s) {}
    // The item of the thread `distance` further; without one, the output stays as it is.
    PORT_FN void Offset(T in, T& out, int distance = 1) {
        storage.first[rank] = in;
        __syncthreads();
        const int from = rank + distance;
        if (from >= 0 && from < THREADS) out = storage.first[from];
    }
    PORT_FN void Rotate(T in, T& out, unsigned distance = 1) {
        storage.first[rank] = in;
        __syncthreads();
        out = storage.first[(int)(((unsigned)rank + distance) % THREADS)];
    }
    template <int N> PORT_FN void Up(T (&in)[N], T (&previous)[N]) {
        storage.last[rank] = in[N - 1];
        __syncthreads();
        for (int i = N - 1; i > 0; --i) previous[i] = in[i - 1];
        if (rank > 0) previous[0] = storage.last[rank - 1];
    }
    template <int N> PORT_FN void Up(T (&in)[N], T (&previous)[N], T& suffix) {
        Up(in, previous);
        suffix = storage.last[THREADS - 1];
    }
    template <int N> PORT_FN void Down(T (&in)[N], T (&next)[N]) {
        storage.first[rank] = in[0];
        __syncthreads();
        for (int i = 0; i < N - 1; ++i) next[i] = in[i + 1];
        if (rank < THREADS - 1) next[N - 1] = storage.first[rank + 1];
    }
    template <int N> PORT_FN void Down(T (&in)[N], T (&next)[N], T& prefix) {
        Down(in, next);
        prefix = storage.first[0];
    }
};

enum BlockHistogramAlgorithm { BLOCK_HISTO_SORT, BLOCK_HISTO_ATOMIC };

// By atomics; of either algorithm, the counts are the same.
template <typename T, int X, int ITEMS, int BINS, BlockHistogramAlgorithm = BLOCK_HISTO_SORT, int Y = 1, int Z = 1, int = 0> class BlockHistogram {
    int rank = port::library::thread_rank<X, Y, Z>();

  public:
    struct TempStorage { unsigned char unused; };
    PORT_FN BlockHistogram() {}
    PORT_FN explicit BlockHistogram(TempStorage&) {}
    template <typename Counter> PORT_FN void InitHistogram(Counter (&histogram)[BINS]) {
        for (int bin = rank; bin < BINS; bin += X * Y * Z) histogram[bin] = 0;
    }
    template <typename Counter> PORT_FN void Composite(T (&items)[ITEMS], Counter (&histogram)[BINS]) {
        __syncthreads();
        for (int i = 0; i < ITEMS; ++i) atomicAdd(&histogram[(int)items[i]], (Counter)1);
    }
    template <typename Counter> PORT_FN void Histogram(T (&items)[ITEMS], Counter (&histogram)[BINS]) {
        InitHistogram(histogram);
        Composite(items, histogram);
    }
};

}  // namespace cub
}  // namespace cuda_port

#endif
