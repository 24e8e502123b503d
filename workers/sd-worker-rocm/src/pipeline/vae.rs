//! Pictures to latents and back, with what keeps that from failing.

use super::module::Module;
use super::picture;
use super::types::Switch;
use crate::models::codec::{CodecConfig, Decoding, Draw, LatentCodec};
use crate::models::wrap::Wrap;
use crate::video::{VideoFile, VideoWriter};
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use image::RgbImage;
use std::ops::ControlFlow;
use worker::{Error, Result};

/// Latents (height times width) from which a picture is decoded in tiles unless told otherwise: a picture of 1024x1024
/// still goes through whole.
const WHOLE: usize = 128 * 128;

/// Latents of a tile, each way.
const TILE: usize = 64;

/// How a video is decoded, and the file that its frames go into, if it has one.
pub struct VideoDecoding<'a> {
    /// The file.
    pub file: Option<VideoFile<'a>>,
    /// As [`Decoding::timestep`].
    pub timestep: f64,
    /// As [`Decoding::noise`].
    pub noise: f64,
    /// As [`Decoding::draw`].
    pub draw: Draw<'a>,
}

/// The autoencoder at work.
pub struct VaeStage {
    module: Module<Box<dyn LatentCodec>>,
    tiling: Switch,
}

impl VaeStage {
    /// Loads the autoencoder.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(
        config: CodecConfig,
        weights: Weights,
        dtype: DType,
        device: &Device,
        offload: bool,
        tiling: Switch,
    ) -> Result<Self> {
        let build = move |vb: crate::models::VarBuilder| config.build(vb);
        Ok(Self {
            module: Module::new("the VAE", weights, dtype, device, offload, build)?,
            tiling,
        })
    }

    /// Pictures' edges meet so, from now on.
    pub fn set_wrap(&mut self, wrap: Wrap) {
        self.module.set_wrap(wrap);
    }

    /// Latents as the denoiser has them, `(batch, channels, height, width)` f32, of pictures in 0..1.
    ///
    /// # Errors
    /// If the autoencoder has no encoder, or the device fails.
    pub fn encode(&mut self, pictures: &Tensor) -> Result<Tensor> {
        let vae = self.module.network()?;
        let latents = pictures.affine(2.0, -1.0);
        let latents = latents.and_then(|pixels| vae.encode(&pixels));
        let latents = latents.map_err(Error::candle("encoding a picture"));
        self.module.rest();
        latents
    }

    /// Latents as [`VaeStage::encode`] gives them, without the scale that the denoiser's have.
    ///
    /// # Errors
    /// Those of [`VaeStage::encode`].
    pub fn encode_raw(&mut self, pictures: &Tensor) -> Result<Tensor> {
        let latents = self.encode(pictures)?;
        let vae = self.module.network()?;
        let raw = vae.unscaled(&latents);
        self.module.rest();
        raw.map_err(Error::candle("encoding a picture"))
    }

    /// What the scale of [`VaeStage::encode`]'s latents has added to them.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn shift(&mut self) -> Result<f64> {
        let vae = self.module.network()?;
        let shift = vae.shift();
        self.module.rest();
        Ok(shift)
    }

    /// Pictures in about 0..1, f32, of latents as the denoiser has them.
    ///
    /// Some autoencoders exceed f16 in their inner layers; what comes out then is not a number. It is noticed, and the
    /// network goes on in f32 from there on.
    ///
    /// # Errors
    /// If the device fails.
    pub fn decode(&mut self, latents: &Tensor) -> Result<Tensor> {
        let pictures = self.decode_finite(latents);
        self.module.rest();
        pictures
    }

    /// The first frame of one video's latents as the denoiser has them, `(channels, frames, height, width)`, and all of
    /// them as a file, if one is asked for: of most autoencoders only the frames of one latent are there at a time. `None`
    /// if `stop` said so on the way.
    ///
    /// # Errors
    /// If it is an autoencoder of pictures, the file cannot be written, or the device fails.
    pub fn decode_video(
        &mut self,
        latents: &Tensor,
        mut how: VideoDecoding,
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<(RgbImage, Option<Vec<u8>>)>> {
        let mut frames = self.frames_once(latents, &mut how, stop);
        if matches!(frames, Ok(Frames::NotFinite)) {
            // As for pictures, from the first frame on.
            frames = match self.module.set_dtype(DType::F32) {
                Ok(()) => self.frames_once(latents, &mut how, stop),
                Err(e) => Err(e),
            };
        }
        self.module.rest();
        match frames? {
            Frames::All(first, writer) => {
                let file = writer.map(|writer| writer.finish()).transpose()?;
                Ok(Some((first, file)))
            }
            Frames::Stopped => Ok(None),
            Frames::NotFinite => Err(Error::Runtime(
                "the VAE's frames are not numbers".to_string(),
            )),
        }
    }

    fn frames_once(
        &mut self,
        latents: &Tensor,
        how: &mut VideoDecoding,
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Frames> {
        let failed = || Error::candle("decoding the video");
        let vae = self.module.network()?;
        let (_, _, height, width) = latents.dims4().map_err(failed())?;
        let checked = self.module.dtype() == DType::F16;
        let mut writer = how.file.as_ref().map(VideoFile::begin).transpose()?;
        let (mut first, mut written) = (None, Ok(()));
        let (mut finite, mut stopped) = (true, false);
        let mut take = |chunk: Tensor| {
            finite = !checked || is_finite(&chunk)?;
            for frame in picture::from_tensor(&chunk.affine(0.5, 0.5)?)? {
                if let (Some(writer), Ok(())) = (&mut writer, &written) {
                    written = writer.push(&frame);
                }
                first.get_or_insert(frame);
            }
            stopped = stop().is_break();
            Ok(match finite && !stopped && written.is_ok() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
        };
        let mut decoding = Decoding {
            tile: self.tile(height, width),
            timestep: how.timestep,
            noise: how.noise,
            draw: &mut *how.draw,
        };
        vae.decode_video(latents, &mut decoding, &mut take)
            .map_err(failed())?;
        if !finite {
            return Ok(Frames::NotFinite);
        }
        if stopped {
            return Ok(Frames::Stopped);
        }
        written?;
        match first {
            Some(first) => Ok(Frames::All(first, writer)),
            None => Err(Error::Runtime("a video without frames".to_string())),
        }
    }

    /// Whether the network has given its memory on the device back.
    #[cfg(all(test, feature = "built-in-model"))]
    pub fn is_resting(&self) -> bool {
        self.module.is_resting()
    }

    fn decode_finite(&mut self, latents: &Tensor) -> Result<Tensor> {
        let failed = || Error::candle("decoding the picture");
        let pictures = self.decode_once(latents).map_err(failed())?;
        if self.module.dtype() == DType::F16 && !is_finite(&pictures).map_err(failed())? {
            self.module.set_dtype(DType::F32)?;
            return self.decode_once(latents).map_err(failed());
        }
        Ok(pictures)
    }

    fn decode_once(&mut self, latents: &Tensor) -> CandleResult<Tensor> {
        let vae = self.module.network().map_err(candle_core::Error::wrap)?;
        let (_, _, height, width) = latents.dims4()?;
        vae.decode(latents, self.tile(height, width))?
            .affine(0.5, 0.5)
    }

    /// Latents of a tile each way, if tiles are to be made of so many.
    fn tile(&self, height: usize, width: usize) -> Option<usize> {
        let tiled = match self.tiling {
            Switch::On => true,
            Switch::Off => false,
            Switch::Auto => height * width > WHOLE,
        };
        tiled.then_some(TILE)
    }
}

/// What became of a video.
enum Frames {
    /// The first, and the file that has all.
    All(RgbImage, Option<Box<dyn VideoWriter>>),
    Stopped,
    /// Numbers exceeded 16 bits.
    NotFinite,
}

/// Whether all are finite numbers. Waits for the device.
fn is_finite(x: &Tensor) -> CandleResult<bool> {
    // Zero times NaN or infinity is NaN.
    let sum = (x * 0.0)?.sum_all()?.to_scalar::<f32>()?;
    Ok(sum.is_finite())
}
