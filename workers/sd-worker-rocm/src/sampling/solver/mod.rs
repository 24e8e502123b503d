//! The samplers, each for latents `x = alpha · image + sigma · noise`.
//!
//! | Module          | Samplers                                                                                  |
//! |-----------------|-------------------------------------------------------------------------------------------|
//! | [`euler`]       | Euler, Euler a, DDIM and their CFG++ forms                                                |
//! | [`stages`]      | two and three evaluations a step: Heun, Heun++, DPM2, DPM2 a, DPM++ 2S a, DPM++ SDE, Restart |
//! | [`dpm`]         | DPM-Solver, DPM-Solver++ and their SDE forms, orders 1 to 3, multistep and single-step; DEIS |
//! | [`whole`]       | DPM fast, DPM adaptive                                                                    |
//! | [`history`]     | LMS, iPNDM, gradient estimation, res_multistep, their CFG++ forms; ER-SDE                  |
//! | [`plms`], [`unipc`], [`sa`], [`consistency`] | PLMS; UniPC; SA-Solver; LCM and TCD                            |
//!
//! Published formulas in k-diffusion's `sigma` hold for `X = x / scale` over a coordinate `s`, see [`Line`].

pub(super) mod consistency;
pub(super) mod dpm;
pub(super) mod euler;
pub(super) mod history;
mod line;
pub(super) mod plms;
pub(super) mod restrain;
pub(super) mod sa;
pub(super) mod stages;
pub(super) mod unipc;
pub(super) mod whole;

use super::{NoiseLevel, NoiseSchedule, Stepped};
use candle_core::{Result, Tensor};
pub(super) use line::Line;
use restrain::Restrain;

/// What a network saw behind latents.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The image, guided.
    pub image: Tensor,
    /// The image that the negative prompt alone tells, for samplers that ask for it; without it the prediction was not
    /// guided.
    pub negative: Option<Tensor>,
}

impl From<Tensor> for Seen {
    fn from(image: Tensor) -> Self {
        Self {
            image,
            negative: None,
        }
    }
}

impl Seen {
    /// The negative prompt's image; that of the prompt where there is no guidance.
    pub(super) fn unguided(&self) -> &Tensor {
        self.negative.as_ref().unwrap_or(&self.image)
    }
}

/// Noise on noise: what is added before a step (Karras et al. 2022, algorithm 2), and how strong fresh noise is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Churn {
    /// Growth of the noise over the whole run, divided among the steps; 0 is none.
    pub amount: f64,
    /// Smallest ratio of noise to image at which noise is added.
    pub from: f64,
    /// Largest ratio of noise to image at which noise is added.
    pub to: f64,
    /// Strength of all fresh noise, that of ancestral and SDE samplers, too; 1 is the theory's.
    pub strength: f64,
}

impl Churn {
    /// No noise before steps, fresh noise as it is.
    pub const NONE: Self = Self {
        amount: 0.0,
        from: 0.0,
        to: f64::INFINITY,
        strength: 1.0,
    };
}

/// Where a run is, for a solver.
pub(super) struct At<'a> {
    pub schedule: &'a NoiseSchedule,
    pub levels: &'a [NoiseLevel],
    pub index: usize,
    /// Steps of the whole run, of which one that starts from a picture makes the last.
    pub planned: usize,
    pub eta: f64,
    pub churn: Churn,
}

impl At<'_> {
    pub(super) fn from(&self) -> NoiseLevel {
        self.levels[self.index]
    }

    pub(super) fn to(&self) -> NoiseLevel {
        self.levels[self.index + 1]
    }

    pub(super) fn steps(&self) -> usize {
        self.levels.len() - 1
    }

    pub(super) fn is_last(&self) -> bool {
        self.index + 1 == self.steps()
    }

    /// Where a level is on a Brownian motion: noise over image, for flow models the noise.
    pub(super) fn place(&self, level: &NoiseLevel) -> f64 {
        match self.schedule.is_flow() {
            true => level.sigma,
            false => level.ratio(),
        }
    }

    /// The level so many steps ago.
    pub(super) fn before(&self, steps: usize) -> NoiseLevel {
        self.levels[self.index - steps]
    }

    pub(super) fn line(&self) -> Line<'_> {
        Line {
            schedule: self.schedule,
        }
    }
}

/// What a solver may ask for.
pub(super) struct Ask<'a> {
    /// The image behind latents at a level.
    pub denoise: &'a mut dyn FnMut(&Tensor, &NoiseLevel) -> Result<Seen>,
    /// Standard normal numbers; for a step down between two noise levels, by [`At::place`], those of that step.
    pub noise: &'a mut dyn FnMut(Option<(f64, f64)>) -> Result<Tensor>,
    /// Bounds of the image.
    pub restrain: Option<Restrain>,
}

impl Ask<'_> {
    /// What the network sees, in bounds.
    pub(super) fn seen(&mut self, x: &Tensor, level: &NoiseLevel) -> Result<Seen> {
        let seen = (self.denoise)(x, level)?;
        Ok(Seen {
            image: self.bounded(&seen.image)?,
            ..seen
        })
    }

    /// The image, in bounds.
    pub(super) fn image(&mut self, x: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        Ok(self.seen(x, level)?.image)
    }

    /// The image as the network sees it, for methods that go along its noise.
    pub(super) fn unbounded(&mut self, x: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        Ok((self.denoise)(x, level)?.image)
    }

    pub(super) fn bounded(&self, image: &Tensor) -> Result<Tensor> {
        match self.restrain {
            Some(restrain) => restrain.apply(image),
            None => Ok(image.clone()),
        }
    }
}

/// A method on its way, which remembers what it needs of earlier steps.
pub(super) trait Solver {
    /// One step from `at.from()` to `at.to()`.
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped>;

    /// Steps done after this one, for methods that choose their own way; `None` counts one by one.
    fn reached(&self) -> Option<usize> {
        None
    }
}

/// A weighted sum of tensors, built term by term; terms of weight 0 cost nothing.
pub(super) struct Blend(Option<Tensor>);

impl Blend {
    pub(super) fn none() -> Self {
        Self(None)
    }

    pub(super) fn of(x: &Tensor, weight: f64) -> Result<Self> {
        Self::none().and(x, weight)
    }

    pub(super) fn and(self, x: &Tensor, weight: f64) -> Result<Self> {
        if weight == 0.0 {
            return Ok(self);
        }
        let term = if weight == 1.0 {
            x.clone()
        } else {
            (x * weight)?
        };
        Ok(Self(Some(match self.0 {
            None => term,
            Some(sum) => (sum + term)?,
        })))
    }

    /// With fresh noise of this strength, if it is any.
    pub(super) fn and_noise(self, ask: &mut Ask, weight: f64) -> Result<Self> {
        if weight > 0.0 {
            self.and(&(ask.noise)(None)?, weight)
        } else {
            Ok(self)
        }
    }

    /// With fresh noise of this strength, if it is any, of a step between these levels.
    pub(super) fn and_noise_of(
        self,
        ask: &mut Ask,
        weight: f64,
        levels: (f64, f64),
    ) -> Result<Self> {
        if weight > 0.0 {
            self.and(&(ask.noise)(Some(levels))?, weight)
        } else {
            Ok(self)
        }
    }

    pub(super) fn finish(self) -> Result<Tensor> {
        self.0
            .ok_or_else(|| candle_core::Error::Msg("a weighted sum of nothing".to_string()))
    }
}

/// Weights of state and image that lead from one level to another while both the image and the noise that were seen
/// stay: the step of Euler and DDIM.
pub(super) fn straight(from: &NoiseLevel, to: &NoiseLevel) -> (f64, f64) {
    let kept = to.sigma / from.sigma;
    (kept, to.alpha - kept * from.alpha)
}

/// A step of Euler's.
pub(super) fn euler_step(
    x: &Tensor,
    image: &Tensor,
    from: &NoiseLevel,
    to: &NoiseLevel,
) -> Result<Tensor> {
    let (of_x, of_image) = straight(from, to);
    Blend::of(x, of_x)?.and(image, of_image)?.finish()
}

/// How an ancestral step goes: without noise to a level below the next, then up by fresh noise.
pub(super) struct Renoise {
    /// The level below.
    pub down: NoiseLevel,
    /// Weight of the latents there.
    pub scale: f64,
    /// Weight of the noise.
    pub up: f64,
}

impl Renoise {
    /// With a share `eta` of fresh noise. In the ratio of noise to image as k-diffusion has it; for flow models in
    /// sigma, so that pure noise is no special case (ComfyUI's form for rectified flow).
    pub(super) fn new(at: &At, from: &NoiseLevel, to: &NoiseLevel, eta: f64) -> Self {
        if to.sigma == 0.0 || eta == 0.0 {
            return Self {
                down: *to,
                scale: 1.0,
                up: 0.0,
            };
        }
        if !at.schedule.is_flow() {
            return Self::in_ratio(at, from, to, eta);
        }
        let down = at
            .line()
            .level(to.sigma * (1.0 + (to.sigma / from.sigma - 1.0) * eta));
        Self::between(down, to, at)
    }

    /// The same in the ratio of noise to image for every model.
    pub(super) fn in_ratio(at: &At, from: &NoiseLevel, to: &NoiseLevel, eta: f64) -> Self {
        let (_, down) = up_and_down(from.ratio(), to.ratio(), eta);
        Self::between(at.schedule.level_of_ratio(down), to, at)
    }

    fn between(down: NoiseLevel, to: &NoiseLevel, at: &At) -> Self {
        let scale = to.alpha / down.alpha;
        let up = to.sigma.powi(2) - (scale * down.sigma).powi(2);
        Self {
            down,
            scale,
            up: up.max(0.0).sqrt() * at.churn.strength,
        }
    }
}

/// The part of the next ratio that is fresh noise, and the part that is reached without.
pub(super) fn up_and_down(from: f64, to: f64, eta: f64) -> (f64, f64) {
    let quotient = to / from;
    let up = (eta * to * (1.0 - quotient * quotient).max(0.0).sqrt()).min(to);
    (up, (to * to - up * up).max(0.0).sqrt())
}

/// The latents and their level after noise was added as [`Churn`] says.
pub(super) fn churned(at: &At, x: &Tensor, ask: &mut Ask) -> Result<(Tensor, NoiseLevel)> {
    let (from, churn) = (at.from(), at.churn);
    let ratio = from.ratio();
    let growth = (churn.amount / at.steps() as f64).min(std::f64::consts::SQRT_2 - 1.0);
    if growth <= 0.0 || !ratio.is_finite() || ratio < churn.from || ratio > churn.to {
        return Ok((x.clone(), from));
    }
    let more = at.schedule.level_of_ratio(ratio * (1.0 + growth));
    let added = more.alpha * (more.ratio().powi(2) - ratio * ratio).sqrt() * churn.strength;
    let x = Blend::of(x, more.alpha / from.alpha)?
        .and_noise(ask, added)?
        .finish()?;
    Ok((x, more))
}
