// Words that tell where they belong, written and looked at on the device. src/pattern.rs has the same on the host.

typedef unsigned int word;
typedef unsigned long long wide;

// Each bit of the result depends on each of the number's.
__device__ static inline wide mixed(wide x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// The numbers of the patterns are those of `Pattern`.
__device__ static inline word expected(word pattern, word seed, wide index) {
    word address = (word)index ^ (word)(index >> 32) * 0x9E3779B1u;
    word bit = 1u << ((index + seed) & 31);
    switch (pattern) {
        case 0: return (word)mixed(index ^ ((wide)seed << 40));
        case 1: return address;
        case 2: return ~address;
        case 3: return bit;
        default: return ~bit;
    }
}

// What differs: found[0] counts it, found[1] is the least index, found[2] has the bits that are set and should not be,
// found[3] those that should be and are not.
__device__ static inline void note(wide* found, wide index, word is, word should) {
    atomicAdd(&found[0], 1ull);
    atomicMin(&found[1], index);
    atomicOr(&found[2], (wide)(is & ~should));
    atomicOr(&found[3], (wide)(should & ~is));
}

extern "C" __global__ void doctor_fill(word* words, wide count, wide first, word pattern, word seed) {
    wide step = (wide)gridDim.x * blockDim.x;
    for (wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        words[i] = expected(pattern, seed, first + i);
}

extern "C" __global__ void doctor_check(const word* words, wide count, wide first, word pattern, word seed, wide* found) {
    wide step = (wide)gridDim.x * blockDim.x;
    for (wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        word is = words[i], should = expected(pattern, seed, first + i);
        if (is != should) note(found, first + i, is, should);
    }
}

// Work whose result the host knows: so many steps of a xorshift generator from a start that depends on the index.
extern "C" __global__ void doctor_work(word* words, wide count, word steps, word seed) {
    wide step = (wide)gridDim.x * blockDim.x;
    for (wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        word x = expected(0, seed, i) | 1u;
        for (word n = 0; n < steps; n++) {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
        }
        words[i] = x;
    }
}

extern "C" __global__ void doctor_compare(const word* words, const word* with, wide count, wide* found) {
    wide step = (wide)gridDim.x * blockDim.x;
    for (wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        if (words[i] != with[i]) note(found, i, words[i], with[i]);
}
