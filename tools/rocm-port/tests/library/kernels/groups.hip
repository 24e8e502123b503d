// Cooperative groups, pipelines and barriers.
#include "port/cooperative_groups.h"
#include "port/pipeline.h"
PORT_BEGIN
namespace cg = cooperative_groups;

// A line of the output for each thing that a thread of a tile can ask.
template <int N> __device__ void tiles(const int* in, int* out) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<N>(block);
    cg::thread_block_tile<N> stored = tile;
    const int i = block.thread_rank(), n = block.num_threads(), v = in[i];
    int line = 0, equal;
    auto put = [&](int value) { out[n * line++ + i] = value; };
    put(tile.thread_rank());
    put(tile.meta_group_rank() + 1000 * stored.meta_group_rank());
    put(tile.meta_group_size() + 1000 * stored.meta_group_size() + 1000000 * tile.size());
    put(tile.shfl(v, 1));
    put(tile.shfl_up(v, 1));
    put(tile.shfl_down(v, 2));
    put(tile.shfl_xor(v, N / 2));
    put(tile.any(v == 3));
    put(tile.all(v < 3));
    put(tile.ballot(v == 1));
    put(tile.match_any(v));
    put(tile.match_all(v / 4, equal));
    put(equal);
    put(cg::reduce(tile, v, cg::plus<int>()));
    put(cg::reduce(tile, v, cg::greater<int>()) * 10 + cg::reduce(tile, v, cg::less<int>()));
    put(cg::inclusive_scan(tile, v));
    put(cg::exclusive_scan(tile, v, cg::plus<int>()));
    const cg::coalesced_group same = cg::labeled_partition(tile, v);
    put(same.size() + 100 * same.thread_rank() + 10000 * same.meta_group_size());
    put(cg::reduce(same, i, cg::plus<int>()));
    const cg::coalesced_group half = cg::binary_partition(tile, v % 2 == 0);
    put(half.shfl(i, half.size() - 1) + 1000 * half.meta_group_rank());
    put(half.shfl_up(i, 1));
    put(half.shfl_down(i, 1));
    put(half.ballot(v > 1));
    cg::thread_group dynamic = cg::tiled_partition(cg::this_thread_block(), 4u);
    dynamic.sync();
    put((int)dynamic.thread_rank() + 10 * (int)dynamic.size());
    put(cg::invoke_one_broadcast(tile, [&]() { return v + 1; }));
    cg::sync(tile);
}
extern "C" PORT_KERNEL(1024) void tiles_4(const int* in, int* out) { tiles<4>(in, out); }
extern "C" PORT_KERNEL(1024) void tiles_16(const int* in, int* out) { tiles<16>(in, out); }
extern "C" PORT_KERNEL(1024) void tiles_32(const int* in, int* out) { tiles<32>(in, out); }

// Threads that are in a branch together, of every second warp.
extern "C" PORT_KERNEL(1024) void coalesced(const int* in, int* out) {
    const int i = threadIdx.x, n = blockDim.x;
    out[i] = out[n + i] = 0;
    if (i / 32 % 2 == 0 && in[i] % 3 == 0) {
        const cg::coalesced_group here = cg::coalesced_threads();
        out[i] = here.size() + 100 * here.thread_rank();
        out[n + i] = cg::reduce(here, in[i], cg::plus<int>()) * 100 + cg::inclusive_scan(here, 1);
    }
    __syncthreads();
    const cg::thread_group block = cg::this_thread_block();
    block.sync();
    out[2 * n + i] = (int)block.thread_rank() + 1000 * (int)block.size();
    const cg::grid_group grid = cg::this_grid();
    out[3 * n + i] = (int)grid.thread_rank() + 1000 * (int)grid.num_blocks() + 10000 * (int)grid.size();
}

// Stages of copies that other threads read, through each of the ways that CUDA has.
extern "C" PORT_KERNEL(1024) void copies(const int* in, int* out) {
    __shared__ int stages[2][96];
    __shared__ cuda::barrier<cuda::thread_scope_block> arrivals;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    const int i = threadIdx.x, other = 95 - i;
    int line = 0;
    auto put = [&](int value) { out[96 * line++ + i] = value; };
    if (i == 0) init(&arrivals, 96);
    cg::memcpy_async(block, stages[0], in, sizeof(int) * 96);
    cg::wait(block);
    put(stages[0][other]);
    block.sync();
    __pipeline_memcpy_async(&stages[1][i], in + 96 + i, 4);
    __pipeline_commit();
    __pipeline_memcpy_async(&stages[0][i], in + i, 4, 2);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    block.sync();
    put(stages[1][other]);
    __pipeline_wait_prior(0);
    block.sync();
    put(stages[0][other]);
    block.sync();
    auto pipe = cuda::make_pipeline(block, &state);
    for (int k = 0; k < 4; ++k) {
        pipe.producer_acquire();
        cuda::memcpy_async(block, stages[k % 2], in + 96 * k, cuda::aligned_size_t<16>(sizeof(int) * 96), pipe);
        pipe.producer_commit();
        pipe.consumer_wait();
        put(stages[k % 2][other]);
        pipe.consumer_release();
    }
    for (int k = 0; k < 4; ++k) {
        cuda::memcpy_async(&stages[k % 2][i], in + 96 * k + i, sizeof(int), arrivals);
        if (k % 2 == 0) {
            arrivals.arrive_and_wait();
        } else {
            const auto token = arrivals.arrive();
            arrivals.wait(token);
        }
        put(stages[k % 2][other]);
        block.barrier_wait(block.barrier_arrive());
    }
    // The first warp goes on alone.
    int got = 0;
    if (i >= 32) {
        arrivals.arrive_and_drop();
    } else {
        arrivals.arrive_and_wait();
        stages[0][i] = i * 3;
        arrivals.arrive_and_wait();
        got = stages[0][31 - i];
    }
    __syncthreads();
    put(got);
}

PORT_END
