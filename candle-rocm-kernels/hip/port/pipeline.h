// cuda_pipeline.h, cuda::pipeline, cuda::memcpy_async and cuda::barrier: copies are made where they are asked for, by the
// threads that ask, so that a commit has nothing to do and a wait orders memory.
#ifndef CANDLE_ROCM_PORT_PIPELINE_H
#define CANDLE_ROCM_PORT_PIPELINE_H

#include "cooperative_groups.h"

namespace cuda_port {

// ---------------------------------------------------------------- cuda_pipeline_primitives.h

using __mbarrier_t = unsigned long long;

// 4, 8 or 16 bytes into shared memory, of which the last `zero_fill` become zeros and are not read.
PORT_FN void __pipeline_memcpy_async(void* to, const void* from, unsigned long bytes, unsigned long zero_fill = 0) {
    const unsigned long copied = bytes - zero_fill;
    port::library::copy_together(0, 1, to, from, copied);
    for (unsigned long i = copied; i < bytes; ++i) ((unsigned char*)to)[i] = 0;
}
PORT_FN void __pipeline_commit() {}
// What the thread asked for is there for itself; others see it behind the barrier that CUDA needs, too.
PORT_FN void __pipeline_wait_prior(unsigned long) { __threadfence_block(); }

namespace cuda {

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

// ---------------------------------------------------------------- cuda::barrier

// A barrier of `count` arrivals in shared memory. A thread that waits lets others go on only if these are in other waves:
// one that waits for a thread of its own wave that has not arrived, in another branch, waits forever. So the roles of a
// producer and a consumer must not share a wave, which has 64 threads on gfx9.
template <thread_scope SCOPE, typename Completion = void> class barrier {
    static_assert(SCOPE == thread_scope_block || SCOPE == thread_scope_thread, "barriers beyond a block are by hand");
    static_assert(port::library::same<Completion, void>, "barriers with a completion function are by hand");
    // Arrivals that are awaited in a phase, those that have come, threads that are gone from the next phase on, and the
    // number of phases that are over.
    int expected, arrived, dropped;
    unsigned phase;

    PORT_FN unsigned now() { return __hip_atomic_load(&phase, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP); }
    // The last one, and only that, begins the next phase.
    PORT_FN void count(int arrivals) {
        if (__hip_atomic_fetch_add(&arrived, arrivals, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_WORKGROUP) + arrivals == expected) {
            expected -= __hip_atomic_load(&dropped, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
            __hip_atomic_store(&dropped, 0, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
            __hip_atomic_store(&arrived, 0, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
            __hip_atomic_fetch_add(&phase, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_WORKGROUP);
        }
    }

  public:
    using arrival_token = unsigned;
    barrier() = default;
    PORT_FN explicit barrier(long count) : expected((int)count), arrived(0), dropped(0), phase(0) {}
    friend PORT_FN void init(barrier* self, long count) { self->expected = (int)count, self->arrived = self->dropped = 0, self->phase = 0; }
    static constexpr PORT_FN long max() { return (1l << 20) - 1; }

    PORT_FN arrival_token arrive(long arrivals = 1) {
        // The phase cannot end before this thread has arrived.
        const unsigned token = now();
        __threadfence_block();
        count((int)arrivals);
        return token;
    }
    PORT_FN void wait(arrival_token token) {
        while (now() == token) __builtin_amdgcn_s_sleep(1);
        __threadfence_block();
    }
    PORT_FN void wait_parity(bool parity) {
        while ((now() & 1u) == (unsigned)parity) __builtin_amdgcn_s_sleep(1);
        __threadfence_block();
    }
    PORT_FN bool try_wait(arrival_token token) { return now() != token; }
    PORT_FN void arrive_and_wait() { wait(arrive()); }
    // Of this phase the thread is still one; it is none of the next ones.
    PORT_FN void arrive_and_drop() {
        __threadfence_block();
        __hip_atomic_fetch_add(&dropped, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_WORKGROUP);
        count(1);
    }
};

// ---------------------------------------------------------------- cuda::pipeline

template <thread_scope SCOPE, unsigned char STAGES> struct pipeline_shared_state { unsigned char unused; };
enum class pipeline_role { producer, consumer };

// A pipeline that its threads fill and empty together: all of the group call each function. What a stage holds is there
// behind consumer_wait, and may be overwritten behind consumer_release.
template <thread_scope SCOPE> class pipeline {
    static_assert(SCOPE == thread_scope_thread || SCOPE == thread_scope_block, "pipelines beyond a block are by hand");
    // Lanes of a warp, or none for the whole block.
    unsigned lanes = 0;
    PORT_FN void sync() const {
        if constexpr (SCOPE == thread_scope_thread) {
            __threadfence_block();
        } else if (lanes != 0) {
            __syncwarp(lanes);
        } else {
            __syncthreads();
        }
    }

  public:
    pipeline() = default;
    PORT_FN explicit pipeline(unsigned l) : lanes(l) {}
    PORT_FN void producer_acquire() {}
    PORT_FN void producer_commit() {}
    PORT_FN void consumer_wait() { sync(); }
    PORT_FN void consumer_release() { sync(); }
    PORT_FN bool quit() { return true; }
};
PORT_FN pipeline<thread_scope_thread> make_pipeline() { return pipeline<thread_scope_thread>(); }
template <unsigned char STAGES>
PORT_FN pipeline<thread_scope_block> make_pipeline(const cooperative_groups::thread_block&, pipeline_shared_state<thread_scope_block, STAGES>*) {
    return pipeline<thread_scope_block>();
}
template <typename Group, thread_scope SCOPE, unsigned char STAGES>
PORT_FN pipeline<SCOPE> make_pipeline(const Group& group, pipeline_shared_state<SCOPE, STAGES>*) {
    return pipeline<SCOPE>(group.members());
}
template <typename Group, thread_scope SCOPE, unsigned char STAGES, typename Roles>
PORT_FN pipeline<SCOPE> make_pipeline(const Group&, pipeline_shared_state<SCOPE, STAGES>*, Roles) {
    static_assert(port::library::Always<Roles>::no, "pipelines with producers and consumers of their own are by hand: they may share a wave");
    return pipeline<SCOPE>();
}
template <unsigned char PRIOR> PORT_FN void pipeline_consumer_wait_prior(pipeline<thread_scope_thread>& pipe) { pipe.consumer_wait(); }
template <thread_scope SCOPE> PORT_FN void pipeline_producer_commit(pipeline<thread_scope_thread>&, barrier<SCOPE>&) {}

// ---------------------------------------------------------------- cuda::memcpy_async

// `Sync` is the pipeline or the barrier that the copy belongs to: it is done before the thread arrives there.
template <typename Size, thread_scope SCOPE> PORT_FN void memcpy_async(void* to, const void* from, Size bytes, pipeline<SCOPE>&) {
    port::library::copy_together(0, 1, to, from, (unsigned long long)bytes);
}
template <typename Size, thread_scope SCOPE> PORT_FN void memcpy_async(void* to, const void* from, Size bytes, barrier<SCOPE>&) {
    port::library::copy_together(0, 1, to, from, (unsigned long long)bytes);
}
template <typename Group, typename Size, typename Sync> PORT_FN void memcpy_async(const Group& group, void* to, const void* from, Size bytes, Sync&) {
    port::library::copy_together((unsigned)group.thread_rank(), (unsigned)group.size(), to, from, (unsigned long long)bytes);
}

}  // namespace cuda
}  // namespace cuda_port

#endif
