//! What a mask keeps, in latents.

use super::denoiser::Part;
use super::start::Start;
use crate::editing::Fill;
use crate::request::ImageRequest;
use candle_core::{DType, Device, Result, Tensor};

/// Latents that are known, and how much of them is not to be.
pub(super) struct Keep {
    /// `(1, channels, height, width)`.
    latents: Tensor,
    /// `(1, 1, height, width)`: 1 is painted. Grey is a matter of time where the mask is soft, else there is none.
    mask: Tensor,
    soft: bool,
    /// The network is told what is kept and ends with it.
    told: bool,
    fill: Fill,
}

impl Keep {
    /// What a request's mask keeps of its picture, if it has one.
    pub fn new(
        request: &ImageRequest,
        start: Option<&Start>,
        told: bool,
        factor: usize,
        device: &Device,
    ) -> Result<Option<Self>> {
        let editing = request.init.as_ref().map(|init| init.editing);
        let (Some(editing), Some(start)) = (editing.as_ref(), start) else {
            return Ok(None);
        };
        let Some(mask) = &start.mask else {
            return Ok(None);
        };
        let mask = mask.latents(factor, device)?;
        Ok(Some(Self {
            latents: start.latents.clone(),
            mask: match editing.soft {
                true => mask,
                // Mixtures of latents are no picture's: a latent is painted or kept.
                false => mask.ge(0.5f32)?.to_dtype(DType::F32)?,
            },
            told,
            soft: editing.soft,
            fill: editing.fill,
        }))
    }

    /// The latents to start from, `(batch, channels, height, width)`, with the filling in the mask.
    pub fn fill(&self, latents: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let kept = |x: &Tensor| x.broadcast_mul(&self.mask.affine(-1.0, 1.0)?);
        match self.fill {
            Fill::Original | Fill::Colors => Ok(latents.clone()),
            Fill::Nothing => kept(latents),
            Fill::Noise => kept(latents)? + noise.broadcast_mul(&self.mask)?,
        }
    }

    /// The latents after the last step. Schedules that end above zero leave noise on what is kept: it is taken off.
    pub fn end(&self, x: &Tensor) -> Result<Tensor> {
        match self.soft || self.told {
            true => Ok(x.clone()),
            false => self.mixed(x, &self.mask),
        }
    }

    /// The picture that a step sees, with what is kept in place of what the network thinks: the sampler is led to it.
    pub fn lead(&self, denoised: &Tensor, part: Part) -> Result<Tensor> {
        let mask = match self.soft {
            // Of N steps grey of m is painted in the last m N.
            true => {
                let least = 1.0 - part.step as f64 / part.steps as f64;
                self.mask.ge(least as f32)?.to_dtype(DType::F32)?
            }
            false => self.mask.clone(),
        };
        self.mixed(denoised, &mask)
    }

    fn mixed(&self, painted: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let kept = self.latents.broadcast_mul(&mask.affine(-1.0, 1.0)?)?;
        painted.broadcast_mul(mask)?.broadcast_add(&kept)
    }
}
