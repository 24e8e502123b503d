// Random numbers from the counter-based generator Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). Element i depends on key, counter and i alone, so the numbers are the same for every grid, wave size and count.
#include "device.h"

struct Words { u32 w[4]; };

DEVICE_FN Words philox(u64 key, u64 counter_low, u64 counter_high) {
    u32 key0 = (u32)key;
    u32 key1 = (u32)(key >> 32);
    Words c{{(u32)counter_low, (u32)(counter_low >> 32), (u32)counter_high, (u32)(counter_high >> 32)}};
    for (u32 round = 0; round < 10; ++round) {
        const u64 product0 = (u64)c.w[0] * 0xd2511f53u;
        const u64 product1 = (u64)c.w[2] * 0xcd9e8d57u;
        c = Words{{(u32)(product1 >> 32) ^ c.w[1] ^ key0, (u32)product1, (u32)(product0 >> 32) ^ c.w[3] ^ key1, (u32)product0}};
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return c;
}

// How one draw of four words becomes numbers in compute type C.
template <typename C> struct Draw;
template <> struct Draw<float> {
    static constexpr u32 COUNT = 4;
    // In [0, 1), multiples of 2^-24.
    static DEVICE_FN void uniform(const Words& words, float* out) {
        for (u32 k = 0; k < COUNT; ++k) out[k] = (float)(words.w[k] >> 8) * 0x1p-24f;
    }
    // In (0, 1], for the logarithm.
    static DEVICE_FN float open(const Words& words, u32 pair) { return math::fma((float)words.w[2 * pair], 0x1p-32f, 0x1p-33f); }
    static DEVICE_FN float angle(const Words& words, u32 pair) { return (float)(words.w[2 * pair + 1] >> 8) * (float)(0x1p-24 * 6.283185307179586); }
};
template <> struct Draw<double> {
    static constexpr u32 COUNT = 2;
    static DEVICE_FN u64 bits53(const Words& words, u32 k) { return ((u64)words.w[2 * k + 1] << 32 | words.w[2 * k]) >> 11; }
    // In [0, 1), multiples of 2^-53.
    static DEVICE_FN void uniform(const Words& words, double* out) {
        for (u32 k = 0; k < COUNT; ++k) out[k] = (double)bits53(words, k) * 0x1p-53;
    }
    static DEVICE_FN double open(const Words& words, u32) { return (double)(bits53(words, 0) + 1) * 0x1p-53; }
    static DEVICE_FN double angle(const Words& words, u32) { return (double)bits53(words, 1) * (0x1p-53 * 6.283185307179586); }
};

// `top` is the largest value of T below the upper bound: rounding never reaches the bound itself.
template <typename T> DEVICE_FN void uniform(T* dst, u64 n, u64 key, u64 counter, double low, double span, double top) {
    using C = compute_t<T>;
    constexpr u32 COUNT = Draw<C>::COUNT;
    for (u64 group = global_index(); group * COUNT < n; group += global_size()) {
        C unit[COUNT];
        Draw<C>::uniform(philox(key, counter + group, 0), unit);
        for (u32 k = 0; k < COUNT; ++k) {
            if (group * COUNT + k >= n) break;
            const T value = store<T>(math::fma(unit[k], (C)span, (C)low));
            dst[group * COUNT + k] = load(value) > (C)top ? store<T>((C)top) : value;
        }
    }
}

// Box and Muller: each pair of words gives a radius and an angle, and these two independent normal numbers.
template <typename T> DEVICE_FN void normal(T* dst, u64 n, u64 key, u64 counter, double mean, double deviation) {
    using C = compute_t<T>;
    constexpr u32 COUNT = Draw<C>::COUNT;
    for (u64 group = global_index(); group * COUNT < n; group += global_size()) {
        const Words words = philox(key, counter + group, 0);
        for (u32 pair = 0; pair < COUNT / 2; ++pair) {
            const u64 at = group * COUNT + 2 * pair;
            if (at >= n) break;
            const C radius = math::sqrt(C(-2) * math::log(Draw<C>::open(words, pair)));
            const C angle = Draw<C>::angle(words, pair);
            dst[at] = store<T>(math::fma(radius * math::cos(angle), (C)deviation, (C)mean));
            if (at + 1 < n) dst[at + 1] = store<T>(math::fma(radius * math::sin(angle), (C)deviation, (C)mean));
        }
    }
}

// The generator's own output.
extern "C" __global__ void philox_u32(u32* dst, u64 n, u64 key, u64 counter_low, u64 counter_high) {
    for (u64 group = global_index(); group * 4 < n; group += global_size()) {
        const u64 low = counter_low + group;
        const Words words = philox(key, low, counter_high + (low < group));
        for (u32 k = 0; k < 4; ++k) {
            if (group * 4 + k < n) dst[group * 4 + k] = words.w[k];
        }
    }
}

#define RAND(dtype, T)                                                                                                           \
    extern "C" __global__ void uniform_##dtype(T* dst, u64 n, u64 key, u64 counter, double low, double span, double top) {        \
        uniform(dst, n, key, counter, low, span, top);                                                                           \
    }                                                                                                                            \
    extern "C" __global__ void normal_##dtype(T* dst, u64 n, u64 key, u64 counter, double mean, double deviation) {               \
        normal(dst, n, key, counter, mean, deviation);                                                                           \
    }
RAND(f16, f16)
RAND(bf16, bf16)
RAND(f32, float)
RAND(f64, double)
RAND(f8e4m3, f8e4m3)
