//! Solvers in log ratio: DPM-Solver and DPM-Solver++ with their SDE forms (Lu et al. 2022), DEIS (Zhang and Chen 2023).

use super::{Ask, At, Blend, Solver};
use crate::sampling::{NoiseLevel, Stepped};
use candle_core::{Result, Tensor};

/// What is held constant or extrapolated over a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The image (DPM-Solver++).
    Image,
    /// The noise (DPM-Solver).
    Noise,
    /// The noise, as a polynomial in the logarithm of the ratio over the ratio (DEIS).
    NoiseLogRho,
}

/// How the second order is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondOrder {
    /// The slope counts half.
    Midpoint,
    /// The slope is integrated.
    Heun,
}

/// Which solver of the family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DpmKind {
    /// What is extrapolated.
    pub held: Held,
    /// Whether fresh noise is added.
    pub sde: bool,
    /// 1 to 3: how many predictions count.
    pub order: usize,
    /// How the second order is reached.
    pub second: SecondOrder,
    /// In runs of fewer than 15 steps the last are of lower order, so that they are stable.
    pub lower_order_final: bool,
    /// The last step is of first order in any case.
    pub euler_at_final: bool,
    /// The curvature of the third order's SDE form has the sign that diffusers gives it, not that of k-diffusion.
    pub diffusers_curvature: bool,
}

impl DpmKind {
    /// DPM-Solver++ of an order, as k-diffusion has it.
    pub const fn plus_plus(order: usize, sde: bool, second: SecondOrder) -> Self {
        Self {
            held: Held::Image,
            sde,
            order,
            second,
            lower_order_final: false,
            euler_at_final: false,
            diffusers_curvature: false,
        }
    }

    /// DEIS of an order.
    pub const fn deis(order: usize, lower_order_final: bool) -> Self {
        Self {
            held: Held::NoiseLogRho,
            lower_order_final,
            ..Self::plus_plus(order, false, SecondOrder::Midpoint)
        }
    }

    /// The image, or the noise in `x = alpha · image + sigma · noise`.
    fn held(&self, x: &Tensor, image: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        match self.held {
            Held::Image => Ok(image.clone()),
            Held::Noise | Held::NoiseLogRho => Blend::of(x, 1.0 / level.sigma)?
                .and(image, -level.alpha / level.sigma)?
                .finish(),
        }
    }

    /// The weights of a step from one level to another.
    fn gains(&self, from: &NoiseLevel, to: &NoiseLevel, eta: f64) -> Gains {
        let h = log_step(from, to);
        let eta = if self.sde { eta } else { 0.0 };
        match self.held {
            Held::Image => {
                let he = h * (1.0 + eta);
                let second = (-he).exp_m1() / he + 1.0;
                let third = match self.diffusers_curvature && eta > 0.0 {
                    true => second / he + 0.5,
                    false => second / he - 0.5,
                };
                Gains {
                    state: to.sigma / from.sigma * (-h * eta).exp(),
                    powers: [-(-he).exp_m1(), second, -third].map(|gain| gain * to.alpha),
                    fresh: to.sigma * (-(-2.0 * h * eta).exp_m1()).sqrt(),
                }
            }
            Held::Noise | Held::NoiseLogRho => {
                let second = h.exp_m1() / h - 1.0;
                let powers = [h.exp_m1(), second, second / h - 0.5];
                Gains {
                    state: to.alpha / from.alpha,
                    powers: powers.map(|gain| -to.sigma * (1.0 + eta) * gain),
                    fresh: to.sigma * (2.0 * h).exp_m1().sqrt() * eta,
                }
            }
        }
    }

    /// The weight of the slope in steps of second order.
    fn slope(&self, gains: &Gains) -> f64 {
        match self.second {
            SecondOrder::Midpoint => 0.5 * gains.powers[0],
            SecondOrder::Heun => gains.powers[1],
        }
    }
}

/// Weights of a step.
struct Gains {
    state: f64,
    /// Of what is held, of its slope and its curvature in the log ratio, over the step's length.
    powers: [f64; 3],
    fresh: f64,
}

/// Runs of fewer steps than this end in lower orders.
const FEW_STEPS: usize = 15;

/// The multistep solver.
pub struct Dpm {
    kind: DpmKind,
    /// Predictions, the latest first.
    seen: Vec<Tensor>,
}

impl Dpm {
    pub fn new(kind: DpmKind) -> Self {
        Self {
            kind,
            seen: Vec::new(),
        }
    }

    fn order(&self, at: &At) -> usize {
        let few = self.kind.lower_order_final && at.planned < FEW_STEPS;
        let most = match at.steps() - at.index {
            1 if few || self.kind.euler_at_final || at.to().sigma == 0.0 => 1,
            2 if few => 2,
            _ => 3,
        };
        self.kind.order.min(self.seen.len()).min(most)
    }

    /// Weights of the state, of the predictions (the latest first) and of fresh noise.
    fn weights(&self, at: &At, order: usize) -> (f64, Vec<f64>, f64) {
        let (from, to) = (at.from(), at.to());
        let h = log_step(&from, &to);
        let gains = self.kind.gains(&from, &to, at.eta);
        let [constant, slope, curvature] = gains.powers;
        if order > 1 && self.kind.held == Held::NoiseLogRho {
            let ratios: Vec<f64> = (0..order).map(|i| at.before(i).ratio()).collect();
            let weights = log_rho(&ratios, from.ratio(), to.ratio());
            let weights = weights.into_iter().map(|w| w * to.alpha).collect();
            return (gains.state, weights, 0.0);
        }
        let weights = match order {
            1 => vec![constant],
            2 => {
                let r = log_step(&at.before(1), &from) / h;
                let slope = self.kind.slope(&gains);
                vec![constant + slope / r, -slope / r]
            }
            _ => {
                let r0 = log_step(&at.before(1), &from) / h;
                let r1 = log_step(&at.before(2), &at.before(1)) / h;
                // Differences of predictions over their distances, then slope and curvature of the parabola.
                let (mix, all) = (r0 / (r0 + r1), 1.0 / (r0 + r1));
                let near = (slope * (1.0 + mix) + curvature * all) / r0;
                let far = -(slope * mix + curvature * all) / r1;
                vec![constant + near, far - near, -far]
            }
        };
        (gains.state, weights, gains.fresh * at.churn.strength)
    }
}

impl Solver for Dpm {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        self.seen.insert(0, self.kind.held(x, &denoised, &from)?);
        self.seen.truncate(self.kind.order);
        if to.sigma == 0.0 {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        if to.ratio() == from.ratio() {
            // Some schedules end with a step of no length.
            let x = x.clone();
            return Ok(Stepped { x, denoised });
        }
        let order = self.order(at);
        let (of_x, weights, fresh) = self.weights(at, order);
        let mut blend = Blend::of(x, of_x)?;
        for (one, weight) in self.seen.iter().zip(weights) {
            blend = blend.and(one, weight)?;
        }
        let span = (at.place(&from), at.place(&to));
        let x = blend.and_noise_of(ask, fresh, span)?.finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// The solver of one step that diffusers makes of two or three of the schedule's: each begins again where its first
/// began.
pub struct Singlestep {
    kind: DpmKind,
    /// Which of a step's parts each is.
    orders: Vec<usize>,
    /// Predictions, the latest first.
    seen: Vec<Tensor>,
    /// The latents where the step began.
    start: Option<Tensor>,
}

impl Singlestep {
    /// For the last of `steps`, those after the first `skipped`; `to_zero` where the last ends without noise.
    pub fn new(kind: DpmKind, steps: usize, skipped: usize, to_zero: bool) -> Self {
        let mut orders: Vec<usize> = (0..steps).map(|i| i % kind.order + 1).collect();
        let whole = steps.is_multiple_of(kind.order);
        if let Some(last) = orders.last_mut() {
            if to_zero || kind.lower_order_final && whole {
                *last = 1;
            }
        }
        Self {
            kind,
            orders: orders[skipped..].to_vec(),
            seen: Vec::new(),
            start: None,
        }
    }
}

impl Solver for Singlestep {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        self.seen.insert(0, self.kind.held(x, &denoised, &from)?);
        self.seen.truncate(self.kind.order);
        let order = self.orders[at.index].min(self.seen.len());
        if order == 1 {
            self.start = Some(x.clone());
        }
        let start = self.start.as_ref().unwrap_or(x);
        if to.sigma == 0.0 && self.kind.held == Held::Image {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        let first = at.before(order - 1);
        let gains = self.kind.gains(&first, &to, at.eta);
        let share = |steps: usize| log_step(&first, &at.before(steps)) / log_step(&first, &to);
        let [constant, slope, curvature] = gains.powers;
        // The latest prediction first.
        let weights = match (order, self.kind.second) {
            (1, _) => vec![constant],
            (2, _) => {
                let slope = self.kind.slope(&gains) / share(0);
                vec![slope, constant - slope]
            }
            (_, SecondOrder::Midpoint) => {
                let slope = slope / share(0);
                vec![slope, 0.0, constant - slope]
            }
            (_, SecondOrder::Heun) => {
                let (r0, r1) = (share(0), share(1));
                let far = (2.0 * curvature - slope * r1) / (r0 - r1) / r0;
                let near = (slope * r0 - 2.0 * curvature) / (r0 - r1) / r1;
                vec![far, near, constant - far - near]
            }
        };
        let mut blend = Blend::of(start, gains.state)?;
        for (one, weight) in self.seen.iter().zip(weights) {
            blend = blend.and(one, weight)?;
        }
        let x = blend
            .and_noise(ask, gains.fresh * at.churn.strength)?
            .finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// The step in the logarithm of image over noise.
pub(super) fn log_step(from: &NoiseLevel, to: &NoiseLevel) -> f64 {
    (from.ratio() / to.ratio()).ln()
}

/// Integrals over the ratio, from `from` to `to`, of the Lagrange polynomials in its logarithm through `nodes`.
fn log_rho(nodes: &[f64], from: f64, to: f64) -> Vec<f64> {
    let logs: Vec<f64> = nodes.iter().map(|node| node.ln()).collect();
    // Of a + b ln t + c (ln t)².
    let antiderivative = |powers: &[f64], t: f64| {
        let l = t.ln();
        let of = [t, t * (l - 1.0), t * (l * l - 2.0 * l + 2.0)];
        powers.iter().zip(of).map(|(p, x)| p * x).sum::<f64>()
    };
    (0..nodes.len())
        .map(|i| {
            let mut powers = vec![1.0];
            for (_, log) in logs.iter().enumerate().filter(|(j, _)| *j != i) {
                let span = logs[i] - log;
                let mut next = vec![0.0; powers.len() + 1];
                for (k, p) in powers.iter().enumerate() {
                    next[k] -= p * log / span;
                    next[k + 1] += p / span;
                }
                powers = next;
            }
            antiderivative(&powers, to) - antiderivative(&powers, from)
        })
        .collect()
}
