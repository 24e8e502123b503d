// The choice of experts: a wave for each token, all that it does in one launch.
#include "device.h"
#include "shared/latent.h"

struct Greatest {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a < b ? b : a; }
};

// A rank and where it is, so that the larger is the larger rank, of two that are the same the earlier one. What is not
// a number comes last.
DEVICE_FN u64 ranked(float rank, u32 index) {
    const u32 bits = bit_cast<u32>(rank + 0.0f);
    const u32 order = rank != rank ? 0u : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)order << 32 | (u32)~index;
}
DEVICE_FN u64 best_of_wave(u64 best) {
#pragma unroll 1
    for (u32 mask = WAVE / 2; mask > 0; mask /= 2) {
        const u64 other = shfl_xor(best, mask);
        best = best < other ? other : best;
    }
    return best;
}

// The first of the largest of `count` numbers, which is not found again.
DEVICE_FN u32 take_best(float* ranks, u32 count) {
    u64 best = 0;
    for (u32 i = lane(); i < count; i += WAVE) {
        const u64 own = ranked(ranks[i], i);
        best = best < own ? own : best;
    }
    const u32 index = ~(u32)best_of_wave(best);
    if (lane() == index % WAVE) ranks[index] = -math::infinity(0.0f);
    wave_sync();
    return index;
}

DEVICE_FN float greatest_of_wave(float v) {
#pragma unroll 1
    for (u32 mask = WAVE / 2; mask > 0; mask /= 2) v = Greatest::apply(v, shfl_xor(v, mask));
    return v;
}
DEVICE_FN float sum_of_wave(float v) {
#pragma unroll 1
    for (u32 mask = WAVE / 2; mask > 0; mask /= 2) v += shfl_xor(v, mask);
    return v;
}

extern "C" __global__ MAX_BLOCK(WAVE) void moe_route(const float* logits, const float* bias, u32* ids, float* weights, Router s) {
    __shared__ float scores[MAX_EXPERTS];
    __shared__ float ranks[MAX_EXPERTS];
    __shared__ float merits[MAX_EXPERTS];
    __shared__ u32 left[MAX_EXPERTS];
    const u32 token = block_x();
    const float* const from = logits + (u64)token * s.experts;
    float max = -math::infinity(0.0f);
    for (u32 i = lane(); i < s.experts; i += WAVE) max = Greatest::apply(max, from[i]);
    max = greatest_of_wave(max);
    float sum = 0.0f;
    for (u32 i = lane(); i < s.experts; i += WAVE) {
        float x = from[i];
        if (s.scores == SOFTMAX) {
            x = math::exp(x - max);
            sum += x;
        } else if (s.scores == SIGMOID) {
            x = 1.0f / (1.0f + math::exp(-x));
        }
        scores[i] = x;
    }
    sum = s.scores == SOFTMAX ? sum_of_wave(sum) : 1.0f;
    for (u32 i = lane(); i < s.experts; i += WAVE) {
        const float x = scores[i] / sum;
        scores[i] = x;
        ranks[i] = bias ? x + bias[i] : x;
    }
    wave_sync();
    if (s.groups > 1) {
        const u32 size = s.experts / s.groups;
        for (u32 group = lane(); group < s.groups; group += WAVE) {
            float best = -math::infinity(0.0f);
            float second = best;
            for (u32 i = group * size; i < (group + 1) * size; ++i) {
                const float x = ranks[i];
                if (x > best) {
                    second = best;
                    best = x;
                } else if (x > second) {
                    second = x;
                }
            }
            merits[group] = s.best_of_group > 1 && size > 1 ? best + second : best;
            left[group] = 0;
        }
        wave_sync();
        for (u32 n = 0; n < s.groups_used; ++n) {
            const u32 group = take_best(merits, s.groups);
            if (lane() == 0) left[group] = 1;
        }
        wave_sync();
        for (u32 i = lane(); i < s.experts; i += WAVE) {
            if (!left[i / size]) ranks[i] = -math::infinity(0.0f);
        }
        wave_sync();
    }
    // What a token's experts have stays in the lanes: MAX_USED is no more than a few for each.
    constexpr u32 OWN = MAX_USED / WAVE;
    u32 id[OWN];
    float weight[OWN];
#pragma unroll
    for (u32 n = 0; n < OWN; ++n) {
        id[n] = 0;
        weight[n] = 0.0f;
    }
    for (u32 i = 0; i < s.used; ++i) {
        const u32 best = take_best(ranks, s.experts);
#pragma unroll
        for (u32 n = 0; n < OWN; ++n) {
            if (i == n * WAVE + lane()) {
                id[n] = best;
                weight[n] = scores[best];
            }
        }
    }
    if (s.scores == CHOSEN) {
        float most = -math::infinity(0.0f);
#pragma unroll
        for (u32 n = 0; n < OWN; ++n) {
            if (n * WAVE + lane() < s.used) most = Greatest::apply(most, weight[n]);
        }
        most = greatest_of_wave(most);
        float all = 0.0f;
#pragma unroll
        for (u32 n = 0; n < OWN; ++n) {
            weight[n] = n * WAVE + lane() < s.used ? math::exp(weight[n] - most) : 0.0f;
            all += weight[n];
        }
        all = sum_of_wave(all);
#pragma unroll
        for (u32 n = 0; n < OWN; ++n) weight[n] /= all;
    }
    float all = 0.0f;
#pragma unroll
    for (u32 n = 0; n < OWN; ++n) all += weight[n];
    all = sum_of_wave(all);
    const float factor = s.normalised ? s.scale / (all + s.epsilon) : s.scale;
#pragma unroll
    for (u32 n = 0; n < OWN; ++n) {
        const u32 i = n * WAVE + lane();
        if (i < s.used) {
            ids[(u64)token * s.used + i] = id[n];
            weights[(u64)token * s.used + i] = weight[n] * factor;
        }
    }
}
