// cooperative_groups: the block, tiles of 1 to 32 threads, coalesced groups and partitions. Included by
// cooperative_groups.h.
#ifndef CANDLE_ROCM_PORT_COOPERATIVE_TILES_H
#define CANDLE_ROCM_PORT_COOPERATIVE_TILES_H

#include "functional.h"

namespace cuda_port {
namespace cooperative_groups {

class thread_block {
  public:
    static PORT_FN void sync() { __syncthreads(); }
    static PORT_FN unsigned thread_rank() { return port::library::thread_rank(); }
    static PORT_FN unsigned num_threads() { return port::library::block_threads(); }
    static PORT_FN unsigned size() { return num_threads(); }
    static PORT_FN dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    static PORT_FN dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    static PORT_FN dim3 dim_threads() { return dim3(blockDim.x, blockDim.y, blockDim.z); }
    static PORT_FN dim3 group_dim() { return dim_threads(); }
    // All threads arrive at the barrier when they wait.
    struct arrival_token {};
    static PORT_FN arrival_token barrier_arrive() { return {}; }
    static PORT_FN void barrier_wait(arrival_token) { __syncthreads(); }
};
PORT_FN thread_block this_thread_block() { return thread_block(); }

// The lanes of this warp that the block has.
PORT_FN unsigned this_thread_block_lanes() {
    const unsigned first = port::library::thread_rank() / 32u * 32u, threads = port::library::block_threads();
    return port::library::lanes(0, threads - first < 32u ? (int)(threads - first) : 32);
}

// Lanes of a warp, in their order. Ranks of other members are looked up in the mask.
class coalesced_group {
  public:
    unsigned lanes;

  private:
    unsigned group_rank = 0, groups = 1;

  public:
    PORT_FN explicit coalesced_group(unsigned l, unsigned rank = 0, unsigned count = 1) : lanes(l), group_rank(rank), groups(count) {}
    PORT_FN unsigned members() const { return lanes; }
    PORT_FN unsigned size() const { return (unsigned)__popc(lanes); }
    PORT_FN unsigned num_threads() const { return size(); }
    PORT_FN unsigned thread_rank() const { return (unsigned)__popc(lanes & port::library::lanes_below(port::library::warp_lane())); }
    PORT_FN unsigned meta_group_rank() const { return group_rank; }
    PORT_FN unsigned meta_group_size() const { return groups; }
    PORT_FN void sync() const { __syncwarp(lanes); }

    template <typename T> PORT_FN T shfl(const T& value, unsigned rank) const {
        return port::library::from_lane(lanes, value, rank < size() ? port::library::nth_lane(lanes, (int)rank) : port::library::warp_lane());
    }
    // Where there is no such member, the own value.
    template <typename T> PORT_FN T shfl_up(const T& value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return shfl(value, rank >= delta ? rank - delta : rank);
    }
    template <typename T> PORT_FN T shfl_down(const T& value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return shfl(value, rank + delta < size() ? rank + delta : rank);
    }
    PORT_FN int any(int vote) const { return __ballot_sync(lanes, vote) != 0; }
    PORT_FN int all(int vote) const { return __ballot_sync(lanes, vote) == lanes; }
    // Bits by rank.
    PORT_FN unsigned ballot(int vote) const { return by_rank(__ballot_sync(lanes, vote)); }
    template <typename T> PORT_FN unsigned match_any(const T& value) const {
        unsigned equal = 0;
        const unsigned own = thread_rank(), count = size();
        for (unsigned rank = 0; rank < count; ++rank) {
            if (shfl(value, rank) == value) equal |= 1u << rank;
        }
        return equal | 1u << own;
    }
    template <typename T> PORT_FN unsigned match_all(const T& value, int& all_equal) const {
        const unsigned every = port::library::lanes(0, (int)size());
        const bool same = shfl(value, 0) == value;
        all_equal = all(same);
        return all_equal ? every : 0u;
    }

  private:
    PORT_FN unsigned by_rank(unsigned set) const {
        unsigned ranks = 0, left = lanes;
        for (unsigned rank = 0; left != 0; ++rank, left &= left - 1u) {
            if (set & left & (0u - left)) ranks |= 1u << rank;
        }
        return ranks;
    }
};
// The lanes that are here together. (On waves of 64 those of this half.)
PORT_FN coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

// N neighbouring threads of a block, or of a tile of it.
template <unsigned N> class tile_of_warp {
    static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "tiles of more than a warp are by hand: a tile has 1, 2, 4, 8, 16 or 32 threads");
    static PORT_FN int first() { return port::library::warp_lane() / (int)N * (int)N; }

  public:
    static PORT_FN unsigned members() { return port::library::lanes(first(), (int)N); }
    static PORT_FN unsigned thread_rank() { return (unsigned)port::library::warp_lane() % N; }
    static constexpr PORT_FN unsigned size() { return N; }
    static constexpr PORT_FN unsigned num_threads() { return N; }
    PORT_FN void sync() const { __syncwarp(members()); }

    template <typename T> PORT_FN T shfl(const T& value, int rank) const { return port::library::from_lane(members(), value, first() + (int)((unsigned)rank % N)); }
    template <typename T> PORT_FN T shfl_up(const T& value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return shfl(value, (int)(rank >= delta ? rank - delta : rank));
    }
    template <typename T> PORT_FN T shfl_down(const T& value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return shfl(value, (int)(rank + delta < N ? rank + delta : rank));
    }
    template <typename T> PORT_FN T shfl_xor(const T& value, unsigned mask) const {
        const unsigned rank = thread_rank() ^ mask;
        return shfl(value, (int)(rank < N ? rank : thread_rank()));
    }
    PORT_FN unsigned ballot(int vote) const { return __ballot_sync(members(), vote) >> first(); }
    PORT_FN int any(int vote) const { return ballot(vote) != 0; }
    PORT_FN int all(int vote) const { return ballot(vote) == port::library::lanes(0, (int)N); }
    template <typename T> PORT_FN unsigned match_any(const T& value) const { return coalesced_group(members()).match_any(value); }
    template <typename T> PORT_FN unsigned match_all(const T& value, int& all_equal) const { return coalesced_group(members()).match_all(value, all_equal); }
    PORT_FN operator coalesced_group() const { return coalesced_group(members()); }
};
// It knows its number in its parent, and how many tiles there are: by the parent's type, or as it was told.
template <unsigned N, typename Parent = void> class thread_block_tile : public tile_of_warp<N> {
  public:
    static PORT_FN unsigned meta_group_rank() { return Parent::thread_rank() / N; }
    static PORT_FN unsigned meta_group_size() { return (Parent::size() + N - 1u) / N; }
};
template <unsigned N> class thread_block_tile<N, void> : public tile_of_warp<N> {
    unsigned group_rank, groups;

  public:
    template <typename P> PORT_FN thread_block_tile(const thread_block_tile<N, P>& tile) : group_rank(tile.meta_group_rank()), groups(tile.meta_group_size()) {}
    PORT_FN unsigned meta_group_rank() const { return group_rank; }
    PORT_FN unsigned meta_group_size() const { return groups; }
};
PORT_FN thread_block_tile<1, thread_block> this_thread() { return thread_block_tile<1, thread_block>(); }

template <unsigned N, typename Parent> PORT_FN thread_block_tile<N, Parent> tiled_partition(const Parent&) { return thread_block_tile<N, Parent>(); }

// The members with the same label, and those with the same vote; as many groups as there are labels.
template <typename Label> PORT_FN coalesced_group labeled_partition(const coalesced_group& parent, Label label) {
    unsigned left = parent.lanes, own = 0, rank = 0, groups = 0;
    while (left != 0) {
        const int first = __ffs((int)left) - 1;
        const bool same = port::library::from_lane(parent.lanes, label, first) == label;
        const unsigned with = __ballot_sync(parent.lanes, same) & left;
        // Those without this label vote 0, those with it see themselves.
        const unsigned group = port::library::from_lane(parent.lanes, with, first);
        if (group >> port::library::warp_lane() & 1u) own = group, rank = groups;
        left &= ~group;
        ++groups;
    }
    return coalesced_group(own, rank, groups);
}
template <unsigned N, typename P, typename Label> PORT_FN coalesced_group labeled_partition(const thread_block_tile<N, P>& parent, Label label) {
    return labeled_partition(coalesced_group(parent.members()), label);
}
template <typename Parent> PORT_FN coalesced_group binary_partition(const Parent& parent, bool vote) {
    const unsigned yes = __ballot_sync(parent.members(), vote), no = parent.members() & ~yes;
    return vote ? coalesced_group(yes, 1, 2) : coalesced_group(no, 0, 2);
}

}  // namespace cooperative_groups
}  // namespace cuda_port

#endif
