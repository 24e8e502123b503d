// Selection by a condition: where it is not zero the first operand, elsewhere the second. Values are only moved, so one
// kernel serves all types of a size.
#include "elementwise.h"

// out[i] = cond[i] != 0 ? x[i] : y[i]
template <typename C, typename T>
DEVICE_FN void where(u64 n, const Dims& dims, const Strides& cs, const Strides& xs, const Strides& ys, const C* cond, const T* x, const T* y,
                     T* out) {
    constexpr u32 N = pack_length(wider(sizeof(C), sizeof(T)));
    const Input<C, N> condition(cond, dims, cs);
    const Input<T, N> on_true(x, dims, xs);
    const Input<T, N> on_false(y, dims, ys);
    const bool gather = condition.way == condition.GATHER || on_true.way == on_true.GATHER || on_false.way == on_false.GATHER;
    const u64 packs = gather ? 0 : n / N;
    for (u64 p = global_index(); p < packs; p += global_size()) {
        const Offsets<3> place = offsets(dims, p * N, cs, xs, ys);
        const Pack<C, N> c = condition.pack(place.at[0]);
        const Pack<T, N> a = on_true.pack(place.at[1]);
        const Pack<T, N> b = on_false.pack(place.at[2]);
        Pack<T, N> r;
        for (u32 j = 0; j < N; j++) r.v[j] = c.v[j] != 0 ? a.v[j] : b.v[j];
        *(Pack<T, N>*)(out + p * N) = r;
    }
    for (u64 i = packs * N + global_index(); i < n; i += global_size()) {
        out[i] = condition.element(i) != 0 ? on_true.element(i) : on_false.element(i);
    }
}

#define WHERE(condition, C, name, T)                                                                                                     \
    extern "C" __global__ MAX_BLOCK(256) void where_##condition##_##name(u64 n, Dims dims, Strides cs, Strides xs, Strides ys, const C* cond, \
                                                                         const T* x, const T* y, T* out) {                               \
        where<C, T>(n, dims, cs, xs, ys, cond, x, y, out);                                                                               \
    }

#define WHERE_ALL(condition, C)                 \
    WHERE(condition, C, 8bit, u8)               \
    WHERE(condition, C, 16bit, u16)             \
    WHERE(condition, C, 32bit, u32)             \
    WHERE(condition, C, 64bit, u64)

WHERE_ALL(u8, u8)
WHERE_ALL(u32, u32)
WHERE_ALL(i16, i16)
WHERE_ALL(i32, i32)
WHERE_ALL(i64, i64)
