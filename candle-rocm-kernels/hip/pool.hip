// Average and maximum over windows of images [batch, channels, height, width]. One thread per output; the windows do
// not pass the images' edges.
#include "device.h"
#include "shared/pool.h"

// dst[i] = window(the window's first element) for every output.
template <typename T, typename Window> DEVICE_FN void pool(const T* src, T* dst, const Pool& p, Window window) {
    for (u64 i = global_index(); i < p.outputs; i += global_size()) {
        const u32 row = (u32)i / p.out_w;
        const u32 x = (u32)i - row * p.out_w;
        const u32 plane = row / p.out_h;
        const u32 y = row - plane * p.out_h;
        const u32 image = plane / p.channels;
        const u32 channel = plane - image * p.channels;
        const u32 at = image * p.strides[0] + channel * p.strides[1] + y * p.step_h * p.strides[2] + x * p.step_w * p.strides[3];
        dst[i] = window(src + at);
    }
}

// Floats add up in the compute type and are rounded once; integers add up in 64 bits and the mean is cut off towards
// zero.
template <typename T, bool FLOAT = is_float<T>::value> struct Average {
    static DEVICE_FN T of(const T* first, const Pool& p) {
        compute_t<T> sum = 0;
        for (u32 y = 0; y < p.window_h; y++) {
            for (u32 x = 0; x < p.window_w; x++) sum += load(first[y * p.strides[2] + x * p.strides[3]]);
        }
        return store<T>(sum / (compute_t<T>)((u64)p.window_h * p.window_w));
    }
};
template <typename T> struct Average<T, false> {
    static DEVICE_FN T of(const T* first, const Pool& p) {
        u64 sum = 0;  // unsigned, where overflow wraps
        for (u32 y = 0; y < p.window_h; y++) {
            for (u32 x = 0; x < p.window_w; x++) sum += (u64)(i64)first[y * p.strides[2] + x * p.strides[3]];
        }
        return (T)((i64)sum / (i64)((u64)p.window_h * p.window_w));
    }
};

// NaN is the largest. Of equal elements the first one stays.
template <typename T> DEVICE_FN T largest(const T* first, const Pool& p) {
    T best = *first;
    for (u32 y = 0; y < p.window_h; y++) {
        for (u32 x = 0; x < p.window_w; x++) {
            const T v = first[y * p.strides[2] + x * p.strides[3]];
            const bool larger = load(best) < load(v) || (load(v) != load(v) && load(best) == load(best));
            if (larger) best = v;
        }
    }
    return best;
}

#define POOL(dtype, T)                                                                         \
    extern "C" __global__ MAX_BLOCK(256) void avg_pool2d_##dtype(const T* src, T* dst, Pool p) { \
        pool(src, dst, p, [&](const T* first) { return Average<T>::of(first, p); });           \
    }                                                                                          \
    extern "C" __global__ MAX_BLOCK(256) void max_pool2d_##dtype(const T* src, T* dst, Pool p) { \
        pool(src, dst, p, [&](const T* first) { return largest(first, p); });                  \
    }
POOL(u8, u8)
POOL(u32, u32)
POOL(i16, i16)
POOL(i32, i32)
POOL(i64, i64)
POOL(f16, f16)
POOL(bf16, bf16)
POOL(f32, float)
POOL(f64, double)
POOL(f8e4m3, f8e4m3)
