//! Solvers that remember directions: LMS (Karras et al. 2022's code), iPNDM (Zhang and Chen 2023), gradient estimation
//! (Permenter and Yuan 2024), the residual multistep method (Zhang et al. 2023), ER-SDE (Cui et al. 2023). With CFG++
//! (Chung et al. 2024) they go along what the negative prompt alone tells, and take the guided image as their end.

use super::plms::ADAMS_BASHFORTH;
use super::{euler_step, Ask, At, Blend, Renoise, Solver};
use crate::sampling::{NoiseLevel, Stepped};
use candle_core::{Result, Tensor};

/// How earlier directions are weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighing {
    /// The polynomial through them, integrated over the step (LMS), of any step sizes.
    Polynomial,
    /// Adams and Bashforth's weights for steps of one size (iPNDM).
    Fixed,
    /// Those weights for steps of any size, as the authors of iPNDM's variable form publish them.
    Variable,
}

/// Directions of earlier steps, the latest first, weighed.
pub struct Linear {
    pub weighing: Weighing,
    pub directions: Vec<Tensor>,
}

/// How many directions count.
const ORDER: usize = 4;

impl Linear {
    pub fn new(weighing: Weighing) -> Self {
        Self {
            weighing,
            directions: Vec::new(),
        }
    }

    fn weights(&self, s: &[f64], to: f64) -> Vec<f64> {
        let step = to - s[0];
        match self.weighing {
            Weighing::Polynomial => lagrange_integrals(s, to),
            Weighing::Fixed => ADAMS_BASHFORTH[s.len() - 1]
                .iter()
                .map(|w| w * step)
                .collect(),
            Weighing::Variable => variable(s, to).iter().map(|w| w * step).collect(),
        }
    }
}

impl Solver for Linear {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let line = at.line();
        let denoised = ask.image(x, &from)?;
        self.directions
            .insert(0, line.direction(x, &denoised, &from)?);
        self.directions.truncate(ORDER);
        if to.sigma == 0.0 && self.weighing != Weighing::Polynomial {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        let s: Vec<f64> = (0..self.directions.len())
            .map(|i| line.s(&at.before(i)))
            .collect();
        let weights = self.weights(&s, line.s(&to));
        let along: Vec<_> = self.directions.iter().zip(weights).collect();
        let x = line.moved(x, &from, &to, &along)?;
        Ok(Stepped { x, denoised })
    }
}

/// Integrals from the first node to `to` of the Lagrange polynomials through up to four nodes: Gauss's rule of two
/// points has the third degree exactly.
fn lagrange_integrals(nodes: &[f64], to: f64) -> Vec<f64> {
    let (middle, half) = (0.5 * (nodes[0] + to), 0.5 * (to - nodes[0]));
    let points = [-1.0, 1.0].map(|sign| middle + sign * half / 3f64.sqrt());
    (0..nodes.len())
        .map(|i| {
            let at = |t: f64| {
                let others = nodes.iter().enumerate().filter(|(j, _)| *j != i);
                others.fold(1.0, |p, (_, node)| p * (t - node) / (nodes[i] - node))
            };
            half * (at(points[0]) + at(points[1]))
        })
        .collect()
}

/// The weights of iPNDM for steps of any size, in shares of the step.
fn variable(s: &[f64], to: f64) -> Vec<f64> {
    let h = to - s[0];
    let gap = |i: usize| s[i] - s[i + 1];
    if s.len() == 1 {
        return vec![1.0];
    }
    let h1 = gap(0);
    let first = vec![(2.0 + h / h1) / 2.0, -(h / h1) / 2.0];
    if s.len() == 2 {
        return first;
    }
    let h2 = gap(1);
    let second = (1.0 - h / (3.0 * (h + h1)) * (h * (h + h1)) / (h1 * (h1 + h2))) / 2.0;
    let ratio = h1 / h2;
    let mut weights = vec![
        first[0] + second,
        first[1] - (1.0 + ratio) * second,
        second * ratio,
    ];
    if s.len() == 3 {
        return weights;
    }
    let h3 = gap(2);
    let third = ((1.0 - h / (3.0 * (h + h1))) / 2.0
        + (1.0 - h / (2.0 * (h + h1))) * h / (6.0 * (h + h1 + h2)))
        * (h * (h + h1) * (h + h1 + h2))
        / (h1 * (h1 + h2) * (h1 + h2 + h3));
    let far = h1 * (h1 + h2) / (h2 * (h2 + h3));
    weights[0] += third;
    weights[1] -= (1.0 + ratio + far) * third;
    weights[2] += (ratio + far * (1.0 + h2 / h3)) * third;
    weights.push(-third * far * ratio);
    weights
}

/// Euler's step with its direction's change since the step before added once.
pub struct GradientEstimation {
    pub plus_plus: bool,
    pub before: Option<Tensor>,
}

/// How far the direction is extrapolated: the published weight 2, less the direction itself.
const EXTRAPOLATED: f64 = 1.0;

impl Solver for GradientEstimation {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let line = at.line();
        let seen = ask.seen(x, &from)?;
        let image = match self.plus_plus {
            true => seen.unguided(),
            false => &seen.image,
        };
        let direction = line.direction(x, image, &from)?;
        let step = line.s(&to) - line.s(&from);
        let before = self.before.replace(direction.clone());
        let denoised = seen.image.clone();
        if to.sigma == 0.0 {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        let mut weight = if self.plus_plus { line.s(&to) } else { step };
        let mut along = Vec::new();
        if let Some(before) = &before {
            weight += EXTRAPOLATED * step;
            along.push((before, -EXTRAPOLATED * step));
        }
        along.push((&direction, weight));
        let x = match self.plus_plus {
            // The end is the guided image, which lies at coordinate 0.
            true => line.moved(&denoised, &NoiseLevel::CLEAN, &to, &along)?,
            false => line.moved(x, &from, &to, &along)?,
        };
        Ok(Stepped { x, denoised })
    }
}

/// The residual multistep method of second order, with or without fresh noise.
pub struct Residual {
    pub ancestral: bool,
    pub plus_plus: bool,
    /// The image of the step before, and the coordinate that it went down to.
    pub before: Option<(Tensor, f64)>,
}

impl Solver for Residual {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let line = at.line();
        let eta = if self.ancestral { at.eta } else { 0.0 };
        let plan = Renoise::new(at, &from, &to, eta);
        let seen = ask.seen(x, &from)?;
        let denoised = seen.image.clone();
        let image = match self.plus_plus {
            true => seen.unguided().clone(),
            false => denoised.clone(),
        };
        let (s, down) = (line.s(&from), line.s(&plan.down));
        let before = self.before.replace((image.clone(), down));
        let blend = match before {
            Some((earlier, old_down)) if plan.down.sigma > 0.0 => {
                let h = (s / down).ln();
                let c2 = (old_down / line.s(&at.before(1))).ln() / h;
                let phi1 = (-h).exp_m1() / -h;
                let phi2 = (phi1 - 1.0) / -h;
                let sound = |x: f64| if x.is_finite() { x } else { 0.0 };
                let (b1, b2) = (sound(phi1 - phi2 / c2), sound(phi2 / c2));
                let scale = line.scale(&plan.down);
                let kept = (-h).exp();
                let mut blend = Blend::of(x, plan.scale * scale * kept / line.scale(&from))?
                    .and(&image, plan.scale * scale * h * b1)?
                    .and(&earlier, plan.scale * scale * h * b2)?;
                if self.plus_plus {
                    blend = blend
                        .and(&denoised, plan.scale * scale * kept)?
                        .and(&image, -plan.scale * scale * kept)?;
                }
                blend
            }
            _ if self.plus_plus => {
                let direction = line.direction(x, &image, &from)?;
                let x = line.moved(
                    &denoised,
                    &NoiseLevel::CLEAN,
                    &plan.down,
                    &[(&direction, down)],
                )?;
                Blend::of(&x, plan.scale)?
            }
            _ => Blend::of(&euler_step(x, &denoised, &from, &plan.down)?, plan.scale)?,
        };
        let x = blend.and_noise(ask, plan.up)?.finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// DPM-Solver++ 2M with CFG++.
#[derive(Default)]
pub struct DpmPlusPlus2MPlusPlus {
    /// What the negative prompt told in the step before.
    before: Option<Tensor>,
}

impl Solver for DpmPlusPlus2MPlusPlus {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let seen = ask.seen(x, &from)?;
        let unguided = seen.unguided().clone();
        let before = self.before.replace(unguided.clone());
        let denoised = seen.image;
        if to.sigma == 0.0 {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        let h = super::dpm::log_step(&from, &to);
        let kept = (-h).exp();
        let mut blend = Blend::of(x, to.sigma / from.sigma)?.and(&unguided, -to.alpha * kept)?;
        let mut of_image = to.alpha;
        if let Some(before) = before {
            let r = super::dpm::log_step(&at.before(1), &from) / h;
            let slope = -to.alpha * (-h).exp_m1() / (2.0 * r);
            of_image += slope;
            blend = blend.and(&before, -slope)?;
        }
        let x = blend.and(&denoised, of_image)?.finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// ER-SDE of third order: images, the latest first, with their slope in the ratio.
#[derive(Default)]
pub struct ErSde {
    image: Option<Tensor>,
    slope: Option<Tensor>,
}

/// Points at which the noise's integrals are summed.
const POINTS: usize = 200;

impl Solver for ErSde {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        let before = self.image.replace(denoised.clone());
        if to.sigma == 0.0 {
            return Ok(Stepped {
                x: denoised.clone(),
                denoised,
            });
        }
        // The published scale of noise at a ratio.
        let noise = |ratio: f64| ratio * (ratio.powf(0.3).exp() + 10.0);
        let (s, t) = (from.ratio(), to.ratio());
        let r = noise(t) / noise(s);
        let mut blend =
            Blend::of(x, to.alpha / from.alpha * r)?.and(&denoised, to.alpha * (1.0 - r))?;
        if let Some(before) = before {
            let step = t - s;
            let width = -step / POINTS as f64;
            let points = (0..POINTS).map(|i| t + i as f64 * width);
            let (flat, slanted) = points.fold((0.0, 0.0), |(flat, slanted), p| {
                (flat + 1.0 / noise(p), slanted + (p - s) / noise(p))
            });
            let apart = s - at.before(1).ratio();
            let slope = ((&denoised - &before)? / apart)?;
            blend = blend.and(&slope, to.alpha * (step + flat * width * noise(t)))?;
            if let Some(old) = self.slope.replace(slope.clone()) {
                let apart = (s - at.before(2).ratio()) / 2.0;
                let curve = ((&slope - &old)? / apart)?;
                let weight = step * step / 2.0 + slanted * width * noise(t);
                blend = blend.and(&curve, to.alpha * weight)?;
            }
        }
        let fresh = (t * t - s * s * r * r).max(0.0).sqrt();
        let x = blend
            .and_noise(ask, to.alpha * fresh * at.churn.strength)?
            .finish()?;
        Ok(Stepped { x, denoised })
    }
}
