//! The steps of the samplers, each for latents `x = alpha · image + sigma · noise`.
//!
//! Sources: Song et al. 2021 (DDIM), Karras et al. 2022 (Euler, Heun), Lu et al. 2022 (DPM-Solver++), Luo et al. 2023
//! (LCM), Zheng et al. 2024 (TCD). Ratios are `sigma / alpha`, so published formulas in k-diffusion's `sigma` hold for
//! `x / alpha`.

use super::NoiseLevel;
use candle_core::{Result, Tensor};

/// Spread of the data that consistency models were distilled with, and the scale of their time steps.
const LCM_SIGMA_DATA: f64 = 0.5;
const LCM_TIMESTEP_SCALE: f64 = 10.0;

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

    pub(super) fn finish(self) -> Result<Tensor> {
        self.0
            .ok_or_else(|| candle_core::Error::Msg("a weighted sum of nothing".to_string()))
    }
}

type Noise<'a> = dyn FnMut() -> Result<Tensor> + 'a;
type Denoise<'a> = dyn FnMut(&Tensor, &NoiseLevel) -> Result<Tensor> + 'a;

/// The part of the next ratio that is fresh noise, and the part that is reached without.
fn up_and_down(from: f64, to: f64, eta: f64) -> (f64, f64) {
    let quotient = to / from;
    let up = (eta * to * (1.0 - quotient * quotient).max(0.0).sqrt()).min(to);
    (up, (to * to - up * up).max(0.0).sqrt())
}

/// Euler (`eta` 0), Euler a (1) and DDIM (any): all keep the noise that the network saw and replace a part of it.
pub(super) fn ancestral(
    x: &Tensor,
    denoised: &Tensor,
    from: &NoiseLevel,
    to: &NoiseLevel,
    eta: f64,
    noise: &mut Noise,
) -> Result<Tensor> {
    let (up, down) = up_and_down(from.ratio(), to.ratio(), eta);
    // The noise in x is (x - alpha · denoised) / sigma.
    let kept = to.alpha * down / from.sigma;
    let blend = Blend::of(x, kept)?.and(denoised, to.alpha - kept * from.alpha)?;
    if up > 0.0 {
        blend.and(&noise()?, to.alpha * up)?.finish()
    } else {
        blend.finish()
    }
}

/// Heun's method: the direction is averaged over both ends. For variance preserving levels in `x / alpha` over the
/// ratio, for flow levels in `x` over sigma, where each family's paths are straight.
pub(super) fn heun(
    x: &Tensor,
    denoised: &Tensor,
    from: &NoiseLevel,
    to: &NoiseLevel,
    denoise: &mut Denoise,
) -> Result<Tensor> {
    let predicted = ancestral(x, denoised, from, to, 0.0, &mut || Ok(x.clone()))?;
    if to.sigma == 0.0 {
        return Ok(predicted);
    }
    let second = denoise(&predicted, to)?;
    // The noise seen at either end, as weights of state and image.
    let noise = |level: &NoiseLevel, weight: f64| {
        (weight / level.sigma, -weight * level.alpha / level.sigma)
    };
    let is_flow = (from.alpha + from.sigma - 1.0).abs() < 1e-9;
    let (x_weight, half, image_weight) = if is_flow {
        // Direction: noise - image.
        let half = 0.5 * (to.sigma - from.sigma);
        (1.0, half, -half)
    } else {
        let half = 0.5 * to.alpha * (to.ratio() - from.ratio());
        (to.alpha / from.alpha, half, 0.0)
    };
    let (x1, d1) = noise(from, half);
    let (x2, d2) = noise(to, half);
    Blend::of(x, x_weight + x1)?
        .and(denoised, d1 + image_weight)?
        .and(&predicted, x2)?
        .and(&second, d2 + image_weight)?
        .finish()
}

/// DPM-Solver++ 2M (`eta` 0) and its SDE form, midpoint variant (1).
pub(super) fn dpmpp_2m(
    x: &Tensor,
    denoised: &Tensor,
    before: Option<(&Tensor, NoiseLevel)>,
    (from, to): (&NoiseLevel, &NoiseLevel),
    eta: f64,
    noise: &mut Noise,
) -> Result<Tensor> {
    if to.sigma == 0.0 {
        return Ok(denoised.clone());
    }
    let h = (from.ratio() / to.ratio()).ln();
    let image = to.alpha * -(-h * (1.0 + eta)).exp_m1();
    let slope = before.map_or(0.0, |(_, level)| {
        0.5 * h / (level.ratio() / from.ratio()).ln()
    });
    let mut blend = Blend::of(x, to.sigma / from.sigma * (-h * eta).exp())?
        .and(denoised, image * (1.0 + slope))?;
    if let Some((previous, _)) = before {
        blend = blend.and(previous, -image * slope)?;
    }
    if eta > 0.0 {
        let fresh = to.sigma * (-(-2.0 * h * eta).exp_m1()).sqrt();
        blend = blend.and(&noise()?, fresh)?;
    }
    blend.finish()
}

/// DPM-Solver++ SDE with the midpoint in log ratio.
pub(super) fn dpmpp_sde(
    x: &Tensor,
    denoised: &Tensor,
    (from, between, to): (&NoiseLevel, &NoiseLevel, &NoiseLevel),
    eta: f64,
    denoise: &mut Denoise,
    noise: &mut Noise,
) -> Result<Tensor> {
    if to.sigma == 0.0 {
        return Ok(denoised.clone());
    }
    let mut advance = |image: &Tensor, target: &NoiseLevel| {
        let (up, down) = up_and_down(from.ratio(), target.ratio(), eta);
        let kept = down / from.ratio();
        let blend = Blend::of(x, target.alpha * kept / from.alpha)?
            .and(image, target.alpha * (1.0 - kept))?;
        if up > 0.0 {
            blend.and(&noise()?, target.alpha * up)?.finish()
        } else {
            blend.finish()
        }
    };
    let middle = advance(denoised, between)?;
    let second = denoise(&middle, between)?;
    advance(&second, to)
}

/// Latent consistency: the image itself, with fresh noise for the next level.
pub(super) fn lcm(
    x: &Tensor,
    denoised: &Tensor,
    from: &NoiseLevel,
    to: &NoiseLevel,
    noise: &mut Noise,
) -> Result<Tensor> {
    let t = from.timestep * LCM_TIMESTEP_SCALE;
    let variance = LCM_SIGMA_DATA * LCM_SIGMA_DATA;
    let skip = variance / (t * t + variance);
    let out = t / (t * t + variance).sqrt();
    let blend = Blend::of(denoised, to.alpha * out)?.and(x, to.alpha * skip)?;
    if to.sigma > 0.0 {
        blend.and(&noise()?, to.sigma)?.finish()
    } else {
        blend.finish()
    }
}

/// Trajectory consistency: down to a level below the next without noise, then noise up to the next.
pub(super) fn tcd(
    x: &Tensor,
    denoised: &Tensor,
    (from, below, to): (&NoiseLevel, &NoiseLevel, &NoiseLevel),
    eta: f64,
    noise: &mut Noise,
) -> Result<Tensor> {
    let lower = ancestral(x, denoised, from, below, 0.0, noise)?;
    if eta == 0.0 {
        return Ok(lower);
    }
    let scale = to.alpha / below.alpha;
    let fresh = (to.sigma.powi(2) - (scale * below.sigma).powi(2)).max(0.0);
    Blend::of(&lower, scale)?
        .and(&noise()?, fresh.sqrt())?
        .finish()
}
