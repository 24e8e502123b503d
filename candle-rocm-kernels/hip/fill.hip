// One value everywhere. The value's type only matters by its size.
#include "elementwise.h"

// Contiguous elements; the address may have any alignment.
template <typename T> DEVICE_FN void fill(u64 n, T* out, T value) {
    constexpr u32 N = 16 / sizeof(T);
    const u64 misaligned = ((u64)out % 16) / sizeof(T);
    const u64 head = misaligned == 0 ? 0 : N - misaligned < n ? N - misaligned : n;
    const u64 packs = (n - head) / N;
    Pack<T, N> pack;
    for (u32 j = 0; j < N; j++) pack.v[j] = value;
    Pack<T, N>* aligned = (Pack<T, N>*)(out + head);
    for (u64 i = global_index(); i < packs; i += global_size()) aligned[i] = pack;
    // Before the first whole pack and after the last: fewer than 2 N elements.
    const u64 rest = n - packs * N;
    for (u64 i = global_index(); i < rest; i += global_size()) out[i < head ? i : i + packs * N] = value;
}

template <typename T> DEVICE_FN void fill_strided(u64 n, const Dims& dims, const Strides& strides, T* out, T value) {
    for (u64 i = global_index(); i < n; i += global_size()) out[strided_offset(dims, strides, (u32)i)] = value;
}

#define FILL(name, T)                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void fill_##name(u64 n, T* out, T value) { fill<T>(n, out, value); }                    \
    extern "C" __global__ MAX_BLOCK(256) void fill_strided_##name(u64 n, Dims dims, Strides strides, T* out, T value) {          \
        fill_strided<T>(n, dims, strides, out, value);                                                                           \
    }

FILL(u8, u8)
FILL(u32, u32)
FILL(i16, i16)
FILL(i32, i32)
FILL(i64, i64)
FILL(f16, f16)
FILL(bf16, bf16)
FILL(f32, float)
FILL(f64, double)
FILL(f8e4m3, f8e4m3)
