//! `config.json` of an autoencoder.

use crate::models::config::{within, Others};
use serde::Deserialize;

/// `config.json` of an `AutoencoderKL`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct VaeConfig {
    /// Channels of a picture.
    pub in_channels: usize,
    /// Channels of a picture.
    pub out_channels: usize,
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of the blocks.
    pub block_out_channels: Vec<usize>,
    /// Residual layers a block; one more when decoding.
    pub layers_per_block: usize,
    /// Groups of the norms.
    pub norm_num_groups: usize,
    /// Latents are multiplied by this for the denoiser.
    pub scaling_factor: f64,
    /// And lessened by this before.
    pub shift_factor: Option<f64>,
    /// Mean of the latents, for each channel; goes with `latents_std`.
    pub latents_mean: Option<Vec<f64>>,
    /// Standard deviation of the latents, for each channel: they are brought to the scaling factor's.
    pub latents_std: Option<Vec<f64>>,
    /// Whether there is a 1x1 convolution behind the encoder.
    pub use_quant_conv: bool,
    /// Whether there is one in front of the decoder.
    pub use_post_quant_conv: bool,
    /// Whether 16-bit floats overflow in it.
    pub force_upcast: bool,
    /// Channels of the decoder's blocks, where they are others.
    pub decoder_block_out_channels: Option<Vec<usize>>,
    pub(crate) mid_block_add_attention: bool,
    pub(crate) act_fn: String,
    pub(crate) down_block_types: Vec<String>,
    pub(crate) up_block_types: Vec<String>,
    /// Settings that are not known.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for VaeConfig {
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            latent_channels: 4,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            scaling_factor: 0.18215,
            shift_factor: None,
            latents_mean: None,
            latents_std: None,
            use_quant_conv: true,
            use_post_quant_conv: true,
            force_upcast: true,
            decoder_block_out_channels: None,
            mid_block_add_attention: true,
            act_fn: "silu".to_string(),
            down_block_types: Vec::new(),
            up_block_types: Vec::new(),
            others: Others::default(),
        }
    }
}

/// Settings that do not change what the network computes, or that others are read by.
const HARMLESS: [&str; 4] = [
    "sample_size",
    "quantization_config",
    "torch_dtype",
    // Of training.
    "batch_norm_momentum",
];

impl VaeConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        within(
            &[
                ("latent_channels", self.latent_channels),
                ("layers_per_block", self.layers_per_block),
                ("norm_num_groups", self.norm_num_groups),
                ("number of blocks", self.block_out_channels.len()),
            ],
            1024,
        )?;
        self.others.refuse(&HARMLESS)?;
        let decoder = self.decoder_block_out_channels.iter().flatten();
        for channels in self.block_out_channels.iter().chain(decoder) {
            within(&[("block_out_channels", *channels)], 1 << 16)?;
            if !channels.is_multiple_of(self.norm_num_groups) {
                return Err(format!(
                    "{} norm_num_groups do not divide {channels} channels",
                    self.norm_num_groups
                ));
            }
        }
        if self.of_decoder().block_out_channels.len() != self.block_out_channels.len() {
            return Err(
                "decoder_block_out_channels are not as many as block_out_channels".to_string(),
            );
        }
        if self.in_channels != 3 || self.out_channels != 3 {
            return Err("only pictures of 3 channels are implemented".to_string());
        }
        if !(self.scaling_factor.is_finite() && self.scaling_factor > 0.0) {
            return Err(format!("scaling_factor is {}", self.scaling_factor));
        }
        match (&self.latents_mean, &self.latents_std) {
            (None, None) => {}
            (Some(mean), Some(std)) => {
                let channels = self.latent_channels;
                let sound = |values: &[f64]| {
                    values.len() == channels && values.iter().all(|v| v.is_finite())
                };
                if !sound(mean) || !sound(std) || !std.iter().all(|v| *v > 0.0) {
                    return Err(format!("latents_mean and latents_std must have a number for each of {channels} channels"));
                }
                if self.shift_factor.is_some_and(|shift| shift != 0.0) {
                    return Err("shift_factor beside latents_mean is not implemented".to_string());
                }
            }
            _ => return Err("of latents_mean and latents_std only one is there".to_string()),
        }
        if self.act_fn != "silu" || !self.mid_block_add_attention {
            return Err("only act_fn silu with mid_block_add_attention is implemented".to_string());
        }
        let kinds = self.down_block_types.iter().chain(&self.up_block_types);
        for kind in kinds {
            if kind != "DownEncoderBlock2D" && kind != "UpDecoderBlock2D" {
                return Err(format!("blocks of kind {kind} are not implemented"));
            }
        }
        Ok(())
    }

    /// For each channel, or for all of them, the factor and the addend that make latents what the denoiser has.
    pub fn scaling(&self) -> Vec<(f64, f64)> {
        let scale = self.scaling_factor;
        match (&self.latents_mean, &self.latents_std) {
            (Some(mean), Some(std)) => {
                let channels = mean.iter().zip(std);
                channels
                    .map(|(mean, std)| (scale / std, -mean * scale / std))
                    .collect()
            }
            _ => vec![(scale, -self.shift_factor.unwrap_or(0.0) * scale)],
        }
    }

    /// The settings of the decoder alone.
    pub(super) fn of_decoder(&self) -> Self {
        let channels = self.decoder_block_out_channels.as_ref();
        Self {
            block_out_channels: channels.unwrap_or(&self.block_out_channels).clone(),
            ..self.clone()
        }
    }

    /// Pixels a latent, each way.
    pub fn factor(&self) -> usize {
        1 << (self.block_out_channels.len() - 1).min(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_implemented_is_named() {
        let check = |json: &str| serde_json::from_str::<VaeConfig>(json).unwrap().check();
        let harmless = r#"{"_class_name": "AutoencoderKL", "_diffusers_version": "0.42.1", "sample_size": 1024,
            "a_new_setting": null}"#;
        assert_eq!(check(harmless), Ok(()));
        for (json, name) in [
            (r#"{"a_new_setting": 3}"#, "a_new_setting"),
            (r#"{"act_fn": "relu"}"#, "act_fn"),
            (
                r#"{"mid_block_add_attention": false}"#,
                "mid_block_add_attention",
            ),
            (r#"{"latents_mean": [1, 2, 3, 4]}"#, "latents_std"),
            (
                r#"{"down_block_types": ["AttnDownEncoderBlock2D"]}"#,
                "AttnDown",
            ),
        ] {
            let error = check(json).unwrap_err();
            assert!(error.contains(name), "{json}: {error}");
        }
    }
}
