//! Autoencoders between pictures or videos and latents.
//!
//! To add one: a network that is a [`LatentCodec`], its configuration as an arm of [`CodecConfig`], and its class's name
//! in [`CodecConfig::of_class`].

use super::dc_vae::{DcVae, DcVaeConfig};
use super::ltx_vae::{LtxVae, LtxVaeConfig};
use super::vae::patched::{PatchedVae, PatchedVaeConfig};
use super::vae::{Vae, VaeConfig};
use super::wan_vae::{WanVae, WanVaeConfig};
use super::VarBuilder;
use candle_core::{Result, Tensor};
use serde_json::Value;
use std::ops::ControlFlow;

/// Takes frames as they are decoded, `(frames, 3, height, width)` in about -1..1, f32, and may ask to stop.
pub type Frames<'a> = &'a mut dyn FnMut(Tensor) -> Result<ControlFlow<()>>;

/// Standard normal numbers of a shape, f32, on whatever device.
pub type Draw<'a> = &'a mut dyn FnMut(&[usize]) -> Result<Tensor>;

/// What decoders that take out the last noise are told, unless a request says otherwise: LTX-Video's makers'.
pub const DECODE_TIMESTEP: f64 = 0.05;
/// The noise that is mixed into their latents, unless a request says otherwise.
pub const DECODE_NOISE: f64 = 0.025;

/// How a video is decoded.
pub struct Decoding<'a> {
    /// In tiles of up to so many latents each way.
    pub tile: Option<usize>,
    /// The time, 0 to 1, that decoders which take out the last noise are told.
    pub timestep: f64,
    /// The share of noise, 0 to 1, that is mixed into their latents.
    pub noise: f64,
    /// Where that noise comes from, and that which decoders add on the way.
    pub draw: Draw<'a>,
}

/// An autoencoder at work. Latents are f32, as the denoiser has them: scaled, or brought to mean 0 and deviation 1.
pub trait LatentCodec: Send + Sync {
    /// Latents `(batch, channels, height, width)` of pictures `(batch, 3, height, width)` in -1..1; of videos
    /// `(batch, 3, frames, height, width)` latents of five dimensions, too.
    ///
    /// # Errors
    /// If there is no encoder, shapes are others, or the device fails.
    fn encode(&self, pixels: &Tensor) -> Result<Tensor>;

    /// Pictures, about -1..1, f32, of latents `(batch, channels, height, width)`; in tiles of up to `tile` latents each
    /// way if given.
    ///
    /// # Errors
    /// If shapes are others, or the device fails.
    fn decode(&self, latents: &Tensor, tile: Option<usize>) -> Result<Tensor>;

    /// What the autoencoder itself makes of a picture, from latents as the denoiser has them: without their scale.
    ///
    /// # Errors
    /// If it is an autoencoder of which no network wants that, shapes are others, or the device fails.
    fn unscaled(&self, latents: &Tensor) -> Result<Tensor> {
        let _ = latents;
        candle_core::bail!("this autoencoder does not give latents without their scale")
    }

    /// What the scale of the latents adds to each of them; 0 where it adds nothing, or not the same to every channel.
    fn shift(&self) -> f64 {
        0.0
    }

    /// Gives the frames of one video's latents, `(channels, frames, height, width)`, as they come.
    ///
    /// # Errors
    /// If it is an autoencoder of pictures, shapes are others, or the device or `give` fails.
    fn decode_video(&self, latents: &Tensor, how: &mut Decoding, give: Frames) -> Result<()> {
        let _ = (latents, how.tile, give);
        candle_core::bail!("this autoencoder is one of pictures, not of videos")
    }
}

/// The configuration of an autoencoder of any kind.
#[derive(Debug, Clone)]
pub enum CodecConfig {
    /// `AutoencoderKL`.
    Kl(VaeConfig),
    /// `AutoencoderKLFlux2`.
    Patched(PatchedVaeConfig),
    /// `AutoencoderKLWan`, `AutoencoderKLQwenImage`.
    Wan(WanVaeConfig),
    /// `AutoencoderKLLTXVideo`.
    Ltx(LtxVaeConfig),
    /// `AutoencoderDC`.
    Dc(DcVaeConfig),
}

impl From<VaeConfig> for CodecConfig {
    fn from(config: VaeConfig) -> Self {
        Self::Kl(config)
    }
}

impl CodecConfig {
    /// Reads and checks a `config.json`, whose `_class_name` says which kind it is.
    ///
    /// # Errors
    /// Names the class or the first setting that is not implemented.
    pub fn of_class(json: Value) -> std::result::Result<Self, String> {
        fn read<C: serde::de::DeserializeOwned>(json: Value) -> std::result::Result<C, String> {
            serde_json::from_value(json).map_err(|e| e.to_string())
        }
        let class = json.get("_class_name").and_then(Value::as_str);
        let config = match class.unwrap_or("AutoencoderKL") {
            "AutoencoderKL" => Self::Kl(read(json)?),
            "AutoencoderKLFlux2" => Self::Patched(read(json)?),
            "AutoencoderKLWan" | "AutoencoderKLQwenImage" => Self::Wan(read(json)?),
            "AutoencoderKLLTXVideo" => Self::Ltx(read(json)?),
            "AutoencoderDC" => Self::Dc(read(json)?),
            other => {
                return Err(format!(
                    "an autoencoder of kind {other:?} is not implemented"
                ))
            }
        };
        config.check()?;
        Ok(config)
    }

    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        match self {
            Self::Kl(config) => config.check(),
            Self::Patched(config) => config.check(),
            Self::Wan(config) => config.check(),
            Self::Ltx(config) => config.check(),
            Self::Dc(config) => config.check(),
        }
    }

    /// Channels of a latent.
    pub fn latent_channels(&self) -> usize {
        match self {
            Self::Kl(config) => config.latent_channels,
            Self::Patched(config) => 4 * config.vae.latent_channels,
            Self::Wan(config) => config.z_dim,
            Self::Ltx(config) => config.latent_channels,
            Self::Dc(config) => config.latent_channels,
        }
    }

    /// Pixels a latent, each way.
    pub fn factor(&self) -> usize {
        match self {
            Self::Kl(config) => config.factor(),
            Self::Patched(config) => 2 * config.vae.factor(),
            Self::Wan(config) => config.factor(),
            Self::Ltx(config) => config.factor(),
            Self::Dc(config) => config.factor(),
        }
    }

    /// Frames a latent, the first frame having one of its own; 1 where there are only pictures.
    pub fn time_factor(&self) -> usize {
        match self {
            Self::Kl(_) | Self::Patched(_) | Self::Dc(_) => 1,
            Self::Wan(config) => config.time_factor(),
            Self::Ltx(config) => config.time_factor(),
        }
    }

    /// Whether the decoder takes out the last noise itself.
    pub fn denoises(&self) -> bool {
        matches!(self, Self::Ltx(config) if config.timestep_conditioning)
    }

    /// Whether 16-bit floats are said to overflow in it.
    pub fn force_upcast(&self) -> bool {
        match self {
            Self::Kl(config) => config.force_upcast,
            Self::Patched(_) | Self::Wan(_) | Self::Ltx(_) | Self::Dc(_) => false,
        }
    }

    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn build(&self, vb: VarBuilder) -> Result<Box<dyn LatentCodec>> {
        Ok(match self {
            Self::Kl(config) => Box::new(Vae::new(vb, config)?),
            Self::Patched(config) => Box::new(PatchedVae::new(vb, config)?),
            Self::Wan(config) => Box::new(WanVae::new(vb, config)?),
            Self::Ltx(config) => Box::new(LtxVae::new(vb, config)?),
            Self::Dc(config) => Box::new(DcVae::new(vb, config)?),
        })
    }
}

/// `factor * x + addend` of each channel of `(batch, channels, height, width)`; one pair stands for all channels.
pub(super) fn each_channel(latents: &Tensor, scaling: &[(f64, f64)]) -> Result<Tensor> {
    if let [(factor, add)] = scaling {
        return latents.affine(*factor, *add);
    }
    let column = |of: fn(&(f64, f64)) -> f64| {
        let values: Vec<f32> = scaling.iter().map(|pair| of(pair) as f32).collect();
        Tensor::from_vec(values, (1, scaling.len(), 1, 1), latents.device())?
            .to_dtype(latents.dtype())
    };
    latents
        .broadcast_mul(&column(|pair| pair.0)?)?
        .broadcast_add(&column(|pair| pair.1)?)
}

/// What undoes [`each_channel`].
pub(super) fn inverse(scaling: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let pairs = scaling.iter();
    pairs
        .map(|(factor, add)| (1.0 / factor, -add / factor))
        .collect()
}

/// Latents of pictures `(batch, 3, height, width)` or videos `(batch, 3, frames, height, width)`, each encoded as frames
/// `(frames, 3, height, width)` by what autoencoders of videos have.
pub(super) fn encode_each(
    pixels: &Tensor,
    encode: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if pixels.rank() == 4 {
        let pictures = (0..pixels.dim(0)?).map(|i| encode(&pixels.narrow(0, i, 1)?.contiguous()?));
        return Tensor::cat(&pictures.collect::<Result<Vec<_>>>()?, 0);
    }
    let (batch, _, _, _, _) = pixels.dims5()?;
    let videos = (0..batch).map(|i| {
        let frames = pixels.get(i)?.transpose(0, 1)?.contiguous()?;
        encode(&frames)?.transpose(0, 1)?.contiguous()
    });
    Tensor::stack(&videos.collect::<Result<Vec<_>>>()?, 0)
}
