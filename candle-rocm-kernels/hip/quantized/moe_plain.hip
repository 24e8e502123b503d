// Mixture of experts of plain numbers in GGUF files: each slot, a pair of a token and one of its experts, is a vector of floats times the expert's matrix.
#include "blocks.h"
#include "index_error.h"

// Neighbouring threads that share a row of a matrix: each step reads 128 consecutive elements.
constexpr u32 LANES = 16;

template <typename T> struct __attribute__((packed)) Numbers {
    T v[blocks::GROUP];
};

// y[slot][row] = w[expert of the slot][row] . x[slot / slots_per_column]; cols is a multiple of 8. An expert that does not exist gives zeros and is
// reported, but for the largest number, which names none.
template <typename T>
DEVICE_FN void moe(u32 rows, u32 cols, u32 slots, u32 slots_per_column, u32 experts, u32 op, const T* w, const float* x, const u32* experts_of,
                   IndexError* error, float* y) {
#ifndef __HIP_SIM__
#pragma clang fp contract(fast)
#endif
    constexpr u32 ROWS = WAVE / LANES;
    const u32 waves_per_slot = (rows + ROWS - 1) / ROWS;
    for (u64 task = global_index() / WAVE; task < (u64)slots * waves_per_slot; task += global_size() / WAVE) {
        const u32 slot = (u32)(task / waves_per_slot);
        const u32 row = (u32)(task - (u64)slot * waves_per_slot) * ROWS + thread_x() % WAVE / LANES;
        const u32 expert = experts_of[slot];
        const bool found = expert < experts;
        if (!found && expert != 0xffffffffu) report_index(error, op, experts, expert);
        // Lanes beyond the last row repeat it, for the shuffles' sake only.
        const T* const weights = w + ((u64)(found ? expert : 0) * rows + (row < rows ? row : rows - 1)) * cols;
        const float* const vector = x + (u64)(slot / slots_per_column) * cols;
        float sum = 0;
        for (u32 k = thread_x() % LANES * blocks::GROUP; k < (found ? cols : 0); k += LANES * blocks::GROUP) {
            const Numbers<T> a = *(const Numbers<T>*)(weights + k);
            const Numbers<float> b = *(const Numbers<float>*)(vector + k);
            for (u32 e = 0; e < blocks::GROUP; ++e) sum += load(a.v[e]) * b.v[e];
        }
        for (u32 mask = LANES / 2; mask > 0; mask /= 2) sum += shfl_xor(sum, mask);
        if (thread_x() % LANES == 0 && row < rows) y[(u64)slot * rows + row] = sum;
    }
}

#define MOE_PLAIN(NAME, T)                                                                                                             \
    extern "C" __global__ MAX_BLOCK(256) void moe_plain_##NAME(u32 rows, u32 cols, u32 slots, u32 slots_per_column, u32 experts,       \
                                                               u32 op, const T* w, const float* x, const u32* experts_of,              \
                                                               IndexError* error, float* y) {                                          \
        moe<T>(rows, cols, slots, slots_per_column, experts, op, w, x, experts_of, error, y);                                          \
    }

MOE_PLAIN(f32, float)
MOE_PLAIN(f16, f16)
MOE_PLAIN(bf16, bf16)
