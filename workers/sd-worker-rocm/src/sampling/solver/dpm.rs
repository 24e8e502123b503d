//! Multistep solvers in log ratio: DPM-Solver and DPM-Solver++ with their SDE forms (Lu et al. 2022), DEIS (Zhang and
//! Chen 2023).

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
    /// DPM-Solver++ of an order, as k-diffusion and diffusers have it.
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

    /// DEIS of third order, as diffusers has it.
    pub const DEIS: Self = Self {
        held: Held::NoiseLogRho,
        sde: false,
        order: 3,
        second: SecondOrder::Midpoint,
        lower_order_final: true,
        euler_at_final: false,
        diffusers_curvature: false,
    };
}

/// Runs of fewer steps than this end in lower orders.
const FEW_STEPS: usize = 15;

/// The solver.
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
        let left = at.steps() - at.index;
        let few = self.kind.lower_order_final && at.steps() < FEW_STEPS;
        let most = match left {
            1 if few || self.kind.euler_at_final || at.to().sigma == 0.0 => 1,
            2 if few => 2,
            _ => 3,
        };
        self.kind.order.min(self.seen.len()).min(most)
    }

    /// The image, or the noise in `x = alpha · image + sigma · noise`.
    fn held(&self, x: &Tensor, image: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        match self.kind.held {
            Held::Image => Ok(image.clone()),
            Held::Noise | Held::NoiseLogRho => Blend::of(x, 1.0 / level.sigma)?
                .and(image, -level.alpha / level.sigma)?
                .finish(),
        }
    }

    /// Weights of the state, of the predictions (the latest first) and of fresh noise.
    fn weights(&self, at: &At, order: usize) -> (f64, Vec<f64>, f64) {
        let (from, to) = (at.from(), at.to());
        let h = log_step(&from, &to);
        let eta = if self.kind.sde { at.eta } else { 0.0 };
        let (of_x, gains, fresh) = match self.kind.held {
            Held::NoiseLogRho => {
                let ratios: Vec<f64> = (0..order).map(|i| at.before(i).ratio()).collect();
                let weights = log_rho(&ratios, from.ratio(), to.ratio());
                let weights = weights.into_iter().map(|w| w * to.alpha).collect();
                return (to.alpha / from.alpha, weights, 0.0);
            }
            Held::Image => {
                let he = h * (1.0 + eta);
                let first = -(-he).exp_m1();
                let second = (-he).exp_m1() / he + 1.0;
                let third = match self.kind.diffusers_curvature && eta > 0.0 {
                    true => second / he + 0.5,
                    false => second / he - 0.5,
                };
                let gains = [first, second, -third].map(|gain| gain * to.alpha);
                let fresh = to.sigma * (-(-2.0 * h * eta).exp_m1()).sqrt();
                (to.sigma / from.sigma * (-h * eta).exp(), gains, fresh)
            }
            Held::Noise => {
                let first = h.exp_m1();
                let second = first / h - 1.0;
                let third = second / h - 0.5;
                let gains = [first, second, third].map(|gain| -to.sigma * (1.0 + eta) * gain);
                let fresh = to.sigma * (2.0 * h).exp_m1().sqrt() * eta;
                (to.alpha / from.alpha, gains, fresh)
            }
        };
        let slope = match self.kind.second {
            SecondOrder::Midpoint => 0.5 * gains[0],
            SecondOrder::Heun => gains[1],
        };
        let weights = match order {
            1 => vec![gains[0]],
            2 => {
                let r = log_step(&at.before(1), &from) / h;
                vec![gains[0] + slope / r, -slope / r]
            }
            _ => {
                let r0 = log_step(&at.before(1), &from) / h;
                let r1 = log_step(&at.before(2), &at.before(1)) / h;
                // Differences of predictions over their distances, then slope and curvature of the parabola.
                let (near, far) = (1.0 / r0, 1.0 / r1);
                let (mix, all) = (r0 / (r0 + r1), 1.0 / (r0 + r1));
                let of_near = gains[1] * (1.0 + mix) + gains[2] * all;
                let of_far = -gains[1] * mix - gains[2] * all;
                vec![
                    gains[0] + of_near * near,
                    of_far * far - of_near * near,
                    -of_far * far,
                ]
            }
        };
        (of_x, weights, fresh * at.churn.strength)
    }
}

impl Solver for Dpm {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        self.seen.insert(0, self.held(x, &denoised, &from)?);
        self.seen.truncate(self.kind.order);
        if to.sigma == 0.0 {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        let order = self.order(at);
        let (of_x, weights, fresh) = self.weights(at, order);
        let mut blend = Blend::of(x, of_x)?;
        for (one, weight) in self.seen.iter().zip(weights) {
            blend = blend.and(one, weight)?;
        }
        let x = blend.and_noise(ask, fresh)?.finish()?;
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
    let antiderivative = |powers: &[f64], t: f64| {
        // Of a + b ln t + c (ln t)².
        let l = t.ln();
        let of = [t, t * (l - 1.0), t * (l * l - 2.0 * l + 2.0)];
        powers.iter().zip(of).map(|(p, x)| p * x).sum::<f64>()
    };
    (0..nodes.len())
        .map(|i| {
            let mut powers = vec![1.0];
            for (j, log) in logs.iter().enumerate().filter(|(j, _)| *j != i) {
                debug_assert_ne!(i, j);
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
