// The error function's kin, the normal distribution and the gamma function. Included by functions.h, which gives them
// their names. Of double within some ten units in the last place; floats are rounded doubles where that is cheap enough.
#ifndef CANDLE_ROCM_PORT_SPECIAL_H
#define CANDLE_ROCM_PORT_SPECIAL_H

namespace cuda_port {
namespace port {

// exp(x²) erfc(x)
PORT_FN double erfcx(double x) {
    if (is_nan(x)) return x;
    if (x < -26.7) return m::infinity(x);
    if (x < 0.5) {
        const double square = x * x, low = m::fma(x, x, -square);
        const double power = m::exp(square);
        return (power + power * low) * m::erfc(x);
    }
    if (x < 26.0) return m::erfc_scaled((x - 2.0) / (x + 2.0));
    // The asymptotic series.
    const double z = 1.0 / x / x;
    return 0.56418958354775628695 / x * m::polynomial(z, 1.0, -0.5, 0.75, -1.875, 6.5625);
}
PORT_FN float erfcx(float x) { return (float)erfcx((double)x); }

// The y >= 0 with erfc(y) = q for q in (0, 1], where x = 1 - q: a guess that is right to some thousandths, and three steps
// of Halley's, of which each triples the digits.
PORT_FN double inverse_erfc(double q, double x) {
    const double l = m::log(q * (2.0 - q));
    const double p = 4.330746750799873 + 0.5 * l;
    double y = m::sqrt(m::sqrt(p * p - l * (1.0 / 0.147)) - p);
    for (int step = 0; step < 3; ++step) {
        const double slope = 1.1283791670955126 * m::exp(-y * y);
        const double error = x < 0.5 ? m::erf(y) - x : q - m::erfc(y);
        const double u = error / slope;
        y -= u / (1.0 + y * u);
    }
    return y;
}
PORT_FN double erfinv(double x) {
    const double a = m::abs(x);
    if (!(a <= 1.0)) return m::nan(x);
    if (a == 1.0) return m::copysign(m::infinity(x), x);
    if (a < 1e-8) return x * 0.88622692545275801365;
    return m::copysign(inverse_erfc(1.0 - a, a), x);
}
PORT_FN float erfinv(float x) { return (float)erfinv((double)x); }
PORT_FN double erfcinv(double q) {
    if (!(q >= 0.0 && q <= 2.0)) return m::nan(q);
    if (q == 0.0) return m::infinity(q);
    if (q == 2.0) return -m::infinity(q);
    if (m::abs(1.0 - q) < 0.5) return erfinv(1.0 - q);
    return q < 1.0 ? inverse_erfc(q, 1.0 - q) : -inverse_erfc(2.0 - q, q - 1.0);
}
PORT_FN float erfcinv(float q) { return (float)erfcinv((double)q); }

PORT_FN double normcdf(double x) {
    if (is_nan(x)) return x;
    const double t = x * -0.70710678118654752440;
    // What rounding took from t is worth t² times as much of the tail.
    const double low = m::fma(x, -0.70710678118654752440, -t) + x * 4.8336466567264567e-17;
    const double tail = 0.5 * m::erfc(t);
    return t > 0.0 ? tail - tail * (2.0 * t * low) : tail;
}
PORT_FN float normcdf(float x) { return is_nan(x) ? x : m::normal_distribution(x); }
PORT_FN double normcdfinv(double p) { return -1.41421356237309504880 * erfcinv(2.0 * p); }
PORT_FN float normcdfinv(float p) { return (float)normcdfinv((double)p); }

// log Γ(2 + z) for |z| <= 1/2, by its Taylor series: 1 - γ, and (ζ(k) - 1) / k with alternating signs.
PORT_FN double log_gamma_near_two(double z) {
    return z * m::polynomial(z,
                                 0.42278433509846713, 0.3224670334241132, -0.0673523010531981, 0.020580808427784546,
                                 -0.007385551028673986, 0.0028905103307415234, -0.001192753911703261, 0.0005096695247430425,
                                 -0.00022315475845357939, 9.945751278180853e-05, -4.492623673813314e-05, 2.050721277567069e-05,
                                 -9.439488275268397e-06, 4.374866789907488e-06, -2.039215753801366e-06, 9.55141213040742e-07,
                                 -4.492469198764566e-07, 2.1207184805554665e-07, -1.0043224823968099e-07,
                                 4.7698101693639804e-08, -2.2711094608943164e-08, 1.0838659214896955e-08,
                                 -5.183475041970047e-09, 2.4836745438024785e-09, -1.1921401405860912e-09, 5.731367241678862e-10,
                                 -2.7595228851242334e-10, 1.330476437424449e-10);
}
// log Γ(x) - (x - 1/2) log x + x for x >= 8, by Stirling's series.
PORT_FN double stirling(double x) {
    const double z = 1.0 / (x * x);
    return 0.91893853320467274178 + m::polynomial(z, 1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360, 1.0 / 156) / x;
}
// Brings x in (0, 8) to within a half of two; Γ(x) is that one's times `times`, divided by `by`.
PORT_FN double near_two(double x, double* times, double* by) {
    *times = 1.0;
    *by = 1.0;
    while (x > 2.5) *times *= (x -= 1.0);
    // z + 1 rounds what z alone has.
    double z = x - 2.0;
    if (x < 0.5) {
        *by = x * (x + 1.0);
        z = x;
    } else if (x < 1.5) {
        *by = x;
        z = x - 1.0;
    }
    return z;
}
PORT_FN double lgamma(double x) {
    if (is_nan(x)) return x;
    if (is_infinite(x) || (x <= 0.0 && m::trunc(x) == x)) return m::infinity(x);
    const double a = m::abs(x);
    double positive;
    if (a < 1e-17) {
        return -m::log(a);
    } else if (a < 8.0) {
        double times, by;
        const double z = near_two(a, &times, &by);
        positive = log_gamma_near_two(z) + (times != 1.0 ? m::log(times) : 0.0);
        if (a < 0.5) {
            positive -= m::log(a) + log1p(a);
        } else if (a < 1.5) {
            positive -= log1p(z);
        }
    } else {
        positive = (a - 0.5) * (m::log(a) - 1.0) - 0.5 + stirling(a);
    }
    if (x > 0.0) return positive;
    return m::log(3.14159265358979323846 / m::abs(a * sinpi(a))) - positive;
}
PORT_FN float lgamma(float x) { return (float)lgamma((double)x); }
PORT_FN double tgamma(double x) {
    if (is_nan(x)) return x;
    if (is_infinite(x)) return x > 0 ? x : m::nan(x);
    if (x == 0.0) return m::copysign(m::infinity(x), x);
    if (x < 0.0 && m::trunc(x) == x) return m::nan(x);
    const double a = m::abs(x);
    double positive;
    if (a < 8.0) {
        double times, by;
        const double z = near_two(a, &times, &by);
        positive = m::exp(log_gamma_near_two(z)) * times / by;
    } else {
        // In two halves, since the power overflows before the function does.
        const double half = m::pow(a, 0.5 * a - 0.25);
        positive = half * m::exp(stirling(a) - a) * half;
        if (a > 180.0) positive = m::infinity(a);
    }
    if (x > 0.0) return positive;
    // Γ(x) Γ(-x) = -π / (x sin(π x))
    const double sine = sinpi(x);
    return -3.14159265358979323846 / (x * sine * positive);
}
PORT_FN float tgamma(float x) { return (float)tgamma((double)x); }

}  // namespace port
}  // namespace cuda_port

#endif
