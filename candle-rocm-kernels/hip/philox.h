// The counter-based generator Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): four words for each counter, which depend on it and the key alone.
#ifndef CANDLE_ROCM_PHILOX_H
#define CANDLE_ROCM_PHILOX_H

#include "device.h"
#include "shared/rand.h"

namespace device {

struct Words { u32 w[4]; };

DEVICE_FN Words philox_round(const Words& c, u32 key0, u32 key1) {
    const u64 product0 = (u64)c.w[0] * 0xd2511f53u;
    const u64 product1 = (u64)c.w[2] * 0xcd9e8d57u;
    return Words{{(u32)(product1 >> 32) ^ c.w[1] ^ key0, (u32)product1, (u32)(product0 >> 32) ^ c.w[3] ^ key1, (u32)product0}};
}
DEVICE_FN Words words_of(u64 counter_low, u64 counter_high) {
    return Words{{(u32)counter_low, (u32)(counter_low >> 32), (u32)counter_high, (u32)(counter_high >> 32)}};
}

// With the keys of all rounds made by the host.
DEVICE_FN Words philox(const RoundKeys& keys, u64 counter_low, u64 counter_high) {
    Words c = words_of(counter_low, counter_high);
#pragma unroll
    for (u32 round = 0; round < ROUNDS; ++round) c = philox_round(c, keys.k[round][0], keys.k[round][1]);
    return c;
}
// With the key alone, for kernels that have no registers for twenty words.
DEVICE_FN Words philox(u64 key, u64 counter_low, u64 counter_high) {
    Words c = words_of(counter_low, counter_high);
    u32 key0 = (u32)key;
    u32 key1 = (u32)(key >> 32);
#pragma unroll
    for (u32 round = 0; round < ROUNDS; ++round) {
        c = philox_round(c, key0, key1);
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return c;
}

}  // namespace device

#endif
