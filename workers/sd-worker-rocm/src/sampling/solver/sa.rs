//! SA-Solver (Xue et al. 2023, arXiv:2309.05019): Adams's predictor, and a corrector that needs no evaluation of its own,
//! for a reverse SDE with noise in the middle of a run.

use super::dpm::log_step;
use super::unipc::solve;
use super::{Ask, At, Blend, Solver};
use crate::sampling::{NoiseLevel, Stepped};
use candle_core::{Result, Tensor};
use std::ops::RangeInclusive;

/// The time steps, of 1000, that get noise: the published choice.
const NOISY: RangeInclusive<f64> = 200.0..=800.0;

/// Which of the family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SaKind {
    /// How many predictions a step counts, 1 to 4.
    pub predictor: usize,
    /// How many it counts when it is redone, the one at its end among them, 1 to 4.
    pub corrector: usize,
    /// Whether the image is extrapolated, rather than the noise.
    pub image: bool,
    /// The last steps are of lower order.
    pub lower_order_final: bool,
}

impl SaKind {
    /// Second order, as it is usual.
    pub const USUAL: Self = Self {
        predictor: 2,
        corrector: 2,
        image: true,
        lower_order_final: true,
    };
}

/// A step as it was first made.
struct Made {
    start: Tensor,
    noise: Tensor,
    /// How much noise, in shares of the reverse SDE's.
    tau: f64,
    /// Of the corrector.
    order: usize,
}

/// The method on its way.
pub struct Sa {
    kind: SaKind,
    /// What was predicted, the latest first.
    seen: Vec<Tensor>,
    before: Option<Made>,
}

impl Sa {
    pub fn new(kind: SaKind) -> Self {
        Self {
            kind,
            seen: Vec::new(),
            before: None,
        }
    }

    /// What remains in the log ratio `u` to the end of a step is multiplied by e^(rate · u).
    fn rate(&self, tau: f64) -> f64 {
        match self.kind.image {
            true => 1.0 + tau * tau,
            false => -1.0,
        }
    }

    /// The state at the end of a step from its start: `weights` of the latest of `values` on.
    fn advance<'a>(
        &self,
        made: &Made,
        (from, to): (&NoiseLevel, &NoiseLevel),
        weights: &[f64],
        values: impl Iterator<Item = &'a Tensor>,
        strength: f64,
    ) -> Result<Tensor> {
        let (h, tau) = (log_step(from, to), made.tau);
        let more = 1.0 + tau * tau;
        let (state, gain, noise) = match self.kind.image {
            true => (
                (-tau * tau * h).exp() * to.sigma / from.sigma,
                more * to.alpha,
                to.sigma * (-(-2.0 * tau * tau * h).exp_m1()).sqrt(),
            ),
            false => (
                to.alpha / from.alpha,
                -more * to.sigma,
                tau * to.sigma * (2.0 * h).exp_m1().sqrt(),
            ),
        };
        let mut blend = Blend::of(&made.start, state)?;
        for (weight, value) in weights.iter().zip(values) {
            blend = blend.and(value, gain * weight)?;
        }
        blend.and(&made.noise, noise * strength)?.finish()
    }

    fn predict(&self, made: &Made, at: &At, order: usize) -> Result<Tensor> {
        let (from, to) = (at.from(), at.to());
        let (h, rate) = (log_step(&from, &to), self.rate(made.tau));
        let nodes: Vec<f64> = (0..order).map(|i| -log_step(&at.before(i), &to)).collect();
        let mut weights = integrals(rate, h, &nodes);
        if self.kind.image && order == 2 {
            // Of third order in the step; the authors' for few steps.
            let more = (h * h / 2.0 - curve(rate, h)) / log_step(&at.before(1), &from);
            weights[0] += more;
            weights[1] -= more;
        }
        self.advance(
            made,
            (&from, &to),
            &weights,
            self.seen.iter(),
            at.churn.strength,
        )
    }

    /// Redoes the step before, now that the prediction at its end is known, the first of those that were seen.
    fn correct(&self, made: &Made, at: &At) -> Result<Tensor> {
        let (from, to) = (at.before(1), at.from());
        let (h, rate) = (log_step(&from, &to), self.rate(made.tau));
        let nodes: Vec<f64> = (0..made.order)
            .map(|i| -log_step(&at.before(i), &to))
            .collect();
        let mut weights = integrals(rate, h, &nodes);
        if self.kind.image && made.order == 2 {
            let more = h / 2.0 - curve(rate, h) / h;
            weights[0] += more;
            weights[1] -= more;
        }
        self.advance(
            made,
            (&from, &to),
            &weights,
            self.seen.iter(),
            at.churn.strength,
        )
    }
}

impl Solver for Sa {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        let new = match self.kind.image {
            true => denoised.clone(),
            false => Blend::of(x, 1.0 / from.sigma)?
                .and(&denoised, -from.alpha / from.sigma)?
                .finish()?,
        };
        self.seen.insert(0, new);
        let start = match self.before.take() {
            Some(made) => self.correct(&made, at)?,
            None => x.clone(),
        };
        let noise = (ask.noise)(None)?;
        if to.sigma == 0.0 {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        if to.ratio() == from.ratio() {
            // Some schedules end with a step of no length.
            return Ok(Stepped { x: start, denoised });
        }
        let (left, seen) = (at.steps() - at.index, self.seen.len());
        let lowered = |order: usize, left: usize| match self.kind.lower_order_final {
            true => order.min(left),
            false => order,
        };
        let made = Made {
            start,
            noise,
            tau: match NOISY.contains(&from.timestep) {
                true => at.eta,
                false => 0.0,
            },
            order: lowered(self.kind.corrector, left + 1).min(seen + 1),
        };
        let order = lowered(self.kind.predictor, left).min(seen);
        let x = self.predict(&made, at, order)?;
        self.before = Some(made);
        self.seen
            .truncate(self.kind.predictor.max(self.kind.corrector - 1));
        Ok(Stepped { x, denoised })
    }
}

/// The integral of e^(-rate · u) from 0 on, integrated from 0 to `h`.
fn curve(rate: f64, h: f64) -> f64 {
    (rate * h + (-rate * h).exp_m1()) / (rate * rate)
}

/// Integrals of e^(rate · u), from -h to 0, times the Lagrange polynomials through `nodes`.
fn integrals(rate: f64, h: f64, nodes: &[f64]) -> Vec<f64> {
    let end = (-rate * h).exp();
    let mut moment = -(-rate * h).exp_m1() / rate;
    let mut rows = Vec::with_capacity(nodes.len());
    for k in 0..nodes.len() {
        if k > 0 {
            moment = -((-h).powi(k as i32) * end + k as f64 * moment) / rate;
        }
        let mut row: Vec<f64> = nodes.iter().map(|node| node.powi(k as i32)).collect();
        row.push(moment);
        rows.push(row);
    }
    solve(rows)
}
