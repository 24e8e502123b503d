//! Latents to pictures.

use super::blocks::{MidBlock, EPS};
use super::config::VaeConfig;
use super::tiles::Tiles;
use crate::models::layers::Upsample;
use crate::models::norm::GroupNorm;
use crate::models::unet::blocks::ResnetBlock;
use crate::models::wrap::{Wrap, WrappedConv};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};

/// The decoder.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    conv_in: WrappedConv,
    mid: MidBlock,
    blocks: Vec<(Vec<ResnetBlock>, Option<Upsample>)>,
    norm_out: GroupNorm,
    conv_out: WrappedConv,
    wrap: Wrap,
}

impl Decoder {
    pub(super) fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        let widths = &config.block_out_channels;
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        let mut inputs = last;
        let mut blocks = Vec::new();
        for (i, channels) in widths.iter().rev().enumerate() {
            let vb = vb.pp("up_blocks").pp(i);
            let mut layers = Vec::new();
            for layer in 0..=config.layers_per_block {
                layers.push(config.resnet(vb.pp("resnets").pp(layer), inputs, *channels)?);
                inputs = *channels;
            }
            let upsample = match i + 1 < widths.len() {
                true => Some(Upsample::new(vb.pp("upsamplers.0"), inputs)?),
                false => None,
            };
            blocks.push((layers, upsample));
        }
        Ok(Self {
            wrap: vb.wrap(),
            conv_in: WrappedConv::new(vb.pp("conv_in"), config.latent_channels, last, 3, 1, 1)?,
            mid: MidBlock::new(vb.pp("mid_block"), last, config)?,
            blocks,
            norm_out: GroupNorm::new(vb.pp("conv_norm_out"), config.norm_num_groups, first, EPS)?,
            conv_out: WrappedConv::new(vb.pp("conv_out"), first, config.out_channels, 3, 1, 1)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.mid.forward(&self.conv_in.forward(x)?)?;
        for (layers, upsample) in &self.blocks {
            for layer in layers {
                x = layer.forward(&x, None)?;
            }
            if let Some(upsample) = upsample {
                x = upsample.forward(&x, None)?;
            }
        }
        self.conv_out.forward(&self.norm_out.forward_silu(&x)?)
    }

    /// How many latents around a pixel can have a say in it from block `block` on, or from the last norm on.
    fn reach(&self, block: usize) -> usize {
        // Half-open: in eighths or less of a latent, a convolution of 3 reaches one pixel of its level.
        let levels = self.blocks.len();
        let mut reach = 1.0 / f64::from(1u32 << (levels - 1).min(31));
        for (level, (layers, upsample)) in self.blocks.iter().enumerate().skip(block) {
            let pixel = 1.0 / f64::from(1u32 << level.min(31));
            reach += 2.0 * layers.len() as f64 * pixel;
            if upsample.is_some() {
                reach += pixel / 2.0;
            }
        }
        reach.ceil() as usize
    }

    pub(super) fn forward_tiled(&self, x: &Tensor, size: usize) -> Result<Tensor> {
        let x = self.mid.forward(&self.conv_in.forward(x)?)?;
        let mut tiles = Tiles::cut(&x, size, self.reach(0), self.wrap)?;
        for (level, (layers, upsample)) in self.blocks.iter().enumerate() {
            tiles.shrink(self.reach(level))?;
            for layer in layers {
                tiles.resnet(layer)?;
            }
            if let Some(upsample) = upsample {
                tiles.upsample(&|x| upsample.forward(x, None))?;
            }
        }
        tiles.norm_silu(&self.norm_out, &|x| self.conv_out.forward(x))?;
        tiles.join()
    }
}
