// Elements of packed caches, whose keys and values may be of different formats: chosen at run time, because a kernel for
// each pair of them would be a hundred.
//
// Elements and their factors have memory of their own. Eight neighbours are eight bytes, or one word of nibbles, of
// which byte i has element i in its lower half and element i + 4 in its upper one: a mask makes bytes of four of them.
// Factors are records of halves, one for SCALED elements, or for `1 << shift` of F8:
//
//   I8, Q4_0, IQ4_NL, F8   factor
//   Q4_1                   factor, what 0 stands for
//   Q5_0                   factor, fifth bits: two halves, a byte for eight elements
//   Q5_1                   factor, what 0 stands for, fifth bits
//
// The values are those of ggml's formats of these names, which keep both in one block.
#ifndef CANDLE_ROCM_ATTENTION_PACKED_H
#define CANDLE_ROCM_ATTENTION_PACKED_H
#include "common.h"
#include "quantized/iq.h"

// Any of them, of 16 bits or fewer.
constexpr u32 PACKED = 12;

template <u32 F> constexpr bool IS_HALF = F == F16 || F == BF16;
template <u32 F> constexpr bool HAS_LEAST = F == Q4_1 || F == Q5_1;
template <u32 F> constexpr bool HAS_FIFTH = F == Q5_0 || F == Q5_1;
template <u32 F> constexpr bool IS_NIBBLES = HAS_LEAST<F> || HAS_FIFTH<F> || F == Q4_0 || F == IQ4_NL;
// Halves of a record.
template <u32 F> constexpr u32 RECORD = 1 + (HAS_LEAST<F> ? 1 : 0) + (HAS_FIFTH<F> ? 2 : 0);

// A format as a type.
template <u32 F> struct Format {
    static constexpr u32 VALUE = F;
};
// body(Format<...>) for one that is the same for the whole grid.
template <typename Body> DEVICE_FN void with_format(u32 format, Body body) {
    switch (format) {
        case F16: return body(Format<F16>{});
        case BF16: return body(Format<BF16>{});
        case I8: return body(Format<I8>{});
        case Q4_0: return body(Format<Q4_0>{});
        case Q4_1: return body(Format<Q4_1>{});
        case Q5_0: return body(Format<Q5_0>{});
        case Q5_1: return body(Format<Q5_1>{});
        case IQ4_NL: return body(Format<IQ4_NL>{});
        default: return body(Format<F8>{});
    }
}

// Four bits, each at the fifth place of a byte.
DEVICE_FN u32 spread_fifth(u32 bits) {
    // Copies at distance 7 put bit i into the lowest place of byte i.
    u32 ones = bits | bits << 7;
    ones = (ones | ones << 14) & 0x01010101u;
    return ones << 4;
}

template <> struct Raw8<PACKED> {
    // Halves; or elements in the first two, the record's first two halves, and fifth bits.
    u32 w[4];

    template <u32 F> DEVICE_FN void load_as(const void* base, const f16* factors, u64 at, u32 shift) {
        if constexpr (IS_HALF<F>) {
            const Bytes16 words = *(const Bytes16*)((const u16*)base + at);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) w[i] = words.w[i];
        } else {
            const f16* const record = factors + (F == F8 ? at >> shift : at / SCALED) * RECORD<F>;
            if constexpr (IS_NIBBLES<F>) {
                w[0] = *(const u32*)((const u8*)base + at / 2);
                w[1] = 0;
            } else {
                const Bytes8 words = *(const Bytes8*)((const u8*)base + at);
                w[0] = words.w[0];
                w[1] = words.w[1];
            }
            w[2] = record[0].bits;
            if constexpr (HAS_LEAST<F>) w[2] |= (u32)record[1].bits << 16;
            w[3] = HAS_FIFTH<F> ? ((const u8*)(record + RECORD<F> - 2))[at % SCALED / 8] : 0;
        }
    }
    template <u32 F> DEVICE_FN void widen_as(float* x) const {
        if constexpr (IS_HALF<F>) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                x[2 * i] = F == F16 ? low_f16(w[i]) : low_bf16(w[i]);
                x[2 * i + 1] = F == F16 ? high_f16(w[i]) : high_bf16(w[i]);
            }
        } else if constexpr (F == F8) {
            // As an f16, whose exponents begin eight lower, the bits are a 256th.
            const float factor = low_f16(w[2]) * 256.0f;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 pair = w[i / 2] >> (i % 2 * 8);
                const u32 halves = (pair & 0x007f007fu) << 7 | (pair & 0x00800080u) << 8;
                x[i / 2 * 4 + i % 2] = factor * low_f16(halves);
                x[i / 2 * 4 + i % 2 + 2] = factor * high_f16(halves);
            }
        } else {
            u32 bytes[2] = {w[0], w[1]};
            if constexpr (IS_NIBBLES<F>) {
                bytes[1] = w[0] >> 4 & 0x0f0f0f0fu;
                bytes[0] &= 0x0f0f0f0fu;
            }
            if constexpr (HAS_FIFTH<F>) {
                bytes[0] |= spread_fifth(w[3] & 15u);
                bytes[1] |= spread_fifth(w[3] >> 4);
            }
            const float factor = low_f16(w[2]);
            if constexpr (F == I8 || F == IQ4_NL) {
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    if constexpr (F == IQ4_NL) bytes[i] = iq::level_of_16(bytes[i], codebooks::IQ4_LEVELS);
                }
#pragma unroll
                for (u32 i = 0; i < 8; ++i) x[i] = factor * (float)(i8)(bytes[i / 4] >> (i % 4 * 8));
            } else {
                const float least = HAS_LEAST<F> ? high_f16(w[2]) : factor * (HAS_FIFTH<F> ? -16.0f : -8.0f);
#pragma unroll
                for (u32 i = 0; i < 8; ++i) x[i] = math::fma(factor, (float)(u8)(bytes[i / 4] >> (i % 4 * 8)), least);
            }
        }
    }
};

// The same of every format, without knowing which when it is compiled.
template <u32 F, u32 G> DEVICE_FN void load_raw(Raw8<F>& raw, Format<G>, const void* base, const f16* factors, u64 at, u32 shift) {
    if constexpr (F == PACKED) {
        raw.template load_as<G>(base, factors, at, shift);
    } else {
        raw.load(base, factors, at);
    }
}
template <u32 F, u32 G> DEVICE_FN void widen_raw(const Raw8<F>& raw, Format<G>, float* x) {
    if constexpr (F == PACKED) {
        raw.template widen_as<G>(x);
    } else {
        raw.widen(x);
    }
}
// body(Format<...>), where kernels are for one format with that one.
template <u32 F, typename Body> DEVICE_FN void in_format(u32 format, Body body) {
    if constexpr (F == PACKED) {
        with_format(format, body);
    } else {
        body(Format<F>{});
    }
}
// Eight neighbours of a cache of any format.
DEVICE_FN void load8_cached(u32 format, u32 shift, const void* base, const f16* factors, u64 at, float* x) {
    if (format == F32) return load8_as<F32>(base, factors, at, x);
    with_format(format, [&](auto known) {
        Raw8<PACKED> raw;
        load_raw(raw, known, base, factors, at, shift);
        widen_raw(raw, known, x);
    });
}

// The Walsh-Hadamard transform of `size` neighbours, a power of two from 8 on, E of them in a lane: its own inverse. It
// spreads what is large in one element over all of them (Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in
// Rotated LLMs", 2024). With 0 nothing turns. All lanes that share neighbours must arrive.
template <u32 E> DEVICE_FN void rotate(float (&x)[E], u32 size) {
    if (size == 0) return;
#pragma unroll
    for (u32 step = 1; step < E; step *= 2) {
        const bool turns = step < 8 || step < size;
#pragma unroll
        for (u32 i = 0; i < E; ++i) {
            if (i & step) continue;
            const float a = x[i];
            const float b = x[i + step];
            x[i] = turns ? a + b : a;
            x[i + step] = turns ? a - b : b;
        }
    }
#pragma unroll 1
    for (u32 mask = 1; mask * E < size; mask *= 2) {
        const bool upper = (lane() & mask) != 0;
#pragma unroll
        for (u32 i = 0; i < E; ++i) {
            const float other = shfl_xor(x[i], mask);
            x[i] = upper ? other - x[i] : x[i] + other;
        }
    }
    const float factor = math::rsqrt((float)size);
#pragma unroll
    for (u32 i = 0; i < E; ++i) x[i] *= factor;
}

// The number of the level of IQ4_NL that is nearest.
DEVICE_FN u32 nearest_level(float x) {
    u32 index = 0;
#pragma unroll
    for (u32 i = 0; i < 15; ++i) {
        const float low = (float)(i8)(codebooks::IQ4_LEVELS[i / 4] >> (i % 4 * 8));
        const float high = (float)(i8)(codebooks::IQ4_LEVELS[(i + 1) / 4] >> ((i + 1) % 4 * 8));
        index += x > 0.5f * (low + high) ? 1u : 0u;
    }
    return index;
}

// Sums and maxima over lanes whose number differs in a power of two below `lanes`.
struct Most {
    static DEVICE_FN float apply(float a, float b) { return a < b ? b : a; }
};
struct Total {
    static DEVICE_FN float apply(float a, float b) { return a + b; }
};
template <typename Op> DEVICE_FN float over_lanes(float x, u32 lanes) {
#pragma unroll 1
    for (u32 mask = 1; mask < lanes; mask *= 2) x = Op::apply(x, shfl_xor(x, mask));
    return x;
}

// Stores eight neighbours, whose factor is for theirs and those of the next lanes, all of which must arrive; nothing
// unless `stored`, which is the same for them.
DEVICE_FN void store8_packed(u32 format, u32 shift, void* base, f16* factors, u64 at, bool stored, const float (&x)[8]) {
    if (format == F16 || format == BF16) {
        if (!stored) return;
        store4(format, base, at, x);
        store4(format, base, at + 4, x + 4);
        return;
    }
    const bool has_least = format == Q4_1 || format == Q5_1;
    const bool has_fifth = format == Q5_0 || format == Q5_1;
    const bool is_nibbles = format != I8 && format != F8;
    const u32 lanes = format == F8 ? 1u << shift >> 3 : SCALED / 8;
    float high = x[0];
    float low = -x[0];
#pragma unroll
    for (u32 i = 1; i < 8; ++i) {
        high = Most::apply(high, x[i]);
        low = Most::apply(low, -x[i]);
    }
    high = over_lanes<Most>(high, lanes);
    low = -over_lanes<Most>(low, lanes);
    const float magnitude = Most::apply(high, -low);
    // The element of the largest magnitude gets the code 0, which is further from what stands for 0 than the last one.
    const float furthest = high >= -low ? high : low;
    const float top = has_fifth ? 31.0f : 15.0f;
    const float middle = has_fifth ? 16.0f : 8.0f;
    const float factor = has_least          ? (high - low) / top
                         : format == I8     ? magnitude / 127.0f
                         : format == F8     ? magnitude / 448.0f
                         : format == IQ4_NL ? furthest / -127.0f
                                            : furthest / -middle;
    f16 kept = store<f16>(factor);
    const f16 least = store<f16>(has_least ? low : 0.0f);
    // What is divided by is what it will be multiplied by; but 8 bits are as they are in a cache that is not packed, and
    // levels get a factor of their own in the end.
    const float divisor = format == I8 || format == IQ4_NL ? factor : load(kept);
    const float inverse = divisor == 0.0f ? 0.0f : 1.0f / divisor;
    u32 bytes[2] = {};
    if (format == F8) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) bytes[i / 4] |= (u32)float_to_f8e4m3(x[i] * inverse) << (i % 4 * 8);
    } else if (format == I8) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) bytes[i / 4] |= (u32)(u8)(i8)math::rint(x[i] * inverse) << (i % 4 * 8);
    } else if (format == IQ4_NL) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) bytes[i / 4] |= nearest_level(x[i] * inverse) << (i % 4 * 8);
        // The factor that suits the chosen levels best, where an error counts as much as the element is large.
        float products = 0.0f;
        float squares = 0.0f;
        const u32 levels[2] = {iq::level_of_16(bytes[0], codebooks::IQ4_LEVELS), iq::level_of_16(bytes[1], codebooks::IQ4_LEVELS)};
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const float level = (float)(i8)(levels[i / 4] >> (i % 4 * 8));
            const float weighted = x[i] * x[i] * level;
            products += weighted * x[i];
            squares += weighted * level;
        }
        products = over_lanes<Total>(products, lanes);
        squares = over_lanes<Total>(squares, lanes);
        if (squares > 0.0f) kept = store<f16>(products / squares);
    } else {
        const float zero = has_least ? -load(least) * inverse : middle;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            float code = math::rint(x[i] * inverse + zero);
            code = code < 0.0f ? 0.0f : code > top ? top : code;
            bytes[i / 4] |= (u32)code << (i % 4 * 8);
        }
    }
    if (!stored) return;
    // As RECORD has it.
    const u32 halves = 1 + (has_least ? 1 : 0) + (has_fifth ? 2 : 0);
    f16* const record = factors + (format == F8 ? at >> shift : at / SCALED) * halves;
    if (is_nibbles) {
        *(u32*)((u8*)base + at / 2) = (bytes[0] & 0x0f0f0f0fu) | (bytes[1] & 0x0f0f0f0fu) << 4;
    } else {
        *(Bytes8*)((u8*)base + at) = Bytes8{{bytes[0], bytes[1]}};
    }
    if (has_fifth) {
        u32 fifth = 0;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) fifth |= (bytes[i / 4] >> (i % 4 * 8 + 4) & 1u) << i;
        ((u8*)(record + halves - 2))[at % SCALED / 8] = (u8)fifth;
    }
    if ((lane() & (lanes - 1)) == 0) {
        record[0] = kept;
        if (has_least) record[1] = least;
    }
}

#endif
