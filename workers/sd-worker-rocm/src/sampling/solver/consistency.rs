//! Distilled models: Luo et al. 2023 (LCM), Zheng et al. 2024 (TCD).

use super::{euler_step, Ask, At, Blend, Solver};
use crate::sampling::Stepped;
use candle_core::{Result, Tensor};

/// Spread of the data that consistency models were distilled with.
const SIGMA_DATA: f64 = 0.5;

/// Latent consistency: the image itself, with fresh noise for the next level.
pub struct Lcm {
    /// Scale of the time steps that the network was distilled with; none where the image is taken as it is seen.
    pub timestep_scale: Option<f64>,
}

impl Solver for Lcm {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        let (skip, out) = match self.timestep_scale {
            Some(scale) => {
                let t = from.timestep * scale;
                let variance = SIGMA_DATA * SIGMA_DATA;
                (variance / (t * t + variance), t / (t * t + variance).sqrt())
            }
            None => (0.0, 1.0),
        };
        let x = Blend::of(&denoised, to.alpha * out)?
            .and(x, to.alpha * skip)?
            .and_noise(ask, to.sigma * at.churn.strength)?
            .finish()?;
        Ok(Stepped { x, denoised })
    }
}

/// Trajectory consistency: down to a level below the next without noise, then noise up to the next.
pub struct Tcd;

impl Solver for Tcd {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        let below = at.schedule.level_at(((1.0 - at.eta) * to.timestep).floor());
        let lower = euler_step(x, &denoised, &from, &below)?;
        if at.eta == 0.0 || at.is_last() {
            return Ok(Stepped { x: lower, denoised });
        }
        let scale = to.alpha / below.alpha;
        let fresh = (to.sigma.powi(2) - (scale * below.sigma).powi(2)).max(0.0);
        let x = Blend::of(&lower, scale)?
            .and_noise(ask, fresh.sqrt() * at.churn.strength)?
            .finish()?;
        Ok(Stepped { x, denoised })
    }
}
