// curand_kernel.h: the generators Philox 4x32-10 and XORWOW with cuRAND's states, offsets and subsequences, and its
// distributions. Words and uniform numbers are cuRAND's, bit for bit. Normal numbers follow from the same words by the
// same formula, but logarithm, sine and cosine are ours, so that last bits differ.
#ifndef CANDLE_ROCM_PORT_CURAND_H
#define CANDLE_ROCM_PORT_CURAND_H

#include "cuda.h"

// Where device.h is.
namespace cuda_port {
namespace port {
namespace base {
#include "philox.h"
}  // namespace base
}  // namespace port
}  // namespace cuda_port

#include "curand_xorwow.h"

namespace cuda_port {

// The fields, and so the size, are those that host code allocates.
struct curandStatePhilox4_32_10 {
    uint4 ctr, output;
    uint2 key;
    unsigned STATE;
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
using curandStatePhilox4_32_10_t = curandStatePhilox4_32_10;
using curandStateXORWOW_t = curandStateXORWOW;
using curandState_t = curandStateXORWOW;
using curandState = curandStateXORWOW;

// ---------------------------------------------------------------- Philox 4x32-10

PORT_FN uint4 curand_Philox4x32_10(uint4 counter, uint2 key) {
    const port::device::Words w = port::device::philox((unsigned long long)key.y << 32 | key.x, (unsigned long long)counter.y << 32 | counter.x,
                                           (unsigned long long)counter.w << 32 | counter.z);
    uint4 result;
    result.x = w.w[0], result.y = w.w[1], result.z = w.w[2], result.w = w.w[3];
    return result;
}

namespace port {
namespace random {
PORT_FN void renew(curandStatePhilox4_32_10* s) { s->output = curand_Philox4x32_10(s->ctr, s->key); }
// The upper half of the counter is the subsequence, the lower one the block of four words within it.
PORT_FN void add_subsequences(curandStatePhilox4_32_10* s, unsigned long long n) {
    const unsigned long long high = ((unsigned long long)s->ctr.w << 32 | s->ctr.z) + n;
    s->ctr.z = (unsigned)high, s->ctr.w = (unsigned)(high >> 32);
}
PORT_FN void add_blocks(curandStatePhilox4_32_10* s, unsigned long long n) {
    const unsigned long long low = (unsigned long long)s->ctr.y << 32 | s->ctr.x;
    s->ctr.x = (unsigned)(low + n), s->ctr.y = (unsigned)((low + n) >> 32);
    if (low + n < low) add_subsequences(s, 1);
}
PORT_FN unsigned word(const uint4& of, unsigned i) { return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w; }
}  // namespace random
}  // namespace port

PORT_FN void skipahead(unsigned long long n, curandStatePhilox4_32_10* s) {
    s->STATE += (unsigned)(n & 3u);
    port::random::add_blocks(s, n / 4 + s->STATE / 4);
    s->STATE %= 4;
    port::random::renew(s);
}
PORT_FN void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10* s) {
    port::random::add_subsequences(s, n);
    port::random::renew(s);
}
PORT_FN void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset, curandStatePhilox4_32_10* s) {
    s->ctr.x = s->ctr.y = s->ctr.z = s->ctr.w = 0;
    s->key.x = (unsigned)seed, s->key.y = (unsigned)(seed >> 32);
    s->STATE = 0;
    s->boxmuller_flag = s->boxmuller_flag_double = 0;
    s->boxmuller_extra = 0.0f;
    s->boxmuller_extra_double = 0.0;
    port::random::add_subsequences(s, subsequence);
    skipahead(offset, s);
}
PORT_FN unsigned curand(curandStatePhilox4_32_10* s) {
    const unsigned result = port::random::word(s->output, s->STATE);
    if (++s->STATE == 4) {
        port::random::add_blocks(s, 1);
        port::random::renew(s);
        s->STATE = 0;
    }
    return result;
}
// The next four words, wherever the state stands among the present block's.
PORT_FN uint4 curand4(curandStatePhilox4_32_10* s) {
    const uint4 old = s->output;
    port::random::add_blocks(s, 1);
    port::random::renew(s);
    unsigned words[4];
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned at = s->STATE + i;
        words[i] = at < 4 ? port::random::word(old, at) : port::random::word(s->output, at - 4);
    }
    uint4 result;
    result.x = words[0], result.y = words[1], result.z = words[2], result.w = words[3];
    return result;
}

// ---------------------------------------------------------------- uniform: above 0, up to 1

namespace port {
namespace random {
PORT_FN float unit(unsigned x) { return (float)x * 0x1p-32f + 0x1p-33f; }
PORT_FN double unit_double(unsigned x) { return (double)x * 0x1p-32 + 0x1p-32; }
PORT_FN double unit_double(unsigned x, unsigned y) { return (double)((unsigned long long)x ^ (unsigned long long)y << 21) * 0x1p-53 + 0x1p-54; }
}  // namespace random
}  // namespace port

template <typename State> PORT_FN float curand_uniform(State* s) { return port::random::unit(curand(s)); }
PORT_FN float4 curand_uniform4(curandStatePhilox4_32_10* s) {
    const uint4 w = curand4(s);
    float4 result;
    result.x = port::random::unit(w.x), result.y = port::random::unit(w.y), result.z = port::random::unit(w.z), result.w = port::random::unit(w.w);
    return result;
}
// Of one word with Philox, of two with XORWOW.
PORT_FN double curand_uniform_double(curandStatePhilox4_32_10* s) { return port::random::unit_double(curand(s)); }
PORT_FN double curand_uniform_double(curandStateXORWOW* s) {
    const unsigned x = curand(s), y = curand(s);
    return port::random::unit_double(x, y);
}
PORT_FN double2 curand_uniform2_double(curandStatePhilox4_32_10* s) {
    const uint4 w = curand4(s);
    double2 result;
    result.x = port::random::unit_double(w.x, w.y), result.y = port::random::unit_double(w.z, w.w);
    return result;
}
PORT_FN double4 curand_uniform4_double(curandStatePhilox4_32_10* s) {
    const double2 a = curand_uniform2_double(s), b = curand_uniform2_double(s);
    double4 result;
    result.x = a.x, result.y = a.y, result.z = b.x, result.w = b.y;
    return result;
}

// ---------------------------------------------------------------- normal: Box and Muller, two numbers of two words

namespace port {
namespace random {
PORT_FN float2 box_muller(unsigned x, unsigned y) {
    // The angle's step is 2 pi / 2^32 in binary32.
    const float step = 0x1p-32f * 6.2831855f;
    const float angle = (float)y * step + step / 2.0f;
    const float radius = port::device::math::sqrt(-2.0f * port::device::math::log(unit(x)));
    float2 result;
    result.x = port::device::math::sin(angle) * radius, result.y = port::device::math::cos(angle) * radius;
    return result;
}
PORT_FN double2 box_muller(unsigned x0, unsigned x1, unsigned y0, unsigned y1) {
    // Half turns from 0 to 2: the nearest quarter turn, and what is left.
    const double turns = unit_double(y0, y1) * 2.0;
    const double quarter = port::device::math::rint(turns * 2.0);
    const double rest = (turns - quarter * 0.5) * 0x1.921fb54442d18p+1;
    const double sine = port::device::math::sin_in_quadrant(rest), cosine = port::device::math::cos_in_quadrant(rest);
    const int q = (int)quarter & 3;
    const double radius = port::device::math::sqrt(-2.0 * port::device::math::log(unit_double(x0, x1)));
    double2 result;
    result.x = (q == 0 ? sine : q == 1 ? cosine : q == 2 ? -sine : -cosine) * radius;
    result.y = (q == 0 ? cosine : q == 1 ? -sine : q == 2 ? -cosine : sine) * radius;
    return result;
}
PORT_FN double2 next_pair(curandStatePhilox4_32_10* s) {
    const uint4 w = curand4(s);
    return box_muller(w.x, w.y, w.z, w.w);
}
PORT_FN double2 next_pair(curandStateXORWOW* s) {
    const unsigned x0 = curand(s), x1 = curand(s), y0 = curand(s), y1 = curand(s);
    return box_muller(x0, x1, y0, y1);
}
// What the state keeps of a pair: a normal or a log-normal number, which do not take each other's.
enum Kept { NONE = 0, NORMAL = 1, LOG_NORMAL = 2 };
}  // namespace random
}  // namespace port

template <typename State> PORT_FN float2 curand_normal2(State* s) {
    const unsigned x = curand(s), y = curand(s);
    return port::random::box_muller(x, y);
}
template <typename State> PORT_FN double2 curand_normal2_double(State* s) { return port::random::next_pair(s); }
template <typename State> PORT_FN float curand_normal(State* s) {
    if (s->boxmuller_flag == port::random::NORMAL) {
        s->boxmuller_flag = port::random::NONE;
        return s->boxmuller_extra;
    }
    const float2 pair = curand_normal2(s);
    s->boxmuller_extra = pair.y;
    s->boxmuller_flag = port::random::NORMAL;
    return pair.x;
}
template <typename State> PORT_FN double curand_normal_double(State* s) {
    if (s->boxmuller_flag_double == port::random::NORMAL) {
        s->boxmuller_flag_double = port::random::NONE;
        return s->boxmuller_extra_double;
    }
    const double2 pair = port::random::next_pair(s);
    s->boxmuller_extra_double = pair.y;
    s->boxmuller_flag_double = port::random::NORMAL;
    return pair.x;
}
PORT_FN float4 curand_normal4(curandStatePhilox4_32_10* s) {
    const uint4 w = curand4(s);
    const float2 a = port::random::box_muller(w.x, w.y), b = port::random::box_muller(w.z, w.w);
    float4 result;
    result.x = a.x, result.y = a.y, result.z = b.x, result.w = b.y;
    return result;
}

template <typename State> PORT_FN float2 curand_log_normal2(State* s, float mean, float deviation) {
    const float2 pair = curand_normal2(s);
    float2 result;
    result.x = port::device::math::exp(mean + deviation * pair.x), result.y = port::device::math::exp(mean + deviation * pair.y);
    return result;
}
template <typename State> PORT_FN float curand_log_normal(State* s, float mean, float deviation) {
    if (s->boxmuller_flag == port::random::LOG_NORMAL) {
        s->boxmuller_flag = port::random::NONE;
        return s->boxmuller_extra;
    }
    const float2 pair = curand_log_normal2(s, mean, deviation);
    s->boxmuller_extra = pair.y;
    s->boxmuller_flag = port::random::LOG_NORMAL;
    return pair.x;
}
PORT_FN float4 curand_log_normal4(curandStatePhilox4_32_10* s, float mean, float deviation) {
    float4 n = curand_normal4(s);
    n.x = port::device::math::exp(mean + deviation * n.x), n.y = port::device::math::exp(mean + deviation * n.y);
    n.z = port::device::math::exp(mean + deviation * n.z), n.w = port::device::math::exp(mean + deviation * n.w);
    return n;
}

// ---------------------------------------------------------------- Poisson

namespace port {
namespace random {
// Knuth: how many uniform numbers a product needs to fall below e^-mean.
template <typename State> PORT_FN unsigned knuth(State* s, float mean) {
    unsigned count = 0;
    float product = port::device::math::exp(mean);
    do {
        ++count;
        product *= curand_uniform(s);
    } while (product > 1.0f);
    return count - 1;
}
}  // namespace random
}  // namespace port

// cuRAND's numbers for means below 64. Above, the sum of several such numbers, which has the same distribution; beyond
// 4000, as in cuRAND, a rounded normal number.
template <typename State> PORT_FN unsigned curand_poisson(State* s, double mean) {
    if (mean > 4000.0) return (unsigned)(port::device::math::sqrt(mean) * curand_normal_double(s) + mean + 0.5);
    if (mean < 64.0) return port::random::knuth(s, (float)mean);
    unsigned count = 0;
    for (; mean > 32.0; mean -= 32.0) count += port::random::knuth(s, 32.0f);
    return count + port::random::knuth(s, (float)mean);
}

}  // namespace cuda_port

#endif
