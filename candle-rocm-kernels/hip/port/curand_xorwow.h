// cuRAND's default generator, XORWOW (Marsaglia, "Xorshift RNGs", 2003). Included by curand.h.
//
// The five words of the shift register are a linear recurrence over GF(2) whose characteristic polynomial has degree 160,
// so n steps are the polynomial x^n modulo it, applied to the register. cuRAND's subsequences are 2^67 steps apart.
#ifndef CANDLE_ROCM_PORT_CURAND_XORWOW_H
#define CANDLE_ROCM_PORT_CURAND_XORWOW_H

#include "cuda.h"

namespace cuda_port {

struct curandStateXORWOW {
    unsigned d, v[5];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};

namespace port {
namespace random {

// A polynomial of degree below 160, its lowest coefficient first; the register has the same size.
struct Polynomial { unsigned w[5]; };
PORT_FN void add(Polynomial& to, const Polynomial& other) {
    for (int i = 0; i < 5; ++i) to.w[i] ^= other.w[i];
}
PORT_FN bool coefficient(const Polynomial& p, int i) { return p.w[i / 32] >> i % 32 & 1u; }
// Times x, modulo x^160 + these.
PORT_FN void times_x(Polynomial& p) {
    constexpr unsigned CHARACTERISTIC[5] = {0x00060001u, 0x08610030u, 0x00062121u, 0x0f3c0035u, 0x00000f0eu};
    const unsigned overflow = 0u - (p.w[4] >> 31);
    for (int i = 4; i > 0; --i) p.w[i] = p.w[i] << 1 | p.w[i - 1] >> 31;
    p.w[0] <<= 1;
    for (int i = 0; i < 5; ++i) p.w[i] ^= CHARACTERISTIC[i] & overflow;
}
PORT_FN Polynomial square(const Polynomial& p) {
    Polynomial result = {}, shifted = p;
    for (int i = 0; i < 160; ++i) {
        if (coefficient(p, i)) add(result, shifted);
        times_x(shifted);
    }
    return result;
}
// A step of the register; the Weyl sequence `d` goes on by 362437 in each.
PORT_FN void shift(unsigned (&v)[5]) {
    const unsigned t = v[0] ^ v[0] >> 2;
    for (int i = 0; i < 4; ++i) v[i] = v[i + 1];
    v[4] = v[4] ^ v[4] << 4 ^ (t ^ t << 1);
}
PORT_FN void apply(const Polynomial& p, unsigned (&v)[5]) {
    Polynomial result = {};
    for (int i = 0; i < 160; ++i) {
        if (coefficient(p, i)) {
            for (int w = 0; w < 5; ++w) result.w[w] ^= v[w];
        }
        shift(v);
    }
    for (int w = 0; w < 5; ++w) v[w] = result.w[w];
}
// n times the steps that `power` stands for.
PORT_FN void jump(Polynomial power, unsigned long long n, unsigned (&v)[5]) {
    for (; n != 0; n >>= 1) {
        if (n & 1u) apply(power, v);
        if (n > 1) power = square(power);
    }
}

}  // namespace random
}  // namespace port

PORT_FN unsigned curand(curandStateXORWOW* s) {
    port::random::shift(s->v);
    s->d += 362437u;
    return s->v[4] + s->d;
}
PORT_FN void skipahead(unsigned long long n, curandStateXORWOW* s) {
    port::random::jump(port::random::Polynomial{{2u, 0u, 0u, 0u, 0u}}, n, s->v);
    s->d += 362437u * (unsigned)n;
}
// By x^(2^67), after which the Weyl sequence is back where it was.
PORT_FN void skipahead_sequence(unsigned long long n, curandStateXORWOW* s) {
    port::random::jump(port::random::Polynomial{{0x26294934u, 0x77bbc248u, 0x1a87dad0u, 0x930052d4u, 0x947e6dd2u}}, n, s->v);
}
PORT_FN void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset, curandStateXORWOW* s) {
    const unsigned a = 1099087573u * ((unsigned)seed ^ 0xaad26b49u), b = 2591861531u * ((unsigned)(seed >> 32) ^ 0xf7dcefddu);
    s->v[0] = 123456789u + a;
    s->v[1] = 362436069u ^ a;
    s->v[2] = 521288629u + b;
    s->v[3] = 88675123u ^ b;
    s->v[4] = 5783321u + a;
    s->d = 6615241u + a + b;
    s->boxmuller_flag = s->boxmuller_flag_double = 0;
    s->boxmuller_extra = 0.0f;
    s->boxmuller_extra_double = 0.0;
    skipahead_sequence(subsequence, s);
    skipahead(offset, s);
}

}  // namespace cuda_port

#endif
