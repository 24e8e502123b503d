//! The autoencoder of FLUX.2: one latent more for every 2x2, brought to mean 0 and deviation 1.

use super::{Vae, VaeConfig};
use crate::models::codec::{each_channel, inverse, LatentCodec};
use crate::models::VarBuilder;
use candle_core::{DType, Device, Result, Tensor};
use serde::Deserialize;

/// `config.json` of an `AutoencoderKLFlux2`.
#[derive(Debug, Clone, Deserialize)]
pub struct PatchedVaeConfig {
    /// What it has in common with others.
    #[serde(flatten)]
    pub vae: VaeConfig,
    /// Of the latents' variance.
    #[serde(default = "eps")]
    pub batch_norm_eps: f64,
    #[serde(default = "patch")]
    pub(crate) patch_size: Vec<usize>,
}

fn eps() -> f64 {
    1e-4
}

fn patch() -> Vec<usize> {
    vec![2, 2]
}

impl PatchedVaeConfig {
    /// The usual one around an autoencoder.
    pub fn of(vae: VaeConfig) -> Self {
        Self {
            vae,
            batch_norm_eps: eps(),
            patch_size: patch(),
        }
    }

    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.patch_size != [2, 2] {
            return Err(format!(
                "patch_size {:?} is not implemented",
                self.patch_size
            ));
        }
        if !(self.batch_norm_eps.is_finite() && self.batch_norm_eps > 0.0) {
            return Err(format!("batch_norm_eps is {}", self.batch_norm_eps));
        }
        self.vae.check()
    }
}

/// The autoencoder.
pub struct PatchedVae {
    vae: Vae,
    /// Factor and addend that bring each channel of a patch to mean 0 and deviation 1.
    scaling: Vec<(f64, f64)>,
}

impl PatchedVae {
    /// Builds the network that `config` describes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &PatchedVaeConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let channels = 4 * config.vae.latent_channels;
        let numbers = |name: &str| {
            let tensor = vb.pp("bn").get(channels, name)?;
            let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            tensor.to_vec1::<f32>()
        };
        let (means, variances) = (numbers("running_mean")?, numbers("running_var")?);
        let scaling = means.iter().zip(&variances).map(|(mean, variance)| {
            let factor = (f64::from(*variance) + config.batch_norm_eps)
                .sqrt()
                .recip();
            (factor, -f64::from(*mean) * factor)
        });
        let scaling: Vec<(f64, f64)> = scaling.collect();
        let finite = |(factor, add): &(f64, f64)| factor.is_finite() && add.is_finite();
        if !scaling.iter().all(finite) {
            candle_core::bail!("bn.running_mean and bn.running_var are no statistics of latents")
        }
        Ok(Self {
            vae: Vae::new(vb, &config.vae)?,
            scaling,
        })
    }
}

impl LatentCodec for PatchedVae {
    fn encode(&self, pixels: &Tensor) -> Result<Tensor> {
        let raw = self.vae.encode_mean(pixels)?;
        let (batch, channels, height, width) = raw.dims4()?;
        let patches = raw
            .reshape(vec![batch, channels, height / 2, 2, width / 2, 2])?
            .permute(vec![0, 1, 3, 5, 2, 4])?
            .contiguous()?
            .reshape((batch, 4 * channels, height / 2, width / 2))?;
        each_channel(&patches, &self.scaling)
    }

    fn decode(&self, latents: &Tensor, tile: Option<usize>) -> Result<Tensor> {
        let patches = each_channel(latents, &inverse(&self.scaling))?;
        let (batch, channels, height, width) = patches.dims4()?;
        let raw = patches
            .reshape(vec![batch, channels / 4, 2, 2, height, width])?
            .permute(vec![0, 1, 4, 2, 5, 3])?
            .contiguous()?
            .reshape((batch, channels / 4, 2 * height, 2 * width))?;
        let pictures = (0..batch).map(|i| {
            let one = raw.narrow(0, i, 1)?;
            match tile {
                Some(size) => self.vae.decode_tiled(&one, size),
                None => self.vae.decode_raw(&one),
            }
        });
        Tensor::cat(&pictures.collect::<Result<Vec<_>>>()?, 0)
    }
}
