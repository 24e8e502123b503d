//! `config.json` of an autoencoder of LTX-Video.

use crate::models::config::{within, Others};
use serde::Deserialize;

/// How a block makes a video smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Smaller {
    /// By a convolution that takes every second frame, row and column.
    Conv,
    /// Rows and columns are folded into channels.
    Spatial,
    /// Frames are.
    Temporal,
    /// All three.
    Spatiotemporal,
}

impl Smaller {
    /// Frames, and rows and columns each, that become one.
    pub(super) fn folded(self) -> (usize, usize) {
        match self {
            Self::Conv | Self::Spatiotemporal => (2, 2),
            Self::Spatial => (1, 2),
            Self::Temporal => (2, 1),
        }
    }
}

/// `config.json` of an `AutoencoderKLLTXVideo`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct LtxVaeConfig {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of the encoder's blocks; since 0.9.5 of what is in front of them and of each.
    pub block_out_channels: Vec<usize>,
    /// Kinds of the encoder's blocks.
    pub down_block_types: Vec<String>,
    /// Residual layers of the encoder's blocks and of its middle.
    pub layers_per_block: Vec<usize>,
    /// Which of the encoder's blocks make the video smaller.
    pub spatio_temporal_scaling: Vec<bool>,
    /// And how, since 0.9.5.
    pub downsample_type: Vec<Smaller>,
    /// Channels of the decoder's blocks, the last one's first.
    pub decoder_block_out_channels: Vec<usize>,
    /// Residual layers of the decoder's blocks, the last one's first, and of its middle.
    pub decoder_layers_per_block: Vec<usize>,
    /// Which of the decoder's blocks make the video larger, the last one first.
    pub decoder_spatio_temporal_scaling: Vec<bool>,
    /// Which of the decoder's blocks and its middle add noise, the last one first.
    pub decoder_inject_noise: Vec<bool>,
    /// Which of the decoder's blocks repeat what they make larger beside it, the last one first.
    pub upsample_residual: Vec<bool>,
    /// By what the decoder's blocks divide channels as they make the video larger, the last one's first.
    pub upsample_factor: Vec<usize>,
    /// Whether the decoder takes noise out, and is told how much.
    pub timestep_conditioning: bool,
    /// Pixels, each way, that are folded into channels first.
    pub patch_size: usize,
    /// Of the norms beside residual layers.
    pub resnet_norm_eps: f64,
    /// Latents are multiplied by this for the denoiser.
    pub scaling_factor: f64,
    /// Whether the encoder's convolutions look back only.
    pub encoder_causal: bool,
    /// Whether the decoder's do.
    pub decoder_causal: bool,
    pub(crate) spatial_compression_ratio: Option<usize>,
    pub(crate) temporal_compression_ratio: Option<usize>,
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    pub(crate) patch_size_t: usize,
    /// Settings that are not known.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for LtxVaeConfig {
    fn default() -> Self {
        let scaling = vec![true, true, true, false];
        Self {
            latent_channels: 128,
            block_out_channels: vec![128, 256, 512, 512],
            down_block_types: vec!["LTXVideoDownBlock3D".to_string(); 4],
            layers_per_block: vec![4, 3, 3, 3, 4],
            spatio_temporal_scaling: scaling.clone(),
            downsample_type: vec![Smaller::Conv; 4],
            decoder_block_out_channels: vec![128, 256, 512, 512],
            decoder_layers_per_block: vec![4, 3, 3, 3, 4],
            decoder_spatio_temporal_scaling: scaling,
            decoder_inject_noise: vec![false; 5],
            upsample_residual: vec![false; 4],
            upsample_factor: vec![1; 4],
            timestep_conditioning: false,
            patch_size: 4,
            resnet_norm_eps: 1e-6,
            scaling_factor: 1.0,
            encoder_causal: true,
            decoder_causal: false,
            spatial_compression_ratio: None,
            temporal_compression_ratio: None,
            in_channels: 3,
            out_channels: 3,
            patch_size_t: 1,
            others: Others::default(),
        }
    }
}

/// A block of the encoder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Down {
    pub inputs: usize,
    pub outputs: usize,
    pub layers: usize,
    pub smaller: Option<Smaller>,
}

/// A block of the decoder, or its middle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Up {
    pub inputs: usize,
    pub outputs: usize,
    pub layers: usize,
    pub noise: bool,
    /// What channels are divided by, and whether what is made larger is repeated beside it.
    pub larger: Option<(usize, bool)>,
}

impl LtxVaeConfig {
    /// Whether the blocks are those since 0.9.5.
    fn newer(&self) -> bool {
        (self.down_block_types.last()).is_some_and(|kind| kind == "LTXVideo095DownBlock3D")
    }

    /// The encoder's blocks.
    pub(super) fn down(&self) -> Vec<Down> {
        let widths = &self.block_out_channels;
        let newer = self.newer();
        let count = widths.len() - usize::from(newer);
        let mut inputs = widths[0];
        let blocks = (0..count).map(|i| {
            let outputs = widths[(i + 1).min(widths.len() - 1)];
            let kind = if newer {
                self.downsample_type[i]
            } else {
                Smaller::Conv
            };
            let block = Down {
                inputs,
                outputs,
                layers: self.layers_per_block[i],
                smaller: self.spatio_temporal_scaling[i].then_some(kind),
            };
            inputs = outputs;
            block
        });
        blocks.collect()
    }

    /// The decoder's middle and its blocks, in the order in which a latent goes through them.
    pub(super) fn up(&self) -> (Up, Vec<Up>) {
        let widths = &self.decoder_block_out_channels;
        let count = widths.len();
        let middle = Up {
            inputs: widths[count - 1],
            outputs: widths[count - 1],
            layers: self.decoder_layers_per_block[count],
            noise: self.decoder_inject_noise[count],
            larger: None,
        };
        let mut before = middle.outputs;
        let blocks = (0..count).rev().map(|i| {
            let factor = self.upsample_factor[i];
            let block = Up {
                inputs: before / factor,
                outputs: widths[i] / factor,
                layers: self.decoder_layers_per_block[i],
                noise: self.decoder_inject_noise[i],
                larger: self.decoder_spatio_temporal_scaling[i]
                    .then_some((factor, self.upsample_residual[i])),
            };
            before = block.outputs;
            block
        });
        (middle, blocks.collect())
    }

    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> Result<(), String> {
        let widths = self.block_out_channels.iter();
        for width in widths.chain(&self.decoder_block_out_channels) {
            within(&[("block_out_channels", *width)], 1 << 14)?;
        }
        within(&[("latent_channels", self.latent_channels)], 1 << 12)?;
        within(
            &[
                ("patch_size", self.patch_size),
                ("number of blocks", self.down_block_types.len()),
                (
                    "number of decoder blocks",
                    self.decoder_block_out_channels.len(),
                ),
            ],
            16,
        )?;
        let newer = self.newer();
        let kind = match newer {
            true => "LTXVideo095DownBlock3D",
            false => "LTXVideoDownBlock3D",
        };
        if let Some(other) = self.down_block_types.iter().find(|k| *k != kind) {
            return Err(format!("down_block_types with {other} are not implemented"));
        }
        let (down, up) = (
            self.down_block_types.len(),
            self.decoder_block_out_channels.len(),
        );
        for (name, is, wanted) in [
            (
                "block_out_channels",
                self.block_out_channels.len(),
                down + usize::from(newer),
            ),
            ("layers_per_block", self.layers_per_block.len(), down + 1),
            (
                "spatio_temporal_scaling",
                self.spatio_temporal_scaling.len(),
                down,
            ),
            (
                "downsample_type",
                if newer {
                    self.downsample_type.len()
                } else {
                    down
                },
                down,
            ),
            (
                "decoder_layers_per_block",
                self.decoder_layers_per_block.len(),
                up + 1,
            ),
            (
                "decoder_spatio_temporal_scaling",
                self.decoder_spatio_temporal_scaling.len(),
                up,
            ),
            (
                "decoder_inject_noise",
                self.decoder_inject_noise.len(),
                up + 1,
            ),
            ("upsample_residual", self.upsample_residual.len(), up),
            ("upsample_factor", self.upsample_factor.len(), up),
        ] {
            if is != wanted {
                return Err(format!("{name} has {is} values; the blocks want {wanted}"));
            }
        }
        let layers = self.layers_per_block.iter();
        if let Some(layers) = layers
            .chain(&self.decoder_layers_per_block)
            .find(|n| **n > 64)
        {
            return Err(format!(
                "layers_per_block is {layers}; up to 64 are possible"
            ));
        }
        for (name, value, is) in [
            ("in_channels", self.in_channels, 3),
            ("out_channels", self.out_channels, 3),
            ("patch_size_t", self.patch_size_t, 1),
        ] {
            if value != is {
                return Err(format!("{name} {value} is not implemented; {is} is"));
            }
        }
        for (name, said, is) in [
            (
                "spatial_compression_ratio",
                self.spatial_compression_ratio,
                self.factor(),
            ),
            (
                "temporal_compression_ratio",
                self.temporal_compression_ratio,
                self.time_factor(),
            ),
        ] {
            if said.is_some_and(|said| said != is) {
                return Err(format!(
                    "{name} is {said:?}, and the blocks make {is} of it"
                ));
            }
        }
        if !(self.scaling_factor.is_finite() && self.scaling_factor > 0.0) {
            return Err(format!(
                "scaling_factor {} is not possible",
                self.scaling_factor
            ));
        }
        self.check_blocks()?;
        self.others.refuse(&[])
    }

    fn check_blocks(&self) -> Result<(), String> {
        for block in self.down() {
            let folds = match block.smaller {
                None | Some(Smaller::Conv) => 1,
                Some(kind) => kind.folded().0 * kind.folded().1.pow(2),
            };
            if !block.outputs.is_multiple_of(folds)
                || folds > 1 && !(block.inputs * folds).is_multiple_of(block.outputs)
            {
                return Err(format!(
                    "{} channels cannot be folded to {}",
                    block.inputs, block.outputs
                ));
            }
            if block.inputs != block.outputs && folds == 1 && self.newer() {
                return Err(format!(
                    "a block of {} channels cannot give {}",
                    block.inputs, block.outputs
                ));
            }
        }
        let factors = &self.upsample_factor;
        if let Some(factor) = factors.iter().find(|f| ![1, 2, 4, 8].contains(*f)) {
            return Err(format!(
                "upsample_factor {factor} is not implemented; 1, 2, 4 and 8 are"
            ));
        }
        let doubled = self
            .decoder_spatio_temporal_scaling
            .iter()
            .filter(|s| **s)
            .count();
        if self.patch_size << doubled != self.factor() || 1 << doubled != self.time_factor() {
            return Err(format!(
                "the decoder makes a video larger {doubled} times, the encoder otherwise smaller"
            ));
        }
        let (middle, blocks) = self.up();
        let mut before = middle.outputs;
        for block in blocks {
            let factor = block.larger.map_or(1, |(factor, _)| factor);
            if block.outputs == 0 || block.inputs == 0 {
                return Err("upsample_factor leaves no channels".to_string());
            }
            if block.inputs != block.outputs && self.timestep_conditioning {
                return Err(
                    "timestep_conditioning of blocks that change their channels is not implemented"
                        .to_string(),
                );
            }
            let enters = match block.inputs == block.outputs {
                true => before,
                false => block.outputs,
            };
            let fits = match block.larger {
                Some((_, residual)) => {
                    enters == block.outputs * factor && (!residual || enters.is_multiple_of(8))
                }
                None => enters == block.outputs,
            };
            if !fits {
                return Err(format!(
                    "decoder_block_out_channels and upsample_factor do not fit together: {enters} channels for {}",
                    block.outputs * factor
                ));
            }
            before = block.outputs;
        }
        Ok(())
    }

    /// Pixels a latent, each way.
    pub fn factor(&self) -> usize {
        self.patch_size * self.made_smaller().1
    }

    /// Frames a latent; the first frame has one of its own.
    pub fn time_factor(&self) -> usize {
        self.made_smaller().0
    }

    /// Frames, and rows or columns, that the encoder makes one.
    fn made_smaller(&self) -> (usize, usize) {
        let mut whole = (1usize, 1usize);
        for (i, smaller) in self.spatio_temporal_scaling.iter().enumerate().take(16) {
            let kind = match (smaller, self.newer()) {
                (false, _) => continue,
                (true, false) => Smaller::Conv,
                (true, true) => self
                    .downsample_type
                    .get(i)
                    .copied()
                    .unwrap_or(Smaller::Conv),
            };
            let (time, space) = kind.folded();
            whole = (whole.0 * time, whole.1 * space);
        }
        whole
    }
}
