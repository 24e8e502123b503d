//! The picture that a request starts from.

use super::denoiser::run::Hint;
use super::denoiser::Denoiser;
use super::picture::{self, Mask};
use super::Pipeline;
use crate::editing::fit::stretched;
use crate::editing::resample::Resample;
use crate::editing::Fit;
use crate::info::{Family, Purpose};
use crate::models::transformer::sd3_control::pixels_of_kind;
use crate::request::{Hidden, ImageRequest};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use image::{GrayImage, RgbImage};
use worker::{Error, Result};

/// What is known of the picture to start from.
pub(super) struct Start {
    /// Of the request's size, where it is known.
    pub picture: Option<RgbImage>,
    /// `(1, channels, height, width)`, f32, on the denoiser's device.
    pub latents: Tensor,
    /// What is painted, if not all of it.
    pub mask: Option<Mask>,
}

impl Start {
    /// Latents of which the picture is not known.
    pub fn of_latents(latents: Tensor) -> Self {
        Self {
            picture: None,
            latents,
            mask: None,
        }
    }
}

impl Pipeline {
    /// Encodes the picture to start from, if there is one.
    pub(super) fn start(&mut self, request: &ImageRequest) -> Result<Option<Start>> {
        let Some(init) = &request.init else {
            return Ok(None);
        };
        let (width, height) = (request.width, request.height);
        let picture = match init.editing.fit {
            Fit::Latent => {
                // The nearest size that is whole latents.
                let whole = |side: u32| (side as usize / self.factor).max(1) * self.factor;
                let (w, h) = init.image.dimensions();
                picture::resized(&init.image, whole(w), whole(h))
            }
            _ => init.image.clone(),
        };
        let pixels = picture::to_tensor(&picture, &self.place.vae)
            .map_err(Error::candle("reading the picture"))?;
        let latents = self.vae.encode(&pixels)?;
        let sized = || {
            let latents = latents.to_device(&self.place.denoiser)?;
            let (height, width) = (height / self.factor, width / self.factor);
            match init.editing.fit {
                Fit::Latent => {
                    Resample::Bilinear { antialias: false }.apply(&latents, height, width)
                }
                _ => Ok(latents),
            }
        };
        Ok(Some(Start {
            latents: sized().map_err(Error::candle("bringing latents to the denoiser"))?,
            picture: Some(picture::resized(&picture, width, height)),
            mask: init.mask.clone().map(|pixels| Mask { pixels }),
        }))
    }

    /// Channels behind the latents for networks that want some: `(1, channels, height, width)`.
    pub(super) fn channels(
        &mut self,
        request: &ImageRequest,
        start: Option<&Start>,
    ) -> Result<Option<Tensor>> {
        match (self.info.purpose, start, &request.depth) {
            (
                Purpose::Instructions,
                Some(Start {
                    picture: Some(picture),
                    ..
                }),
                _,
            ) => {
                let device = self.place.vae.clone();
                let pixels = picture::to_tensor(picture, &device)
                    .map_err(Error::candle("reading the picture"))?;
                match self.picture_is_scaled {
                    true => self.vae.encode(&pixels),
                    false => self.vae.encode_raw(&pixels),
                }
                .map(Some)
            }
            (Purpose::Depth, _, Some(depth)) => {
                let (height, width) = (request.height / self.factor, request.width / self.factor);
                depths(depth, height, width)
                    .map(Some)
                    .map_err(Error::candle("reading the depths"))
            }
            _ => self.inpainting(request, start),
        }
    }

    /// Mask and masked picture for networks that want them, on the VAE's device; without a picture, all is to be
    /// painted.
    fn inpainting(
        &mut self,
        request: &ImageRequest,
        start: Option<&Start>,
    ) -> Result<Option<Tensor>> {
        if !self.info.inpainting {
            return Ok(None);
        }
        let failed = || Error::candle("preparing the mask");
        let device = self.place.vae.clone();
        let (height, width) = (request.height, request.width);
        let masked = || -> CandleResult<(Tensor, Tensor)> {
            let hard = match start.and_then(|start| start.mask.as_ref()) {
                Some(mask) => mask.hard(&device)?,
                None => Tensor::ones((1, 1, height, width), DType::F32, &device)?,
            };
            let grey = Tensor::full(0.5f32, (1, 3, height, width), &device)?;
            let pixels = match start.and_then(|start| start.picture.as_ref()) {
                Some(picture) => picture::to_tensor(picture, &device)?,
                None => grey.clone(),
            };
            // Grey where something new is to come.
            let masked = (pixels - &grey)?.broadcast_mul(&hard.affine(-1.0, 1.0)?)?;
            Ok((hard, (masked + grey)?))
        };
        let (hard, masked) = masked().map_err(failed())?;
        let latents = self.vae.encode(&masked)?;
        let seen = self.denoiser.masked(&hard, &latents);
        seen.map(Some).map_err(failed())
    }

    /// The pictures that ControlNets of transformers follow, on the VAE's device; UNets' see pixels.
    pub(super) fn hints(&mut self, request: &ImageRequest) -> Result<Vec<Hint>> {
        if matches!(self.denoiser, Denoiser::UNet(_)) {
            return Ok(Vec::new());
        }
        let mut hints = Vec::with_capacity(request.controls.len());
        for control in &request.controls {
            let failed = || Error::candle("reading a picture to follow");
            let (width, height) = (request.width, request.height);
            let device = self.place.vae.clone();
            let picture = picture::resized(&control.image, width, height);
            let mut pixels = picture::to_tensor(&picture, &device).map_err(failed())?;
            let mut shown = None;
            if let Hidden::White(mask) = &control.hidden {
                let pixels_of = |factor: usize| {
                    let (width, height) = (width / factor, height / factor);
                    shown_of(
                        mask,
                        (request.width, request.height),
                        (width, height),
                        &device,
                    )
                };
                let (whole, small) = (
                    pixels_of(1).map_err(failed())?,
                    pixels_of(self.factor).map_err(failed())?,
                );
                pixels = pixels.broadcast_mul(&whole).map_err(failed())?;
                shown = Some(small);
            }
            let pixels = pixels.affine(2.0, -1.0).map_err(failed())?;
            let seen = match (self.info.family, &control.kind) {
                (Family::Sd3, Some(kind)) => pixels_of_kind(&pixels, kind),
                _ => Ok(pixels.clone()),
            };
            let seen = seen.and_then(|seen| seen.affine(0.5, 0.5));
            hints.push(Hint {
                latents: self.vae.encode(&seen.map_err(failed())?)?,
                shift: self.vae.shift()?,
                shown,
                pixels,
            });
        }
        Ok(hints)
    }

    /// Latents of the pictures to look at, on the VAE's device.
    pub(super) fn references(&mut self, request: &ImageRequest) -> Result<Vec<Tensor>> {
        let multiple = self.info.size_multiple;
        let mut latents = Vec::with_capacity(request.references.len());
        for reference in &request.references {
            let (width, height) = reference.dimensions();
            let own = (width as usize, height as usize);
            let (width, height) = match request.keep_reference_size {
                true => own,
                false => self.denoiser.reference_size(own, request, self.factor),
            };
            let whole = |side: usize| (side / multiple).max(1) * multiple;
            let picture = match self.denoiser.cuts_references() && width.min(height) >= multiple {
                true => {
                    let picture = picture::resized(reference, width, height);
                    let (left, top) = (width % multiple / 2, height % multiple / 2);
                    let (left, top) = (left as u32, top as u32);
                    let (width, height) = (whole(width) as u32, whole(height) as u32);
                    image::imageops::crop_imm(&picture, left, top, width, height).to_image()
                }
                false => picture::resized(reference, whole(width), whole(height)),
            };
            let pixels = picture::to_tensor(&picture, &self.place.vae)
                .map_err(Error::candle("reading a picture to look at"))?;
            latents.push(self.vae.encode(&pixels)?);
        }
        Ok(latents)
    }
}

/// 1 where a mask scaled to `size` does not hide, 0 elsewhere, `(1, 1, height, width)` for a grid of so many columns and
/// rows: each has the pixel at its upper left corner, as PyTorch takes the nearest.
fn shown_of(
    mask: &GrayImage,
    size: (usize, usize),
    (columns, rows): (usize, usize),
    device: &Device,
) -> CandleResult<Tensor> {
    let mask = stretched(mask, size.0 as u32, size.1 as u32);
    let (across, down) = (size.0 / columns.max(1), size.1 / rows.max(1));
    let mut shown = Vec::with_capacity(columns * rows);
    for y in 0..rows {
        for x in 0..columns {
            let white = mask.get_pixel((x * across) as u32, (y * down) as u32).0[0];
            shown.push(f32::from(u8::from(white < 128)));
        }
    }
    Tensor::from_vec(shown, (1, 1, rows, columns), device)
}

/// Depths as a network for them sees them: `(1, 1, height, width)` on the CPU, from -1, the farthest, to 1.
fn depths(picture: &RgbImage, height: usize, width: usize) -> CandleResult<Tensor> {
    let (columns, rows) = (picture.width() as usize, picture.height() as usize);
    // Rec. 601, as pictures become grey elsewhere.
    let grey = picture.pixels().map(|pixel| {
        let [r, g, b] = pixel.0.map(f32::from);
        0.299 * r + 0.587 * g + 0.114 * b
    });
    let grey = Tensor::from_vec(grey.collect(), (1, 1, rows, columns), &Device::Cpu)?;
    let small = Resample::Bicubic { antialias: false }.apply(&grey, height, width)?;
    let (least, most) = (small.min_all()?, small.max_all()?);
    let (least, most): (f32, f32) = (least.to_scalar()?, most.to_scalar()?);
    // A plane has no depths.
    let scale = if most > least {
        2.0 / (most - least)
    } else {
        0.0
    };
    let (scale, least) = (f64::from(scale), f64::from(least));
    small.affine(scale, -least * scale - 1.0)
}
