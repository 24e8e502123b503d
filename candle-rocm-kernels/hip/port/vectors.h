// Vectors of two, three and four numbers, dim3, and what makes them. Included by cuda.h.
//
// As CUDA has them: structures without operators, with its alignments.
#ifndef CANDLE_ROCM_PORT_VECTORS_H
#define CANDLE_ROCM_PORT_VECTORS_H

namespace cuda_port {

#define PORT_VECTOR(T, name, TWO, FOUR)                                                                        \
    struct name##1 { T x; };                                                                                   \
    struct __attribute__((aligned(TWO))) name##2 { T x, y; };                                                  \
    struct name##3 { T x, y, z; };                                                                             \
    struct __attribute__((aligned(FOUR))) name##4 { T x, y, z, w; };                                           \
    constexpr PORT_FN name##1 make_##name##1(T x) { return name##1{x}; }                                       \
    constexpr PORT_FN name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                               \
    constexpr PORT_FN name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; }                       \
    constexpr PORT_FN name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
PORT_VECTOR(signed char, char, 2, 4)
PORT_VECTOR(unsigned char, uchar, 2, 4)
PORT_VECTOR(short, short, 4, 8)
PORT_VECTOR(unsigned short, ushort, 4, 8)
PORT_VECTOR(int, int, 8, 16)
PORT_VECTOR(unsigned, uint, 8, 16)
PORT_VECTOR(long, long, 16, 16)
PORT_VECTOR(unsigned long, ulong, 16, 16)
PORT_VECTOR(long long, longlong, 16, 16)
PORT_VECTOR(unsigned long long, ulonglong, 16, 16)
PORT_VECTOR(float, float, 8, 16)
PORT_VECTOR(double, double, 16, 16)
#undef PORT_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr __device__ dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr __device__ dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr __device__ operator uint3() const { return uint3{x, y, z}; }
};

namespace port {
PORT_FN uint3 as_uint3(index i) { return uint3{i.x, i.y, i.z}; }
PORT_FN dim3 as_dim3(index i) { return dim3(i.x, i.y, i.z); }
}  // namespace port

// Lanes of a warp, on every GPU: a wave of 64 is two warps.
constexpr int warpSize = 32;

}  // namespace cuda_port

#endif
