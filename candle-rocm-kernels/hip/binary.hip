// Arithmetic, powers and comparison of two operands of one shape; broadcasting is a stride of 0.
#include "elementwise.h"

#define OPERATION(Name, expression)                                                         \
    template <typename T> struct Name {                                                     \
        static DEVICE_FN T apply(T a, T b) { return expression; }                           \
    };

OPERATION(Add, Arithmetic<T>::add(a, b))
OPERATION(Sub, Arithmetic<T>::sub(a, b))
OPERATION(Mul, Arithmetic<T>::mul(a, b))
OPERATION(Div, Arithmetic<T>::div(a, b))
// NaN wins, and of equal operands the first one.
OPERATION(Minimum, load(a) > load(b) || load(b) != load(b) ? b : a)
OPERATION(Maximum, load(a) < load(b) || load(b) != load(b) ? b : a)
OPERATION(Power, store<T>(math::pow(load(a), load(b))))

#define COMPARISON(Name, expression)                                                        \
    template <typename T> struct Name {                                                     \
        static DEVICE_FN u8 apply(T a, T b) { return (u8)(expression); }                    \
    };

COMPARISON(Eq, load(a) == load(b))
COMPARISON(Ne, load(a) != load(b))
COMPARISON(Lt, load(a) < load(b))
COMPARISON(Le, load(a) <= load(b))
COMPARISON(Gt, load(a) > load(b))
COMPARISON(Ge, load(a) >= load(b))

template <typename T, typename R, typename F>
DEVICE_FN void binary(u64 n, const Dims& dims, const Strides& xs, const Strides& ys, const T* x, const T* y, R* out) {
    // A power is long: half a pack bounds the code that unrolling makes.
    constexpr u32 N = pack_length(sizeof(T)) / (is_same<F, Power<T>>::value ? 2 : 1);
    const auto f = [](T a, T b) -> R { return F::apply(a, b); };
    if constexpr (is_same<F, Div<bf16>>::value) {
        map2<N>(n, dims, xs, ys, x, y, out, f, [f](const Pack<T, N>& a, const Pack<T, N>& b) -> Pack<R, N> {
            Pack<R, N> r;
            bool sure = true;
            for (u32 j = 0; j < N; j++) {
                float quotient;
                sure &= narrow::quotient_bf16(load(a.v[j]), load(b.v[j]), quotient);
                r.v[j] = store<R>(quotient);
            }
            if (!sure) {
                for (u32 j = 0; j < N; j++) r.v[j] = f(a.v[j], b.v[j]);
            }
            return r;
        });
    } else {
        map2<N>(n, dims, xs, ys, x, y, out, f);
    }
}

// Blocks at once for which nvptx has registers enough; divisions other than those by the hardware's reciprocal take
// more.
template <typename F> constexpr u32 BLOCKS = 8;
template <typename T> constexpr u32 BLOCKS<Div<T>> = is_same<T, f16>::value || is_same<T, float>::value ? 8 : is_same<T, bf16>::value ? 6 : 4;

#define BINARY(op, Op, name, T, R)                                                                                                  \
    extern "C" __global__ MAX_BLOCK_OF(256, BLOCKS<Op<T>>) void op##_##name(u64 n, Dims dims, Strides xs, Strides ys, const T* x,   \
                                                                            const T* y, R* out) {                                   \
        binary<T, R, Op<T>>(n, dims, xs, ys, x, y, out);                                                                            \
    }

#define BINARY_ALL(name, T)                     \
    BINARY(add, Add, name, T, T)                \
    BINARY(sub, Sub, name, T, T)                \
    BINARY(mul, Mul, name, T, T)                \
    BINARY(div, Div, name, T, T)                \
    BINARY(minimum, Minimum, name, T, T)        \
    BINARY(maximum, Maximum, name, T, T)        \
    BINARY(eq, Eq, name, T, u8)                 \
    BINARY(ne, Ne, name, T, u8)                 \
    BINARY(lt, Lt, name, T, u8)                 \
    BINARY(le, Le, name, T, u8)                 \
    BINARY(gt, Gt, name, T, u8)                 \
    BINARY(ge, Ge, name, T, u8)

#define BINARY_FLOATS(name, T)                  \
    BINARY_ALL(name, T)                         \
    BINARY(pow, Power, name, T, T)

PART(u8) BINARY_ALL(u8, u8)
PART(u32) BINARY_ALL(u32, u32)
PART(i16) BINARY_ALL(i16, i16)
PART(i32) BINARY_ALL(i32, i32)
PART(i64) BINARY_ALL(i64, i64)
PART(f16) BINARY_FLOATS(f16, f16)
PART(bf16) BINARY_FLOATS(bf16, bf16)
PART(f32) BINARY_FLOATS(f32, float)
PART(f64) BINARY_FLOATS(f64, double)
PART(f8e4m3) BINARY_FLOATS(f8e4m3, f8e4m3)
