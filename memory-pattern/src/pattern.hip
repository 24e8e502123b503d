// Words that tell where they belong, written and looked at on the device. src/lib.rs has the same on the host.
#include "device.h"

// Each bit of the result depends on each of the number's.
DEVICE_FN u64 mixed(u64 x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// The numbers of the patterns are those of `Pattern`.
DEVICE_FN u32 expected(u32 pattern, u32 seed, u64 index) {
    u32 address = (u32)index ^ (u32)(index >> 32) * 0x9E3779B1u;
    u32 bit = 1u << ((index + seed) & 31);
    switch (pattern) {
        case 0: return (u32)mixed(index ^ ((u64)seed << 40));
        case 1: return address;
        case 2: return ~address;
        case 3: return bit;
        default: return ~bit;
    }
}

// What differs: found[0] counts it, found[1] is the least index, found[2] has the bits that are set and should not be,
// found[3] those that should be and are not.
DEVICE_FN void note(u64* found, u64 index, u32 is, u32 should) {
    atomic_add(&found[0], (u64)1);
    atomic_update(&found[1], [=](u64 least) { return index < least ? index : least; });
    atomic_update(&found[2], [=](u64 bits) { return bits | (is & ~should); });
    atomic_update(&found[3], [=](u64 bits) { return bits | (should & ~is); });
}

extern "C" __global__ MAX_BLOCK(256) void pattern_fill(u32* words, u64 count, u64 first, u32 pattern, u32 seed) {
    for (u64 i = global_index(); i < count; i += global_size()) words[i] = expected(pattern, seed, first + i);
}

extern "C" __global__ MAX_BLOCK(256) void pattern_check(const u32* words, u64 count, u64 first, u32 pattern, u32 seed, u64* found) {
    for (u64 i = global_index(); i < count; i += global_size()) {
        u32 is = words[i], should = expected(pattern, seed, first + i);
        if (is != should) note(found, first + i, is, should);
    }
}

// Work whose result the host knows: so many steps of a xorshift generator from a start that depends on the index.
extern "C" __global__ MAX_BLOCK(256) void pattern_work(u32* words, u64 count, u32 steps, u32 seed) {
    for (u64 i = global_index(); i < count; i += global_size()) {
        u32 x = expected(0, seed, i) | 1u;
        for (u32 n = 0; n < steps; n++) {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
        }
        words[i] = x;
    }
}

extern "C" __global__ MAX_BLOCK(256) void pattern_compare(const u32* words, const u32* with, u64 count, u64* found) {
    for (u64 i = global_index(); i < count; i += global_size())
        if (words[i] != with[i]) note(found, i, words[i], with[i]);
}

extern "C" __global__ MAX_BLOCK(256) void pattern_copy(u32* to, const u32* from, u64 count) {
    for (u64 i = global_index(); i < count; i += global_size()) to[i] = from[i];
}
