//! The autoencoder of LTX-Video: of videos, and of pictures as videos of one frame.
//!
//! The first frame has a latent of its own, each further latent is several frames. Decoders' convolutions look ahead,
//! too, so that a video goes through as a whole. Norms see one pixel each: a video can be cut into tiles that carry as
//! many neighbours as the layers can reach, and what comes out is the same as in one piece, up to rounding.
//!
//! Since 0.9.1 decoders take out the last noise themselves: some is mixed into the latents, and they are told how much.

mod blocks;
pub mod config;
mod decoder;
mod encoder;

pub use config::LtxVaeConfig;

use super::codec::{encode_each, Decoding, Draw, Frames, LatentCodec, DECODE_TIMESTEP};
use super::pieces::{fold, pieces, unfold};
use super::VarBuilder;
use blocks::column;
use candle_core::{DType, Result, Tensor};
use decoder::Decoder;
use encoder::Encoder;

/// The autoencoder.
#[derive(Debug, Clone)]
pub struct LtxVae {
    encoder: Option<Encoder>,
    decoder: Decoder,
    /// Of the latents, `(1, channels, 1, 1)`, f32.
    mean: Tensor,
    /// The same, divided by the scale.
    std: Tensor,
    config: LtxVaeConfig,
    dtype: DType,
}

/// For layers that add no noise.
fn no_noise(_: &[usize]) -> Result<Tensor> {
    candle_core::bail!("noise where there is none")
}

impl LtxVae {
    /// Builds the network that `config` describes. A file without an encoder gives one that only decodes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &LtxVaeConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let channels = config.latent_channels;
        Ok(Self {
            encoder: match vb.contains_tensor("encoder.conv_in.conv.weight") {
                true => Some(Encoder::new(vb.pp("encoder"), config)?),
                false => None,
            },
            decoder: Decoder::new(vb.pp("decoder"), config)?,
            mean: column(&vb, "latents_mean", channels)?,
            std: (column(&vb, "latents_std", channels)? / config.scaling_factor)?,
            config: config.clone(),
            dtype: vb.dtype(),
        })
    }

    /// Of frames `(frames, 3, height, width)` in -1..1 the latents' means, `(latents, channels, height, width)`.
    fn encode_frames(&self, frames: &Tensor) -> Result<Tensor> {
        let Some(encoder) = &self.encoder else {
            candle_core::bail!("this VAE has no encoder; pictures cannot be started from")
        };
        let (count, time) = (frames.dim(0)?, self.config.time_factor());
        if count == 0 || (count - 1) % time != 0 {
            candle_core::bail!("{count} frames; the model takes one more than a multiple of {time}")
        }
        let x = fold(&frames.to_dtype(self.dtype)?, self.config.patch_size)?;
        let means = encoder.forward(&x)?;
        let means = means.narrow(1, 0, self.config.latent_channels)?;
        means
            .to_dtype(DType::F32)?
            .broadcast_sub(&self.mean)?
            .broadcast_div(&self.std)
    }

    /// All frames of latents `(latents, channels, height, width)`: `(frames, 3, height, width)`, f32.
    fn decode_frames(&self, latents: &Tensor, how: &mut Decoding) -> Result<Tensor> {
        let mut raw = latents
            .broadcast_mul(&self.std)?
            .broadcast_add(&self.mean)?;
        let (count, channels, height, width) = raw.dims4()?;
        if self.config.timestep_conditioning {
            let noise = (how.draw)(&[channels, count, height, width])?;
            let noise = noise.to_device(raw.device())?.transpose(0, 1)?;
            raw = ((raw * (1.0 - how.noise))? + (noise * how.noise)?)?;
        }
        let raw = raw.to_dtype(self.dtype)?;
        let device = raw.device().clone();
        let t = how.timestep;
        let mut draw = |shape: &[usize]| (how.draw)(shape)?.to_device(&device);
        let reach = self.decoder.reach();
        let rows = pieces(height, how.tile, reach);
        let columns = pieces(width, how.tile, reach);
        let factor = self.config.factor();
        let mut lines = Vec::new();
        for row in &rows {
            let mut tiles = Vec::new();
            for column in &columns {
                let tile = row.cut(&column.cut(&raw, 3)?, 2)?.contiguous()?;
                let tile = self.decoder.forward(&tile, t, &mut draw)?;
                let tile = unfold(&tile, self.config.patch_size)?;
                tiles.push(row.trim(&column.trim(&tile, 3, factor)?, 2, factor)?);
            }
            lines.push(Tensor::cat(&tiles, 3)?);
        }
        Tensor::cat(&lines, 2)?.to_dtype(DType::F32)
    }
}

impl LatentCodec for LtxVae {
    fn encode(&self, pixels: &Tensor) -> Result<Tensor> {
        encode_each(pixels, |frames| self.encode_frames(frames))
    }

    fn decode(&self, latents: &Tensor, tile: Option<usize>) -> Result<Tensor> {
        // A preview, without the noise of videos.
        let pictures = (0..latents.dim(0)?).map(|i| {
            let mut how = Decoding {
                tile,
                timestep: DECODE_TIMESTEP,
                noise: 0.0,
                draw: &mut |shape| Tensor::zeros(shape, DType::F32, latents.device()),
            };
            self.decode_frames(&latents.narrow(0, i, 1)?.contiguous()?, &mut how)
        });
        Tensor::cat(&pictures.collect::<Result<Vec<_>>>()?, 0)
    }

    fn decode_video(&self, latents: &Tensor, how: &mut Decoding, give: Frames) -> Result<()> {
        let (_, _, _, _) = latents.dims4()?;
        let latents = latents.transpose(0, 1)?.contiguous()?;
        let frames = self.decode_frames(&latents, how)?;
        let count = frames.dim(0)?;
        for start in (0..count).step_by(self.config.time_factor()) {
            let some = self.config.time_factor().min(count - start);
            if give(frames.narrow(0, start, some)?.contiguous()?)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}
