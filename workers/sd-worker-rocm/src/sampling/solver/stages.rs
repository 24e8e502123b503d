//! Several evaluations a step: Karras et al. 2022 (Heun), Lu et al. 2022 (DPM-Solver-2, DPM-Solver++ 2S), Xu et al. 2023
//! (Restart). Heun++ weighs three directions as the web UI's extension of that name does.

use super::{churned, euler_step, straight, up_and_down, Ask, At, Blend, Renoise, Seen, Solver};
use crate::sampling::{NoiseLevel, Stepped};
use candle_core::{Result, Tensor};

/// Heun's method: the direction is averaged over both ends.
pub struct Heun;

impl Solver for Heun {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (x, from) = churned(at, x, ask)?;
        heun(at, &x, &from, &at.to(), ask)
    }
}

fn heun(at: &At, x: &Tensor, from: &NoiseLevel, to: &NoiseLevel, ask: &mut Ask) -> Result<Stepped> {
    let denoised = ask.image(x, from)?;
    let predicted = euler_step(x, &denoised, from, to)?;
    if to.sigma == 0.0 {
        return Ok(Stepped {
            x: predicted,
            denoised,
        });
    }
    let second = ask.image(&predicted, to)?;
    let line = at.line();
    let first = line.direction(x, &denoised, from)?;
    let second = line.direction(&predicted, &second, to)?;
    let half = 0.5 * (line.s(to) - line.s(from));
    Ok(Stepped {
        x: line.moved(x, from, to, &[(&first, half), (&second, half)])?,
        denoised,
    })
}

/// Heun++: Heun with a third direction, a step further on, and weights that fall with the noise.
#[derive(Default)]
pub struct HeunPlusPlus {
    /// The coordinate that the run began at.
    first: Option<f64>,
}

impl Solver for HeunPlusPlus {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let line = at.line();
        let first = *self.first.get_or_insert(line.s(&at.from()));
        let (x, from) = churned(at, x, ask)?;
        let to = at.to();
        let denoised = ask.image(&x, &from)?;
        let end = at.levels[at.steps()];
        if at.is_last() {
            let x = euler_step(&x, &denoised, &from, &to)?;
            return Ok(Stepped { x, denoised });
        }
        let step = line.s(&to) - line.s(&from);
        let d1 = line.direction(&x, &denoised, &from)?;
        let x2 = line.moved(&x, &from, &to, &[(&d1, step)])?;
        let d2 = line.direction(&x2, &ask.image(&x2, &to)?, &to)?;
        let further = at.levels[at.index + 2];
        if line.s(&further) == line.s(&end) {
            let w2 = line.s(&to) / (2.0 * first);
            let along = [(&d1, step * (1.0 - w2)), (&d2, step * w2)];
            let x = line.moved(&x, &from, &to, &along)?;
            return Ok(Stepped { x, denoised });
        }
        let next = line.s(&further) - line.s(&to);
        let x3 = line.moved(&x2, &to, &further, &[(&d2, next)])?;
        let d3 = line.direction(&x3, &ask.image(&x3, &further)?, &further)?;
        let w2 = line.s(&to) / (3.0 * first);
        let w3 = line.s(&further) / (3.0 * first);
        let along = [
            (&d1, step * (1.0 - w2 - w3)),
            (&d2, step * w2),
            (&d3, step * w3),
        ];
        let x = line.moved(&x, &from, &to, &along)?;
        Ok(Stepped { x, denoised })
    }
}

/// DPM-Solver-2 in Karras's form: the direction in the middle of the step, by logarithm. With `ancestral` to a level
/// below, and fresh noise.
pub struct Dpm2 {
    pub ancestral: bool,
}

impl Solver for Dpm2 {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (x, from) = match self.ancestral {
            true => (x.clone(), at.from()),
            false => churned(at, x, ask)?,
        };
        let eta = if self.ancestral { at.eta } else { 0.0 };
        let plan = Renoise::new(at, &from, &at.to(), eta);
        let denoised = ask.image(&x, &from)?;
        if plan.down.sigma == 0.0 {
            let x = euler_step(&x, &denoised, &from, &plan.down)?;
            return Ok(Stepped { x, denoised });
        }
        let line = at.line();
        let middle = line.middle(&from, &plan.down);
        let halfway = euler_step(&x, &denoised, &from, &middle)?;
        let direction = line.direction(&halfway, &ask.image(&halfway, &middle)?, &middle)?;
        let step = line.s(&plan.down) - line.s(&from);
        let x = line.moved(&x, &from, &plan.down, &[(&direction, step)])?;
        let x = Blend::of(&x, plan.scale)?
            .and_noise(ask, plan.up)?
            .finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// Sigma of the second evaluation of a flow model's step that starts from pure noise, whose log ratio has no middle.
const FLOW_NEAR_NOISE: f64 = 0.9999;

/// DPM-Solver++ 2S with fresh noise: the image in the middle of the step, in log ratio, is taken for the whole step.
/// With `plus_plus` the step is the negative prompt's, and the prompt's difference is added at its end (CFG++).
pub struct Dpm2s {
    pub plus_plus: bool,
}

impl Solver for Dpm2s {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let plan = Renoise::new(at, &from, &to, at.eta);
        let seen = ask.seen(x, &from)?;
        let image = |seen: &Seen| match self.plus_plus {
            true => seen.unguided().clone(),
            false => seen.image.clone(),
        };
        let first = image(&seen);
        let mut next = if plan.down.sigma == 0.0 {
            euler_step(x, &first, &from, &plan.down)?
        } else {
            let middle = match from.alpha > 0.0 {
                true => at
                    .schedule
                    .level_of_ratio((from.ratio() * plan.down.ratio()).sqrt()),
                false => at.line().level(FLOW_NEAR_NOISE),
            };
            let halfway = euler_step(x, &first, &from, &middle)?;
            let second = image(&ask.seen(&halfway, &middle)?);
            let (of_x, of_image) = straight(&from, &plan.down);
            Blend::of(x, plan.scale * of_x)?
                .and(&second, plan.scale * of_image)?
                .and_noise(ask, plan.up)?
                .finish()?
        };
        if self.plus_plus {
            next = Blend::of(&next, 1.0)?
                .and(&seen.image, to.alpha)?
                .and(seen.unguided(), -to.alpha)?
                .finish()?;
        }
        Ok(Stepped {
            x: next,
            denoised: seen.image,
        })
    }
}

/// DPM-Solver++ SDE with the midpoint in log ratio.
pub struct DpmSde;

impl Solver for DpmSde {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        if to.sigma == 0.0 {
            return Ok(Stepped {
                x: euler_step(x, &denoised, &from, &to)?,
                denoised,
            });
        }
        let between = at
            .schedule
            .level_of_ratio((from.ratio() * to.ratio()).sqrt());
        let advance = |image: &Tensor, target: &NoiseLevel, ask: &mut Ask| {
            let (up, down) = up_and_down(from.ratio(), target.ratio(), at.eta);
            let kept = down / from.ratio();
            let span = (at.place(&from), at.place(target));
            Blend::of(x, target.alpha * kept / from.alpha)?
                .and(image, target.alpha * (1.0 - kept))?
                .and_noise_of(ask, target.alpha * up * at.churn.strength, span)?
                .finish()
        };
        let middle = advance(&denoised, &between, ask)?;
        let second = ask.image(&middle, &between)?;
        Ok(Stepped {
            x: advance(&second, &to, ask)?,
            denoised,
        })
    }
}

/// Restart: Heun's steps, of which some go again from more noise. Where the planned levels rise, noise is added and the
/// step after that is taken at once.
#[derive(Default)]
pub struct Restart {
    reached: usize,
}

/// Ratios between which a long run goes again.
const RESTART: (f64, f64) = (0.1, 2.0);

impl Solver for Restart {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        if to.ratio() <= from.ratio() {
            self.reached = at.index + 1;
            return heun(at, x, &from, &to, ask);
        }
        let added = (to.ratio().powi(2) - from.ratio().powi(2)).sqrt();
        let x = Blend::of(x, to.alpha / from.alpha)?
            .and_noise(ask, to.alpha * added * at.churn.strength)?
            .finish()?;
        self.reached = at.index + 2;
        heun(at, &x, &to, &at.levels[at.index + 2], ask)
    }

    fn reached(&self) -> Option<usize> {
        Some(self.reached)
    }
}

impl Restart {
    /// The levels of a run: where they rise, noise is added. `levels` are those of the plain run, whose ends count; a
    /// run of fewer than 20 steps is plain.
    pub fn plan(
        levels: &[NoiseLevel],
        karras: impl Fn(f64, f64, usize) -> Vec<NoiseLevel>,
    ) -> Vec<NoiseLevel> {
        let steps = levels.len() - 1;
        if steps < 20 {
            return levels.to_vec();
        }
        let (again, times) = match steps {
            36.. => (steps / 4, 2),
            _ => (9, 1),
        };
        let (first, last) = (levels[0], levels[steps - 1]);
        let mut plain = karras(last.ratio(), first.ratio(), steps - again * times);
        plain.push(levels[steps]);
        let nearest = |ratio: f64| {
            let apart = |i: &usize| (plain[*i].ratio() - ratio).abs();
            (0..plain.len()).min_by(|a, b| apart(a).total_cmp(&apart(b)))
        };
        let (Some(low), Some(high)) = (nearest(RESTART.0), nearest(RESTART.1)) else {
            return plain;
        };
        if high >= low || low == 0 {
            return plain;
        }
        let segment = karras(plain[low].ratio(), plain[high].ratio(), again + 1);
        let mut planned = plain[..=low].to_vec();
        for _ in 0..times {
            planned.extend(&segment);
        }
        planned.extend(&plain[low + 1..]);
        planned
    }
}
