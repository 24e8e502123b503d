//! First order: Euler, its ancestral form, DDIM; Song et al. 2021, Karras et al. 2022. CFG++: Chung et al. 2024.

use super::{churned, euler_step, straight, up_and_down, Ask, At, Blend, Renoise, Solver};
use crate::sampling::Stepped;
use candle_core::{Result, Tensor};

/// Euler's method.
pub struct Euler;

impl Solver for Euler {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (x, from) = churned(at, x, ask)?;
        let denoised = ask.image(&x, &from)?;
        let x = euler_step(&x, &denoised, &from, &at.to())?;
        Ok(Stepped { x, denoised })
    }
}

/// Euler with fresh noise in every step.
pub struct Ancestral {
    /// Whether the noise is split in the ratio of noise to image for flow models, too, as DDIM's formula has it.
    pub in_ratio: bool,
    /// Whether the noise is what the network tells, also where the image is kept in bounds.
    pub told_noise: bool,
}

impl Solver for Ancestral {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let told = ask.unbounded(x, &from)?;
        let denoised = ask.bounded(&told)?;
        let plan = match self.in_ratio && at.eta > 0.0 && to.sigma > 0.0 {
            true => Renoise::in_ratio(at, &from, &to, at.eta),
            false => Renoise::new(at, &from, &to, at.eta),
        };
        let kept = plan.down.sigma / from.sigma;
        let x = match ask.restrain.is_some() && self.told_noise {
            false => {
                let (of_x, of_image) = straight(&from, &plan.down);
                Blend::of(x, plan.scale * of_x)?.and(&denoised, plan.scale * of_image)?
            }
            true => Blend::of(x, plan.scale * kept)?
                .and(&told, -plan.scale * kept * from.alpha)?
                .and(&denoised, plan.scale * plan.down.alpha)?,
        };
        let x = x.and_noise(ask, plan.up)?.finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// Euler with CFG++: towards the guided image, along the noise that the negative prompt alone tells.
pub struct EulerPlusPlus;

impl Solver for EulerPlusPlus {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let seen = ask.seen(x, &from)?;
        let (up, down) = match to.sigma > 0.0 {
            true => up_and_down(from.ratio(), to.ratio(), at.eta),
            false => (0.0, 0.0),
        };
        // The noise is (x - alpha · unguided) / sigma.
        let kept = to.alpha * down / from.sigma;
        let x = Blend::of(&seen.image, to.alpha)?
            .and(x, kept)?
            .and(seen.unguided(), -kept * from.alpha)?
            .and_noise(ask, to.alpha * up * at.churn.strength)?
            .finish()?;
        Ok(Stepped {
            x,
            denoised: seen.image,
        })
    }
}
