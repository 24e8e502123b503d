// nvcuda::wmma: each warp multiplies tiles of its own.
#include "port/wmma.h"
PORT_BEGIN
using namespace nvcuda::wmma;

template <typename Layout> constexpr bool by_rows = std::is_same<Layout, row_major>::value;

// d = 2 (a b + c), transposed, in lines that are twice as long as they need to be; warp 2 leaves the product out, while
// its wave goes on.
template <typename T, typename S, int M, int N, int K, typename A, typename B, typename Kind = T>
__device__ void product(const T* a, const T* b, const S* c, S* d) {
    const int warp = threadIdx.x / 32;
    fragment<matrix_a, M, N, K, Kind, A> x;
    fragment<matrix_b, M, N, K, Kind, B> y;
    fragment<accumulator, M, N, K, S> sum[2];
    fill_fragment(sum[0], S(0));
    load_matrix_sync(x, a + warp * M * K, by_rows<A> ? K : M);
    load_matrix_sync(y, b + warp * K * N, by_rows<B> ? N : K);
    load_matrix_sync(sum[1], c + warp * M * N, N, mem_row_major);
    for (int i = 0; i < sum[0].num_elements; ++i) sum[0].x[i] = sum[0].x[i] + sum[1].x[i];
    if (warp != 2) mma_sync(sum[0], x, y, sum[0]);
    for (int i = 0; i < sum[0].num_elements; ++i) sum[0].x[i] = sum[0].x[i] + sum[0].x[i];
    // What lies between the lines is nobody's.
    for (int i = threadIdx.x % 32; i < 2 * M * N; i += 32) d[warp * 2 * M * N + i] = S(7);
    __syncwarp();
    store_matrix_sync(d + warp * 2 * M * N, sum[0], 2 * M, mem_col_major);
}
#define PRODUCT(name, T, S, M, N, K, A, B) \
    extern "C" PORT_KERNEL(256) void name(const T* a, const T* b, const S* c, S* d) { product<T, S, M, N, K, A, B>(a, b, c, d); }
PRODUCT(half_rc, __half, float, 16, 16, 16, row_major, col_major)
PRODUCT(half_cr, __half, float, 16, 16, 16, col_major, row_major)
PRODUCT(half_32, __half, float, 32, 8, 16, row_major, row_major)
PRODUCT(half_8, __half, float, 8, 32, 16, col_major, col_major)
PRODUCT(half_half, __half, __half, 16, 16, 16, row_major, row_major)
PRODUCT(bf16_rc, __nv_bfloat16, float, 16, 16, 16, row_major, col_major)
PRODUCT(bf16_8, __nv_bfloat16, float, 8, 32, 16, row_major, col_major)
PRODUCT(i8_rc, signed char, int, 16, 16, 16, row_major, col_major)
PRODUCT(u8_rr, unsigned char, int, 16, 16, 16, row_major, row_major)
PRODUCT(u8_32, unsigned char, int, 32, 8, 16, col_major, col_major)
PRODUCT(f64_rc, double, double, 8, 8, 4, row_major, col_major)
extern "C" PORT_KERNEL(256) void tf32_rc(const float* a, const float* b, const float* c, float* d) {
    product<float, float, 16, 16, 8, row_major, col_major, precision::tf32>(a, b, c, d);
}

// Sums that leave their range: 16 x y + c, saturated.
template <typename T, typename S> __device__ void saturated(const T* x, const T* y, const S* c, S* d) {
    fragment<matrix_a, 16, 16, 16, T, row_major> a;
    fragment<matrix_b, 16, 16, 16, T, col_major> b;
    fragment<accumulator, 16, 16, 16, S> sum;
    fill_fragment(a, x[0]);
    fill_fragment(b, y[0]);
    fill_fragment(sum, c[0]);
    mma_sync(sum, a, b, sum, true);
    store_matrix_sync(d, sum, 16, mem_row_major);
}
extern "C" PORT_KERNEL(32) void saturated_i8(const signed char* a, const signed char* b, const int* c, int* d) { saturated(a, b, c, d); }
extern "C" PORT_KERNEL(32) void saturated_half(const __half* a, const __half* b, const __half* c, __half* d) { saturated(a, b, c, d); }

extern "C" PORT_KERNEL(256) void to_tf32(const float* in, float* out) { out[threadIdx.x] = __float_to_tf32(in[threadIdx.x]); }

PORT_END
