//! Betas of training, and the shares of signal that they leave.

/// `count` evenly spaced numbers from `start` to `end`.
pub(super) fn linspace(start: f64, end: f64, count: usize) -> Vec<f64> {
    let last = count.saturating_sub(1).max(1) as f64;
    (0..count)
        .map(|i| start + (end - start) * i as f64 / last)
        .collect()
}

/// Squares of evenly spaced roots.
pub(super) fn scaled_linear(start: f64, end: f64, count: usize) -> Vec<f64> {
    linspace(start.sqrt(), end.sqrt(), count)
        .into_iter()
        .map(|b| b * b)
        .collect()
}

/// The squared cosine of Nichol and Dhariwal 2021.
pub(super) fn squared_cosine(count: usize) -> Vec<f64> {
    let bar = |t: f64| {
        ((t + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2)
            .cos()
            .powi(2)
    };
    (0..count)
        .map(|i| {
            let (from, to) = (i as f64 / count as f64, (i + 1) as f64 / count as f64);
            (1.0 - bar(to) / bar(from)).min(0.999)
        })
        .collect()
}

/// The share of signal, squared, after each step.
pub(super) fn cumulative(betas: &[f64]) -> Vec<f64> {
    betas
        .iter()
        .scan(1.0, |product, beta| {
            *product *= 1.0 - beta;
            Some(*product)
        })
        .collect()
}

/// Moves and scales the alphas so that the last is zero and the first stays (Lin et al. 2024, algorithm 1).
pub(super) fn rescale_zero_snr(alphas_cumprod: &mut [f64]) {
    let (Some(first), Some(last)) = (
        alphas_cumprod.first().map(|a| a.sqrt()),
        alphas_cumprod.last().map(|a| a.sqrt()),
    ) else {
        return;
    };
    if first <= last {
        return;
    }
    for a in alphas_cumprod {
        *a = ((a.sqrt() - last) * first / (first - last)).powi(2);
    }
}
