//! Pictures to latents.

use super::blocks::{MidBlock, EPS};
use super::config::VaeConfig;
use crate::models::norm::GroupNorm;
use crate::models::unet::blocks::ResnetBlock;
use crate::models::wrap::{Wrap, WrappedConv};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};

/// The encoder.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    conv_in: WrappedConv,
    blocks: Vec<(Vec<ResnetBlock>, Option<WrappedConv>)>,
    mid: MidBlock,
    norm_out: GroupNorm,
    conv_out: WrappedConv,
    wrap: Wrap,
}

impl Encoder {
    pub(super) fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        let widths = &config.block_out_channels;
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        let mut inputs = first;
        let mut blocks = Vec::new();
        for (i, channels) in widths.iter().enumerate() {
            let vb = vb.pp("down_blocks").pp(i);
            let mut layers = Vec::new();
            for layer in 0..config.layers_per_block {
                layers.push(config.resnet(vb.pp("resnets").pp(layer), inputs, *channels)?);
                inputs = *channels;
            }
            let downsample = match i + 1 < widths.len() {
                true => Some(WrappedConv::new(
                    vb.pp("downsamplers.0.conv"),
                    inputs,
                    inputs,
                    3,
                    2,
                    0,
                )?),
                false => None,
            };
            blocks.push((layers, downsample));
        }
        Ok(Self {
            wrap: vb.wrap(),
            conv_in: WrappedConv::new(vb.pp("conv_in"), config.in_channels, first, 3, 1, 1)?,
            blocks,
            mid: MidBlock::new(vb.pp("mid_block"), last, config)?,
            norm_out: GroupNorm::new(vb.pp("conv_norm_out"), config.norm_num_groups, last, EPS)?,
            conv_out: WrappedConv::new(
                vb.pp("conv_out"),
                last,
                2 * config.latent_channels,
                3,
                1,
                1,
            )?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.conv_in.forward(x)?;
        for (layers, downsample) in &self.blocks {
            for layer in layers {
                x = layer.forward(&x, None)?;
            }
            if let Some(downsample) = downsample {
                // The original pads on the right and below only.
                let padded = self.wrap.padded(&x, [0, 1, 0, 1])?;
                x = downsample.forward(&padded)?;
            }
        }
        let x = self.mid.forward(&x)?;
        self.conv_out.forward(&self.norm_out.forward_silu(&x)?)
    }
}
