//! What a picture looks like while it is being made.

use super::{picture, Pipeline};
use candle_core::Tensor;
use image::RgbImage;
use worker::{Error, Result};

/// Latents, height times width, of a preview decoded by the VAE itself.
const PREVIEW: usize = 32 * 32;

impl Pipeline {
    /// What the first picture looks like so far.
    pub(super) fn preview(&mut self, denoised: &Tensor) -> Result<RgbImage> {
        let failed = || Error::candle("making a preview");
        // Of a video a frame in its middle.
        let frame = match denoised.rank() {
            5 => denoised.dim(2).and_then(|frames| {
                let middle = denoised.narrow(2, frames / 2, 1)?;
                middle.squeeze(2)?.contiguous()
            }),
            _ => Ok(denoised.clone()),
        };
        let first = frame
            .and_then(|frame| frame.narrow(0, 0, 1))
            .and_then(|first| first.to_device(&self.place.vae))
            .map_err(failed())?;
        let pixels = match &mut self.taesd {
            Some(taesd) => taesd.network()?.decode(&first).map_err(failed())?,
            None => {
                let smaller = || {
                    let (_, _, height, width) = first.dims4()?;
                    let factor = (1..).find(|f| (height / f) * (width / f) <= PREVIEW);
                    match factor.map(|factor| factor.min(height).min(width)) {
                        Some(factor) if factor > 1 => first.avg_pool2d(factor),
                        _ => Ok(first.clone()),
                    }
                };
                let smaller = smaller().map_err(failed())?;
                self.vae.decode(&smaller)?
            }
        };
        let mut images = picture::from_tensor(&pixels).map_err(failed())?;
        match images.pop() {
            Some(image) => Ok(image),
            None => Err(Error::Runtime("a preview without a picture".to_string())),
        }
    }
}
