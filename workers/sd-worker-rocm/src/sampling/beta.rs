//! Quantiles of the symmetric beta distribution, for [`super::Schedule::Beta`].

/// Where the distribution function of Beta(a, a) reaches `probability`; `a` below 1, where the density is unbounded at both ends.
///
/// The substitution `t = u^(1/a)` takes the pole away, the rest is integrated by Simpson's rule and inverted by bisection: plenty for the handful of values of one run.
pub(super) fn symmetric_beta_quantile(probability: f64, a: f64) -> f64 {
    let p = probability.clamp(0.0, 1.0);
    if p > 0.5 {
        return 1.0 - symmetric_beta_quantile(1.0 - p, a);
    }
    // By symmetry half of the mass lies below 1/2.
    let wanted = p * 2.0 * lower_mass(0.5, a);
    let (mut low, mut high) = (0.0, 0.5);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if lower_mass(middle, a) < wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The integral of `t^(a-1) (1-t)^(a-1)` from 0 to `x`, for `x` up to 1/2.
fn lower_mass(x: f64, a: f64) -> f64 {
    const INTERVALS: usize = 128;
    let end = x.powf(a);
    let width = end / INTERVALS as f64;
    // With t = u^(1/a), t^(a-1) dt = du / a.
    let density = |u: f64| (1.0 - u.powf(1.0 / a)).powf(a - 1.0);
    let inner: f64 = (1..INTERVALS)
        .map(|i| density(i as f64 * width) * if i % 2 == 1 { 4.0 } else { 2.0 })
        .sum();
    (density(0.0) + inner + density(end)) * width / (3.0 * a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_quantiles() {
        // The arcsine distribution, a = 1/2, has a closed form: sin²(π p / 2).
        for p in [0.0, 0.01, 0.2, 0.5, 0.77, 0.999, 1.0] {
            let exact = (std::f64::consts::FRAC_PI_2 * p).sin().powi(2);
            assert!(
                (symmetric_beta_quantile(p, 0.5) - exact).abs() < 1e-7,
                "{p}"
            );
        }
    }
}
