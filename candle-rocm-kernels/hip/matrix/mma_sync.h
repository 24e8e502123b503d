// mma.sync and ldmatrix: the matrix instructions of nvptx from sm_80 on, in waves of 32. Included by matrix.h.
#ifndef CANDLE_ROCM_MATRIX_MMA_SYNC_H
#define CANDLE_ROCM_MATRIX_MMA_SYNC_H

namespace device {
namespace matrix {

template <typename T> DEVICE_FN void multiply_rows(const Words& row, const Fragment<T>& columns, typename Format<T>::Sum* first, typename Format<T>::Sum* second) {
    const Words &x = columns.bits[0], &y = columns.bits[1];
    // C apart from D: where it is a constant, no register needs to be set to it before.
    const typename Format<T>::Sum c[] = {first[0], first[1], second[0], second[1]};
#define MMA(instruction, S)                                                                                                                    \
    asm("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                                  \
        : "=" S(first[0]), "=" S(first[1]), "=" S(second[0]), "=" S(second[1])                                                                 \
        : "r"(x.w[0]), "r"(y.w[0]), "r"(x.w[1]), "r"(y.w[1]), "r"(row.w[0]), "r"(row.w[1]), S(c[0]), S(c[1]), S(c[2]), S(c[3]))
    if constexpr (is_same<T, f16>::value) {
        MMA("m16n8k16.row.col.f32.f16.f16.f32", "f");
    } else if constexpr (is_same<T, bf16>::value) {
        MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
    } else if constexpr (is_same<T, f8e4m3>::value) {
        MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32", "f");
    } else {
        MMA("m16n8k32.row.col.s32.s8.s8.s32", "r");
    }
#undef MMA
}

#define LOAD_MATRICES(transposed, row, x, y, z, w)                                                               \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" transposed ".shared.b16 {%0, %1, %2, %3}, [%4];"                 \
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)                                                            \
                 : "r"((u32)__cvta_generic_to_shared(row))                                                       \
                 : "memory")
template <typename T> DEVICE_FN FragmentA<T> load_a(const T* p, u32 stride) {
    FragmentA<T> fragment;
    const u8* const row = (const u8*)(p + (lane() % APART + lane() / TILE * APART) * stride) + lane() / APART % 2 * 16;
    LOAD_MATRICES("", row, fragment.bits[0].w[0], fragment.bits[0].w[1], fragment.bits[1].w[0], fragment.bits[1].w[1]);
    return fragment;
}
template <typename T> DEVICE_FN FragmentB<T> load_b(const T* p, u32 stride) {
    FragmentB<T> fragment;
    const u8* const row = (const u8*)(p + lane() % TILE * stride) + lane() / TILE * 16;
    LOAD_MATRICES("", row, fragment.bits[0].w[0], fragment.bits[1].w[0], fragment.bits[0].w[1], fragment.bits[1].w[1]);
    return fragment;
}
template <typename T> DEVICE_FN FragmentA<T> load_transposing(const T* p, u32 stride) {
    FragmentA<T> fragment;
    // Each lane has the address of one row of 16 bytes: those of the four words, one after the other.
    LOAD_MATRICES(".trans", p + lane() % TILE * stride + lane() / TILE * 8, fragment.bits[0].w[0], fragment.bits[0].w[1], fragment.bits[1].w[0],
                  fragment.bits[1].w[1]);
    return fragment;
}
#undef LOAD_MATRICES

}  // namespace matrix
}  // namespace device

#endif
