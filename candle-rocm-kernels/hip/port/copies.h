// Copies that CUDA makes behind the threads' back, made by the threads. Included by cooperative_groups.h and pipeline.h.
#ifndef CANDLE_ROCM_PORT_COPIES_H
#define CANDLE_ROCM_PORT_COPIES_H

#include "library.h"

namespace cuda_port {
namespace port {
namespace library {

// Words of the widest kind that both addresses and the size allow, dealt out to `count` threads.
template <typename Word> PORT_FN void copy_words(unsigned rank, unsigned count, void* to, const void* from, unsigned long long bytes) {
    for (unsigned long long i = rank; i < bytes / sizeof(Word); i += count) ((Word*)to)[i] = ((const Word*)from)[i];
}
PORT_FN void copy_together(unsigned rank, unsigned count, void* to, const void* from, unsigned long long bytes) {
    // Whatever the elements' type is.
    struct __attribute__((may_alias, aligned(16))) Wide { unsigned w[4]; };
    struct __attribute__((may_alias)) Word { unsigned w; };
    const unsigned long long odd = (unsigned long long)to | (unsigned long long)from | bytes;
    if (odd % 16 == 0) {
        copy_words<Wide>(rank, count, to, from, bytes);
    } else if (odd % 4 == 0) {
        copy_words<Word>(rank, count, to, from, bytes);
    } else {
        copy_words<unsigned char>(rank, count, to, from, bytes);
    }
}

}  // namespace library
}  // namespace port

namespace cuda {
// A size that is a multiple of the alignment.
template <unsigned long ALIGNMENT> struct aligned_size_t {
    static constexpr unsigned long align = ALIGNMENT;
    unsigned long value;
    PORT_FN constexpr explicit aligned_size_t(unsigned long bytes) : value(bytes) {}
    PORT_FN constexpr operator unsigned long() const { return value; }
};
}  // namespace cuda

namespace cooperative_groups {
using cuda::aligned_size_t;
}  // namespace cooperative_groups
}  // namespace cuda_port

#endif
