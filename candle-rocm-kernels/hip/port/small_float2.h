// What __half2 and __nv_bfloat162 have in common, as macros that float16.h uses for both. Included by float16.h.
#ifndef CANDLE_ROCM_PORT_SMALL_FLOAT2_H
#define CANDLE_ROCM_PORT_SMALL_FLOAT2_H

// T2 is the pair of two T, and RAW2 its bits.
#define PORT_PAIR(T2, T, RAW2)                                                             \
    struct __attribute__((aligned(4))) RAW2 {                                              \
        unsigned short x, y;                                                               \
    };                                                                                     \
    struct __attribute__((aligned(4))) T2 {                                                \
        T x, y;                                                                            \
        T2() = default;                                                                    \
        PORT_FN T2(const T& a, const T& b) : x(a), y(b) {}                                 \
        PORT_FN T2(const RAW2& raw) : x(port::of_bits<T>(raw.x)), y(port::of_bits<T>(raw.y)) {} \
        PORT_FN operator RAW2() const { return RAW2{x.__x, y.__x}; }                       \
    };

#define PORT_PAIR_UNARY(T2, name, one) \
    PORT_FN T2 name(T2 v) { return T2(one(v.x), one(v.y)); }
#define PORT_PAIR_BINARY(T2, name, one) \
    PORT_FN T2 name(T2 a, T2 b) { return T2(one(a.x, b.x), one(a.y, b.y)); }
#define PORT_PAIR_TERNARY(T2, name, one) \
    PORT_FN T2 name(T2 a, T2 b, T2 c) { return T2(one(a.x, b.x, c.x), one(a.y, b.y, c.y)); }
// As pairs of one and zero, as one truth, and as masks.
#define PORT_PAIR_COMPARE(T2, T, name)                                                                                  \
    PORT_FN T2 __h##name##2(T2 a, T2 b) { return T2(T(__h##name(a.x, b.x)), T(__h##name(a.y, b.y))); }                  \
    PORT_FN T2 __h##name##u2(T2 a, T2 b) { return T2(T(__h##name##u(a.x, b.x)), T(__h##name##u(a.y, b.y))); }           \
    PORT_FN bool __hb##name##2(T2 a, T2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }                       \
    PORT_FN bool __hb##name##u2(T2 a, T2 b) { return __h##name##u(a.x, b.x) && __h##name##u(a.y, b.y); }                \
    PORT_FN unsigned __h##name##2_mask(T2 a, T2 b) { return (__h##name(a.x, b.x) ? 0xffffu : 0u) | (__h##name(a.y, b.y) ? 0xffff0000u : 0u); } \
    PORT_FN unsigned __h##name##u2_mask(T2 a, T2 b) {                                                                   \
        return (__h##name##u(a.x, b.x) ? 0xffffu : 0u) | (__h##name##u(a.y, b.y) ? 0xffff0000u : 0u);                   \
    }
#define PORT_PAIR_OPERATOR(T2, op, function)                                         \
    PORT_FN T2 operator op(const T2& a, const T2& b) { return function(a, b); }      \
    PORT_FN T2& operator op##=(T2& a, const T2& b) { return a = function(a, b); }
#define PORT_PAIR_ATOMICS(T2, T, suffix)                                             \
    PORT_FN T2 atomicAdd##suffix(T2* p, T2 v) { /* each for itself, as CUDA says */  \
        const T x = atomicAdd##suffix(&p->x, v.x);                                   \
        return T2(x, atomicAdd##suffix(&p->y, v.y));                                 \
    }

#define PORT_PAIR_FUNCTIONS(T2, T)                                                                     \
    PORT_PAIR_BINARY(T2, __hadd2, __hadd)                                                              \
    PORT_PAIR_BINARY(T2, __hsub2, __hsub)                                                              \
    PORT_PAIR_BINARY(T2, __hmul2, __hmul)                                                              \
    PORT_PAIR_BINARY(T2, __h2div, __hdiv)                                                              \
    PORT_PAIR_BINARY(T2, __hadd2_rn, __hadd)                                                           \
    PORT_PAIR_BINARY(T2, __hsub2_rn, __hsub)                                                           \
    PORT_PAIR_BINARY(T2, __hmul2_rn, __hmul)                                                           \
    PORT_PAIR_BINARY(T2, __hadd2_sat, __hadd_sat)                                                      \
    PORT_PAIR_BINARY(T2, __hsub2_sat, __hsub_sat)                                                      \
    PORT_PAIR_BINARY(T2, __hmul2_sat, __hmul_sat)                                                      \
    PORT_PAIR_BINARY(T2, __hmin2, __hmin)                                                              \
    PORT_PAIR_BINARY(T2, __hmax2, __hmax)                                                              \
    PORT_PAIR_BINARY(T2, __hmin2_nan, __hmin_nan)                                                      \
    PORT_PAIR_BINARY(T2, __hmax2_nan, __hmax_nan)                                                      \
    PORT_PAIR_TERNARY(T2, __hfma2, __hfma)                                                             \
    PORT_PAIR_TERNARY(T2, __hfma2_sat, __hfma_sat)                                                     \
    PORT_PAIR_TERNARY(T2, __hfma2_relu, __hfma_relu)                                                   \
    PORT_PAIR_UNARY(T2, __hneg2, __hneg)                                                               \
    PORT_PAIR_UNARY(T2, __habs2, __habs)                                                               \
    PORT_PAIR_UNARY(T2, h2sqrt, hsqrt)                                                                 \
    PORT_PAIR_UNARY(T2, h2rsqrt, hrsqrt)                                                               \
    PORT_PAIR_UNARY(T2, h2rcp, hrcp)                                                                   \
    PORT_PAIR_UNARY(T2, h2exp, hexp)                                                                   \
    PORT_PAIR_UNARY(T2, h2exp2, hexp2)                                                                 \
    PORT_PAIR_UNARY(T2, h2exp10, hexp10)                                                               \
    PORT_PAIR_UNARY(T2, h2log, hlog)                                                                   \
    PORT_PAIR_UNARY(T2, h2log2, hlog2)                                                                 \
    PORT_PAIR_UNARY(T2, h2log10, hlog10)                                                               \
    PORT_PAIR_UNARY(T2, h2sin, hsin)                                                                   \
    PORT_PAIR_UNARY(T2, h2cos, hcos)                                                                   \
    PORT_PAIR_UNARY(T2, h2tanh, htanh)                                                                 \
    PORT_PAIR_UNARY(T2, h2tanh_approx, htanh_approx)                                                   \
    PORT_PAIR_UNARY(T2, h2floor, hfloor)                                                               \
    PORT_PAIR_UNARY(T2, h2ceil, hceil)                                                                 \
    PORT_PAIR_UNARY(T2, h2trunc, htrunc)                                                               \
    PORT_PAIR_UNARY(T2, h2rint, hrint)                                                                 \
    PORT_PAIR_COMPARE(T2, T, eq)                                                                       \
    PORT_PAIR_COMPARE(T2, T, ne)                                                                       \
    PORT_PAIR_COMPARE(T2, T, lt)                                                                       \
    PORT_PAIR_COMPARE(T2, T, le)                                                                       \
    PORT_PAIR_COMPARE(T2, T, gt)                                                                       \
    PORT_PAIR_COMPARE(T2, T, ge)                                                                       \
    PORT_FN T2 __hisnan2(T2 v) { return T2(T(__hisnan(v.x)), T(__hisnan(v.y))); }                      \
    /* Complex: a b + c. */                                                                            \
    PORT_FN T2 __hcmadd(T2 a, T2 b, T2 c) {                                                            \
        const T2 first(__hfma(a.x, b.x, c.x), __hfma(a.x, b.y, c.y));                                  \
        return T2(__hfma(__hneg(a.y), b.y, first.x), __hfma(a.y, b.x, first.y));                       \
    }                                                                                                  \
    PORT_PAIR_OPERATOR(T2, +, __hadd2)                                                                 \
    PORT_PAIR_OPERATOR(T2, -, __hsub2)                                                                 \
    PORT_PAIR_OPERATOR(T2, *, __hmul2)                                                                 \
    PORT_PAIR_OPERATOR(T2, /, __h2div)                                                                 \
    PORT_FN T2 operator+(const T2& v) { return v; }                                                    \
    PORT_FN T2 operator-(const T2& v) { return __hneg2(v); }                                           \
    PORT_FN T2& operator++(T2& v) { return v = T2(v.x + T(1), v.y + T(1)); }                           \
    PORT_FN T2& operator--(T2& v) { return v = T2(v.x - T(1), v.y - T(1)); }                           \
    PORT_FN bool operator==(const T2& a, const T2& b) { return __hbeq2(a, b); }                        \
    PORT_FN bool operator!=(const T2& a, const T2& b) { return __hbneu2(a, b); }                       \
    PORT_FN bool operator<(const T2& a, const T2& b) { return __hblt2(a, b); }                         \
    PORT_FN bool operator<=(const T2& a, const T2& b) { return __hble2(a, b); }                        \
    PORT_FN bool operator>(const T2& a, const T2& b) { return __hbgt2(a, b); }                         \
    PORT_FN bool operator>=(const T2& a, const T2& b) { return __hbge2(a, b); }                        \
    PORT_PAIR_ATOMICS(T2, T, )                                                                         \
    PORT_PAIR_ATOMICS(T2, T, _block)                                                                   \
    PORT_PAIR_ATOMICS(T2, T, _system)

// Putting together and taking apart, with N the part of names that the type has (half, bfloat16) and P that of the pair
// (half2, bfloat162).
#define PORT_PAIR_CONVERSIONS(T2, T, N, P)                                                             \
    PORT_FN T2 __halves2##P(T a, T b) { return T2(a, b); }                                             \
    PORT_FN T2 __##N##2##P(T v) { return T2(v, v); }                                                   \
    PORT_FN T2 __float2##P##_rn(float v) { return T2(__float2##N##_rn(v), __float2##N##_rn(v)); }      \
    PORT_FN T2 __floats2##P##_rn(float a, float b) { return T2(__float2##N##_rn(a), __float2##N##_rn(b)); } \
    PORT_FN T2 __float22##P##_rn(float2 v) { return __floats2##P##_rn(v.x, v.y); }                     \
    PORT_FN float2 __##P##2float2(T2 v) { return float2{port::widened(v.x), port::widened(v.y)}; }     \
    PORT_FN float __low2float(T2 v) { return port::widened(v.x); }                                     \
    PORT_FN float __high2float(T2 v) { return port::widened(v.y); }                                    \
    PORT_FN T __low2##N(T2 v) { return v.x; }                                                          \
    PORT_FN T __high2##N(T2 v) { return v.y; }                                                         \
    PORT_FN T2 __low2##P(T2 v) { return T2(v.x, v.x); }                                                \
    PORT_FN T2 __high2##P(T2 v) { return T2(v.y, v.y); }                                               \
    PORT_FN T2 __lows2##P(T2 a, T2 b) { return T2(a.x, b.x); }                                         \
    PORT_FN T2 __highs2##P(T2 a, T2 b) { return T2(a.y, b.y); }                                        \
    PORT_FN T2 __lowhigh2highlow(T2 v) { return T2(v.y, v.x); }                                        \
    PORT_FN T2 make_##P(T a, T b) { return T2(a, b); }

#endif
