//! UniPC (Zhao et al. 2023): a predictor, and a corrector that needs no evaluation of its own.

use super::dpm::log_step;
use super::{Ask, At, Blend, Solver};
use crate::sampling::{NoiseLevel, Stepped};
use candle_core::{Result, Tensor};

/// Which of the family.
#[derive(Debug, Clone, PartialEq)]
pub struct UniPcKind {
    /// How many predictions count, 1 to 4.
    pub order: usize,
    /// `B(h) = e^h - 1`, rather than `h`.
    pub exponential: bool,
    /// Whether the image is extrapolated, rather than the noise.
    pub image: bool,
    /// The last steps are of lower order.
    pub lower_order_final: bool,
    /// Steps that are not corrected.
    pub uncorrected: Vec<usize>,
}

impl UniPcKind {
    /// Second order, as it is usual.
    pub const USUAL: Self = Self {
        order: 2,
        exponential: true,
        image: true,
        lower_order_final: true,
        uncorrected: Vec::new(),
    };
}

/// The method on its way.
pub struct UniPc {
    kind: UniPcKind,
    /// The latents at the start of the step before, after correction.
    start: Option<Tensor>,
    /// What was predicted, the latest first.
    seen: Vec<Tensor>,
    /// Order of the step before.
    order: usize,
}

/// A step between two levels, with the weights of the method.
struct Interval {
    /// The step in log ratio.
    h: f64,
    /// The same with the sign that the method gives it.
    signed: f64,
    state: f64,
    /// Of the latest prediction.
    latest: f64,
    /// Of differences from it, with `B(h)` in it.
    differences: f64,
    b: f64,
}

impl UniPc {
    pub fn new(kind: UniPcKind) -> Self {
        Self {
            kind,
            start: None,
            seen: Vec::new(),
            order: 0,
        }
    }

    fn interval(&self, from: &NoiseLevel, to: &NoiseLevel) -> Interval {
        let h = log_step(from, to);
        let (signed, state, gain) = match self.kind.image {
            true => (-h, to.sigma / from.sigma, -to.alpha),
            false => (h, to.alpha / from.alpha, -to.sigma),
        };
        let b = match self.kind.exponential {
            true => signed.exp_m1(),
            false => signed,
        };
        Interval {
            h,
            signed,
            state,
            latest: gain * signed.exp_m1(),
            differences: gain * b,
            b,
        }
    }

    /// The state at the end of a step: `nodes` are the levels of `values`, which go before the latest prediction at
    /// `from` or, as the last, lie at the end.
    fn advance(
        &self,
        start: &Tensor,
        step: &Interval,
        weights: &[f64],
        shares: &[f64],
        values: &[&Tensor],
    ) -> Result<Tensor> {
        let latest = &self.seen[0];
        let mut blend = Blend::of(start, step.state)?;
        let mut of_latest = step.latest;
        for ((weight, share), value) in weights.iter().zip(shares).zip(values) {
            let weight = step.differences * weight / share;
            of_latest -= weight;
            blend = blend.and(value, weight)?;
        }
        blend.and(latest, of_latest)?.finish()
    }

    /// Where earlier levels lie, in shares of a step from `levels[index]`.
    fn shares(&self, levels: &[NoiseLevel], index: usize, step: &Interval) -> Vec<f64> {
        (1..self.order)
            .map(|i| -log_step(&levels[index - i], &levels[index]) / step.h)
            .collect()
    }

    fn predict(&self, x: &Tensor, at: &At) -> Result<Tensor> {
        let (from, to) = (at.from(), at.to());
        let latest = &self.seen[0];
        if to.sigma == 0.0 && self.kind.image {
            return Ok(latest.clone());
        }
        if to.ratio() == from.ratio() {
            // Some schedules end with a step of no length.
            return Ok(x.clone());
        }
        let step = self.interval(&from, &to);
        let shares = self.shares(at.levels, at.index, &step);
        let weights = match shares.len() {
            0 => Vec::new(),
            // The published weight of second order.
            1 => vec![0.5],
            _ => order_conditions(&shares, &step),
        };
        let values: Vec<&Tensor> = self.seen[1..].iter().collect();
        self.advance(x, &step, &weights, &shares, &values)
    }

    /// Redoes the step before, now that the prediction at its end is known.
    fn correct(&self, start: &Tensor, new: &Tensor, at: &At) -> Result<Tensor> {
        let (from, to) = (at.before(1), at.from());
        let step = self.interval(&from, &to);
        let mut shares = self.shares(at.levels, at.index - 1, &step);
        shares.push(1.0);
        let weights = match shares.len() {
            1 => vec![0.5],
            _ => order_conditions(&shares, &step),
        };
        let mut values: Vec<&Tensor> = self.seen[1..self.order].iter().collect();
        values.push(new);
        self.advance(start, &step, &weights, &shares, &values)
    }
}

impl Solver for UniPc {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let from = at.from();
        let denoised = ask.image(x, &from)?;
        let new = match self.kind.image {
            true => denoised.clone(),
            false => Blend::of(x, 1.0 / from.sigma)?
                .and(&denoised, -from.alpha / from.sigma)?
                .finish()?,
        };
        // Counted over the whole run, as the options are.
        let step = at.index + at.planned - at.steps();
        let corrected = step > 0 && !self.kind.uncorrected.contains(&(step - 1));
        let x = match self.start.take() {
            Some(start) if corrected => self.correct(&start, &new, at)?,
            _ => x.clone(),
        };
        self.seen.insert(0, new);
        self.seen.truncate(self.kind.order);
        let left = match self.kind.lower_order_final {
            true => at.steps() - at.index,
            false => usize::MAX,
        };
        self.order = self.kind.order.min(left).min(self.seen.len());
        let next = self.predict(&x, at)?;
        self.start = Some(x);
        Ok(Stepped { x: next, denoised })
    }
}

/// The weights for which a step is exact for polynomials through as many points as there are shares: those that solve
/// `Σ weight · share^k = b_k`.
fn order_conditions(shares: &[f64], step: &Interval) -> Vec<f64> {
    let mut phi = step.signed.exp_m1() / step.signed - 1.0;
    let mut factorial = 1.0;
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for k in 0..shares.len() {
        let mut row: Vec<f64> = shares.iter().map(|share| share.powi(k as i32)).collect();
        row.push(phi * factorial / step.b);
        rows.push(row);
        factorial *= (k + 2) as f64;
        phi = phi / step.signed - 1.0 / factorial;
    }
    solve(rows)
}

/// A linear system of few equations, each with its right side at the end, by elimination with pivots.
pub(super) fn solve(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let count = rows.len();
    for column in 0..count {
        let pivot = (column..count)
            .max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))
            .unwrap_or(column);
        rows.swap(column, pivot);
        let pivot = rows[column].clone();
        for (i, row) in rows.iter_mut().enumerate() {
            if i != column {
                let factor = row[column] / pivot[column];
                row.iter_mut()
                    .zip(&pivot)
                    .for_each(|(x, p)| *x -= factor * p);
            }
        }
    }
    (0..count).map(|i| rows[i][count] / rows[i][i]).collect()
}
