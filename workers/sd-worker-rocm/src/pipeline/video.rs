//! What videos have beside pictures: the frames that they start and end with, and their way out.

use super::denoiser::run::Ends;
use super::families::Start as VideoStart;
use super::picture;
use super::vae::VideoDecoding;
use super::Pipeline;
use crate::models::codec::{DECODE_NOISE, DECODE_TIMESTEP};
use crate::parameters::Parameters;
use crate::request::{ImageRequest, VideoRequest};
use crate::rng::BatchNoise;
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
        if traits.start == VideoStart::Latents {
            return self.given(request, video, traits.frame_noise);
        }
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
            VideoStart::Nothing | VideoStart::Latents => Ok(Ends::default()),
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

    /// Latents of the frames that are given, wherever they are.
    fn given(
        &mut self,
        request: &ImageRequest,
        video: &VideoRequest,
        noise: Option<f64>,
    ) -> Result<Ends> {
        let device = self.place.vae.clone();
        let mut encode = |picture: &RgbImage| {
            let picture = picture::resized(picture, request.width, request.height);
            let pixels = picture::to_tensor(&picture, &device).and_then(|x| x.unsqueeze(2));
            let pixels = pixels.map_err(Error::candle("preparing a frame"))?;
            self.vae.encode(&pixels)
        };
        let first = video.first.as_ref().map(&mut encode).transpose()?;
        let last = video.last.as_ref().map(|last| (video.frames - 1, last));
        let key_frames = video.key_frames.iter().map(|(at, frame)| (*at, frame));
        let later = key_frames.chain(last);
        Ok(Ends {
            first,
            later: later
                .map(|(at, frame)| Ok((at, encode(frame)?)))
                .collect::<Result<_>>()?,
            noise: video.frame_noise.or(noise).unwrap_or(0.0),
            ..Ends::default()
        })
    }

    /// The videos of latents `(batch, channels, frames, height, width)`, written frame by frame as they are decoded;
    /// `None` if `stop` said so. A video of one frame is a picture.
    pub(super) fn videos(
        &mut self,
        latents: &Tensor,
        request: &ImageRequest,
        noise: &mut BatchNoise,
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Videos>> {
        let failed = || Error::candle("decoding the video");
        let mut made = Videos::default();
        for i in 0..request.batch {
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
            let video = request.video.as_ref();
            let timestep = video.and_then(|video| video.decode_timestep);
            let share = video.and_then(|video| video.decode_noise);
            let how = VideoDecoding {
                file,
                timestep: timestep.unwrap_or(DECODE_TIMESTEP),
                noise: share.unwrap_or(DECODE_NOISE),
                draw: &mut |shape| noise.one(i, shape),
            };
            let Some((first, file)) = self.vae.decode_video(&one, how, stop)? else {
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
