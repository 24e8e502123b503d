// Quantized blocks to floating point. Each thread reads and writes 8 consecutive elements.
#ifndef CANDLE_ROCM_DEQUANTIZE_H
#define CANDLE_ROCM_DEQUANTIZE_H

#include "device.h"
#include "blocks.h"

template <typename T> struct alignas(blocks::GROUP * sizeof(T)) Group {
    T element[blocks::GROUP];
};

// `groups` is the number of elements over 8; y is aligned to a group.
template <typename Format, typename T> DEVICE_FN void dequantize(u64 groups, const u8* x, T* y) {
    constexpr u32 GROUPS_PER_BLOCK = Format::ELEMENTS / blocks::GROUP;
    for (u64 i = global_index(); i < groups; i += global_size()) {
        float values[blocks::GROUP];
        Format::read(x + i / GROUPS_PER_BLOCK * Format::BYTES, (u32)(i % GROUPS_PER_BLOCK), values);
        Group<T> group;
        for (u32 e = 0; e < blocks::GROUP; ++e) group.element[e] = store<T>(values[e]);
        ((Group<T>*)y)[i] = group;
    }
}

#define DEQUANTIZE_TO(FORMAT, NAME, T)                                                                       \
    extern "C" __global__ void dequantize_##FORMAT##_##NAME(u64 groups, const u8* x, T* y) {                  \
        dequantize<blocks::FORMAT, T>(groups, x, y);                                                         \
    }
#define DEQUANTIZE(FORMAT)              \
    DEQUANTIZE_TO(FORMAT, f32, float)   \
    DEQUANTIZE_TO(FORMAT, f16, f16)     \
    DEQUANTIZE_TO(FORMAT, bf16, bf16)

#endif
