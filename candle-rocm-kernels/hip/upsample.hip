// Images [batch, channels, height, width] at another size: the nearest element, or bilinear interpolation. One thread
// per output.
//
// Positions are computed in f64, in the same steps as on the CPU, so that the same elements are chosen.
#include "device.h"
#include "shared/upsample.h"

// dst[i] = sample(the plane's first element, y, x) for every output.
template <typename T, typename Sample> DEVICE_FN void upsample(const T* src, T* dst, const Upsample& u, Sample sample) {
    for (u64 i = global_index(); i < u.outputs; i += global_size()) {
        const u32 row = (u32)i / u.out_w;
        const u32 x = (u32)i - row * u.out_w;
        const u32 plane = row / u.out_h;
        const u32 y = row - plane * u.out_h;
        const u32 image = plane / u.channels;
        const u32 channel = plane - image * u.channels;
        dst[i] = sample(src + (image * u.strides[0] + channel * u.strides[1]), y, x);
    }
}

DEVICE_FN u32 nearest(u32 out, double scale, u32 size) {
    const u32 at = (u32)((double)out * scale);
    return at < size ? at : size - 1;
}

// The two neighbours of a position and how much the second counts.
template <typename C> struct Neighbours {
    u32 low;
    u32 high;
    C weight;

    DEVICE_FN Neighbours(u32 out, double scale, u32 size, bool align_corners) {
        double at = align_corners ? scale * (double)out : scale * ((double)out + 0.5) - 0.5;
        if (at < 0) at = 0;
        low = (u32)at;
        const double past = at - (double)low;
        if (low > size - 1) low = size - 1;
        high = low + 1 < size ? low + 1 : size - 1;
        weight = (C)(past < 1 ? past : 1);
    }
};

// C: the type that it interpolates in. In f64, all but f32 come out as on the CPU to the bit: f32 would put results
// that lie halfway between two small floats, or at an integer, on either side.
template <typename C, typename T> DEVICE_FN T bilinear(const T* plane, u32 out_y, u32 out_x, const Upsample& u) {
    const Neighbours<C> y(out_y, u.scale_h, u.in_h, u.align_corners);
    const Neighbours<C> x(out_x, u.scale_w, u.in_w, u.align_corners);
    const auto line = [&](u32 row) {
        const T* at = plane + row * u.strides[2];
        return (C)load(at[x.low * u.strides[3]]) * (C(1) - x.weight) + (C)load(at[x.high * u.strides[3]]) * x.weight;
    };
    return store<T>(line(y.low) * (C(1) - y.weight) + line(y.high) * y.weight);
}

// Copies bits, so one kernel per width.
#define NEAREST(bits)                                                                                                               \
    extern "C" __global__ MAX_BLOCK(256) void upsample_nearest_b##bits(const u##bits* src, u##bits* dst, Upsample u) {                \
        upsample(src, dst, u, [&](const u##bits* plane, u32 y, u32 x) {                                                             \
            return plane[nearest(y, u.scale_h, u.in_h) * u.strides[2] + nearest(x, u.scale_w, u.in_w) * u.strides[3]];              \
        });                                                                                                                         \
    }
NEAREST(8)
NEAREST(16)
NEAREST(32)
NEAREST(64)

#define BILINEAR(dtype, T, C)                                                                                                       \
    extern "C" __global__ MAX_BLOCK(256) void upsample_bilinear2d_##dtype(const T* src, T* dst, Upsample u) {                         \
        upsample(src, dst, u, [&](const T* plane, u32 y, u32 x) { return bilinear<C>(plane, y, x, u); });                           \
    }
BILINEAR(u8, u8, double)
BILINEAR(u32, u32, double)
BILINEAR(i16, i16, double)
BILINEAR(i32, i32, double)
BILINEAR(i64, i64, double)
BILINEAR(f16, f16, double)
BILINEAR(bf16, bf16, double)
BILINEAR(f32, float, float)
BILINEAR(f64, double, double)
BILINEAR(f8e4m3, f8e4m3, double)
