// cooperative_groups: blocks, tiles of a warp, coalesced groups, and what they compute together. Of the grid there are
// numbers only: grid_group::sync() needs a launch that holds all blocks at once, and does not compile.
#ifndef CANDLE_ROCM_PORT_COOPERATIVE_GROUPS_H
#define CANDLE_ROCM_PORT_COOPERATIVE_GROUPS_H

#include "cooperative_tiles.h"
#include "cooperative_reduce.h"
#include "copies.h"

namespace cuda_port {
namespace cooperative_groups {

// A group whose kind is known when the program runs: a block, or lanes of a warp (`lanes` is not 0).
class thread_group {
    unsigned lanes;

  public:
    PORT_FN thread_group(const thread_block&) : lanes(0) {}
    PORT_FN thread_group(const coalesced_group& g) : lanes(g.lanes) {}
    template <unsigned N, typename P> PORT_FN thread_group(const thread_block_tile<N, P>& tile) : lanes(tile.members()) {}

    PORT_FN bool is_block() const { return lanes == 0; }
    PORT_FN unsigned members() const { return lanes; }
    PORT_FN unsigned long long size() const { return is_block() ? thread_block::size() : (unsigned)__popc(lanes); }
    PORT_FN unsigned long long num_threads() const { return size(); }
    PORT_FN unsigned long long thread_rank() const {
        return is_block() ? thread_block::thread_rank() : (unsigned)__popc(lanes & port::library::lanes_below(port::library::warp_lane()));
    }
    PORT_FN void sync() const {
        if (is_block()) {
            __syncthreads();
        } else {
            __syncwarp(lanes);
        }
    }
    PORT_FN bool is_valid() const { return true; }
    PORT_FN unsigned get_type() const { return is_block() ? 3u : 1u; }
};

// Tiles whose size is known when the program runs: a power of two up to 32.
PORT_FN coalesced_group tiled_partition(const coalesced_group& parent, unsigned size) {
    const unsigned rank = parent.thread_rank(), begin = rank / size * size;
    unsigned lanes = parent.lanes, tile = 0;
    for (unsigned at = 0; lanes != 0; ++at, lanes &= lanes - 1u) {
        if (at >= begin && at < begin + size) tile |= lanes & (0u - lanes);
    }
    return coalesced_group(tile, rank / size, (parent.size() + size - 1u) / size);
}
PORT_FN thread_group tiled_partition(const thread_group& parent, unsigned size) {
    if (!parent.is_block()) return tiled_partition(coalesced_group(parent.members()), size);
    const int first = port::library::warp_lane() / (int)size * (int)size;
    return coalesced_group(port::library::lanes(first, (int)size) & this_thread_block_lanes());
}

// ---------------------------------------------------------------- the grid

class grid_group {
  public:
    static PORT_FN dim3 dim_blocks() { return dim3(gridDim.x, gridDim.y, gridDim.z); }
    static PORT_FN dim3 group_dim() { return dim_blocks(); }
    static PORT_FN unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    static PORT_FN dim3 block_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    static PORT_FN unsigned long long block_rank() { return blockIdx.x + gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z); }
    static PORT_FN unsigned long long num_threads() { return num_blocks() * port::library::block_threads(); }
    static PORT_FN unsigned long long size() { return num_threads(); }
    static PORT_FN unsigned long long thread_rank() { return block_rank() * port::library::block_threads() + port::library::thread_rank(); }
    static PORT_FN bool is_valid() { return false; }
    template <typename... None> PORT_FN void sync(None...) const {
        static_assert(sizeof...(None) != 0, "grid_group::sync() is by hand: make two kernels of what is before it and what is behind it");
    }
};
PORT_FN grid_group this_grid() { return grid_group(); }

// ---------------------------------------------------------------- functions of groups

template <typename Group> PORT_FN void sync(const Group& group) { group.sync(); }
template <typename Group> PORT_FN auto thread_rank(const Group& group) { return group.thread_rank(); }
template <typename Group> PORT_FN auto group_size(const Group& group) { return group.size(); }

// One thread of the group calls it, and, with a broadcast, all get its result.
template <typename Group, typename F, typename... Arguments> PORT_FN void invoke_one(const Group& group, F&& f, Arguments&&... arguments) {
    if (group.thread_rank() == 0) f(static_cast<Arguments&&>(arguments)...);
}
template <typename Group, typename F, typename... Arguments> PORT_FN auto invoke_one_broadcast(const Group& group, F&& f, Arguments&&... arguments) {
    typename port::library::Plain<decltype(f(static_cast<Arguments&&>(arguments)...))>::type result = {};
    if (group.thread_rank() == 0) result = f(static_cast<Arguments&&>(arguments)...);
    return group.shfl(result, 0);
}

// Copies by all threads of the group together. Others see them after wait.
template <typename Group, typename Size> PORT_FN void memcpy_async(const Group& group, void* to, const void* from, const Size& bytes) {
    port::library::copy_together((unsigned)group.thread_rank(), (unsigned)group.size(), to, from, (unsigned long long)bytes);
}
template <typename Group, typename To, typename From, typename ToCount, typename FromCount>
PORT_FN void memcpy_async(const Group& group, To* to, const ToCount& to_count, const From* from, const FromCount& from_count) {
    const unsigned long long room = (unsigned long long)to_count * sizeof(To), there = (unsigned long long)from_count * sizeof(From);
    memcpy_async(group, (void*)to, (const void*)from, room < there ? room : there);
}
template <typename Group> PORT_FN void wait(const Group& group) { group.sync(); }
template <unsigned STAGES, typename Group> PORT_FN void wait_prior(const Group& group) { group.sync(); }

}  // namespace cooperative_groups
}  // namespace cuda_port

#endif
