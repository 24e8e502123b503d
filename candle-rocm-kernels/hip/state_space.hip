// Recurrences over states: the selective scan of Mamba 1 and 2, RWKV 7's matrix-valued state, and the gated linear
// recurrence of Griffin (RG-LRU).
//
// Rows of sequences lie behind each other; each sequence is walked row by row, from a state that lies in a slot or from
// zeros, and the state behind a row goes to a slot where one is named: numbers beyond the slots name none. Where a state has two dimensions, STATE_LANES
// lanes share a line of it, and each has STATE_LINES lines, so that what all lines need of a row is loaded once: lane l
// has the elements l, l + STATE_LANES, ... in registers as long as the sequence lasts. The sum along a line is made in
// the same order whatever else is in the batch.
#include "device.h"
#include "shared/state_space.h"

// The row behind the last of a sequence, of so many rows in all.
DEVICE_FN u32 last_row(const u32* starts, u32 sequence, u32 rows) {
    const u32 end = starts[sequence + 1];
    return end < rows ? end : rows;
}

// The sum over the lanes that share lines.
DEVICE_FN float line_sum(float v) {
    v += across<8>(v);
    v += across<7>(v);
    v += across<2>(v);
    return v + across<1>(v);
}

// log(1 + exp(x)); small results keep their digits.
DEVICE_FN float softplus(float x) {
    if (x > 20.0f) return x;
    const float power = math::exp(x);
    const float whole = 1.0f + power;
    return whole == 1.0f ? power : math::log(whole) * (power / (whole - 1.0f));
}
DEVICE_FN float sigmoid(float x) { return 1.0f / (1.0f + math::exp(-x)); }

// The sequence and the first line of a thread in a tile of STATE_BLOCK threads.
struct Place {
    u32 sequence;
    u32 lane;
    u32 first;
    bool exists;

    DEVICE_FN Place(u64 tile, u32 tiles_per_sequence, u32 lines) {
        sequence = (u32)(tile / tiles_per_sequence);
        const u32 group = (u32)(tile - (u64)sequence * tiles_per_sequence) * (STATE_BLOCK / STATE_LANES) + thread_x() / STATE_LANES;
        lane = thread_x() % STATE_LANES;
        first = group * STATE_LINES;
        exists = first < lines;
        // All lanes take part in sums.
        if (!exists) first = 0;
    }
};

// A lane's part of STATE_LINES lines of PARTS * STATE_LANES elements.
template <u32 PARTS> struct Lines {
    float v[STATE_LINES][PARTS];

    static DEVICE_FN u64 place(u32 slot, u64 lines, const Place& at) {
        return (slot * lines + at.first) * (PARTS * STATE_LANES) + at.lane;
    }
    DEVICE_FN void load(const float* states, u32 slot, u32 slots, u64 lines, const Place& at) {
        const float* from = states + place(slot < slots ? slot : 0, lines, at);
#pragma unroll
        for (u32 i = 0; i < STATE_LINES; ++i) {
#pragma unroll
            for (u32 k = 0; k < PARTS; ++k) v[i][k] = slot < slots ? from[(i * PARTS + k) * STATE_LANES] : 0.0f;
        }
    }
    DEVICE_FN void store(float* states, u32 slot, u64 lines, const Place& at) const {
        if (!at.exists) return;
        float* to = states + place(slot, lines, at);
#pragma unroll
        for (u32 i = 0; i < STATE_LINES; ++i) {
#pragma unroll
            for (u32 k = 0; k < PARTS; ++k) to[(i * PARTS + k) * STATE_LANES] = v[i][k];
        }
    }
};

// Elements of a line that a lane needs.
template <u32 PARTS, typename T> DEVICE_FN void load_parts(const T* line, u32 lane, float* to) {
#pragma unroll
    for (u32 k = 0; k < PARTS; ++k) to[k] = load(line[lane + k * STATE_LANES]);
}

// A channel is a line: state = exp(dt A) state + dt x B, y = state . C + D x. BY_STATE: each channel is a head of its
// own, with an A for each element (Mamba 1); else a head's channels share one A and dt (Mamba 2).
template <typename T, u32 PARTS, bool BY_STATE>
DEVICE_FN void selective_scan(const T* x, const T* dt, const T* b, const T* c, const float* a, const float* d, const float* dt_bias,
                              float* states, const u32* starts, const u32* from, const u32* to, T* y, const SelectiveScan& p) {
    const u64 tiles = (u64)p.sequences * p.tiles;
    for (u64 tile = block_x(); tile < tiles; tile += grid_dim()) {
        const Place at(tile, p.tiles, p.channels);
        const u32 head = BY_STATE ? at.first : at.first / p.head_size;
        const u32 group = (BY_STATE ? at.first : head) / p.heads_per_group * (PARTS * STATE_LANES);
        Lines<PARTS> state;
        state.load(states, from[at.sequence], p.slots, p.channels, at);
        float decays[BY_STATE ? STATE_LINES : 1][BY_STATE ? PARTS : 1];
        float direct[STATE_LINES];
        float bias[BY_STATE ? STATE_LINES : 1];
#pragma unroll
        for (u32 i = 0; i < STATE_LINES; ++i) {
            direct[i] = d[BY_STATE ? at.first + i : head];
            if constexpr (BY_STATE) {
                load_parts<PARTS>(a + (u64)(at.first + i) * (PARTS * STATE_LANES), at.lane, decays[i]);
                bias[i] = dt_bias ? dt_bias[at.first + i] : 0.0f;
            }
        }
        if constexpr (!BY_STATE) {
            decays[0][0] = a[head];
            bias[0] = dt_bias ? dt_bias[head] : 0.0f;
        }
        const u32 end = last_row(starts, at.sequence, p.rows);
        for (u64 row = starts[at.sequence]; row < end; ++row) {
            float inputs[PARTS];
            float outputs[PARTS];
            load_parts<PARTS>(b + row * p.b_row + group, at.lane, inputs);
            load_parts<PARTS>(c + row * p.c_row + group, at.lane, outputs);
            float step = 0.0f;
            float decay = 0.0f;
            float result = 0.0f;
#pragma unroll
            for (u32 i = 0; i < STATE_LINES; ++i) {
                if (BY_STATE || i == 0) {
                    step = softplus(load(dt[row * p.dt_row + (BY_STATE ? at.first + i : head)]) + bias[BY_STATE ? i : 0]);
                    step = step < p.least_step ? p.least_step : step > p.most_step ? p.most_step : step;
                    if constexpr (!BY_STATE) decay = math::exp(step * decays[0][0]);
                }
                const float value = load(x[row * p.x_row + at.first + i]);
                const float input = step * value;
                float sum = 0.0f;
#pragma unroll
                for (u32 k = 0; k < PARTS; ++k) {
                    if constexpr (BY_STATE) decay = math::exp(step * decays[i][k]);
                    state.v[i][k] = math::fma(decay, state.v[i][k], input * inputs[k]);
                    sum = math::fma(state.v[i][k], outputs[k], sum);
                }
                sum = math::fma(direct[i], value, line_sum(sum));
                if (at.lane == i) result = sum;
            }
            if (at.exists && at.lane < STATE_LINES) y[row * p.channels + at.first + at.lane] = store<T>(result);
            const u32 slot = to[row];
            if (slot < p.slots) state.store(states, slot, p.channels, at);
        }
    }
}

// A line is what a head keeps for one element of its values: line = line * w + (line . a) b + v k, y = line . r.
DEVICE_FN void wkv7_scan(const float* r, const float* w, const float* k, const float* v, const float* a, const float* b, float* states,
                          const u32* starts, const u32* from, const u32* to, float* y, const WkvScan& p) {
    constexpr u32 PARTS = WKV_HEAD / STATE_LANES;
    const u64 tiles = (u64)p.sequences * p.tiles;
    for (u64 tile = block_x(); tile < tiles; tile += grid_dim()) {
        const Place at(tile, p.tiles, p.channels);
        const u32 head = at.first / WKV_HEAD * WKV_HEAD;
        Lines<PARTS> state;
        state.load(states, from[at.sequence], p.slots, p.channels, at);
        const u32 end = last_row(starts, at.sequence, p.rows);
        for (u64 row = starts[at.sequence]; row < end; ++row) {
            const u64 start = row * p.channels;
            float keys[PARTS];
            float decays[PARTS];
            float removed[PARTS];
            float added[PARTS];
            float queries[PARTS];
            load_parts<PARTS>(k + start + head, at.lane, keys);
            load_parts<PARTS>(w + start + head, at.lane, decays);
            load_parts<PARTS>(a + start + head, at.lane, removed);
            load_parts<PARTS>(b + start + head, at.lane, added);
            load_parts<PARTS>(r + start + head, at.lane, queries);
            float result = 0.0f;
#pragma unroll
            for (u32 i = 0; i < STATE_LINES; ++i) {
                const float value = v[start + at.first + i];
                float dot = 0.0f;
#pragma unroll
                for (u32 n = 0; n < PARTS; ++n) dot = math::fma(state.v[i][n], removed[n], dot);
                dot = line_sum(dot);
                float sum = 0.0f;
#pragma unroll
                for (u32 n = 0; n < PARTS; ++n) {
                    state.v[i][n] = math::fma(state.v[i][n], decays[n], math::fma(dot, added[n], value * keys[n]));
                    sum = math::fma(state.v[i][n], queries[n], sum);
                }
                sum = line_sum(sum);
                if (at.lane == i) result = sum;
            }
            if (at.exists && at.lane < STATE_LINES) y[start + at.first + at.lane] = result;
            const u32 slot = to[row];
            if (slot < p.slots) state.store(states, slot, p.channels, at);
        }
    }
}

// A thread has a channel of a sequence: h = a h + sqrt(1 - a^2) sigmoid(input gate) x, with
// a = exp(-8 sigmoid(recurrent gate) rate); a sequence's first row comes without the root.
template <typename T>
DEVICE_FN void gated_recurrence(const T* x, const T* input_gate, const T* recurrent_gate, const float* rates, float* states,
                                const u32* starts, const u32* from, const u32* to, T* y, const GatedRecurrence& p) {
    const u64 count = (u64)p.sequences * p.channels;
    for (u64 i = global_index(); i < count; i += global_size()) {
        const u32 sequence = (u32)(i / p.channels);
        const u32 channel = (u32)(i - (u64)sequence * p.channels);
        const float rate = rates[channel];
        const u32 slot = from[sequence];
        bool begins = slot >= p.slots;
        float state = begins ? 0.0f : states[(u64)slot * p.channels + channel];
        const u32 end = last_row(starts, sequence, p.rows);
        for (u64 row = starts[sequence]; row < end; ++row) {
            const u64 place = row * p.channels + channel;
            const float log_decay = -8.0f * sigmoid(load(recurrent_gate[place])) * rate;
            const float root = begins ? 1.0f : math::sqrt(-math::expm1(2.0f * log_decay));
            const float input = load(x[place]) * sigmoid(load(input_gate[place])) * root;
            state = math::fma(math::exp(log_decay), state, input);
            begins = false;
            y[place] = store<T>(state);
            const u32 kept = to[row];
            if (kept < p.slots) states[(u64)kept * p.channels + channel] = state;
        }
    }
}

#define SELECTIVE(name, T, PARTS, BY_STATE, kind)                                                                              \
    extern "C" __global__ MAX_BLOCK(STATE_BLOCK) void selective_scan_##kind##_##PARTS##_##name(                                \
        const T* x, const T* dt, const T* b, const T* c, const float* a, const float* d, const float* dt_bias, float* states,  \
        const u32* starts, const u32* from, const u32* to, T* y, SelectiveScan p) {                                            \
        selective_scan<T, PARTS, BY_STATE>(x, dt, b, c, a, d, dt_bias, states, starts, from, to, y, p);                        \
    }
#define STATE_SPACE(name, T)                                                                                                   \
    SELECTIVE(name, T, 1, true, states)                                                                                        \
    SELECTIVE(name, T, 4, true, states)                                                                                        \
    SELECTIVE(name, T, 1, false, heads)                                                                                        \
    SELECTIVE(name, T, 2, false, heads)                                                                                        \
    SELECTIVE(name, T, 4, false, heads)                                                                                        \
    SELECTIVE(name, T, 8, false, heads)                                                                                        \
    SELECTIVE(name, T, 16, false, heads)                                                                                       \
    extern "C" __global__ MAX_BLOCK(256) void gated_recurrence_##name(                                                         \
        const T* x, const T* input_gate, const T* recurrent_gate, const float* rates, float* states, const u32* starts,        \
        const u32* from, const u32* to, T* y, GatedRecurrence p) {                                                             \
        gated_recurrence<T>(x, input_gate, recurrent_gate, rates, states, starts, from, to, y, p);                             \
    }
PART(f16) STATE_SPACE(f16, f16)
PART(bf16) STATE_SPACE(bf16, bf16)
PART(f32) STATE_SPACE(f32, float)

#define WKV7(name)                                                                                                             \
    extern "C" __global__ MAX_BLOCK(STATE_BLOCK) void wkv7_scan_##name(                                                        \
        const float* r, const float* w, const float* k, const float* v, const float* a, const float* b, float* states,        \
        const u32* starts, const u32* from, const u32* to, float* y, WkvScan p) {                                              \
        wkv7_scan(r, w, k, v, a, b, states, starts, from, to, y, p);                                   \
    }
PART(f32) WKV7(f32)
