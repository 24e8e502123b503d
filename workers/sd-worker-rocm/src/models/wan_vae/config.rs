//! `config.json` of an autoencoder of Wan or Qwen-Image.

use crate::models::config::{within, Others};
use serde::Deserialize;

/// `config.json` of an `AutoencoderKLWan` or, which is the same network, an `AutoencoderKLQwenImage`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct WanVaeConfig {
    /// Channels of the encoder's first block are these times the first of `dim_mult`.
    pub base_dim: usize,
    /// The same of the decoder, where it differs.
    pub decoder_base_dim: Option<usize>,
    /// Channels of a latent.
    pub z_dim: usize,
    /// Channels of the blocks, in multiples of `base_dim`.
    pub dim_mult: Vec<usize>,
    /// Residual layers a block; one more when decoding.
    pub num_res_blocks: usize,
    /// For each block but the last, whether it halves the number of frames.
    pub temperal_downsample: Vec<bool>,
    /// Mean of the latents, for each channel.
    pub latents_mean: Vec<f64>,
    /// Standard deviation of the latents, for each channel.
    pub latents_std: Vec<f64>,
    /// Wan 2.2: blocks have a path around them that only averages or repeats.
    pub is_residual: bool,
    /// Pixels, each way, that are folded into channels first.
    pub patch_size: Option<usize>,
    pub(crate) attn_scales: Vec<f64>,
    #[serde(alias = "input_channels")]
    pub(crate) in_channels: Option<usize>,
    pub(crate) out_channels: Option<usize>,
    pub(crate) scale_factor_temporal: Option<usize>,
    pub(crate) scale_factor_spatial: Option<usize>,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

/// Statistics of the published autoencoder of 16 channels.
const MEAN: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
    -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
];
const STD: [f64; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
    1.6382, 1.1253, 2.8251, 1.9160,
];

impl Default for WanVaeConfig {
    fn default() -> Self {
        Self {
            base_dim: 96,
            decoder_base_dim: None,
            z_dim: 16,
            dim_mult: vec![1, 2, 4, 4],
            num_res_blocks: 2,
            temperal_downsample: vec![false, true, true],
            latents_mean: MEAN.to_vec(),
            latents_std: STD.to_vec(),
            is_residual: false,
            patch_size: None,
            attn_scales: Vec::new(),
            in_channels: None,
            out_channels: None,
            scale_factor_temporal: None,
            scale_factor_spatial: None,
            others: Others::default(),
        }
    }
}

impl WanVaeConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> Result<(), String> {
        // Of training.
        self.others.refuse(&["dropout"])?;
        within(
            &[
                ("base_dim", self.base_dim),
                ("decoder_base_dim", self.decoder_base()),
                ("z_dim", self.z_dim),
            ],
            1 << 12,
        )?;
        within(
            &[
                ("num_res_blocks", self.num_res_blocks),
                ("number of blocks", self.dim_mult.len()),
                ("patch_size", self.patch()),
            ],
            16,
        )?;
        for multiple in &self.dim_mult {
            within(&[("dim_mult", *multiple)], 64)?;
        }
        if self.temperal_downsample.len() + 1 != self.dim_mult.len() {
            return Err(format!(
                "temperal_downsample has {} values between {} blocks",
                self.temperal_downsample.len(),
                self.dim_mult.len()
            ));
        }
        if !self.attn_scales.is_empty() {
            return Err("attn_scales are not implemented".to_string());
        }
        let pixels = 3 * self.patch() * self.patch();
        for (name, channels) in [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
        ] {
            if channels.is_some_and(|channels| channels != pixels) {
                return Err(format!(
                    "{name} other than {pixels}, of pictures in three colours, are not implemented"
                ));
            }
        }
        for (name, said, is) in [
            (
                "scale_factor_spatial",
                self.scale_factor_spatial,
                self.factor(),
            ),
            (
                "scale_factor_temporal",
                self.scale_factor_temporal,
                self.time_factor(),
            ),
        ] {
            if said.is_some_and(|said| said != is) {
                return Err(format!(
                    "{name} is {said:?}, and the blocks make {is} of it"
                ));
            }
        }
        let sound =
            |values: &[f64]| values.len() == self.z_dim && values.iter().all(|v| v.is_finite());
        if !sound(&self.latents_mean)
            || !sound(&self.latents_std)
            || !self.latents_std.iter().all(|v| *v > 0.0)
        {
            return Err(format!(
                "latents_mean and latents_std must have a number for each of {} channels",
                self.z_dim
            ));
        }
        Ok(())
    }

    /// Channels of the decoder's blocks are multiples of this.
    pub(super) fn decoder_base(&self) -> usize {
        self.decoder_base_dim.unwrap_or(self.base_dim)
    }

    /// Pixels, each way, that are folded into channels first.
    pub fn patch(&self) -> usize {
        self.patch_size.unwrap_or(1)
    }

    /// Pixels a latent, each way.
    pub fn factor(&self) -> usize {
        self.patch() << (self.dim_mult.len() - 1).min(16)
    }

    /// Frames a latent; the first frame has one of its own.
    pub fn time_factor(&self) -> usize {
        1 << self.temperal_downsample.iter().filter(|t| **t).count()
    }

    /// For each channel the factor and the addend that make latents what the denoiser has.
    pub fn scaling(&self) -> Vec<(f64, f64)> {
        let channels = self.latents_mean.iter().zip(&self.latents_std);
        channels
            .map(|(mean, std)| (1.0 / std, -mean / std))
            .collect()
    }
}
