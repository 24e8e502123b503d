// Convolutions and transposed convolutions of images [batch, channels, height, width]; a sequence is an image of height
// 1.
//
// `direct` computes each output element in one thread, for products too thin to be worth a matrix. `im2col` lays out
// the input so that a convolution is a matrix product. A transposed convolution is a product first, whose columns
// `col2im` then gathers: each output element sums what belongs to it, so there are no atomics and the result never
// varies. Sums are made in compute_t and rounded once.
#include "device.h"
#include "shared/conv.h"

using namespace device;

// Input coordinate that tap `k` reads for output coordinate `o`; beyond `size`, whichever side, if it is padding.
DEVICE_FN u32 forward_source(u32 o, u32 k, u32 stride, u32 pad, u32 dilation) { return o * stride + k * dilation - pad; }

// Whether tap `k` of a transposed convolution adds to output coordinate `o`, and from which input coordinate.
DEVICE_FN bool transposed_source(u32 o, u32 k, u32 stride, u32 pad, u32 dilation, u32 size, u32& source) {
    const u32 position = o + pad - k * dilation;
    if ((i32)position < 0) return false;
    source = position / stride;
    return source * stride == position && source < size;
}

// An output element's place.
struct Place {
    u32 x, y, channel, batch;
};
DEVICE_FN Place place_of(u32 i, u32 channels, const Geometry& g) {
    const u32 row = i / g.out_w;
    const u32 plane = row / g.out_h;
    const u32 batch = plane / channels;
    return Place{i - row * g.out_w, row - plane * g.out_h, plane - batch * channels, batch};
}

// A sum of products: of floats in the compute type, rounded once; of integers in 64 bits, which wraps as their own
// width would.
template <typename T, bool FLOAT = is_float<T>::value> struct Products {
    compute_t<T> sum = 0;
    DEVICE_FN void add(T a, T b) { sum = math::fma(load(a), load(b), sum); }
    DEVICE_FN T result() const { return store<T>(sum); }
};
template <typename T> struct Products<T, false> {
    u64 sum = 0;
    DEVICE_FN void add(T a, T b) { sum += (u64)a * (u64)b; }
    DEVICE_FN T result() const { return (T)sum; }
};

template <typename T> DEVICE_FN void direct(const T* x, const T* w, T* dst, u32 n, const Geometry& g) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        const Place at = place_of((u32)i, g.c_out, g);
        Products<T> sum;
        for (u32 c = 0; c < g.c_in; ++c) {
            const T* plane = x + (at.batch * g.x_batch + c * g.x_channel);
            const T* taps = w + (at.channel * g.w_out + c * g.w_in);
            for (u32 ky = 0; ky < g.k_h; ++ky) {
                const u32 row = forward_source(at.y, ky, g.stride_h, g.pad_h, g.dilation_h);
                if (row >= g.in_h) continue;
                for (u32 kx = 0; kx < g.k_w; ++kx) {
                    const u32 column = forward_source(at.x, kx, g.stride_w, g.pad_w, g.dilation_w);
                    if (column >= g.in_w) continue;
                    sum.add(plane[row * g.x_row + column * g.x_column], taps[ky * g.w_row + kx * g.w_column]);
                }
            }
        }
        dst[i] = sum.result();
    }
}

template <typename T> DEVICE_FN void transpose_direct(const T* x, const T* w, T* dst, u32 n, const Geometry& g) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        const Place at = place_of((u32)i, g.c_out, g);
        Products<T> sum;
        for (u32 ky = 0; ky < g.k_h; ++ky) {
            u32 row;
            if (!transposed_source(at.y, ky, g.stride_h, g.pad_h, g.dilation_h, g.in_h, row)) continue;
            for (u32 kx = 0; kx < g.k_w; ++kx) {
                u32 column;
                if (!transposed_source(at.x, kx, g.stride_w, g.pad_w, g.dilation_w, g.in_w, column)) continue;
                const T* pixel = x + (at.batch * g.x_batch + row * g.x_row + column * g.x_column);
                const T* tap = w + (at.channel * g.w_out + ky * g.w_row + kx * g.w_column);
                for (u32 c = 0; c < g.c_in; ++c) sum.add(pixel[c * g.x_channel], tap[c * g.w_in]);
            }
        }
        dst[i] = sum.result();
    }
}

// `positions` output positions of some images, from the `first`, become the columns of matrices [c_in * k_h * k_w,
// positions], one per image. A thread writes all taps of one channel and position, so that neighbours write neighbours.
// `n`: images * c_in * positions.
template <typename T> DEVICE_FN void im2col(const T* x, T* columns, u32 n, u32 first, u32 positions, const Geometry& g) {
    for (u64 i = global_index(); i < n; i += global_size()) {
        const u32 plane = (u32)i / positions;
        const u32 position = (u32)i - plane * positions;
        const u32 batch = plane / g.c_in;
        const u32 y = (first + position) / g.out_w;
        const u32 x_out = first + position - y * g.out_w;
        const T* src = x + (batch * g.x_batch + (plane - batch * g.c_in) * g.x_channel);
        T* dst = columns + ((u64)plane * g.k_h * g.k_w * positions + position);
        for (u32 ky = 0; ky < g.k_h; ++ky) {
            const u32 row = forward_source(y, ky, g.stride_h, g.pad_h, g.dilation_h);
            for (u32 kx = 0; kx < g.k_w; ++kx, dst += positions) {
                const u32 column = forward_source(x_out, kx, g.stride_w, g.pad_w, g.dilation_w);
                const bool inside = row < g.in_h && column < g.in_w;
                *dst = inside ? src[row * g.x_row + column * g.x_column] : T{};
            }
        }
    }
}

// Sums the columns [images, channels * k_h * k_w, in_h * in_w] of a transposed convolution's product, for `channels` of
// the c_out channels, of which `dst` is the first. `n`: images * channels * out_h * out_w.
template <typename T> DEVICE_FN void col2im(const compute_t<T>* columns, T* dst, u32 n, u32 channels, const Geometry& g) {
    using C = compute_t<T>;
    const u32 inputs = g.in_h * g.in_w;
    for (u64 i = global_index(); i < n; i += global_size()) {
        const Place at = place_of((u32)i, channels, g);
        const C* taps = columns + (u64)(at.batch * channels + at.channel) * g.k_h * g.k_w * inputs;
        C sum = 0;
        for (u32 ky = 0; ky < g.k_h; ++ky) {
            u32 row;
            if (!transposed_source(at.y, ky, g.stride_h, g.pad_h, g.dilation_h, g.in_h, row)) continue;
            for (u32 kx = 0; kx < g.k_w; ++kx) {
                u32 column;
                if (!transposed_source(at.x, kx, g.stride_w, g.pad_w, g.dilation_w, g.in_w, column)) continue;
                sum += taps[(u64)(ky * g.k_w + kx) * inputs + row * g.in_w + column];
            }
        }
        dst[(((u64)at.batch * g.c_out + at.channel) * g.out_h + at.y) * g.out_w + at.x] = store<T>(sum);
    }
}

#define CONV_DIRECT(dtype, T)                                                                                               \
    extern "C" __global__ void conv_direct_##dtype(const T* x, const T* w, T* dst, u32 n, Geometry g) {                      \
        direct(x, w, dst, n, g);                                                                                            \
    }                                                                                                                       \
    extern "C" __global__ void conv_transpose_direct_##dtype(const T* x, const T* w, T* dst, u32 n, Geometry g) {            \
        transpose_direct(x, w, dst, n, g);                                                                                  \
    }
#define CONV(dtype, T)                                                                                                      \
    CONV_DIRECT(dtype, T)                                                                                                   \
    extern "C" __global__ void im2col_##dtype(const T* x, T* columns, u32 n, u32 first, u32 positions, Geometry g) {         \
        im2col(x, columns, n, first, positions, g);                                                                         \
    }                                                                                                                       \
    extern "C" __global__ void col2im_##dtype(const compute_t<T>* columns, T* dst, u32 n, u32 channels, Geometry g) {        \
        col2im(columns, dst, n, channels, g);                                                                               \
    }
CONV(f16, f16)
CONV(bf16, bf16)
CONV(f32, float)
CONV(f64, double)
// No library multiplies matrices of these.
CONV_DIRECT(f8e4m3, f8e4m3)
CONV_DIRECT(u8, u8)
CONV_DIRECT(u32, u32)
CONV_DIRECT(i16, i16)
CONV_DIRECT(i32, i32)
CONV_DIRECT(i64, i64)
