//! DPM-Solver of one step (Lu et al. 2022), which plans its run by itself: in few evaluations, or by its error.

use super::{Ask, At, Blend, Line, Renoise, Solver};
use crate::sampling::{NoiseLevel, Stepped};
use candle_core::{Result, Tensor};

/// Orders of the steps of DPM fast for so many evaluations.
pub fn fast_orders(evaluations: usize) -> Vec<usize> {
    let stages = evaluations / 3 + 1;
    let mut orders = vec![3; stages - 1];
    match evaluations % 3 {
        0 => {
            orders.pop();
            orders.extend([2, 1]);
        }
        rest => orders.push(rest),
    }
    orders
}

/// The levels of a run by itself: `stages` steps from the first of `levels` to the last that has noise, or that of
/// `least` where they are the same, with even steps in `ln s`.
pub fn plan(
    line: &Line,
    levels: &[NoiseLevel],
    stages: usize,
    least: NoiseLevel,
) -> Vec<NoiseLevel> {
    let first = levels[0];
    let noisy = levels.iter().rev().find(|level| level.sigma > 0.0);
    let last = match noisy {
        Some(last) if line.s(last) < line.s(&first) => *last,
        _ => least,
    };
    let (from, to) = (line.s(&first).ln(), line.s(&last).ln());
    let mut planned: Vec<NoiseLevel> = (0..=stages)
        .map(|i| line.level((from + (to - from) * i as f64 / stages as f64).exp()))
        .collect();
    planned[0] = first;
    planned[stages] = last;
    planned
}

/// Steps of orders that are planned before.
pub struct Fast {
    pub orders: Vec<usize>,
}

impl Solver for Fast {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let plan = down_to(at, &from, &to);
        let denoised = ask.image(x, &from)?;
        let order = self.orders[at.index];
        let mut one = OneStep::new(at.line(), x, &denoised, from, plan.down)?;
        let next = match order {
            1 => one.first()?,
            2 => one.second(0.5, ask)?,
            _ => one.third(ask)?,
        };
        let x = Blend::of(&next, plan.scale)?
            .and_noise(ask, plan.up)?
            .finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// Steps as long as the error allows, by the method of orders 2 and 3.
pub struct Adaptive {
    /// Where the run is, in `-ln s`.
    now: Option<f64>,
    length: f64,
    /// The latents of lower order after the last step that was good enough.
    lower: Option<Tensor>,
    index: usize,
    tried: usize,
}

/// k-diffusion's settings.
const RELATIVE: f64 = 0.05;
const ABSOLUTE: f64 = 0.0078;
const FIRST_LENGTH: f64 = 0.05;
const GOOD_ENOUGH: f64 = 0.81;
/// Steps, good ones or not, after which a run is given up: real ones have some tens.
const MOST_STEPS: usize = 1000;

impl Adaptive {
    pub fn new() -> Self {
        Self {
            now: None,
            length: FIRST_LENGTH,
            lower: None,
            index: 0,
            tried: 0,
        }
    }
}

impl Solver for Adaptive {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let line = at.line();
        let place = |level: &NoiseLevel| -line.s(level).ln();
        let (start, end) = (place(&at.levels[0]), place(&at.levels[at.steps()]));
        let now = *self.now.get_or_insert(start);
        self.tried += 1;
        if self.tried > MOST_STEPS {
            candle_core::bail!(
                "DPM adaptive finds no end in {MOST_STEPS} steps; use another sampler"
            )
        }
        let next = end.min(now + self.length);
        let from = line.level((-now).exp());
        let to = line.level((-next).exp());
        let plan = down_to(at, &from, &to);
        let denoised = ask.image(x, &from)?;
        let mut one = OneStep::new(line, x, &denoised, from, plan.down)?;
        let low = one.second(1.0 / 3.0, ask)?;
        let high = one.third(ask)?;
        let scale = 1.0 / at.line().scale(&plan.down);
        let before = match &self.lower {
            Some(lower) => lower.clone(),
            None => (x / at.line().scale(&from))?,
        };
        let low_scaled = (&low * scale)?;
        let size = low_scaled.abs()?.maximum(&before.abs()?)?;
        let allowed = (size * RELATIVE)?.maximum(ABSOLUTE)?;
        let error = ((&low - &high)? * scale)?.div(&allowed)?;
        let error = error.sqr()?.mean_all()?.to_scalar::<f32>()?;
        let order = if at.eta > 0.0 { 1.5 } else { 3.0 };
        let factor = (1.0 / (f64::from(error).sqrt() + 1e-8)).powf(1.0 / order);
        let factor = 1.0 + (factor - 1.0).atan();
        if factor.is_nan() {
            candle_core::bail!("DPM adaptive met numbers that are none")
        }
        self.length *= factor;
        if factor < GOOD_ENOUGH {
            return Ok(Stepped {
                x: x.clone(),
                denoised,
            });
        }
        let x = Blend::of(&high, plan.scale)?
            .and_noise(ask, plan.up)?
            .finish()?;
        self.lower = Some(low_scaled);
        self.now = Some(next);
        let share = (next - start) / (end - start);
        self.index = match next < end - 1e-5 {
            true => ((share * at.steps() as f64) as usize).min(at.steps() - 1),
            false => at.steps(),
        };
        Ok(Stepped { x, denoised })
    }

    fn reached(&self) -> Option<usize> {
        Some(self.index)
    }
}

/// The level that an ancestral step goes down to, which is never below the last of the run.
fn down_to(at: &At, from: &NoiseLevel, to: &NoiseLevel) -> Renoise {
    let end = at.levels[at.steps()];
    let plan = Renoise::new(at, from, to, at.eta);
    if plan.down.ratio() >= end.ratio() {
        return plan;
    }
    let scale = to.alpha / end.alpha;
    let up = (to.sigma.powi(2) - (scale * end.sigma).powi(2)).max(0.0);
    Renoise {
        down: end,
        scale,
        up: up.sqrt() * at.churn.strength,
    }
}

/// One step by several orders, whose evaluations are shared.
struct OneStep<'a> {
    line: Line<'a>,
    x: &'a Tensor,
    from: NoiseLevel,
    to: NoiseLevel,
    /// Direction at the start.
    first: Tensor,
    /// Direction at a share of the step.
    inner: Option<(f64, Tensor)>,
}

impl<'a> OneStep<'a> {
    fn new(
        line: Line<'a>,
        x: &'a Tensor,
        image: &Tensor,
        from: NoiseLevel,
        to: NoiseLevel,
    ) -> Result<Self> {
        Ok(Self {
            first: line.direction(x, image, &from)?,
            line,
            x,
            from,
            to,
            inner: None,
        })
    }

    /// The step in `-ln s`.
    fn h(&self) -> f64 {
        (self.line.s(&self.from) / self.line.s(&self.to)).ln()
    }

    fn at(&self, share: f64) -> NoiseLevel {
        self.line
            .level(self.line.s(&self.from) * (-share * self.h()).exp())
    }

    fn along(&self, to: &NoiseLevel, along: &[(&Tensor, f64)]) -> Result<Tensor> {
        self.line.moved(self.x, &self.from, to, along)
    }

    fn first(&self) -> Result<Tensor> {
        let weight = -self.line.s(&self.to) * self.h().exp_m1();
        self.along(&self.to, &[(&self.first, weight)])
    }

    /// The direction at a share of the step, asked for once.
    fn inner(&mut self, share: f64, ask: &mut Ask) -> Result<Tensor> {
        if let Some((at, direction)) = &self.inner {
            if *at == share {
                return Ok(direction.clone());
            }
        }
        let level = self.at(share);
        let weight = -self.line.s(&level) * (share * self.h()).exp_m1();
        let x = self.along(&level, &[(&self.first, weight)])?;
        let direction = self.line.direction(&x, &ask.image(&x, &level)?, &level)?;
        self.inner = Some((share, direction.clone()));
        Ok(direction)
    }

    fn second(&mut self, share: f64, ask: &mut Ask) -> Result<Tensor> {
        let inner = self.inner(share, ask)?;
        let whole = -self.line.s(&self.to) * self.h().exp_m1();
        let slope = whole / (2.0 * share);
        self.along(&self.to, &[(&self.first, whole - slope), (&inner, slope)])
    }

    fn third(&mut self, ask: &mut Ask) -> Result<Tensor> {
        let (r1, r2) = (1.0 / 3.0, 2.0 / 3.0);
        let inner = self.inner(r1, ask)?;
        let h = self.h();
        let level = self.at(r2);
        let s = self.line.s(&level);
        let part = -s * (r2 * h).exp_m1();
        let slope = -s * (r2 / r1) * ((r2 * h).exp_m1() / (r2 * h) - 1.0);
        let x = self.along(&level, &[(&self.first, part - slope), (&inner, slope)])?;
        let second = self.line.direction(&x, &ask.image(&x, &level)?, &level)?;
        let s = self.line.s(&self.to);
        let slope = -s / r2 * (h.exp_m1() / h - 1.0);
        let whole = -s * h.exp_m1();
        self.along(&self.to, &[(&self.first, whole - slope), (&second, slope)])
    }
}
