//! Between two passes: the first one's picture made larger.

use super::denoiser::Denoiser;
use super::generate::{tell, Drawn};
use super::types::{Progress, Stage, Timings};
use super::{picture, Pipeline};
use crate::editing::fit::fitted;
use crate::editing::resample::Resample;
use crate::editing::resize::Filter;
use crate::editing::Fit;
use crate::models::wrap::{around, Wrap};
use crate::request::{Highres, ImageRequest};
use crate::upscale::seamless::margin;
use crate::upscale::{enlarge_seamless, Method, Network, Tiling};
use candle_core::{Result as CandleResult, Tensor};
use std::ops::ControlFlow;
use std::path::Path;
use worker::{Error, Result};

/// Latents around those that a filter looks at, where edges meet.
const REACH: u32 = 8;

/// What a second pass starts from.
pub(super) struct Second {
    /// `(batch, channels, height, width)`, f32, on the denoiser's device.
    pub latents: Tensor,
    /// How much of the way is walked again.
    pub strength: f64,
}

impl Pipeline {
    /// Two passes; `None` if they were broken off.
    pub(super) fn twice(
        &mut self,
        mut other: Option<&mut Denoiser>,
        request: &ImageRequest,
        highres: &Highres,
        timings: &mut Timings,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Drawn>> {
        let again = highres.request(request);
        let after = self.steps_of(&again, highres.strength)?;
        let mut told = |told: Progress| {
            progress(Progress {
                total: told.total + after,
                ..told
            })
        };
        let first = self.pass(other.as_deref_mut(), request, None, timings, &mut told)?;
        let Some(first) = first else {
            return Ok(None);
        };
        let (done, seeds) = (first.steps, first.seeds);
        let mut stop = || progress(tell(Stage::Denoise, done, done + after));
        let Some(second) = self.between(
            highres,
            &first.latents,
            again.tuning.seamless.wrap(),
            &mut stop,
        )?
        else {
            return Ok(None);
        };
        let mut told = |told: Progress| {
            progress(Progress {
                step: done + told.step,
                total: done + after,
                ..told
            })
        };
        let drawn = self.pass(other, &again, Some(second), timings, &mut told)?;
        Ok(drawn.map(|drawn| Drawn {
            steps: done + drawn.steps,
            seeds,
            ..drawn
        }))
    }

    /// The latents of the first pass for the second one, larger; `None` if `stop` said so on the way.
    pub(super) fn between(
        &mut self,
        highres: &Highres,
        latents: &Tensor,
        wrap: Wrap,
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Second>> {
        let failed = || Error::candle("enlarging between two passes");
        if latents.rank() != 4 {
            return Err(Error::Usage(
                "a second pass (highres fix) is not implemented for videos".to_string(),
            ));
        }
        let (width, height) = (highres.width, highres.height);
        let larger = match &highres.method {
            Method::Latent(resample) => {
                let (height, width) = (height / self.factor, width / self.factor);
                covering(latents, *resample, (height, width), wrap).map_err(failed())?
            }
            Method::Pixels(filter) => {
                let enlarged = self.pixels(latents, None, *filter, (width, height), wrap, stop)?;
                let Some(latents) = enlarged else {
                    return Ok(None);
                };
                latents
            }
            Method::Network(path) => {
                let size = (width, height);
                let path = Some(path.as_path());
                match self.pixels(latents, path, Filter::Lanczos, size, wrap, stop)? {
                    Some(latents) => latents,
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Second {
            latents: larger.to_device(&self.place.denoiser).map_err(failed())?,
            strength: highres.strength,
        }))
    }

    /// Latents by way of pixels.
    fn pixels(
        &mut self,
        latents: &Tensor,
        network: Option<&Path>,
        filter: Filter,
        (width, height): (usize, usize),
        wrap: Wrap,
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Tensor>> {
        let failed = || Error::candle("enlarging between two passes");
        let device = self.place.vae.clone();
        let latents = latents.to_device(&device).map_err(failed())?;
        let pictures = self.vae.decode(&latents)?;
        let pictures = picture::from_tensor(&pictures).map_err(failed())?;
        if let Some(path) = network {
            let other = self.upscaler.as_ref().is_none_or(|old| old.path() != path);
            if other {
                // The old one gives its memory back first.
                self.upscaler = None;
                self.upscaler = Some(Network::open(path, &device)?);
            }
        }
        let mut encoded = Vec::new();
        for picture in pictures {
            // As large as it takes to leave nothing empty.
            let (w, h) = (picture.width() as f64, picture.height() as f64);
            let scale = (width as f64 / w).max(height as f64 / h);
            let size = crate::upscale::scaled(picture.dimensions(), scale)?;
            let tiling = Tiling::default();
            let way = self.upscaler.as_mut().filter(|_| network.is_some());
            let way = way.map(|network| (network, &tiling));
            let larger = enlarge_seamless(&picture, way, filter, size, wrap, &mut |_, _| stop())?;
            let Some(larger) = larger else {
                return Ok(None);
            };
            let larger = fitted(&larger, width as u32, height as u32, Fit::Crop);
            let pixels = picture::to_tensor(&larger, &device).map_err(failed())?;
            encoded.push(self.vae.encode(&pixels)?);
        }
        Tensor::cat(&encoded, 0).map(Some).map_err(failed())
    }

    /// Steps of a pass that begins at this strength.
    pub(super) fn steps_of(&self, request: &ImageRequest, strength: f64) -> Result<usize> {
        let options = self.sampler_options(request, strength, 0);
        let run = crate::sampling::SamplerRun::new(&self.schedule, &options)?;
        Ok(run.steps())
    }
}

/// Latents resized until nothing is empty; what stands out is cut off on both sides.
fn covering(
    x: &Tensor,
    resample: Resample,
    (height, width): (usize, usize),
    wrap: Wrap,
) -> CandleResult<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    let scale = (width as f64 / w as f64).max(height as f64 / h as f64);
    let side = |side: usize, least: usize| ((side as f64 * scale).round() as usize).max(least);
    let (tall, wide) = (side(h, height), side(w, width));
    let beyond = |wraps, from: usize, to: usize| {
        let (from, to) = margin(wraps, from as u32, to as u32, REACH);
        (from as usize, to as usize)
    };
    let ((rows, above), (columns, before)) = (beyond(wrap.y, h, tall), beyond(wrap.x, w, wide));
    let x = around(&around(x, 2, rows, rows)?, 3, columns, columns)?;
    let x = resample.apply(&x.contiguous()?, tall + 2 * above, wide + 2 * before)?;
    x.narrow(2, above + (tall - height) / 2, height)?
        .narrow(3, before + (wide - width) / 2, width)?
        .contiguous()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn latents_whose_edges_meet() {
        let values: Vec<f32> = (0..96).map(|i| (i * i % 37) as f32).collect();
        let x = Tensor::from_vec(values, (1, 1, 8, 12), &Device::Cpu).unwrap();
        let rolled = |x: &Tensor, by: i32| x.roll(by, 2).unwrap().roll(by, 3).unwrap();
        let resample = Resample::Bicubic { antialias: false };
        let apart = |wrap| {
            let larger = |x: &Tensor| covering(x, resample, (12, 18), wrap).unwrap();
            let apart = (larger(&rolled(&x, 2)) - rolled(&larger(&x), 3)).unwrap();
            let most = apart.abs().unwrap().max_all().unwrap();
            most.to_scalar::<f32>().unwrap()
        };
        assert!(apart(Wrap { x: true, y: true }) < 1e-4);
        assert!(apart(Wrap { x: true, y: false }) > 0.1);
    }
}
