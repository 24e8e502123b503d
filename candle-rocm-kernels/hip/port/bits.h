// Bits and bytes: counting, casts between types of a size, the SIMD-in-a-word functions. Included by cuda.h.
#ifndef CANDLE_ROCM_PORT_BITS_H
#define CANDLE_ROCM_PORT_BITS_H

namespace cuda_port {

PORT_FN int __popc(unsigned x) { return __builtin_popcount(x); }
PORT_FN int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
PORT_FN int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
PORT_FN int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
PORT_FN int __ffs(int x) { return x ? __builtin_ctz((unsigned)x) + 1 : 0; }
PORT_FN int __ffsll(long long x) { return x ? __builtin_ctzll((unsigned long long)x) + 1 : 0; }
PORT_FN unsigned __brev(unsigned x) {
#if defined(__HIP_SIM__)
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
#else
    return __builtin_bitreverse32(x);
#endif
}
PORT_FN unsigned long long __brevll(unsigned long long x) { return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32)); }
// Where the n-th bit that is set is, counted from `base` upwards, or downwards for a negative n; all ones if there is none.
PORT_FN unsigned __fns(unsigned mask, unsigned base, int n) {
    if (n == 0) return mask >> (base & 31u) & 1u ? base : ~0u;
    const int step = n > 0 ? 1 : -1;
    unsigned left = (unsigned)(n > 0 ? n : -n);
    for (int at = (int)base; at >= 0 && at < 32; at += step) {
        if ((mask >> at & 1u) && --left == 0) return (unsigned)at;
    }
    return ~0u;
}

// Three bits of nibble i of the selector pick byte i of y:x. (The fourth, which makes prmt repeat the sign, is not looked
// at: kernels pass whole nibbles of data.)
PORT_FN unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned spread = (selector & 0x7u) | (selector & 0x70u) << 4 | (selector & 0x700u) << 8 | (selector & 0x7000u) << 12;
    return port::device::permute_bytes(y, x, spread);
}

PORT_FN unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31u) >> 32);
}
PORT_FN unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31u));
}
PORT_FN unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) { return shift >= 32u ? low : __funnelshift_l(low, high, shift); }
PORT_FN unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) { return shift >= 32u ? high : __funnelshift_r(low, high, shift); }

PORT_FN int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
PORT_FN unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
PORT_FN long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
PORT_FN unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
PORT_FN int __mul24(int a, int b) { return (int)((unsigned)((int)((unsigned)a << 8) >> 8) * (unsigned)((int)((unsigned)b << 8) >> 8)); }
PORT_FN unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
PORT_FN unsigned __sad(int a, int b, unsigned c) { return c + (a < b ? (unsigned)b - (unsigned)a : (unsigned)a - (unsigned)b); }
PORT_FN unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
PORT_FN int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
PORT_FN int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
PORT_FN unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
PORT_FN unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1u) >> 1); }

PORT_FN int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
PORT_FN unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
PORT_FN float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
PORT_FN float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
PORT_FN long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
PORT_FN double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
PORT_FN int __double2hiint(double x) { return (int)(__builtin_bit_cast(unsigned long long, x) >> 32); }
PORT_FN int __double2loint(double x) { return (int)__builtin_bit_cast(unsigned long long, x); }
PORT_FN double __hiloint2double(int high, int low) {
    return __builtin_bit_cast(double, (unsigned long long)(unsigned)high << 32 | (unsigned)low);
}

namespace port {
// Applies `f` to the fields of BITS bits, of type T.
template <typename T, typename F> PORT_FN unsigned lanewise(unsigned a, unsigned b, F f) {
    constexpr unsigned BITS = 8u * sizeof(T), FIELD = (1u << BITS) - 1u;
    unsigned result = 0;
    for (unsigned at = 0; at < 32u; at += BITS) result |= ((unsigned)f((T)(a >> at), (T)(b >> at)) & FIELD) << at;
    return result;
}
template <int LOW, int HIGH> PORT_FN int saturate(int x) { return x < LOW ? LOW : x > HIGH ? HIGH : x; }
}  // namespace port

// Of four products of bytes, and of two of a word and a byte, with a sum.
PORT_FN int __dp4a(int a, int b, int c) {
    if constexpr (port::device::target::HAS_DOT4) {
#if !defined(__HIP_SIM__)
        return port::device::target::dot4((unsigned)a, (unsigned)b, c);
#endif
    }
    unsigned sum = (unsigned)c;
    for (int at = 0; at < 32; at += 8) sum += (unsigned)((int)(signed char)(a >> at) * (signed char)(b >> at));
    return (int)sum;
}
PORT_FN unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int at = 0; at < 32; at += 8) c += (a >> at & 0xffu) * (b >> at & 0xffu);
    return c;
}
namespace port {
PORT_FN int dot2(int a, int b, int c, int shift) {
    const unsigned low = (unsigned)((short)a * (int)(signed char)(b >> shift));
    return (int)((unsigned)c + low + (unsigned)((a >> 16) * (int)(signed char)(b >> (shift + 8))));
}
PORT_FN unsigned dot2(unsigned a, unsigned b, unsigned c, int shift) {
    return c + (a & 0xffffu) * (b >> shift & 0xffu) + (a >> 16) * (b >> (shift + 8) & 0xffu);
}
}  // namespace port
PORT_FN int __dp2a_lo(int a, int b, int c) { return port::dot2(a, b, c, 0); }
PORT_FN int __dp2a_hi(int a, int b, int c) { return port::dot2(a, b, c, 16); }
PORT_FN unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) { return port::dot2(a, b, c, 0); }
PORT_FN unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c) { return port::dot2(a, b, c, 16); }

// Two 16-bit and four 8-bit numbers in a word.
#define PORT_SIMD(N, S, U, LOW, HIGH, TOP)                                                                                     \
    PORT_FN unsigned __vadd##N(unsigned a, unsigned b) { return port::lanewise<U>(a, b, [](U x, U y) { return x + y; }); }             \
    PORT_FN unsigned __vsub##N(unsigned a, unsigned b) { return port::lanewise<U>(a, b, [](U x, U y) { return x - y; }); }             \
    PORT_FN unsigned __vneg##N(unsigned a) { return __vsub##N(0, a); }                                                                 \
    PORT_FN unsigned __vabs##N(unsigned a) { return port::lanewise<S>(a, 0, [](S x, S) { return x < 0 ? -x : x; }); }                  \
    PORT_FN unsigned __vaddss##N(unsigned a, unsigned b) {                                                                             \
        return port::lanewise<S>(a, b, [](S x, S y) { return port::saturate<LOW, HIGH>(x + y); });                                     \
    }                                                                                                                                  \
    PORT_FN unsigned __vsubss##N(unsigned a, unsigned b) {                                                                             \
        return port::lanewise<S>(a, b, [](S x, S y) { return port::saturate<LOW, HIGH>(x - y); });                                     \
    }                                                                                                                                  \
    PORT_FN unsigned __vaddus##N(unsigned a, unsigned b) {                                                                             \
        return port::lanewise<U>(a, b, [](U x, U y) { return port::saturate<0, TOP>(x + y); });                                        \
    }                                                                                                                                  \
    PORT_FN unsigned __vsubus##N(unsigned a, unsigned b) {                                                                             \
        return port::lanewise<U>(a, b, [](U x, U y) { return port::saturate<0, TOP>(x - y); });                                        \
    }                                                                                                                                  \
    PORT_FN unsigned __vnegss##N(unsigned a) { return __vsubss##N(0, a); }                                                             \
    PORT_FN unsigned __vabsss##N(unsigned a) {                                                                                         \
        return port::lanewise<S>(a, 0, [](S x, S) { return port::saturate<LOW, HIGH>(x < 0 ? -x : x); });                              \
    }                                                                                                                                  \
    PORT_FN unsigned __vmins##N(unsigned a, unsigned b) { return port::lanewise<S>(a, b, [](S x, S y) { return x < y ? x : y; }); }    \
    PORT_FN unsigned __vmaxs##N(unsigned a, unsigned b) { return port::lanewise<S>(a, b, [](S x, S y) { return x < y ? y : x; }); }    \
    PORT_FN unsigned __vminu##N(unsigned a, unsigned b) { return port::lanewise<U>(a, b, [](U x, U y) { return x < y ? x : y; }); }    \
    PORT_FN unsigned __vmaxu##N(unsigned a, unsigned b) { return port::lanewise<U>(a, b, [](U x, U y) { return x < y ? y : x; }); }    \
    PORT_FN unsigned __vavgs##N(unsigned a, unsigned b) {                                                                              \
        return port::lanewise<S>(a, b, [](S x, S y) { return (x + y + (x + y >= 0 ? 1 : 0)) >> 1; });                                  \
    }                                                                                                                                  \
    PORT_FN unsigned __vavgu##N(unsigned a, unsigned b) { return port::lanewise<U>(a, b, [](U x, U y) { return (x + y + 1) >> 1; }); } \
    PORT_FN unsigned __vhaddu##N(unsigned a, unsigned b) { return port::lanewise<U>(a, b, [](U x, U y) { return (x + y) >> 1; }); }    \
    PORT_FN unsigned __vabsdiffs##N(unsigned a, unsigned b) {                                                                          \
        return port::lanewise<S>(a, b, [](S x, S y) { return x < y ? y - x : x - y; });                                                \
    }                                                                                                                                  \
    PORT_FN unsigned __vabsdiffu##N(unsigned a, unsigned b) {                                                                          \
        return port::lanewise<U>(a, b, [](U x, U y) { return x < y ? y - x : x - y; });                                                \
    }                                                                                                                                  \
    PORT_FN unsigned __vsads##N(unsigned a, unsigned b) {                                                                              \
        unsigned sum = 0;                                                                                                              \
        port::lanewise<S>(a, b, [&](S x, S y) { return sum += (unsigned)(x < y ? y - x : x - y); });                                   \
        return sum;                                                                                                                    \
    }                                                                                                                                  \
    PORT_FN unsigned __vsadu##N(unsigned a, unsigned b) {                                                                              \
        unsigned sum = 0;                                                                                                              \
        port::lanewise<U>(a, b, [&](U x, U y) { return sum += (unsigned)(x < y ? y - x : x - y); });                                   \
        return sum;                                                                                                                    \
    }                                                                                                                                  \
    PORT_SIMD_COMPARE(eq, N, U, ==)                                                                                                    \
    PORT_SIMD_COMPARE(ne, N, U, !=)                                                                                                    \
    PORT_SIMD_COMPARE(ges, N, S, >=)                                                                                                   \
    PORT_SIMD_COMPARE(gts, N, S, >)                                                                                                    \
    PORT_SIMD_COMPARE(les, N, S, <=)                                                                                                   \
    PORT_SIMD_COMPARE(lts, N, S, <)                                                                                                    \
    PORT_SIMD_COMPARE(geu, N, U, >=)                                                                                                   \
    PORT_SIMD_COMPARE(gtu, N, U, >)                                                                                                    \
    PORT_SIMD_COMPARE(leu, N, U, <=)                                                                                                   \
    PORT_SIMD_COMPARE(ltu, N, U, <)
// `cmp` gives all ones in fields, `set` a one.
#define PORT_SIMD_COMPARE(name, N, T, op)                                                                                              \
    PORT_FN unsigned __vcmp##name##N(unsigned a, unsigned b) { return port::lanewise<T>(a, b, [](T x, T y) { return x op y ? ~0 : 0; }); } \
    PORT_FN unsigned __vset##name##N(unsigned a, unsigned b) { return port::lanewise<T>(a, b, [](T x, T y) { return x op y ? 1 : 0; }); }
PORT_SIMD(4, signed char, unsigned char, -128, 127, 255)
PORT_SIMD(2, short, unsigned short, -32768, 32767, 65535)
#undef PORT_SIMD_COMPARE
#undef PORT_SIMD

}  // namespace cuda_port

#endif
