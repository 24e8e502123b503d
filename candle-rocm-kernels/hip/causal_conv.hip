// Causal depthwise convolution along sequences that lie behind each other, each with a state: what came in its last
// rows before. It may have SiLU behind it, and gates before and behind.
//
// A block has CONV_ROWS rows of one sequence in CONV_BLOCK neighbouring channels. The first block of a sequence alone
// reads the old state and writes all new ones, and in this order, so that they may lie in the same slot.
#include "activation.h"
#include "device.h"
#include "shared/causal_conv.h"

template <typename T> struct Rows {
    const T* x;
    const T* before;
    u64 x_stride;
    u64 before_stride;

    DEVICE_FN float at(u32 row, u32 channel) const {
        const float value = load(x[row * x_stride + channel]);
        return before ? value * load(before[row * before_stride + channel]) : value;
    }
};

// Of rows `first` to `end` of the sequence from row `start` on, whose first row has the elements `old` before it.
template <u32 K, typename T>
DEVICE_FN void convolve(const Rows<T>& rows, const T* after, const float* weight, const float* bias, float* states, const u32* to, T* out,
                        const CausalConv& c, u32 slot, u32 start, u32 first, u32 end, u32 channel) {
    const bool exists = channel < c.channels;
    const bool is_first = first == start;
    float old[K - 1];
    float window[K - 1];
    float w[K];
#pragma unroll
    for (u32 i = 0; i < K; ++i) w[i] = exists ? weight[i * c.channels + channel] : 0.0f;
#pragma unroll
    for (u32 i = 0; i < K - 1; ++i) {
        old[i] = exists && is_first && slot < c.slots ? states[((u64)slot * (K - 1) + i) * c.channels + channel] : 0.0f;
        window[i] = exists && !is_first ? rows.at(first - (K - 1) + i, channel) : old[i];
    }
    if (exists) {
        const float constant = bias ? bias[channel] : 0.0f;
        const u32 last = end - first < CONV_ROWS ? end : first + CONV_ROWS;
        for (u32 row = first; row < last; ++row) {
            const float value = rows.at(row, channel);
            float sum = constant;
#pragma unroll
            for (u32 i = 0; i < K - 1; ++i) {
                sum = math::fma(window[i], w[i], sum);
                window[i] = i + 2 < K ? window[i + 1 < K - 1 ? i + 1 : i] : value;
            }
            sum = math::fma(value, w[K - 1], sum);
            if (c.silu) sum = Silu<float>::apply(sum);
            if (after) sum *= load(after[row * c.after_stride + channel]);
            out[(u64)row * c.channels + channel] = store<T>(sum);
        }
    }
    if (!is_first) return;
    // The states behind rows: each lane looks at one row, and all write the states that were found.
    for (u32 base = start; base < end; base += WAVE) {
        const u32 mine = base + lane() < end ? to[base + lane()] : c.slots;
        for (Mask found = device::ballot(mine < c.slots); found != 0; found &= found - 1) {
            const u32 bit = lowest(found);
            const u32 target = shfl(mine, bit);
            // Elements behind the first of `old`.
            const u32 next = base + bit + 1 - start;
            if (!exists) continue;
            float* const state = states + (u64)target * (K - 1) * c.channels + channel;
#pragma unroll
            for (u32 i = 0; i < K - 1; ++i) {
                float value = 0.0f;
                if (next + i >= K - 1) {
                    value = rows.at(start + next + i - (K - 1), channel);
                } else {
#pragma unroll
                    for (u32 j = 0; j < K - 1; ++j) value = next + i == j ? old[j] : value;
                }
                state[i * c.channels] = value;
            }
        }
    }
}

template <typename T>
DEVICE_FN void causal_conv(const T* x, const T* before, const T* after, const float* weight, const float* bias, float* states, const u32* starts,
                           const u32* from, const u32* to, T* out, const CausalConv& c) {
    const Rows<T> rows{x, before, c.x_stride, c.before_stride};
    const u32 tasks = c.sequences * c.tiles * c.groups;
    for (u32 task = block_x(); task < tasks; task += grid_dim()) {
        const u32 line = task / c.groups;
        const u32 sequence = line / c.tiles;
        const u32 start = starts[sequence];
        const u32 stop = starts[sequence + 1];
        const u32 end = stop < c.rows ? stop : c.rows;
        const u32 first = start + (line - sequence * c.tiles) * CONV_ROWS;
        if (first >= end) continue;
        const u32 slot = from[sequence];
        const u32 channel = (task - line * c.groups) * CONV_BLOCK + thread_x();
#define CONVOLVE(K) \
    case K: convolve<K>(rows, after, weight, bias, states, to, out, c, slot, start, first, end, channel); break;
        switch (c.kernel) {
            CONVOLVE(2)
            CONVOLVE(3)
            CONVOLVE(4)
            CONVOLVE(5)
            CONVOLVE(6)
            CONVOLVE(7)
            CONVOLVE(8)
        }
#undef CONVOLVE
    }
}

#define CAUSAL_CONV(name, T)                                                                                                              \
    extern "C" __global__ MAX_BLOCK(CONV_BLOCK) void causal_conv_##name(const T* x, const T* before, const T* after, const float* weight,  \
                                                                        const float* bias, float* states, const u32* starts,              \
                                                                        const u32* from, const u32* to, T* out, CausalConv c) {            \
        causal_conv(x, before, after, weight, bias, states, starts, from, to, out, c);                                                     \
    }
PART(f16) CAUSAL_CONV(f16, f16)
PART(bf16) CAUSAL_CONV(bf16, bf16)
PART(f32) CAUSAL_CONV(f32, float)
