#ifndef CANDLE_ROCM_MATH_H
#define CANDLE_ROCM_MATH_H

// exp, log, sin, cos, tanh, erf, pow and the rest of <math.h> that kernels need, without a library. Included by
// device.h.
//
// For float and double, within three units in the last place (erfc's far tail: twenty) over the whole range: denormals,
// infinities, NaN and huge arguments are treated as IEEE 754 and C say. Polynomials are Chebyshev fits of the function
// named beside them (mpmath, 60 digits).
namespace device {

namespace math {

DEVICE_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
DEVICE_FN float sqrt(float x) { return __builtin_sqrtf(x); }
DEVICE_FN double sqrt(double x) { return __builtin_sqrt(x); }
template <typename F> DEVICE_FN F rsqrt(F x) { return F(1) / sqrt(x); }
DEVICE_FN float floor(float x) { return __builtin_floorf(x); }
DEVICE_FN double floor(double x) { return __builtin_floor(x); }
DEVICE_FN float ceil(float x) { return __builtin_ceilf(x); }
DEVICE_FN double ceil(double x) { return __builtin_ceil(x); }
DEVICE_FN float trunc(float x) { return __builtin_truncf(x); }
DEVICE_FN double trunc(double x) { return __builtin_trunc(x); }
// Halfway cases away from zero, as Rust's round.
DEVICE_FN float round(float x) { return __builtin_roundf(x); }
DEVICE_FN double round(double x) { return __builtin_round(x); }
// Halfway cases to even.
DEVICE_FN float rint(float x) { return __builtin_rintf(x); }
DEVICE_FN double rint(double x) { return __builtin_rint(x); }
DEVICE_FN float abs(float x) { return __builtin_fabsf(x); }
DEVICE_FN double abs(double x) { return __builtin_fabs(x); }
DEVICE_FN float copysign(float x, float sign) { return __builtin_copysignf(x, sign); }
DEVICE_FN double copysign(double x, double sign) { return __builtin_copysign(x, sign); }

DEVICE_FN float infinity(float) { return __builtin_inff(); }
DEVICE_FN double infinity(double) { return __builtin_inf(); }
DEVICE_FN float nan(float) { return __builtin_nanf(""); }
DEVICE_FN double nan(double) { return __builtin_nan(""); }

// x * 2^k
DEVICE_FN float ldexp(float x, i32 k) { return target::ldexp(x, k); }
DEVICE_FN double ldexp(double x, i32 k) { return target::ldexp(x, k); }

template <typename F> DEVICE_FN F polynomial(F, F c) { return c; }
// c0 + x (c1 + x (c2 + …)), fused.
template <typename F, typename... Rest> DEVICE_FN F polynomial(F x, F c, Rest... rest) { return fma(x, polynomial(x, rest...), c); }

// (exp(r) - 1 - r) / r² for |r| <= ln 2 / 2, by Taylor
DEVICE_FN float exp_tail(float r) { return polynomial(r, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040); }
DEVICE_FN double exp_tail(double r) {
    return polynomial(r, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800,
                      1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200);
}
// x = k ln 2 + r with |r| <= ln 2 / 2, and expm1(r). Arguments beyond what ldexp can still tell apart are clamped, NaN
// is not.
struct ExpF { i32 k; float m1; };
DEVICE_FN ExpF exp_reduce(float x) {
    x = x < -120.0f ? -120.0f : x > 120.0f ? 120.0f : x;
    // Added to 1.5 * 2^23, the quotient rounds to an integer in the sum's last bits.
    const float shifted = fma(x, 0x1.715476p+0f, 0x1.8p+23f);
    const float k = shifted - 0x1.8p+23f;
    const float r = fma(-k, -0x1.05c610p-29f, fma(-k, 0x1.62e430p-1f, x));
    return {bit_cast<i32>(shifted) - 0x4b400000, fma(r * r, exp_tail(r), r)};
}
struct ExpD { i32 k; double m1; };
DEVICE_FN ExpD exp_reduce(double x) {
    x = x < -1500.0 ? -1500.0 : x > 1500.0 ? 1500.0 : x;
    const double k = rint(x * 0x1.71547652b82fep+0);
    const double r = fma(-k, 0x1.abc9e3b39803fp-56, fma(-k, 0x1.62e42fefa39efp-1, x));
    return {is_nan(x) ? 0 : (i32)k, fma(r * r, exp_tail(r), r)};
}
template <typename F> DEVICE_FN F exp(F x) {
    const auto e = exp_reduce(x);
    return ldexp(F(1) + e.m1, e.k);
}
// exp(x) - 1 without cancellation near zero. (-0 gives +0.)
template <typename F> DEVICE_FN F expm1(F x) {
    const auto e = exp_reduce(x);
    const F power = ldexp(F(1), e.k);
    return power == infinity(x) ? ldexp(F(1) + e.m1, e.k) : fma(power, e.m1, power - F(1));
}
// expm1(-2|x|) lies in (-1, 0]: no overflow, and the quotient keeps small arguments exact.
DEVICE_FN float tanh(float x) {
    const auto e = exp_reduce(-2.0f * abs(x));
    const float power = ldexp(1.0f, e.k);
    const float m1 = fma(power, e.m1, power - 1.0f);
    // Of two numbers in [1, 2] and [0, 1]: rounded as a division would.
    const float whole = m1 + 2.0f;
    const float inverse = reciprocal_fast(whole);
    const float quotient = -m1 * inverse;
    return copysign(fma(fma(-quotient, whole, -m1), inverse, quotient), x);
}
DEVICE_FN double tanh(double x) {
    const double m1 = expm1(-2.0 * abs(x));
    return copysign(-m1 / (m1 + 2.0), x);
}

// x = 2^k m with m in [sqrt(1/2), sqrt(2)), for positive finite x.
struct SplitF { float k, m; };
DEVICE_FN SplitF log_split(float x) {
    const bool denormal = x < 0x1p-126f;
    const u32 bits = bit_cast<u32>(denormal ? x * 0x1p25f : x) + (0x3f800000u - 0x3f3504f3u);
    return {(float)((i32)(bits >> 23) - 127 - (denormal ? 25 : 0)), bit_cast<float>((bits & 0x7fffffu) + 0x3f3504f3u)};
}
struct SplitD { double k, m; };
DEVICE_FN SplitD log_split(double x) {
    const bool denormal = x < 0x1p-1022;
    const u64 bits = bit_cast<u64>(denormal ? x * 0x1p54 : x) + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
    return {(double)((i32)(bits >> 52) - 1023 - (denormal ? 54 : 0)),
            bit_cast<double>((bits & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull)};
}
// (log((1+s)/(1-s))/s - 2) / z with z = s^2 <= 0.0295
DEVICE_FN float log_tail(float z) { return polynomial(z, 0.666666687f, 0.400001228f, 0.285508066f, 0.2333083f); }
DEVICE_FN double log_tail(double z) {
    return polynomial(z, 0.6666666666666666, 0.4000000000000088, 0.28571428570802404, 0.22222222391987728, 0.18181795610879042,
                      0.15386241293734357, 0.13268730539100895, 0.1308707158006738);
}
DEVICE_FN float ln2_low(float) { return -0x1.05c610p-29f; }
DEVICE_FN double ln2_low(double) { return 0x1.abc9e3b39803fp-56; }
template <typename F> DEVICE_FN F log(F x) {
    if (!(x > F(0))) return x == F(0) ? -infinity(x) : nan(x);
    if (x == infinity(x)) return x;
    const auto split = log_split(x);
    // With f = m - 1 (exact) and s = f/(2+f): log m = f - f²/2 + s (f²/2 + s² tail), so the large term f carries no
    // error.
    const F f = split.m - F(1);
    const F s = f / (F(2) + f);
    const F z = s * s;
    const F half_square = F(0.5) * f * f;
    const F correction = fma(s, fma(z, log_tail(z), half_square), split.k * ln2_low(x));
    const F log_m = f - (half_square - correction);
    return split.k == F(0) ? log_m : fma(split.k, F(sizeof(F) == 4 ? 0x1.62e430p-1 : 0x1.62e42fefa39efp-1), log_m);
}

// 2/pi in binary after 64 zero bits; 1280 bits serve the largest double.
DEVICE_FN u64 two_over_pi(u32 word) {
    static constexpr u64 WORDS[] = {
        0x0000000000000000ull, 0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull, 0xdb6295993c439041ull, 0xfe5163abdebbc561ull,
        0xb7246e3a424dd2e0ull, 0x06492eea09d1921cull, 0xfe1deb1cb129a73eull, 0xe88235f52ebb4484ull, 0xe99c7026b45f7e41ull,
        0x3991d639835339f4ull, 0x9c845f8bbdf9283bull, 0x1ff897ffde05980full, 0xef2f118b5a0a6d1full, 0x6d367ecf27cb09b7ull,
        0x4f463f669e5fea2dull, 0x7527bac7ebe5f17bull, 0x3d0739f78a5292eaull, 0x6bfb5fb11f8d5d08ull, 0x56033046fc7b6babull,
        0xf0cfbc209af4361dull};
    return WORDS[word];
}
// 64 of those bits from `position` on.
DEVICE_FN u64 two_over_pi_bits(u32 position) {
    const u32 shift = position % 64;
    const u64 high = two_over_pi(position / 64) << shift;
    return shift == 0 ? high : high | two_over_pi(position / 64 + 1) >> (64 - shift);
}
DEVICE_FN u64 multiply_high(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }

// x = n pi/2 + r with |r| <= pi/4; the quadrant is n mod 4.
struct AngleF { u32 quadrant; float r; };
struct AngleD { u32 quadrant; double r; };

// Payne and Hanek: of the product x 2/pi only the bits below weight 4 matter, so a window of 2/pi that starts there,
// times the mantissa, modulo the window's size, gives quadrant and fraction in fixed point.
DEVICE_FN AngleF angle_of_huge(float x) {
    const u32 bits = bit_cast<u32>(abs(x));
    const u64 mantissa = (bits & 0x7fffffu) | 0x800000u;
    const u32 position = (bits >> 23) - 150 + 62;
    const u64 product = mantissa * two_over_pi_bits(position) + multiply_high(mantissa, two_over_pi_bits(position + 64));
    const u32 quadrant = (u32)((product + (1ull << 61)) >> 62);
    const float r = (float)(i64)(product << 2) * (float)(0x1.921fb54442d18p+0 * 0x1p-64);
    return x < 0.0f ? AngleF{(0u - quadrant) & 3u, -r} : AngleF{quadrant & 3u, r};
}
DEVICE_FN AngleD angle_of_huge(double x) {
    const u64 bits = bit_cast<u64>(abs(x));
    const u64 mantissa = (bits & 0xfffffffffffffull) | 1ull << 52;
    const u32 position = (u32)(bits >> 52) - 1075 + 62;
    const u64 middle = two_over_pi_bits(position + 64);
    u64 low = mantissa * middle;
    u64 high = mantissa * two_over_pi_bits(position) + multiply_high(mantissa, middle);
    const u64 carry_in = multiply_high(mantissa, two_over_pi_bits(position + 128));
    low += carry_in;
    high += low < carry_in ? 1 : 0;
    const u32 quadrant = (u32)((high + (1ull << 61)) >> 62);
    const i64 head = (i64)(high << 2 | low >> 62);
    const double fraction = (double)(head & ~0x7ffll) * 0x1p-64 + ((double)(head & 0x7ff) + (double)(low << 2) * 0x1p-64) * 0x1p-64;
    const double r = fraction * 0x1.921fb54442d18p+0;
    return x < 0.0 ? AngleD{(0u - quadrant) & 3u, -r} : AngleD{quadrant & 3u, r};
}
// Cody and Waite in three steps: x - k head(pi/2) is exact while k is small enough, the rest of pi/2 follows with one
// rounding each.
DEVICE_FN AngleF angle(float x) {
    if (!(abs(x) < 65536.0f)) return x - x == 0.0f ? angle_of_huge(x) : AngleF{0, x - x};
    // Rounded as in exp_reduce.
    const float shifted = fma(x, 0x1.45f306p-1f, 0x1.8p+23f);
    const float k = shifted - 0x1.8p+23f;
    const float r = fma(-k, -0x1.ee59dap-50f, fma(-k, -0x1.777a5cp-25f, fma(-k, 0x1.921fb6p+0f, x)));
    return {bit_cast<u32>(shifted) & 3u, r};
}
DEVICE_FN AngleD angle_of_moderate(double x) {
    const double k = rint(x * 0x1.45f306dc9c883p-1);
    const double r = fma(-k, -0x1.f1976b7ed8fbcp-110, fma(-k, 0x1.1a62633145c07p-54, fma(-k, 0x1.921fb54442d18p+0, x)));
    return {(u32)(i32)k & 3u, r};
}
DEVICE_FN AngleD angle(double x) {
    if (!(abs(x) < 0x1p27)) return x - x == 0.0 ? angle_of_huge(x) : AngleD{0, x - x};
    return angle_of_moderate(x);
}
// Taylor: the first omitted term is below a quarter ulp on [-pi/4, pi/4].
DEVICE_FN float sin_in_quadrant(float r) {
    const float z = r * r;
    return fma(r * z, polynomial(z, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880), r);
}
DEVICE_FN float cos_in_quadrant(float r) {
    const float z = r * r;
    return polynomial(z, 1.0f, -1.0f / 2, 1.0f / 24, -1.0f / 720, 1.0f / 40320, -1.0f / 3628800);
}
DEVICE_FN double sin_in_quadrant(double r) {
    const double z = r * r;
    return fma(r * z, polynomial(z, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000), r);
}
DEVICE_FN double cos_in_quadrant(double r) {
    const double z = r * r;
    return polynomial(z, 1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200,
                      1.0 / 20922789888000);
}
template <typename F> DEVICE_FN F sin(F x) {
    if (x == F(0)) return x;
    const auto a = angle(x);
    const F magnitude = a.quadrant & 1u ? cos_in_quadrant(a.r) : sin_in_quadrant(a.r);
    return a.quadrant & 2u ? -magnitude : magnitude;
}
template <typename F> DEVICE_FN F cos(F x) {
    const auto a = angle(x);
    const F magnitude = a.quadrant & 1u ? sin_in_quadrant(a.r) : cos_in_quadrant(a.r);
    return (a.quadrant + 1u) & 2u ? -magnitude : magnitude;
}

// For moderate arguments, a sine in fewer operations: x = k pi + r with |r| <= pi/2, k being an integer for the sine
// and one and a half for the cosine, which is the sine of x + pi/2 (SHIFT is 1). Cody and Waite as above; `odd` has in
// its last bit whether the sine of r changes sign.
constexpr float SIN_LIMIT = 65536.0f;
struct HalfTurns { u32 odd; float r; };
template <u32 SHIFT> DEVICE_FN HalfTurns half_turns(float x) {
    constexpr float HALF = 0.5f * SHIFT;
    const float shifted = SHIFT == 0 ? fma(x, 0x1.45f306p-2f, 0x1.8p+23f) : fma(x, 0x1.45f306p-2f, -HALF) + 0x1.8p+23f;
    const float k = shifted - 0x1.8p+23f + HALF;
    return {bit_cast<u32>(shifted) + SHIFT, fma(-k, -0x1.ee59dap-49f, fma(-k, -0x1.777a5cp-24f, fma(-k, 0x1.921fb6p+1f, x)))};
}
// r times the quotient of its sine and itself.
DEVICE_FN float signed_sine(HalfTurns angle, float quotient) { return bit_cast<float>(bit_cast<u32>(angle.r * quotient) ^ angle.odd << 31); }
template <u32 SHIFT> DEVICE_FN float sin_of_moderate(float x) {
    const HalfTurns angle = half_turns<SHIFT>(x);
    const float z = angle.r * angle.r;
    return signed_sine(angle, polynomial(z, 1.0f, -0.166666672f, 0.00833333097f, -0.00019840867f, 2.75253024e-06f, -2.38874307e-08f));
}

// erf(x)/x over z = x² in [0, 1]
DEVICE_FN float erf_small(float z) {
    return polynomial(z, 1.12837911f, -0.37612626f, 0.112835944f, -0.0268542115f, 0.00518908724f, -0.00080168643f, 7.87587487e-5f);
}
DEVICE_FN double erf_small(double z) {
    return polynomial(z, 1.1283791670955126, -0.37612638903183543, 0.11283791670945006, -0.02686617064323777, 0.0052239776071164225,
                      -0.0008548325975389692, 0.00012055294904839707, -1.492473690741966e-05, 1.6447424703317362e-06, -1.6208483801871705e-07,
                      1.3720064546777686e-08, -7.795898827002142e-10);
}
// erfc(x) exp(x²) over u = (x-2)/(x+2), from x = 1/2 to where erfc vanishes.
DEVICE_FN float erfc_scaled(float u) {
    return polynomial(u, 0.255395681f, -0.427185863f, 0.241658181f, -0.0789784491f, 0.00373333017f, 0.00699561881f, -0.000850961951f,
                      -0.000971265079f, 5.79211264e-5f, 0.000146469843f, 4.17461115e-6f);
}
DEVICE_FN double erfc_scaled(double u) {
    return polynomial(u, 0.25539567631050575, -0.4271858474139584, 0.24165819424246623, -0.0789785810157371, 0.0037328924043576253,
                      0.006997461739506708, -0.0008471432525081254, -0.0009819770353994876, 4.3555647806501996e-05, 0.0001743613025336745,
                      2.752470738687645e-05, -2.7580995767415074e-05, -1.3960199170745753e-05, 1.3963590118619013e-06, 3.7426853662129274e-06,
                      1.185525550142752e-06, -3.8827677294268057e-07, -4.925183803583066e-07, -1.923242516352576e-07, 7.022386082531733e-08,
                      1.410171514957509e-07, -4.441730809133494e-09, -4.6410089037320055e-08, 1.1717711015471925e-08);
}
// erfc(a) for a > 1/2
template <typename F> DEVICE_FN F erfc_tail(F a) {
    if (a > F(sizeof(F) == 4 ? 10.2 : 27.4)) return F(0);
    const F square = a * a;
    const F power = exp(-square);
    // What rounding took from the square is worth many ulp of its exponential.
    const F correction = fma(a, a, -square);
    return (power - power * correction) * erfc_scaled((a - F(2)) / (a + F(2)));
}
template <typename F> DEVICE_FN F erf(F x) {
    const F a = abs(x);
    return a > F(1) ? copysign(F(1) - erfc_tail(a), x) : x * erf_small(x * x);
}
// 1 - erf(x) without cancellation
template <typename F> DEVICE_FN F erfc(F x) {
    const F a = abs(x);
    if (!(a > F(0.5))) return F(1) - x * erf_small(x * x);
    const F tail = erfc_tail(a);
    return x > F(0) ? tail : F(2) - tail;
}

// (1 + erf(x / sqrt 2)) / 2 within a few ulp.
DEVICE_FN float normal_distribution(float x) {
    // Beyond, the tail is 0. (NaN gives 0.)
    const float a = __builtin_fminf(abs(x), 16.0f);
    const float square = a * a;
    const float square_low = fma(a, a, -square);
    // exp(-a² / 2): the product with log2 e / 2, and what rounding took of it.
    const float power = square * -0x1.715476p-1f;
    const float rest = fma(square_low, -0x1.715476p-1f, fma(square, -0x1.4ae0cp-27f, fma(square, -0x1.715476p-1f, -power)));
    const float bell = exp2_whole(power);
    // erfc(a / sqrt 2) exp(a² / 2) / 2 over (a - 3) / (a + 3)
    const float u = fma(reciprocal_fast(a + 3.0f), -6.0f, 1.0f);
    const float scaled = polynomial(u, 0.121513948f, -0.206402615f, 0.123225041f, -0.0462132618f, 0.00613194238f, 0.00290438742f,
                                    -0.000983288162f, -0.000339012826f, 0.00011501366f, 5.31619007e-05f);
    const float tail = bell * fma(rest * scaled, 0x1.62e430p-1f, scaled);
    return x > 0.0f ? 1.0f - tail : tail;
}

// A value as an unevaluated sum, |low| <= ulp(high)/2.
struct Pair { double high, low; };
DEVICE_FN Pair quick_sum(double a, double b) {
    const double high = a + b;
    return {high, b - (high - a)};
}
DEVICE_FN Pair product(double a, double b) {
    const double high = a * b;
    return {high, fma(a, b, -high)};
}
DEVICE_FN Pair product(Pair a, Pair b) {
    const Pair p = product(a.high, b.high);
    return quick_sum(p.high, p.low + (a.high * b.low + a.low * b.high));
}
// Natural logarithm of a positive finite x to about 2^-66 relative.
DEVICE_FN Pair log_pair(double x) {
    const SplitD split = log_split(x);
    const double f = split.m - 1.0;
    const double d = split.m + 1.0;
    const double d_low = split.m - (d - 1.0);
    const double s = f / d;
    const Pair s_pair = quick_sum(s, (fma(-s, d, f) - s * d_low) / d);
    const Pair z = product(s_pair, s_pair);
    // log m = 2 s + s³ (2/3 + z rest(z))
    const double rest = polynomial(z.high, 0.4, 0.2857142857142937, 0.22222222221655138, 0.18181818335562422, 0.1538459494439715,
                                   0.13334805679298412, 0.11706209953550312, 0.11723454509771844);
    const Pair tail = product(product(s_pair, z), quick_sum(0x1.5555555555555p-1, fma(z.high, rest, 0x1.5555555555555p-55)));
    const Pair log_m = quick_sum(2.0 * s_pair.high, tail.high);
    const double log_m_low = log_m.low + (2.0 * s_pair.low + tail.low);
    // The head of ln 2 has 42 bits, so k times it is exact.
    const Pair sum = quick_sum(split.k * 0x1.62e42fefa38p-1, log_m.high);
    const Pair whole = split.k == 0.0 ? Pair{log_m.high, 0.0} : sum;
    return quick_sum(whole.high, whole.low + fma(split.k, 0x1.ef35793c7673p-45, log_m_low));
}

// |x|^y for positive finite |x| and finite y. The exponent is carried as a pair to the end, so that the result is rounded once: powers
// that a double can hold come out exact.
DEVICE_FN double pow_positive(double x, double y) {
    const Pair l = log_pair(x);
    const double e = l.high * y;
    if (!(abs(e) < 800.0)) return e > 0.0 ? __builtin_inf() : 0.0;
    const double e_low = fma(l.high, y, -e) + l.low * y;
    const double k = rint(e * 0x1.71547652b82fep+0);
    const Pair r = quick_sum(fma(-k, 0x1.62e42fefa38p-1, e), fma(-k, 0x1.ef35793c7673p-45, e_low));
    const Pair sum = quick_sum(1.0, r.high);
    return ldexp(sum.high + (sum.low + fma(r.high * r.high, exp_tail(r.high), r.low)), (i32)k);
}
DEVICE_FN float pow_positive(float x, float y) {
    return (float)exp(log((double)x) * (double)y);
}
template <typename F> DEVICE_FN F pow(F x, F y) {
    if (y == F(0) || x == F(1)) return F(1);
    if (is_nan(x) || is_nan(y)) return x + y;
    const F a = abs(x);
    if (abs(y) == infinity(y)) {
        if (a == F(1)) return F(1);
        return (a > F(1)) == (y > F(0)) ? infinity(x) : F(0);
    }
    const bool integer = trunc(y) == y;
    // An odd y has an odd last bit; halving an even one leaves an integer.
    const bool odd = integer && trunc(y * F(0.5)) != y * F(0.5);
    const F sign = odd ? copysign(F(1), x) : F(1);
    if (a == F(0)) return y > F(0) ? sign * F(0) : sign * infinity(x);
    if (a == infinity(x)) return y > F(0) ? sign * infinity(x) : sign * F(0);
    if (x < F(0) && !integer) return nan(x);
    return sign * pow_positive(a, y);
}

}  // namespace math
}  // namespace device

#endif
