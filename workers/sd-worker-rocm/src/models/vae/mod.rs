//! The autoencoder between pixels and latents.

mod blocks;
pub mod config;
mod decoder;
mod encoder;
pub mod patched;
pub mod tiles;

pub use config::VaeConfig;

use super::codec::{each_channel, inverse, LatentCodec};
use crate::models::layers::conv;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::Conv2d;
use decoder::Decoder;
use encoder::Encoder;

/// The autoencoder.
#[derive(Debug, Clone)]
pub struct Vae {
    encoder: Option<Encoder>,
    quant: Option<Conv2d>,
    decoder: Decoder,
    post_quant: Option<Conv2d>,
    config: VaeConfig,
    dtype: DType,
}

impl Vae {
    /// Builds the network that `config` describes. A file without an encoder gives one that only decodes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let latents = config.latent_channels;
        let encodes = vb.contains_tensor("encoder.conv_in.weight");
        Ok(Self {
            encoder: match encodes {
                true => Some(Encoder::new(vb.pp("encoder"), config)?),
                false => None,
            },
            quant: match encodes && config.use_quant_conv {
                true => Some(conv(
                    vb.pp("quant_conv"),
                    2 * latents,
                    2 * latents,
                    1,
                    1,
                    0,
                )?),
                false => None,
            },
            decoder: Decoder::new(vb.pp("decoder"), &config.of_decoder())?,
            post_quant: match config.use_post_quant_conv {
                true => Some(conv(vb.pp("post_quant_conv"), latents, latents, 1, 1, 0)?),
                false => None,
            },
            config: config.clone(),
            dtype: vb.dtype(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Arithmetic of the network.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Mean of the latents, unscaled, of pictures `(batch, 3, height, width)` in -1..1; f32.
    ///
    /// # Errors
    /// If there is no encoder, or the device fails.
    pub fn encode_mean(&self, pictures: &Tensor) -> Result<Tensor> {
        let Some(encoder) = &self.encoder else {
            candle_core::bail!("this VAE has no encoder; pictures cannot be started from")
        };
        let mut x = encoder.forward(&pictures.to_dtype(self.dtype)?)?;
        if let Some(quant) = &self.quant {
            x = quant.forward(&x)?;
        }
        x.narrow(1, 0, self.config.latent_channels)?
            .to_dtype(DType::F32)
    }

    /// Pictures, about -1..1, of unscaled latents; f32.
    ///
    /// # Errors
    /// If the device fails.
    pub fn decode_raw(&self, latents: &Tensor) -> Result<Tensor> {
        let mut x = latents.to_dtype(self.dtype)?;
        if let Some(post_quant) = &self.post_quant {
            x = post_quant.forward(&x)?;
        }
        self.decoder.forward(&x)?.to_dtype(DType::F32)
    }

    /// [`Vae::decode_raw`] in tiles of up to `size` latents each way, with the same result up to rounding.
    ///
    /// # Errors
    /// If the device fails.
    pub fn decode_tiled(&self, latents: &Tensor, size: usize) -> Result<Tensor> {
        let mut x = latents.to_dtype(self.dtype)?;
        if let Some(post_quant) = &self.post_quant {
            x = post_quant.forward(&x)?;
        }
        self.decoder.forward_tiled(&x, size)?.to_dtype(DType::F32)
    }

    /// Latents as the denoiser has them from unscaled ones.
    ///
    /// # Errors
    /// If the device fails.
    pub fn scale(&self, latents: &Tensor) -> Result<Tensor> {
        each_channel(latents, &self.config.scaling())
    }

    /// Undoes [`Vae::scale`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn unscale(&self, latents: &Tensor) -> Result<Tensor> {
        each_channel(latents, &inverse(&self.config.scaling()))
    }
}

impl LatentCodec for Vae {
    fn encode(&self, pixels: &Tensor) -> Result<Tensor> {
        self.scale(&self.encode_mean(pixels)?)
    }

    fn shift(&self) -> f64 {
        match self.config.scaling().as_slice() {
            [(_, added)] => *added,
            _ => 0.0,
        }
    }

    fn unscaled(&self, latents: &Tensor) -> Result<Tensor> {
        self.unscale(latents)
    }

    fn decode(&self, latents: &Tensor, tile: Option<usize>) -> Result<Tensor> {
        let raw = self.unscale(latents)?;
        let pictures = (0..raw.dim(0)?).map(|i| {
            let one = raw.narrow(0, i, 1)?;
            match tile {
                Some(size) => self.decode_tiled(&one, size),
                None => self.decode_raw(&one),
            }
        });
        Tensor::cat(&pictures.collect::<Result<Vec<_>>>()?, 0)
    }
}
