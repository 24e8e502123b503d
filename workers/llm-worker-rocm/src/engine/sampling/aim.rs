//! What sampling aims at from token to token, see [`Aim`].

use super::filters::{descending, keep_largest, weight, Candidate};
use crate::engine::api::{Aim, MirostatVersion};

/// Tokens that the first version of Mirostat estimates by.
const ESTIMATED: usize = 100;

/// What an aim has learned from the tokens before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) enum AimState {
    /// The largest surprise in bits.
    Mirostat(f32),
    /// Of the probabilities of the tokens before: their sum and that of their weights.
    AdaptiveP(f32, f32),
}

impl AimState {
    /// That of an answer's beginning.
    pub(in crate::engine) fn new(aim: Aim) -> Self {
        match aim {
            Aim::Mirostat { tau, .. } => Self::Mirostat(2.0 * tau),
            Aim::AdaptiveP { target, decay } => {
                Self::AdaptiveP(target / (1.0 - decay), 1.0 / (1.0 - decay))
            }
        }
    }

    /// Takes the probability of a chosen token.
    pub(in crate::engine) fn learn(&mut self, aim: Aim, share: f32) {
        match (self, aim) {
            (Self::Mirostat(most), Aim::Mirostat { tau, eta, .. }) => {
                *most -= eta * (-share.log2() - tau);
            }
            (Self::AdaptiveP(sum, weights), Aim::AdaptiveP { decay, .. }) => {
                *sum = share + decay * *sum;
                *weights = 1.0 + decay * *weights;
            }
            _ => {}
        }
    }

    /// Changes what may be chosen. Gives the probability that a candidate counts with, by its place.
    pub(super) fn apply(&self, aim: Aim, candidates: &mut Vec<Candidate>) -> Vec<f32> {
        match (*self, aim) {
            (Self::Mirostat(most), Aim::Mirostat { version, .. }) => {
                match version {
                    MirostatVersion::V1 => {
                        let count = count_of_surprise(candidates, most);
                        keep_largest(candidates, count);
                    }
                    MirostatVersion::V2 => {
                        let likely = shares(candidates);
                        let first = candidates.iter().copied().min_by(descending);
                        let mut likely = likely.into_iter();
                        candidates.retain(|_| likely.next().is_some_and(|p| -p.log2() <= most));
                        if candidates.is_empty() {
                            candidates.extend(first);
                        }
                    }
                }
                shares(candidates)
            }
            (Self::AdaptiveP(sum, weights), Aim::AdaptiveP { target, .. }) => {
                let shares = shares(candidates);
                let wanted = (2.0 * target - sum / weights).clamp(0.0, 1.0);
                for (candidate, share) in candidates.iter_mut().zip(&shares) {
                    // Like a parabola near what is wanted, then a line: the numbers are those of the original.
                    let distance = (share - wanted).abs() / 0.3;
                    candidate.1 = 5.0 - 10.0 * distance * distance / (1.0 + distance);
                }
                shares
            }
            _ => shares(candidates),
        }
    }
}

/// Probabilities of candidates, in their order.
fn shares(candidates: &[Candidate]) -> Vec<f32> {
    let most = candidates.iter().map(|c| c.1);
    let most = most.fold(f32::NEG_INFINITY, f32::max);
    let weights = || candidates.iter().map(|(t, s)| weight(&(*t, s - most)));
    let sum: f64 = weights().sum();
    weights().map(|w| (w / sum) as f32).collect()
}

/// How many of the most likely tokens have a mean surprise of `most / 2`, if probabilities fall by Zipf's law as the
/// first ones do (section 4 of the paper).
fn count_of_surprise(candidates: &[Candidate], most: f32) -> usize {
    let mut first = candidates.to_vec();
    keep_largest(&mut first, ESTIMATED);
    first.sort_unstable_by(descending);
    let (mut product, mut square) = (0.0, 0.0);
    for (i, pair) in first.windows(2).enumerate() {
        let t = ((i as f64 + 2.0) / (i as f64 + 1.0)).ln();
        product += t * f64::from(pair[0].1 - pair[1].1);
        square += t * t;
    }
    if square == 0.0 {
        return 1;
    }
    let s = product / square;
    let excess = s - 1.0;
    let total = 1.0 - (candidates.len() as f64).powf(-excess);
    let count = (excess * f64::from(most).exp2() / total).powf(1.0 / s);
    match count.is_finite() {
        true => (count as usize).clamp(1, candidates.len()),
        false => candidates.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(shares: &[f32]) -> Vec<Candidate> {
        (0..).zip(shares.iter().map(|p| p.ln())).collect()
    }

    fn tokens(candidates: &[Candidate]) -> Vec<u32> {
        candidates.iter().map(|c| c.0).collect()
    }

    #[test]
    fn mirostat_cuts_by_surprise_and_learns() {
        let aim = |version| Aim::Mirostat {
            version,
            tau: 1.0,
            eta: 0.5,
        };
        let second = aim(MirostatVersion::V2);
        let mut state = AimState::new(second);
        assert_eq!(state, AimState::Mirostat(2.0));
        // A quarter has two bits.
        let mut left = candidates(&[0.125, 0.5, 0.25, 0.125]);
        let shares = state.apply(second, &mut left);
        assert_eq!(tokens(&left), [1, 2]);
        assert!((shares[0] - 2.0 / 3.0).abs() < 1e-6, "{shares:?}");
        state.learn(second, 0.125);
        assert_eq!(state, AimState::Mirostat(1.0));
        state.learn(second, 1.0);
        assert_eq!(state, AimState::Mirostat(1.5));
        // The most likely one stays.
        let mut left = candidates(&[0.2, 0.3, 0.25, 0.25]);
        AimState::Mirostat(0.1).apply(second, &mut left);
        assert_eq!(tokens(&left), [1]);
        // Of probabilities that fall like 1 / rank^2, the paper's equation gives the number.
        let first = aim(MirostatVersion::V1);
        let zipf: Vec<f32> = (1..=1000).map(|rank| 1.0 / (rank * rank) as f32).collect();
        let mut left = candidates(&zipf);
        AimState::Mirostat(6.0).apply(first, &mut left);
        assert_eq!(left.len(), (64.0f64 / (1.0 - 0.001)).sqrt() as usize);
        let mut alone = candidates(&[1.0]);
        AimState::Mirostat(6.0).apply(first, &mut alone);
        assert_eq!(tokens(&alone), [0]);
    }

    #[test]
    fn an_aimed_probability_balances_those_before() {
        let aim = Aim::AdaptiveP {
            target: 0.25,
            decay: 0.5,
        };
        let mut state = AimState::new(aim);
        assert_eq!(state, AimState::AdaptiveP(0.5, 2.0));
        let best = |state: &AimState| {
            let mut left = candidates(&[0.6, 0.25, 0.1, 0.05]);
            let shares = state.apply(aim, &mut left);
            assert!((shares[0] - 0.6).abs() < 1e-6);
            *left.iter().min_by(|a, b| descending(a, b)).unwrap()
        };
        assert_eq!(best(&state), (1, 5.0));
        // A likely token is made up for by an unlikely one, and the other way around.
        state.learn(aim, 0.6);
        assert_eq!(state, AimState::AdaptiveP(0.85, 2.0));
        assert_eq!(best(&state).0, 2);
        for _ in 0..4 {
            state.learn(aim, 0.01);
        }
        assert_eq!(best(&state).0, 0);
    }
}
