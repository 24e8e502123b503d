// What the library headers (cub.h, cooperative_groups.h, ...) are written on: values of any type between the lanes of a
// warp, and raw storage in shared memory. A warp is 32 lanes, on waves of 64 a half of one.
#ifndef CANDLE_ROCM_PORT_LIBRARY_H
#define CANDLE_ROCM_PORT_LIBRARY_H

#include "cuda.h"

namespace cuda_port {
namespace port {
namespace library {

constexpr int WARP = 32;

// The number of the thread within its warp.
PORT_FN int warp_lane() { return (int)(port::device::lane() % WARP); }

// The number of the thread within a block of this size, and within the block as it was launched.
template <int X, int Y, int Z> PORT_FN int thread_rank() {
    if constexpr (Y == 1 && Z == 1) return (int)threadIdx.x;
    return (int)(threadIdx.x + (unsigned)X * (threadIdx.y + (unsigned)Y * threadIdx.z));
}
PORT_FN unsigned thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
PORT_FN unsigned block_threads() { return blockDim.x * blockDim.y * blockDim.z; }

// The lanes of the warp from `first` on.
PORT_FN constexpr unsigned lanes(int first, int count) { return (count >= WARP ? ~0u : (1u << count) - 1u) << first; }
PORT_FN unsigned lanes_below(int lane) { return lanes(0, lane); }

// The lanes that exist of this thread's warp, in a block of so many threads.
template <int THREADS> PORT_FN unsigned warp_members(int rank) {
    constexpr int PARTIAL = THREADS % WARP;
    return PARTIAL != 0 && rank >= THREADS - PARTIAL ? lanes(0, PARTIAL) : ~0u;
}

// The lane of the n-th bit that is set, from 0; there are more than n.
PORT_FN int nth_lane(unsigned mask, int n) {
    while (n-- > 0) mask &= mask - 1u;
    return __ffs((int)mask) - 1;
}

// The value of another lane of the warp, of any type that may be copied byte by byte.
template <typename T> PORT_FN T from_lane(unsigned members, const T& value, int source) {
    constexpr int WORDS = (sizeof(T) + 3) / 4;
    unsigned words[WORDS] = {};
    __builtin_memcpy(words, &value, sizeof(T));
    for (int i = 0; i < WORDS; ++i) words[i] = __shfl_sync(members, words[i], source, WARP);
    T result = value;
    __builtin_memcpy(&result, words, sizeof(T));
    return result;
}

// Elements in shared memory: a type without constructors, as shared variables must be.
template <typename T, int COUNT> struct Array {
    alignas(alignof(T)) unsigned char bytes[COUNT * sizeof(T)];
    PORT_FN T& operator[](int i) { return ((T*)bytes)[i]; }
};

template <typename...> struct Always { static constexpr bool no = false; };

template <bool YES, typename A, typename B> struct Choose { using type = A; };
template <typename A, typename B> struct Choose<false, A, B> { using type = B; };
template <typename A, typename B> constexpr bool same = port::device::is_same<A, B>::value;
template <typename T> struct Plain { using type = T; };
template <typename T> struct Plain<const T> { using type = T; };
template <typename T> struct Plain<T&> { using type = typename Plain<T>::type; };

// Shared memory of an algorithm that is given none: one for each class.
template <typename Owner> PORT_FN typename Owner::TempStorage& own_storage() {
    __shared__ typename Owner::TempStorage own;
    return own;
}

}  // namespace library
}  // namespace port
}  // namespace cuda_port

#endif
