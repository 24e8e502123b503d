// cub: reductions and scans of a block, of any shape and number of threads. Included by cub.h.
//
// As in cub, shared storage may be used again after a barrier; a result that is said to be the first thread's is undefined
// in the others. All algorithms compute the same, in the order of cub's "warp reductions" and "warp scans".
#ifndef CANDLE_ROCM_PORT_CUB_SCAN_H
#define CANDLE_ROCM_PORT_CUB_SCAN_H

#include "cub_warp.h"

namespace cuda_port {
namespace cub {

enum BlockReduceAlgorithm {
    BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
    BLOCK_REDUCE_RAKING,
    BLOCK_REDUCE_WARP_REDUCTIONS,
    BLOCK_REDUCE_WARP_REDUCTIONS_NONDETERMINISTIC
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

// A block of so many threads in each dimension, and the thread's place in it.
template <int X, int Y, int Z> struct BlockShape {
    static constexpr int THREADS = X * Y * Z;
    static constexpr int WARPS = (THREADS + WARP - 1) / WARP;
    int rank, warp;
    LogicalWarp<WARP> lanes;
    PORT_FN BlockShape() : BlockShape(port::library::thread_rank<X, Y, Z>()) {}
    PORT_FN explicit BlockShape(int r) : rank(r), warp(r / WARP), lanes(r % WARP, port::library::warp_members<THREADS>(r)) {}
    PORT_FN bool ends_warp() const { return lanes.lane == WARP - 1 || rank == THREADS - 1; }
};

template <typename T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0> class BlockReduce {
    using Shape = BlockShape<X, Y, Z>;

  public:
    struct TempStorage { port::library::Array<T, Shape::WARPS> totals; };

  private:
    TempStorage& storage;
    Shape shape;

  public:
    PORT_FN BlockReduce() : storage(port::library::own_storage<BlockReduce>()) {}
    PORT_FN explicit BlockReduce(TempStorage& s) : storage(s) {}

    // The first thread's result: of the first `valid` threads' inputs, of which there is at least one.
    template <typename Op> PORT_FN T Reduce(T input, Op op, int valid) {
        const T mine = shape.lanes.reduce(input, valid - 1 - shape.warp * WARP, op);
        if (shape.lanes.lane == 0) storage.totals[shape.warp] = mine;
        __syncthreads();
        T result = mine;
        if (shape.rank == 0) {
            for (int warp = 1; warp < Shape::WARPS; ++warp) {
                if (warp * WARP < valid) result = op(result, storage.totals[warp]);
            }
        }
        return result;
    }
    template <typename Op> PORT_FN T Reduce(T input, Op op) { return Reduce(input, op, Shape::THREADS); }
    template <int ITEMS, typename Op> PORT_FN T Reduce(T (&input)[ITEMS], Op op) { return Reduce(ThreadReduce(input, op), op); }
    PORT_FN T Sum(T input) { return Reduce(input, cub::Sum()); }
    template <int ITEMS> PORT_FN T Sum(T (&input)[ITEMS]) { return Reduce(input, cub::Sum()); }
    PORT_FN T Sum(T input, int valid) { return Reduce(input, cub::Sum(), valid); }
};

template <typename T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0> class BlockScan {
    using Shape = BlockShape<X, Y, Z>;

  public:
    struct TempStorage {
        port::library::Array<T, Shape::WARPS> totals;
        port::library::Array<T, 1> prefix;
    };

  private:
    TempStorage& storage;
    Shape shape;

    // What the threads before this one have (undefined for the first), what they and this one have, and all of them.
    struct Scanned { T before, inclusive, total; };
    template <typename Op> PORT_FN Scanned scan(const T& input, Op op) {
        const T mine = shape.lanes.scan(input, op);
        Scanned result = {shape.lanes.from(mine, shape.lanes.lane > 0 ? shape.lanes.lane - 1 : 0), mine, mine};
        if (shape.ends_warp()) storage.totals[shape.warp] = mine;
        __syncthreads();
        T prefix = storage.totals[0];
        result.total = prefix;
        for (int warp = 1; warp < Shape::WARPS; ++warp) {
            if (shape.warp == warp) prefix = result.total;
            result.total = op(result.total, storage.totals[warp]);
        }
        if (shape.warp > 0) {
            result.inclusive = op(prefix, mine);
            result.before = shape.lanes.lane > 0 ? (T)op(prefix, result.before) : prefix;
        }
        return result;
    }
    // What the callback, which the first warp calls with the total, says comes before the block.
    template <typename Callback> PORT_FN T prefix_of(const T& total, Callback& callback) {
        if (shape.warp == 0) {
            const T prefix = callback(total);
            if (shape.rank == 0) storage.prefix[0] = prefix;
        }
        __syncthreads();
        return storage.prefix[0];
    }

    // All forms: `output` may be `input`. `total` is that of the inputs alone.
    template <bool INCLUSIVE, int ITEMS, typename Op> PORT_FN void items(const T* input, T* output, Op op, T& total) {
        const Scanned sums = scan(ThreadReduce<ITEMS>(input, op), op);
        total = sums.total;
        place<INCLUSIVE, ITEMS>(input, output, op, sums.before, shape.rank > 0);
    }
    template <bool INCLUSIVE, int ITEMS, typename Op> PORT_FN void items(const T* input, T* output, T initial, Op op, T& total) {
        const Scanned sums = scan(ThreadReduce<ITEMS>(input, op), op);
        total = sums.total;
        place<INCLUSIVE, ITEMS>(input, output, op, shape.rank > 0 ? (T)op(initial, sums.before) : initial, true);
    }
    template <bool INCLUSIVE, int ITEMS, typename Op, typename Callback>
    PORT_FN void with_prefix(const T* input, T* output, Op op, Callback& callback) {
        const Scanned sums = scan(ThreadReduce<ITEMS>(input, op), op);
        const T prefix = prefix_of(sums.total, callback);
        place<INCLUSIVE, ITEMS>(input, output, op, shape.rank > 0 ? (T)op(prefix, sums.before) : prefix, true);
    }
    template <bool INCLUSIVE, int ITEMS, typename Op>
    static PORT_FN void place(const T* input, T* output, Op op, const T& before, bool apply) {
        if constexpr (INCLUSIVE) {
            ThreadScanInclusive<ITEMS>(input, output, op, before, apply);
        } else {
            ThreadScanExclusive<ITEMS>(input, output, op, before, apply);
        }
    }

  public:
    PORT_FN BlockScan() : storage(port::library::own_storage<BlockScan>()) {}
    PORT_FN explicit BlockScan(TempStorage& s) : storage(s) {}

    template <typename Op> PORT_FN void InclusiveScan(T in, T& out, Op op) {
        T total = in;
        items<true, 1>(&in, &out, op, total);
    }
    template <typename Op> PORT_FN void InclusiveScan(T in, T& out, Op op, T& total) { items<true, 1>(&in, &out, op, total); }
    template <typename Op, typename Callback> PORT_FN void InclusiveScan(T in, T& out, Op op, Callback& callback) {
        with_prefix<true, 1>(&in, &out, op, callback);
    }
    template <int N, typename Op> PORT_FN void InclusiveScan(T (&in)[N], T (&out)[N], Op op) {
        T total = in[0];
        items<true, N>(in, out, op, total);
    }
    template <int N, typename Op> PORT_FN void InclusiveScan(T (&in)[N], T (&out)[N], Op op, T& total) { items<true, N>(in, out, op, total); }
    template <int N, typename Op, typename Callback> PORT_FN void InclusiveScan(T (&in)[N], T (&out)[N], Op op, Callback& callback) {
        with_prefix<true, N>(in, out, op, callback);
    }
    // Without a first value, the first output is undefined: it keeps what it was.
    template <typename Op> PORT_FN void ExclusiveScan(T in, T& out, Op op) {
        T total = in;
        items<false, 1>(&in, &out, op, total);
    }
    template <typename Op> PORT_FN void ExclusiveScan(T in, T& out, Op op, T& total) { items<false, 1>(&in, &out, op, total); }
    template <typename Op> PORT_FN void ExclusiveScan(T in, T& out, T initial, Op op) {
        T total = in;
        items<false, 1>(&in, &out, initial, op, total);
    }
    template <typename Op> PORT_FN void ExclusiveScan(T in, T& out, T initial, Op op, T& total) { items<false, 1>(&in, &out, initial, op, total); }
    template <typename Op, typename Callback> PORT_FN void ExclusiveScan(T in, T& out, Op op, Callback& callback) {
        with_prefix<false, 1>(&in, &out, op, callback);
    }
    template <int N, typename Op> PORT_FN void ExclusiveScan(T (&in)[N], T (&out)[N], Op op) {
        T total = in[0];
        items<false, N>(in, out, op, total);
    }
    template <int N, typename Op> PORT_FN void ExclusiveScan(T (&in)[N], T (&out)[N], Op op, T& total) { items<false, N>(in, out, op, total); }
    template <int N, typename Op> PORT_FN void ExclusiveScan(T (&in)[N], T (&out)[N], T initial, Op op) {
        T total = in[0];
        items<false, N>(in, out, initial, op, total);
    }
    template <int N, typename Op> PORT_FN void ExclusiveScan(T (&in)[N], T (&out)[N], T initial, Op op, T& total) {
        items<false, N>(in, out, initial, op, total);
    }
    template <int N, typename Op, typename Callback> PORT_FN void ExclusiveScan(T (&in)[N], T (&out)[N], Op op, Callback& callback) {
        with_prefix<false, N>(in, out, op, callback);
    }

    PORT_FN void InclusiveSum(T in, T& out) { InclusiveScan(in, out, cub::Sum()); }
    PORT_FN void InclusiveSum(T in, T& out, T& total) { InclusiveScan(in, out, cub::Sum(), total); }
    template <typename Callback> PORT_FN void InclusiveSum(T in, T& out, Callback& callback) { with_prefix<true, 1>(&in, &out, cub::Sum(), callback); }
    template <int N> PORT_FN void InclusiveSum(T (&in)[N], T (&out)[N]) { InclusiveScan(in, out, cub::Sum()); }
    template <int N> PORT_FN void InclusiveSum(T (&in)[N], T (&out)[N], T& total) { InclusiveScan(in, out, cub::Sum(), total); }
    template <int N, typename Callback> PORT_FN void InclusiveSum(T (&in)[N], T (&out)[N], Callback& callback) {
        with_prefix<true, N>(in, out, cub::Sum(), callback);
    }
    PORT_FN void ExclusiveSum(T in, T& out) { ExclusiveScan(in, out, T(0), cub::Sum()); }
    PORT_FN void ExclusiveSum(T in, T& out, T& total) { ExclusiveScan(in, out, T(0), cub::Sum(), total); }
    template <typename Callback> PORT_FN void ExclusiveSum(T in, T& out, Callback& callback) { with_prefix<false, 1>(&in, &out, cub::Sum(), callback); }
    template <int N> PORT_FN void ExclusiveSum(T (&in)[N], T (&out)[N]) { ExclusiveScan(in, out, T(0), cub::Sum()); }
    template <int N> PORT_FN void ExclusiveSum(T (&in)[N], T (&out)[N], T& total) { ExclusiveScan(in, out, T(0), cub::Sum(), total); }
    template <int N, typename Callback> PORT_FN void ExclusiveSum(T (&in)[N], T (&out)[N], Callback& callback) {
        with_prefix<false, N>(in, out, cub::Sum(), callback);
    }
};

}  // namespace cub
}  // namespace cuda_port

#endif
