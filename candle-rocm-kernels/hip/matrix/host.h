// What mma_sync.h has, under hip-sim: whose prelude has the products, and plain loads for the rest. Included by
// matrix.h. (MFMA and WMMA need nothing: the prelude has clang's builtins.)
#ifndef CANDLE_ROCM_MATRIX_HOST_H
#define CANDLE_ROCM_MATRIX_HOST_H

namespace device {
namespace matrix {

template <typename T> DEVICE_FN void multiply_rows(const Words& row, const Fragment<T>& columns, typename Format<T>::Sum* first, typename Format<T>::Sum* second) {
    const Words &x = columns.bits[0], &y = columns.bits[1];
    const hip_sim_i32x4 a = {(i32)x.w[0], (i32)y.w[0], (i32)x.w[1], (i32)y.w[1]};
    const hip_sim_i32x2 b = {(i32)row.w[0], (i32)row.w[1]};
    if constexpr (is_same<T, i8>::value) {
        const hip_sim_i32x4 d = hip_sim_mma_s8(a, b, hip_sim_i32x4{first[0], first[1], second[0], second[1]});
        first[0] = d[0], first[1] = d[1], second[0] = d[2], second[1] = d[3];
    } else {
        const hip_sim_f32x4 c = {first[0], first[1], second[0], second[1]};
        const hip_sim_f32x4 d = sizeof(T) == 1 ? hip_sim_mma_e4m3(a, b, c) : is_same<T, f16>::value ? hip_sim_mma_f16(a, b, c) : hip_sim_mma_bf16(a, b, c);
        first[0] = d[0], first[1] = d[1], second[0] = d[2], second[1] = d[3];
    }
}

template <typename T> DEVICE_FN Fragment<T> load_halves(const T* p, u32 stride) {
    Fragment<T> fragment;
    for (u32 c = 0; c < COLUMNS; ++c) {
        for (u32 i = 0; i < 2; ++i) fragment.bits[c].w[i] = ((const u32*)(p + held(c) * stride))[i * PARTS + part()];
    }
    return fragment;
}
template <typename T> DEVICE_FN FragmentA<T> load_a(const T* p, u32 stride) { return load_halves(p, stride); }
template <typename T> DEVICE_FN FragmentB<T> load_b(const T* p, u32 stride) { return load_halves(p, stride); }
template <typename T> DEVICE_FN FragmentA<T> load_transposing(const T* p, u32 stride) {
    FragmentA<T> fragment;
    for (u32 c = 0; c < COLUMNS; ++c) {
        for (u32 i = 0; i < 2; ++i) {
            const T* const at = p + (part() * 2 + i * 8) * stride + held(c);
            fragment.bits[c].w[i] = at[0].bits | (u32)at[stride].bits << 16;
        }
    }
    return fragment;
}

}  // namespace matrix
}  // namespace device

#endif
