//! The autoencoder of Wan and Qwen-Image: of videos, and of pictures as videos of one frame.
//!
//! The first frame has a latent of its own, each further latent is four frames. Convolutions over time look back only,
//! so that a video goes through latent by latent, with memory for one of them and what each convolution has to
//! remember. Norms see one pixel each: behind the attention of the middle block a frame can be cut into tiles that carry
//! as many neighbours as the layers ahead can reach, and what comes out is the same as in one piece, up to rounding.

mod blocks;
mod causal;
pub mod config;
mod decoder;
mod encoder;

pub use config::WanVaeConfig;

use super::codec::{each_channel, encode_each, inverse, Decoding, Frames, LatentCodec};
use super::pieces::{fold, pieces, unfold};
use crate::models::VarBuilder;
use blocks::Memory;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::Conv2d;
use decoder::Decoder;
use encoder::Encoder;
use std::ops::ControlFlow;

/// The autoencoder.
#[derive(Debug, Clone)]
pub struct WanVae {
    encoder: Option<(Encoder, Conv2d)>,
    post_quant: Conv2d,
    decoder: Decoder,
    config: WanVaeConfig,
    dtype: DType,
}

/// A 1x1 convolution of single frames.
fn pointwise(vb: VarBuilder, channels: usize) -> Result<Conv2d> {
    let weight = vb.get((channels, channels, 1, 1, 1), "weight")?;
    let bias = vb.get(channels, "bias")?;
    Ok(Conv2d::new(
        weight.squeeze(2)?,
        Some(bias),
        Default::default(),
    ))
}

impl WanVae {
    /// Builds the network that `config` describes. A file without an encoder gives one that only decodes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &WanVaeConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let latents = config.z_dim;
        Ok(Self {
            encoder: match vb.contains_tensor("encoder.conv_in.weight") {
                true => Some((
                    Encoder::new(vb.pp("encoder"), config)?,
                    pointwise(vb.pp("quant_conv"), 2 * latents)?,
                )),
                false => None,
            },
            post_quant: pointwise(vb.pp("post_quant_conv"), latents)?,
            decoder: Decoder::new(vb.pp("decoder"), config)?,
            config: config.clone(),
            dtype: vb.dtype(),
        })
    }

    /// Of frames `(frames, 3, height, width)` in -1..1 the latents' means, `(latents, channels, height, width)`.
    fn encode_frames(&self, frames: &Tensor) -> Result<Tensor> {
        let Some((encoder, quant)) = &self.encoder else {
            candle_core::bail!("this VAE has no encoder; pictures cannot be started from")
        };
        let (count, time) = (frames.dim(0)?, self.config.time_factor());
        if count == 0 || (count - 1) % time != 0 {
            candle_core::bail!("{count} frames; the model takes one more than a multiple of {time}")
        }
        let x = fold(&frames.to_dtype(self.dtype)?, self.config.patch())?;
        let mut memory = Memory::new();
        let starts = std::iter::once((0, 1)).chain((1..count).step_by(time).map(|i| (i, time)));
        let latents = starts.map(|(start, frames)| {
            let chunk = x.narrow(0, start, frames)?.contiguous()?;
            quant.forward(&encoder.forward(&chunk, &mut memory)?)
        });
        let latents = Tensor::cat(&latents.collect::<Result<Vec<_>>>()?, 0)?;
        let means = latents.narrow(1, 0, self.config.z_dim)?;
        each_channel(&means.to_dtype(DType::F32)?, &self.config.scaling())
    }

    /// Gives the frames of latents `(latents, channels, height, width)`, those of each latent together,
    /// `(frames, 3, height, width)` in about -1..1, f32.
    fn decode_frames(&self, latents: &Tensor, tile: Option<usize>, give: Frames) -> Result<()> {
        let raw = each_channel(latents, &inverse(&self.config.scaling()))?;
        let raw = self.post_quant.forward(&raw.to_dtype(self.dtype)?)?;
        let (count, _, height, width) = raw.dims4()?;
        let rows = pieces(height, tile, self.decoder.reach());
        let columns = pieces(width, tile, self.decoder.reach());
        let mut memory = Memory::new();
        let tiles = rows.len() * columns.len();
        let mut memories: Vec<Memory> = (0..tiles).map(|_| Memory::new()).collect();
        for i in 0..count {
            let x = self
                .decoder
                .begin(&raw.narrow(0, i, 1)?.contiguous()?, &mut memory)?;
            let mut places = memories.iter_mut();
            let lines = rows.iter().map(|row| {
                let tiles = columns.iter().map(|column| {
                    let Some(memory) = places.next() else {
                        candle_core::bail!("more tiles than were counted")
                    };
                    let tile = row.cut(&column.cut(&x, 3)?, 2)?.contiguous()?;
                    let tile = self.decoder.finish(&tile, memory)?;
                    let tile = unfold(&tile, self.config.patch())?;
                    let factor = self.config.factor();
                    row.trim(&column.trim(&tile, 3, factor)?, 2, factor)
                });
                Tensor::cat(&tiles.collect::<Result<Vec<_>>>()?, 3)
            });
            let frames = Tensor::cat(&lines.collect::<Result<Vec<_>>>()?, 2)?;
            if give(frames.to_dtype(DType::F32)?)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl LatentCodec for WanVae {
    fn encode(&self, pixels: &Tensor) -> Result<Tensor> {
        encode_each(pixels, |frames| self.encode_frames(frames))
    }

    fn decode(&self, latents: &Tensor, tile: Option<usize>) -> Result<Tensor> {
        let pictures = (0..latents.dim(0)?).map(|i| {
            let mut picture = None;
            let one = latents.narrow(0, i, 1)?.contiguous()?;
            self.decode_frames(&one, tile, &mut |frame| {
                picture = Some(frame);
                Ok(ControlFlow::Continue(()))
            })?;
            picture.ok_or_else(|| candle_core::Error::msg("latents without a picture"))
        });
        Tensor::cat(&pictures.collect::<Result<Vec<_>>>()?, 0)
    }

    fn decode_video(&self, latents: &Tensor, how: &mut Decoding, give: Frames) -> Result<()> {
        let (_, _, _, _) = latents.dims4()?;
        let frames = latents.transpose(0, 1)?.contiguous()?;
        self.decode_frames(&frames, how.tile, give)
    }
}
