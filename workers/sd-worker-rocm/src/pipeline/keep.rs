//! What a mask keeps, in latents.

use super::denoiser::Part;
use super::start::Start;
use crate::editing::resize::Filter;
use crate::editing::{Fill, SoftInpainting};
use crate::request::ImageRequest;
use candle_core::{DType, Device, Result, Tensor};
use image::GrayImage;

/// Latents that are known, and how much of them is not to be.
pub(super) struct Keep {
    /// `(1, channels, height, width)`.
    latents: Tensor,
    /// `(1, 1, height, width)`: 1 is painted. Grey is a matter of time where the mask is soft, else there is none.
    mask: Tensor,
    soft: bool,
    /// Grey mixes in every step.
    blend: Option<SoftInpainting>,
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
        let (Some(init), Some(start)) = (&request.init, start) else {
            return Ok(None);
        };
        let Some(mask) = &start.mask else {
            return Ok(None);
        };
        let editing = init.editing;
        let blend = editing.soft_inpainting;
        let mask = match &init.latent_mask {
            Some(mask) => scaled(mask, request, factor, device)?,
            // As the web UI scales masks, by which soft inpainting is defined.
            None if blend.is_some() => scaled(&mask.pixels, request, factor, device)?,
            None => mask.latents(factor, device)?,
        };
        Ok(Some(Self {
            latents: start.latents.clone(),
            mask: match editing.soft || blend.is_some() {
                true => mask,
                // Mixtures of latents are no picture's: a latent is painted or kept.
                false => mask.ge(0.5f32)?.to_dtype(DType::F32)?,
            },
            told,
            soft: editing.soft,
            blend,
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

    /// What soft inpainting mixes with: with the filling, which each picture may have its own of.
    #[must_use]
    pub fn mixing_with(self, filled: Option<&Tensor>) -> Self {
        match filled.filter(|_| self.blend.is_some()) {
            Some(filled) => Self {
                latents: filled.clone(),
                ..self
            },
            None => self,
        }
    }

    /// Where each of the new pictures lies over the old one, as soft inpainting sees it; none for other masks.
    pub fn overlays(&self, x: &Tensor, size: (u32, u32)) -> Result<Vec<GrayImage>> {
        match &self.blend {
            Some(blend) => blend.overlays(&self.latents, x, &self.mask, size),
            None => Ok(Vec::new()),
        }
    }

    /// The latents after the last step. Schedules that end above zero leave noise on what is kept: it is taken off.
    pub fn end(&self, x: &Tensor) -> Result<Tensor> {
        match self.soft || self.told || self.blend.is_some() {
            true => Ok(x.clone()),
            false => self.mixed(x, &self.mask),
        }
    }

    /// The picture that a step sees, with what is kept in place of what the network thinks: the sampler is led to it.
    /// `sigma` is the noise over the image's share.
    pub fn lead(&self, denoised: &Tensor, part: Part, sigma: f64) -> Result<Tensor> {
        if let Some(blend) = &self.blend {
            return blend.blend(&self.latents, denoised, &self.mask, sigma);
        }
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

/// A mask as web UIs bring it to latents' size: `(1, 1, height, width)`, 0..1.
fn scaled(
    mask: &GrayImage,
    request: &ImageRequest,
    factor: usize,
    device: &Device,
) -> Result<Tensor> {
    let (width, height) = (request.width / factor, request.height / factor);
    let small = Filter::Bicubic.resize(mask, width as u32, height as u32);
    let values = Tensor::from_vec(small.into_raw(), (1, 1, height, width), device)?;
    values.to_dtype(DType::F32)? / 255.0
}
