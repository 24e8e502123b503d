//! What videos have beside pictures: the frames that they start and end with, and their way out.

use super::denoiser::run::Ends;
use super::families::Start as VideoStart;
use super::picture;
use super::Pipeline;
use crate::parameters::Parameters;
use crate::request::ImageRequest;
use crate::video::VideoFile;
use candle_core::{DType, Result as CandleResult, Tensor};
use image::RgbImage;
use std::ops::ControlFlow;
use worker::{Error, Result};

impl Pipeline {
    /// What the network sees of the pictures that a video starts and ends with, on their devices.
    pub(super) fn ends(&mut self, request: &ImageRequest) -> Result<Ends> {
        let Some(traits) = self.denoiser.video() else {
            return Ok(Ends::default());
        };
        let Some(video) = &request.video else {
            return Ok(Ends::default());
        };
        let scaled = |picture: &RgbImage| picture::resized(picture, request.width, request.height);
        let Some(first) = &video.first else {
            return Ok(Ends::default());
        };
        let views = match &mut self.vision {
            Some(vision) => {
                let pictures: Vec<&RgbImage> = [Some(first), video.last.as_ref()]
                    .into_iter()
                    .flatten()
                    .collect();
                Some(vision.rows(&pictures)?)
            }
            None => None,
        };
        let device = self.place.vae.clone();
        let failed = || Error::candle("preparing the first frame");
        let first = picture::to_tensor(&scaled(first), &device).map_err(failed())?;
        // Frames are the third dimension.
        let first = first.unsqueeze(2).map_err(failed())?;
        match traits.start {
            VideoStart::Nothing => Ok(Ends::default()),
            VideoStart::FirstLatent => Ok(Ends {
                first: Some(self.vae.encode(&first)?),
                ..Ends::default()
            }),
            VideoStart::Channels => {
                let (height, width) = (request.height, request.width);
                let grey = |frames: usize| {
                    let shape = (1, 3, frames, height, width);
                    Tensor::full(0.5f32, shape, &device)
                };
                let whole = || -> CandleResult<Tensor> {
                    let mut parts = vec![first.clone()];
                    let rest = video.frames - 1 - usize::from(video.last.is_some());
                    if rest > 0 {
                        parts.push(grey(rest)?);
                    }
                    if let Some(last) = &video.last {
                        parts.push(picture::to_tensor(&scaled(last), &device)?.unsqueeze(2)?);
                    }
                    Tensor::cat(&parts, 2)
                };
                let latents = self.vae.encode(&whole().map_err(failed())?)?;
                let known = known(&latents, self.time_factor, video.last.is_some());
                let channels = known.and_then(|known| Tensor::cat(&[&known, &latents], 1));
                Ok(Ends {
                    channels: Some(channels.map_err(failed())?),
                    views,
                    ..Ends::default()
                })
            }
        }
    }

    /// The videos of latents `(batch, channels, frames, height, width)`, written frame by frame as they are decoded;
    /// `None` if `stop` said so. A video of one frame is a picture.
    pub(super) fn videos(
        &mut self,
        latents: &Tensor,
        request: &ImageRequest,
        seeds: &[u64],
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Videos>> {
        let failed = || Error::candle("decoding the video");
        let mut made = Videos::default();
        for i in 0..seeds.len() {
            let one = latents.get(i).map_err(failed())?;
            let parameters = Parameters::of(request, i, &self.info).to_string();
            let file = match &request.video {
                Some(video) if video.frames > 1 => Some(VideoFile {
                    format: video.format,
                    width: request.width as u32,
                    height: request.height as u32,
                    fps: video.fps,
                    parameters: &parameters,
                }),
                _ => None,
            };
            let Some((first, file)) = self.vae.decode_video(&one, file, stop)? else {
                return Ok(None);
            };
            made.images.push(first);
            made.files.extend(file);
        }
        Ok(Some(made))
    }
}

/// What became of latents of videos.
#[derive(Debug, Default)]
pub(super) struct Videos {
    /// The first frame of each.
    pub images: Vec<RgbImage>,
    /// The file of each, unless they are pictures.
    pub files: Vec<Vec<u8>>,
}

/// Which frames of a video are given, for latents of this shape: `(1, frames a latent, latents, height, width)`, 1 for
/// those that are. The first frame counts as all frames of its latent.
fn known(latents: &Tensor, time_factor: usize, last: bool) -> CandleResult<Tensor> {
    let (_, _, frames, height, width) = latents.dims5()?;
    let mut values = vec![0f32; time_factor * frames];
    for frame in values.chunks_exact_mut(frames) {
        frame[0] = 1.0;
    }
    if let (true, Some(value)) = (last, values.last_mut()) {
        *value = 1.0;
    }
    Tensor::from_vec(values, (1, time_factor, frames, 1, 1), latents.device())?
        .to_dtype(DType::F32)?
        .broadcast_as((1, time_factor, frames, height, width))?
        .contiguous()
}

/// Latents `(batch, channels, frames, height, width)` whose first frame is `first`, `(1, channels, 1, height, width)`.
pub(super) fn with_first(latents: &Tensor, first: &Tensor) -> CandleResult<Tensor> {
    let (batch, _, frames, _, _) = latents.dims5()?;
    let first = first
        .to_dtype(latents.dtype())?
        .repeat((batch, 1, 1, 1, 1))?;
    match frames {
        1 => Ok(first),
        _ => Tensor::cat(&[&first, &latents.narrow(2, 1, frames - 1)?], 2),
    }
}
