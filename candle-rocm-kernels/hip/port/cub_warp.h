// cub, the part of a warp: shuffles, reductions and scans, of whole warps and of parts of 2 to 32 lanes. Included by cub.h.
#ifndef CANDLE_ROCM_PORT_CUB_WARP_H
#define CANDLE_ROCM_PORT_CUB_WARP_H

#include "cub_thread.h"

namespace cuda_port {
namespace cub {

PORT_FN unsigned LaneId() { return (unsigned)port::library::warp_lane(); }
PORT_FN unsigned WarpId() { return port::library::thread_rank() / WARP; }
PORT_FN int RowMajorTid(int x, int y, int) { return (int)threadIdx.x + x * ((int)threadIdx.y + y * (int)threadIdx.z); }
PORT_FN unsigned LaneMaskLt() { return port::library::lanes(0, (int)LaneId()); }
PORT_FN unsigned LaneMaskLe() { return LaneMaskLt() | 1u << LaneId(); }
PORT_FN unsigned LaneMaskGe() { return ~LaneMaskLt(); }
PORT_FN unsigned LaneMaskGt() { return ~LaneMaskLe(); }
template <int LANES> PORT_FN unsigned WarpMask(unsigned warp) { return port::library::lanes((int)warp * LANES, LANES); }
PORT_FN void CTA_SYNC() { __syncthreads(); }
PORT_FN void WARP_SYNC(unsigned members) { __syncwarp(members); }

// The lanes of logical warps: `source` counts within one. Outside of it, and beyond `first` or `last`, the own value.
template <int LANES, typename T> PORT_FN T ShuffleIndex(T input, int source, unsigned members) {
    const int own = (int)LaneId();
    return port::library::from_lane(members, input, own - own % LANES + source % LANES);
}
template <int LANES, typename T> PORT_FN T ShuffleUp(T input, int offset, int first, unsigned members) {
    const int own = (int)LaneId();
    const int source = own % LANES - offset;
    return port::library::from_lane(members, input, source >= first ? own - offset : own);
}
template <int LANES, typename T> PORT_FN T ShuffleDown(T input, int offset, int last, unsigned members) {
    const int own = (int)LaneId();
    const int source = own % LANES + offset;
    return port::library::from_lane(members, input, source <= last ? own + offset : own);
}

// A logical warp: LANES neighbours of a warp, of which a block has as many as fit.
template <int LANES> struct LogicalWarp {
    static_assert(LANES >= 1 && LANES <= WARP, "a logical warp has 1 to 32 lanes");
    int first, lane;
    unsigned members;
    PORT_FN LogicalWarp() : LogicalWarp((int)LaneId(), ~0u) {}
    PORT_FN LogicalWarp(int own, unsigned exist)
        : first(own - own % LANES), lane(own % LANES), members(port::library::lanes(own - own % LANES, LANES) & exist) {}

    template <typename T> PORT_FN T from(const T& value, int source) const { return port::library::from_lane(members, value, first + source); }
    PORT_FN unsigned ballot(bool vote) const { return __ballot_sync(members, vote) >> first; }

    // What the lanes from this one to `last` have; lanes combine with neighbours first, then with ever further ones.
    template <typename T, typename Op> PORT_FN T reduce(T value, int last, Op op) const {
        for (int offset = 1; offset < LANES; offset *= 2) {
            const bool there = lane + offset <= last;
            const T other = from(value, there ? lane + offset : lane);
            if (there) value = op(value, other);
        }
        return value;
    }
    // What the lanes up to this one have.
    template <typename T, typename Op> PORT_FN T scan(T value, Op op) const {
        for (int offset = 1; offset < LANES; offset *= 2) {
            const bool there = lane >= offset;
            const T other = from(value, there ? lane - offset : lane);
            if (there) value = op(other, value);
        }
        return value;
    }
};

template <typename T, int LANES = WARP, int = 0> class WarpReduce {
    LogicalWarp<LANES> warp;

    template <bool HEADS, typename Flag, typename Op> PORT_FN T segmented(T input, Flag flag, Op op) {
        unsigned flags = warp.ballot(flag != 0);
        // A head ends the segment of the lane before it; a tail its own.
        if (HEADS) flags >>= 1;
        flags &= ~port::library::lanes_below(warp.lane);
        const int end = flags == 0 ? LANES - 1 : __ffs((int)flags) - 1;
        return warp.reduce(input, end < LANES ? end : LANES - 1, op);
    }

  public:
    // Nothing is kept in it.
    struct TempStorage { unsigned char unused; };
    PORT_FN explicit WarpReduce(TempStorage&) {}

    // The result is valid in the first lane; of segments, in the first of each.
    template <typename Op> PORT_FN T Reduce(T input, Op op) { return warp.reduce(input, LANES - 1, op); }
    template <typename Op> PORT_FN T Reduce(T input, Op op, int valid) { return warp.reduce(input, valid - 1, op); }
    PORT_FN T Sum(T input) { return Reduce(input, cub::Sum()); }
    PORT_FN T Sum(T input, int valid) { return Reduce(input, cub::Sum(), valid); }
    PORT_FN T Max(T input) { return Reduce(input, cub::Max()); }
    PORT_FN T Max(T input, int valid) { return Reduce(input, cub::Max(), valid); }
    PORT_FN T Min(T input) { return Reduce(input, cub::Min()); }
    PORT_FN T Min(T input, int valid) { return Reduce(input, cub::Min(), valid); }
    template <typename Flag, typename Op> PORT_FN T HeadSegmentedReduce(T input, Flag head, Op op) { return segmented<true>(input, head, op); }
    template <typename Flag, typename Op> PORT_FN T TailSegmentedReduce(T input, Flag tail, Op op) { return segmented<false>(input, tail, op); }
    template <typename Flag> PORT_FN T HeadSegmentedSum(T input, Flag head) { return segmented<true>(input, head, cub::Sum()); }
    template <typename Flag> PORT_FN T TailSegmentedSum(T input, Flag tail) { return segmented<false>(input, tail, cub::Sum()); }
};

template <typename T, int LANES = WARP, int = 0> class WarpScan {
    LogicalWarp<LANES> warp;

    PORT_FN T before(const T& inclusive) { return warp.from(inclusive, warp.lane > 0 ? warp.lane - 1 : 0); }
    PORT_FN T last(const T& inclusive) { return warp.from(inclusive, LANES - 1); }

  public:
    struct TempStorage { unsigned char unused; };
    PORT_FN explicit WarpScan(TempStorage&) {}

    template <typename Op> PORT_FN void InclusiveScan(T input, T& inclusive, Op op) { inclusive = warp.scan(input, op); }
    template <typename Op> PORT_FN void InclusiveScan(T input, T& inclusive, Op op, T& total) {
        inclusive = warp.scan(input, op);
        total = last(inclusive);
    }
    // Without a first value, what the first lane gets is undefined: it keeps what it had.
    template <typename Op> PORT_FN void ExclusiveScan(T input, T& exclusive, Op op) {
        const T previous = before(warp.scan(input, op));
        if (warp.lane > 0) exclusive = previous;
    }
    template <typename Op> PORT_FN void ExclusiveScan(T input, T& exclusive, Op op, T& total) {
        T inclusive = input;
        Scan(input, inclusive, exclusive, op);
        total = last(inclusive);
    }
    template <typename First, typename Op> PORT_FN void ExclusiveScan(T input, T& exclusive, First initial, Op op) {
        T inclusive = input;
        Scan(input, inclusive, exclusive, (T)initial, op);
    }
    // The total is that of the inputs, without the first value.
    template <typename First, typename Op> PORT_FN void ExclusiveScan(T input, T& exclusive, First initial, Op op, T& total) {
        const T inclusive = warp.scan(input, op);
        total = last(inclusive);
        const T previous = before(inclusive);
        exclusive = warp.lane > 0 ? (T)op((T)initial, previous) : (T)initial;
    }
    template <typename Op> PORT_FN void Scan(T input, T& inclusive, T& exclusive, Op op) {
        inclusive = warp.scan(input, op);
        const T previous = before(inclusive);
        if (warp.lane > 0) exclusive = previous;
    }
    template <typename Op> PORT_FN void Scan(T input, T& inclusive, T& exclusive, T initial, Op op) {
        const T own = warp.scan(input, op);
        const T previous = before(own);
        inclusive = op(initial, own);
        exclusive = warp.lane > 0 ? (T)op(initial, previous) : initial;
    }
    PORT_FN void InclusiveSum(T input, T& inclusive) { InclusiveScan(input, inclusive, cub::Sum()); }
    PORT_FN void InclusiveSum(T input, T& inclusive, T& total) { InclusiveScan(input, inclusive, cub::Sum(), total); }
    PORT_FN void ExclusiveSum(T input, T& exclusive) { ExclusiveScan(input, exclusive, T(0), cub::Sum()); }
    PORT_FN void ExclusiveSum(T input, T& exclusive, T& total) { ExclusiveScan(input, exclusive, T(0), cub::Sum(), total); }
    PORT_FN void Sum(T input, T& inclusive, T& exclusive) { Scan(input, inclusive, exclusive, T(0), cub::Sum()); }
    PORT_FN T Broadcast(T input, unsigned source) { return warp.from(input, (int)source); }
};

}  // namespace cub
}  // namespace cuda_port

#endif
