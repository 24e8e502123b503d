//! How the noise levels of a run are spread, in numbers without a model.

use super::betas::linspace;
use statrs::function::beta::inv_beta_reg;
use std::f64::consts::PI;

/// Even steps of the roots of this exponent (Karras et al. 2022).
pub(super) fn power(smallest: f64, largest: f64, steps: usize, rho: f64) -> Vec<f64> {
    let root = |x: f64| x.powf(1.0 / rho);
    linspace(root(largest), root(smallest), steps)
        .into_iter()
        .map(|x| x.powf(rho))
        .collect()
}

/// Logarithms that fall as a power of the share of the run, evenly for 1.
pub(super) fn exponential(smallest: f64, largest: f64, steps: usize, rho: f64) -> Vec<f64> {
    let (low, high) = (smallest.ln(), largest.ln());
    linspace(1.0, 0.0, steps)
        .into_iter()
        .map(|ramp| (low + ramp.powf(rho) * (high - low)).exp())
        .collect()
}

/// Quantiles of the beta distribution of these parameters (Lee et al. 2024).
pub(super) fn beta(smallest: f64, largest: f64, steps: usize, (a, b): (f64, f64)) -> Vec<f64> {
    linspace(1.0, 0.0, steps)
        .into_iter()
        .map(|p| smallest + inv_beta_reg(a, b, p) * (largest - smallest))
        .collect()
}

/// Even steps of the arc tangent: the least divergence between steps (Sabour et al. 2024, theorem 3.1).
pub(super) fn arc_tangent(smallest: f64, largest: f64, steps: usize) -> Vec<f64> {
    linspace(largest.atan(), smallest.atan(), steps)
        .into_iter()
        .map(f64::tan)
        .collect()
}

/// Shares of the largest noise: half of the steps take the first fortieth, the others go on by squares (Polyak et al.
/// 2024, as Mochi has it).
pub(super) fn linear_quadratic(steps: usize) -> Vec<f64> {
    const FIRST: f64 = 0.025;
    if steps < 2 {
        return vec![1.0; steps];
    }
    let (all, linear) = (steps as f64, (steps / 2) as f64);
    let rest = all - linear;
    let missing = linear - FIRST * all;
    let square = missing / (linear * rest * rest);
    let slope = FIRST / linear - 2.0 * missing / (rest * rest);
    (0..steps)
        .map(|i| i as f64)
        .map(|i| match i < linear {
            true => 1.0 - i * FIRST / linear,
            false => 1.0 - (square * i * i + slope * i + square * linear * linear),
        })
        .collect()
}

/// Shares of the largest noise along two arcs of tangents that meet at a half (RES4LYF's `bong_tangent`).
pub(super) fn two_tangents(steps: usize) -> Vec<f64> {
    if steps < 2 {
        return vec![1.0; steps];
    }
    let all = steps + 2;
    let pivot = (all as f64 * 0.6) as usize;
    let slope = 0.2 / (all as f64 / 40.0);
    let arc = |count: usize, pivot: f64, start: f64, end: f64| -> Vec<f64> {
        let at = |x: f64| (2.0 / PI * (-slope * (x - pivot)).atan() + 1.0) / 2.0;
        let (high, low) = (at(0.0), at(count.saturating_sub(1) as f64));
        (0..count)
            .map(|x| match high > low {
                true => (at(x as f64) - low) / (high - low) * (start - end) + end,
                false => start,
            })
            .collect()
    };
    let mut shares = arc(pivot, pivot as f64, 1.0, 0.5);
    shares.pop();
    shares.extend(arc(all - pivot, 0.0, 0.5, 0.0));
    shares.truncate(steps);
    shares
}

/// Ratios of noise to image that Sabour et al. 2024 publish for ten steps of Stable Diffusion 1 and XL.
const ALIGNED: [f64; 11] = [
    14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029,
];
const ALIGNED_XL: [f64; 11] = [
    14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029,
];

/// These ratios, for other numbers of steps by the logarithm; the last, which is replaced by no noise, is left out.
pub(super) fn aligned(steps: usize, xl: bool) -> Vec<f64> {
    let table = if xl { ALIGNED_XL } else { ALIGNED };
    (0..steps)
        .map(|i| {
            let place = i as f64 * (table.len() - 1) as f64 / steps as f64;
            let low = place.floor() as usize;
            let (a, b) = (table[low].ln(), table[(low + 1).min(table.len() - 1)].ln());
            (a + (b - a) * place.fract()).exp()
        })
        .collect()
}
