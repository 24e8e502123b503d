// cooperative_groups: reductions and scans of tiles and coalesced groups. Included by cooperative_groups.h.
#ifndef CANDLE_ROCM_PORT_COOPERATIVE_REDUCE_H
#define CANDLE_ROCM_PORT_COOPERATIVE_REDUCE_H

#include "cooperative_tiles.h"

namespace cuda_port {
namespace cooperative_groups {

using port::library::bit_and;
using port::library::bit_or;
using port::library::bit_xor;
using port::library::plus;
// As cooperative_groups calls the smaller and the larger one.
template <typename T> using less = port::library::minimum<T>;
template <typename T> using greater = port::library::maximum<T>;

// What the members from this one to the last have; the first one's is everyone's result.
template <typename Group, typename T, typename Op> PORT_FN T reduce(const Group& group, const T& value, Op op) {
    const unsigned rank = (unsigned)group.thread_rank(), count = (unsigned)group.size();
    T result = value;
    for (unsigned offset = 1; offset < count; offset *= 2) {
        const bool there = rank + offset < count;
        const T other = group.shfl(result, there ? rank + offset : rank);
        if (there) result = op(result, other);
    }
    return group.shfl(result, 0);
}
template <typename Group, typename T, typename Op> PORT_FN T inclusive_scan(const Group& group, const T& value, Op op) {
    const unsigned rank = (unsigned)group.thread_rank(), count = (unsigned)group.size();
    T result = value;
    for (unsigned offset = 1; offset < count; offset *= 2) {
        const bool there = rank >= offset;
        const T other = group.shfl(result, there ? rank - offset : rank);
        if (there) result = op(other, result);
    }
    return result;
}
template <typename Group, typename T> PORT_FN T inclusive_scan(const Group& group, const T& value) { return inclusive_scan(group, value, plus<T>()); }
// The first member gets a T made of nothing: 0 of numbers.
template <typename Group, typename T, typename Op> PORT_FN T exclusive_scan(const Group& group, const T& value, Op op) {
    const unsigned rank = (unsigned)group.thread_rank();
    const T all = inclusive_scan(group, value, op);
    const T previous = group.shfl(all, rank > 0 ? rank - 1 : 0);
    return rank > 0 ? previous : T{};
}
template <typename Group, typename T> PORT_FN T exclusive_scan(const Group& group, const T& value) { return exclusive_scan(group, value, plus<T>()); }

// One member writes what all of them have.
template <typename Group, typename To, typename T, typename Op> PORT_FN void reduce_store_async(const Group& group, To* to, const T& value, Op op) {
    const T result = reduce(group, value, op);
    if (group.thread_rank() == 0) *to = result;
}

}  // namespace cooperative_groups
}  // namespace cuda_port

#endif
