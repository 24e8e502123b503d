// Random numbers from the counter-based generator of philox.h. Element i depends on key, counter and i alone, so the
// numbers are the same for every grid, wave size and count.
#include "philox.h"

// What Box and Muller need, for arguments that need no care, in operations that round alike everywhere.

// -2 ln(u) for u in (0, 1], at least 2^-80: the root that follows divides by it.
DEVICE_FN float minus_two_log(float u) {
    // u = 2^k (1 + f) with |f| <= 1/3
    const u32 exponent = (bit_cast<u32>(u) - 0x3f2aaaabu) & 0xff800000u;
    const float f = bit_cast<float>(bit_cast<u32>(u) - exponent) - 1.0f;
    const float series = math::polynomial(f, -2.0f, 1.0f, -0.666665316f, 0.500084758f, -0.400158376f, 0.329446524f, -0.280846179f, 0.302443594f,
                                          -0.276404709f);
    return __builtin_fmaxf(math::fma((float)(i32)exponent, -0x1.62e430p-23f, f * series), 0x1p-80f);
}
DEVICE_FN double minus_two_log(double u) { return -2.0 * math::log(u); }

// The root of a normal number: from the hardware's approximation by one step of Newton's and a last one for the
// rounding.
DEVICE_FN float root(float x) {
    if constexpr (!target::APPROXIMATES) return math::sqrt(x);
    const float inverse = rsqrt_fast(x);
    const float near = x * inverse;
    const float half = 0.5f * inverse;
    const float error = math::fma(-half, near, 0.5f);
    const float nearer = math::fma(near, error, near);
    return math::fma(math::fma(-nearer, nearer, x), math::fma(half, error, half), nearer);
}
DEVICE_FN double root(double x) { return math::sqrt(x); }

template <typename C> struct Normal { C cos, sin; };

// How one draw of four words becomes numbers in compute type C.
template <typename C> struct Draw;
template <> struct Draw<float> {
    static constexpr u32 COUNT = 4;
    // Multiples of `span` 2^-24 from `low` on.
    static DEVICE_FN float uniform(const Words& words, u32 k, float low, float span) {
        return math::fma((float)(words.w[k] >> 8), span * 0x1p-24f, low);
    }
    // In (0, 1], for the logarithm.
    static DEVICE_FN float open(const Words& words, u32 pair) { return math::fma((float)words.w[2 * pair], 0x1p-32f, 0x1p-33f); }
    // Of a turn of which the upper 24 bits count.
    static DEVICE_FN Normal<float> angle(const Words& words, u32 pair) {
        const u32 turn = words.w[2 * pair + 1] + 0x20000000u;
        // The quarter of the turn and, in quarters, what lies between its middle and the angle, exactly.
        const bool odd = (turn & 0x40000000u) != 0;
        const float r = bit_cast<float>((turn >> 7 & 0x7ffffeu) | 0x3f800000u) - 1.5f;
        const float z = r * r;
        const float sin = r * math::polynomial(z, 1.57079637f, -0.64596349f, 0.079680033f, -0.00460165925f);
        const float cos = math::polynomial(z, 1.0f, -1.23370051f, 0.253669232f, -0.0208601654f, 0.000903766544f);
        const u32 sin_sign = turn & 0x80000000u;
        const u32 cos_sign = (turn + 0x40000000u) & 0x80000000u;
        return {bit_cast<float>(bit_cast<u32>(odd ? sin : cos) ^ cos_sign), bit_cast<float>(bit_cast<u32>(odd ? cos : sin) ^ sin_sign)};
    }
};
template <> struct Draw<double> {
    static constexpr u32 COUNT = 2;
    static DEVICE_FN u64 bits53(const Words& words, u32 k) { return ((u64)words.w[2 * k + 1] << 32 | words.w[2 * k]) >> 11; }
    // Multiples of `span` 2^-53 from `low` on.
    static DEVICE_FN double uniform(const Words& words, u32 k, double low, double span) {
        return math::fma((double)bits53(words, k) * 0x1p-53, span, low);
    }
    static DEVICE_FN double open(const Words& words, u32) { return (double)(bits53(words, 0) + 1) * 0x1p-53; }
    static DEVICE_FN Normal<double> angle(const Words& words, u32) {
        const double angle = (double)bits53(words, 1) * (0x1p-53 * 6.283185307179586);
        const auto a = math::angle_of_moderate(angle);
        const double sin = math::sin_in_quadrant(a.r);
        const double cos = math::cos_in_quadrant(a.r);
        const bool odd = (a.quadrant & 1u) != 0;
        const double x = odd ? sin : cos;
        const double y = odd ? cos : sin;
        return {(a.quadrant + 1u) & 2u ? -x : x, a.quadrant & 2u ? -y : y};
    }
};

// What one draw fills, stored at once.
template <typename T> struct alignas(sizeof(T) * Draw<compute_t<T>>::COUNT) Drawn {
    T v[Draw<compute_t<T>>::COUNT];
};
// Fills `dst` by `draw`, which makes numbers of a counter's words.
template <typename T, typename F> DEVICE_FN void fill(T* dst, u64 n, const RoundKeys& keys, u64 counter, F draw) {
    constexpr u32 COUNT = Draw<compute_t<T>>::COUNT;
    const u64 whole = n / COUNT;
    const u64 groups = (n + COUNT - 1) / COUNT;
#pragma unroll 1
    for (u64 group = global_index(); group < groups; group += global_size()) {
        const Drawn<T> drawn = draw(philox(keys, counter + group, 0));
        if (group < whole) {
            ((Drawn<T>*)dst)[group] = drawn;
        } else {
            for (u32 k = 0; k < COUNT; ++k) {
                if (whole * COUNT + k < n) dst[whole * COUNT + k] = drawn.v[k];
            }
        }
    }
}

// `top` is the largest value of T below the upper bound: rounding never reaches the bound itself.
template <typename T> DEVICE_FN void uniform(T* dst, u64 n, const RoundKeys& keys, u64 counter, double low, double span, double top) {
    using C = compute_t<T>;
    fill(dst, n, keys, counter, [=](const Words& words) -> Drawn<T> {
        Drawn<T> drawn;
        for (u32 k = 0; k < Draw<C>::COUNT; ++k) {
            const C value = Draw<C>::uniform(words, k, (C)low, (C)span);
            drawn.v[k] = store<T>(value > (C)top ? (C)top : value);
        }
        return drawn;
    });
}

// Box and Muller: each pair of words gives a radius and an angle, and these two independent normal numbers.
template <typename T> DEVICE_FN void normal(T* dst, u64 n, const RoundKeys& keys, u64 counter, double mean, double deviation) {
    using C = compute_t<T>;
    fill(dst, n, keys, counter, [=](const Words& words) -> Drawn<T> {
        Drawn<T> drawn;
        for (u32 pair = 0; pair < Draw<C>::COUNT / 2; ++pair) {
            const C radius = root(minus_two_log(Draw<C>::open(words, pair))) * (C)deviation;
            const Normal<C> angle = Draw<C>::angle(words, pair);
            drawn.v[2 * pair] = store<T>(math::fma(radius, angle.cos, (C)mean));
            drawn.v[2 * pair + 1] = store<T>(math::fma(radius, angle.sin, (C)mean));
        }
        return drawn;
    });
}

// The generator's own output.
extern "C" __global__ void philox_u32(u32* dst, u64 n, RoundKeys keys, u64 counter_low, u64 counter_high) {
    for (u64 group = global_index(); group * 4 < n; group += global_size()) {
        const u64 low = counter_low + group;
        const Words words = philox(keys, low, counter_high + (low < group));
        for (u32 k = 0; k < 4; ++k) {
            if (group * 4 + k < n) dst[group * 4 + k] = words.w[k];
        }
    }
}

#define RAND_BLOCK(T) MAX_BLOCK_OF(256, (sizeof(T) == 8 ? 4 : 8))
#define RAND(dtype, T)                                                                                                           \
    extern "C" __global__ RAND_BLOCK(T) void uniform_##dtype(T* dst, u64 n, RoundKeys keys, u64 counter, double low,             \
                                                             double span, double top) {                                          \
        uniform(dst, n, keys, counter, low, span, top);                                                                          \
    }                                                                                                                            \
    extern "C" __global__ RAND_BLOCK(T) void normal_##dtype(T* dst, u64 n, RoundKeys keys, u64 counter, double mean,             \
                                                            double deviation) {                                                  \
        normal(dst, n, keys, counter, mean, deviation);                                                                          \
    }
RAND(f16, f16)
RAND(bf16, bf16)
RAND(f32, float)
RAND(f64, double)
RAND(f8e4m3, f8e4m3)
