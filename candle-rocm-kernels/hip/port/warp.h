// Barriers, and what the lanes of a warp do together: shuffles, votes, matches, reductions. Included by cuda.h.
//
// A warp is 32 lanes on every GPU. In a wave of 64 each half is one: its lanes have the numbers 0 to 31, masks and ballots
// are its own, and nothing passes between the halves.
#ifndef CANDLE_ROCM_PORT_WARP_H
#define CANDLE_ROCM_PORT_WARP_H

// The two that everything here is made of: `among`, what the lanes of a mask do together, and the block's barrier.
#if defined(__HIP_SIM__)
#include "warp_sim.h"
#else
#include "warp_amd.h"
#endif

namespace cuda_port {
namespace port {

// Lane j of the segment of WIDTH lanes that the shuffles take, as PTX defines shfl.sync.
struct target {
    unsigned source;
    bool inside;
};
PORT_FN target shuffle_idx(unsigned at, unsigned width) {
    const unsigned segment = lane() & ~(width - 1u) & 31u;
    return {segment | (at & (width - 1u)), true};
}
PORT_FN target shuffle_up(unsigned delta, unsigned width) {
    const unsigned first = lane() & ~(width - 1u) & 31u, source = lane() - (delta & 31u);
    return {source & 31u, (int)source >= (int)first};
}
PORT_FN target shuffle_down(unsigned delta, unsigned width) {
    const unsigned last = lane() | (width - 1u), source = lane() + (delta & 31u);
    return {source & 31u, source <= last};
}
PORT_FN target shuffle_xor(unsigned mask, unsigned width) {
    const unsigned last = lane() | (width - 1u), source = lane() ^ (mask & 31u);
    return {source, source <= last};
}

template <typename T> PORT_FN T shuffle(unsigned mask, T v, target from) {
    const unsigned source = from.inside ? from.source : lane();
    if constexpr (sizeof(T) == 8) {
        return __builtin_bit_cast(T, pull(mask, __builtin_bit_cast(unsigned long long, v), source));
    } else if constexpr (sizeof(T) == 4) {
        return __builtin_bit_cast(T, pull(mask, __builtin_bit_cast(unsigned, v), source));
    } else if constexpr (sizeof(T) == 2) {
        return __builtin_bit_cast(T, (unsigned short)pull(mask, (unsigned)__builtin_bit_cast(unsigned short, v), source));
    } else {
        static_assert(sizeof(T) == 1, "shuffles are of 1, 2, 4 and 8 bytes");
        return __builtin_bit_cast(T, (unsigned char)pull(mask, (unsigned)__builtin_bit_cast(unsigned char, v), source));
    }
}

// Across a distance that is known when this is compiled, some lanes have a shorter way.
template <typename T> PORT_FN T shuffle_across(unsigned mask, T v, unsigned lanes, unsigned width) {
#if !defined(__HIP_SIM__)
    if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
        if (__builtin_constant_p(lanes) && width == 32u) {
            if (lanes == 1u) return device::across<1>(v);
            if (lanes == 2u) return device::across<2>(v);
            if (lanes == 8u) return device::across<8>(v);
            if (lanes == 16u) return device::across<16>(v);
        }
    }
#endif
    return shuffle(mask, v, shuffle_xor(lanes, width));
}

}  // namespace port

template <typename T> PORT_FN T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    return port::shuffle(mask, v, port::shuffle_idx((unsigned)source, (unsigned)width));
}
template <typename T> PORT_FN T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    return port::shuffle(mask, v, port::shuffle_up(delta, (unsigned)width));
}
template <typename T> PORT_FN T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    return port::shuffle(mask, v, port::shuffle_down(delta, (unsigned)width));
}
template <typename T> PORT_FN T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
    return port::shuffle_across(mask, v, (unsigned)lanes, (unsigned)width);
}

// (Lanes in another line are elsewhere, to the simulator.)
PORT_FN unsigned __activemask(unsigned line = __builtin_LINE()) { return port::here(line); }
PORT_FN unsigned __ballot_sync(unsigned mask, int predicate) { return port::votes(mask, predicate != 0); }
PORT_FN int __any_sync(unsigned mask, int predicate) { return port::votes(mask, predicate != 0) != 0; }
PORT_FN int __all_sync(unsigned mask, int predicate) { return port::votes(mask, predicate == 0) == 0; }
PORT_FN int __uni_sync(unsigned mask, int predicate) {
    const unsigned yes = port::votes(mask, predicate != 0);
    return yes == 0 || yes == port::votes(mask, true);
}
// Each lane of the mask sees what the others wrote before.
PORT_FN void __syncwarp(unsigned mask = 0xffffffffu) { port::meet(mask); }

// Of the lanes that are here, as CUDA had them before Volta.
template <typename T> PORT_FN T __shfl(T v, int source, int width = 32, unsigned line = __builtin_LINE()) {
    return __shfl_sync(port::here(line), v, source, width);
}
template <typename T> PORT_FN T __shfl_up(T v, unsigned delta, int width = 32, unsigned line = __builtin_LINE()) {
    return __shfl_up_sync(port::here(line), v, delta, width);
}
template <typename T> PORT_FN T __shfl_down(T v, unsigned delta, int width = 32, unsigned line = __builtin_LINE()) {
    return __shfl_down_sync(port::here(line), v, delta, width);
}
template <typename T> PORT_FN T __shfl_xor(T v, int lanes, int width = 32, unsigned line = __builtin_LINE()) {
    return __shfl_xor_sync(port::here(line), v, lanes, width);
}
PORT_FN unsigned __ballot(int predicate, unsigned line = __builtin_LINE()) { return __ballot_sync(port::here(line), predicate); }
PORT_FN int __any(int predicate, unsigned line = __builtin_LINE()) { return __any_sync(port::here(line), predicate); }
PORT_FN int __all(int predicate, unsigned line = __builtin_LINE()) { return __all_sync(port::here(line), predicate); }

namespace port {
// NaN is like itself, and -0 unlike 0.
template <typename T> PORT_FN bool same_bits(T a, T b) {
    using W = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
    static_assert(sizeof(T) == sizeof(W), "matches are of 4 and 8 bytes");
    return __builtin_bit_cast(W, a) == __builtin_bit_cast(W, b);
}
}  // namespace port
// The lanes of the mask whose value is the same.
template <typename T> PORT_FN unsigned __match_any_sync(unsigned mask, T v) {
    unsigned same = 0;
    const unsigned there = port::votes(mask, true);
    for (unsigned left = there; left != 0; left &= left - 1u) {
        const unsigned source = (unsigned)__builtin_ctz(left);
        if (port::same_bits(port::shuffle(mask, v, {source, true}), v)) same |= 1u << source;
    }
    return same;
}
// All lanes of the mask if they agree, else none.
template <typename T> PORT_FN unsigned __match_all_sync(unsigned mask, T v, int* predicate) {
    const unsigned there = port::votes(mask, true);
    const T first = port::shuffle(mask, v, {(unsigned)__builtin_ctz(there), true});
    const bool same = port::votes(mask, !port::same_bits(first, v)) == 0;
    *predicate = same;
    return same ? there : 0u;
}

namespace port {
// Over the lanes of the mask that are here: a butterfly if that is all of them, else one after the other.
template <typename T, typename F> PORT_FN T reduce(unsigned mask, T v, F f) {
    const unsigned there = votes(mask, true);
    if (there == 0xffffffffu) {
        for (unsigned step = 16; step != 0; step >>= 1) v = f(v, shuffle(mask, v, {lane() ^ step, true}));
        return v;
    }
    T sum = shuffle(mask, v, {(unsigned)__builtin_ctz(there), true});
    for (unsigned left = there & (there - 1u); left != 0; left &= left - 1u) sum = f(sum, shuffle(mask, v, {(unsigned)__builtin_ctz(left), true}));
    return sum;
}
}  // namespace port
PORT_FN unsigned __reduce_add_sync(unsigned mask, unsigned v) { return port::reduce(mask, v, [](unsigned a, unsigned b) { return a + b; }); }
PORT_FN int __reduce_add_sync(unsigned mask, int v) { return (int)__reduce_add_sync(mask, (unsigned)v); }
PORT_FN unsigned __reduce_min_sync(unsigned mask, unsigned v) { return port::reduce(mask, v, [](unsigned a, unsigned b) { return a < b ? a : b; }); }
PORT_FN int __reduce_min_sync(unsigned mask, int v) { return port::reduce(mask, v, [](int a, int b) { return a < b ? a : b; }); }
PORT_FN unsigned __reduce_max_sync(unsigned mask, unsigned v) { return port::reduce(mask, v, [](unsigned a, unsigned b) { return a < b ? b : a; }); }
PORT_FN int __reduce_max_sync(unsigned mask, int v) { return port::reduce(mask, v, [](int a, int b) { return a < b ? b : a; }); }
PORT_FN unsigned __reduce_and_sync(unsigned mask, unsigned v) { return port::reduce(mask, v, [](unsigned a, unsigned b) { return a & b; }); }
PORT_FN unsigned __reduce_or_sync(unsigned mask, unsigned v) { return port::reduce(mask, v, [](unsigned a, unsigned b) { return a | b; }); }
PORT_FN unsigned __reduce_xor_sync(unsigned mask, unsigned v) { return port::reduce(mask, v, [](unsigned a, unsigned b) { return a ^ b; }); }

// Barriers that also count the threads whose predicate holds. (A template: the counter exists where it is used.)
namespace port {
template <int> PORT_FN int sync_count(int predicate, unsigned line) {
    __shared__ unsigned counted;
    if (linear_thread() == 0) counted = 0;
    barrier(line);
    if (predicate) (void)__hip_atomic_fetch_add(&counted, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    barrier(line);
    const int count = (int)counted;
    barrier(line);
    return count;
}
PORT_FN int threads() {
    const index n = block_size();
    return (int)(n.x * n.y * n.z);
}
}  // namespace port

}  // namespace cuda_port

// Macros, since the simulator tells barriers apart by their lines.
#undef __syncthreads
#undef __syncthreads_count
#undef __syncthreads_and
#undef __syncthreads_or
#define __syncthreads() cuda_port::port::barrier(__LINE__)
#define __syncthreads_count(predicate) cuda_port::port::sync_count<0>(predicate, __LINE__)
#define __syncthreads_or(predicate) (cuda_port::port::sync_count<0>(predicate, __LINE__) != 0)
#define __syncthreads_and(predicate) (cuda_port::port::sync_count<0>(predicate, __LINE__) == cuda_port::port::threads())

#endif
