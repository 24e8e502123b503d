//! What leaves unlikely tokens out.

use std::cmp::Ordering;

/// A token with its logit, or what has become of it.
pub(super) type Candidate = (u32, f32);

/// The larger first; of equal ones, the lower token.
pub(super) fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Drops all but the `count` largest.
pub(super) fn keep_largest(candidates: &mut Vec<Candidate>, count: usize) {
    if count == 0 {
        candidates.clear();
    } else if count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, descending);
        candidates.truncate(count);
    }
}

/// The probability, up to a factor, of a score.
pub(super) fn weight(candidate: &Candidate) -> f64 {
    f64::from(candidate.1).exp()
}

/// Keeps the fewest most likely candidates that together reach the probability `p`.
pub(super) fn keep_top(candidates: &mut Vec<Candidate>, p: f32) {
    /// Below, candidates are so unlikely that they are rarely needed.
    const LIKELY: f32 = -9.0;
    let wanted = f64::from(p) * candidates.iter().map(weight).sum::<f64>();
    let mut likely: Vec<Candidate> = candidates
        .iter()
        .copied()
        .filter(|c| c.1 >= LIKELY)
        .collect();
    if likely.iter().map(weight).sum::<f64>() < wanted {
        likely = std::mem::take(candidates);
    }
    likely.sort_unstable_by(descending);
    keep_mass(&mut likely, wanted, |candidate| candidate.1);
    *candidates = likely;
}

/// Keeps the fewest candidates nearest to the expected surprise that together reach the probability `p` ("Locally
/// Typical Sampling", Meister et al., 2022).
pub(super) fn keep_typical(candidates: &mut Vec<Candidate>, p: f32) {
    let sum: f64 = candidates.iter().map(weight).sum();
    let mean: f64 = candidates
        .iter()
        .map(|c| weight(c) * f64::from(c.1))
        .sum::<f64>()
        / sum;
    let mean = mean as f32;
    // Surprise is the logarithm of the sum less the score, on average less the mean score.
    let distance = |c: &Candidate| (c.1 - mean).abs();
    candidates.sort_unstable_by(|a, b| {
        distance(a)
            .total_cmp(&distance(b))
            .then_with(|| descending(a, b))
    });
    keep_mass(candidates, f64::from(p) * sum, distance);
}

/// Keeps the first candidates up to the one with which their weights reach `wanted`, and those that have the same `key`
/// as it.
fn keep_mass(candidates: &mut Vec<Candidate>, wanted: f64, key: impl Fn(&Candidate) -> f32) {
    let mut sum = 0.0;
    let reached = candidates.iter().position(|candidate| {
        sum += weight(candidate);
        sum >= wanted
    });
    if let Some(last) = reached {
        let same = key(&candidates[last]);
        let more = candidates[last..].iter().take_while(|c| key(c) == same);
        let count = last + more.count();
        candidates.truncate(count);
    }
}

/// Keeps the candidates that are at least `p` times as likely as the most likely one.
pub(super) fn keep_likely(candidates: &mut Vec<Candidate>, p: f32) {
    let most = candidates
        .iter()
        .map(|c| c.1)
        .fold(f32::NEG_INFINITY, f32::max);
    candidates.retain(|c| c.1 >= most + p.ln());
}

/// Keeps the candidates that are at most `n` standard deviations below the largest.
pub(super) fn keep_dense(candidates: &mut Vec<Candidate>, n: f32) {
    let count = candidates.len() as f64;
    let scores = || candidates.iter().map(|c| f64::from(c.1));
    let mean = scores().sum::<f64>() / count;
    let variance = scores().map(|s| (s - mean).powi(2)).sum::<f64>() / count;
    let most = candidates.iter().map(|c| c.1);
    let most = most.fold(f32::NEG_INFINITY, f32::max);
    let least = most - n * variance.sqrt() as f32;
    candidates.retain(|c| c.1 >= least);
}

/// Of the candidates that have the probability `threshold`, leaves out all but the least likely.
pub(super) fn leave_top(candidates: &mut Vec<Candidate>, threshold: f32) {
    let sum: f64 = candidates.iter().map(weight).sum();
    let wanted = f64::from(threshold) * sum;
    let least = candidates
        .iter()
        .filter(|c| weight(c) >= wanted)
        .map(|c| c.1)
        .fold(f32::INFINITY, f32::min);
    candidates.retain(|c| c.1 <= least);
}
