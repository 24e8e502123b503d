//! Frames to latents.

use super::blocks::{fold_all, mean_of, pixel_norm, Kind, Layers, Residual, TimeConv};
use super::config::{Down, LtxVaeConfig, Smaller};
use super::no_noise;
use crate::models::VarBuilder;
use candle_core::{Result, Tensor};

/// How a block makes a video smaller.
#[derive(Debug, Clone)]
struct Downsample {
    conv: TimeConv,
    /// Frames, and rows and columns each, that are folded into channels, and how many of these become one beside it.
    folds: Option<(usize, usize, usize)>,
}

impl Downsample {
    fn new(vb: &VarBuilder, kind: Smaller, block: &Down, causal: bool) -> Result<Self> {
        let vb = vb.pp("downsamplers.0");
        if kind == Smaller::Conv {
            return Ok(Self {
                conv: TimeConv::new(&vb, block.inputs, block.inputs, (3, 2), causal)?,
                folds: None,
            });
        }
        let (time, space) = kind.folded();
        let folded = time * space * space;
        let vb = vb.pp("conv");
        Ok(Self {
            conv: TimeConv::new(&vb, block.inputs, block.outputs / folded, (3, 1), causal)?,
            folds: Some((time, space, block.inputs * folded / block.outputs)),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some((time, space, together)) = self.folds else {
            return self.conv.forward(x);
        };
        // The first frame stays alone.
        let x = match time {
            1 => x.clone(),
            _ => Tensor::cat(&[&x.narrow(0, 0, time - 1)?, x], 0)?,
        };
        let around = mean_of(&fold_all(&x, time, space)?, together)?;
        fold_all(&self.conv.forward(&x)?, time, space)? + around
    }
}

#[derive(Debug, Clone)]
struct Block {
    layers: Layers,
    downsample: Option<Downsample>,
    /// To more channels, before 0.9.5.
    widen: Option<Residual>,
}

/// The encoder.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    conv_in: TimeConv,
    blocks: Vec<Block>,
    middle: Layers,
    conv_out: TimeConv,
}

impl Encoder {
    pub(super) fn new(vb: VarBuilder, config: &LtxVaeConfig) -> Result<Self> {
        let causal = config.encoder_causal;
        let kind = Kind {
            causal,
            eps: config.resnet_norm_eps,
            ..Kind::default()
        };
        let first = config.block_out_channels[0];
        let pixels = 3 * config.patch_size * config.patch_size;
        let mut width = first;
        let mut blocks = Vec::new();
        for (i, block) in config.down().iter().enumerate() {
            let vb = vb.pp(format!("down_blocks.{i}"));
            let folds = block.smaller.is_some_and(|kind| kind != Smaller::Conv);
            blocks.push(Block {
                layers: Layers::new(&vb, block.layers, block.inputs, kind)?,
                downsample: match block.smaller {
                    Some(how) => Some(Downsample::new(&vb, how, block, causal)?),
                    None => None,
                },
                widen: match block.inputs == block.outputs || folds {
                    true => None,
                    false => {
                        let vb = vb.pp("conv_out");
                        Some(Residual::new(&vb, block.inputs, block.outputs, kind)?)
                    }
                },
            });
            width = block.outputs;
        }
        let layers = config.layers_per_block[blocks.len()];
        let outputs = config.latent_channels + 1;
        Ok(Self {
            conv_in: TimeConv::new(&vb.pp("conv_in"), pixels, first, (3, 1), causal)?,
            blocks,
            middle: Layers::new(&vb.pp("mid_block"), layers, width, kind)?,
            conv_out: TimeConv::new(&vb.pp("conv_out"), width, outputs, (3, 1), causal)?,
        })
    }

    /// The latents' means and, behind them, a channel of all their variances.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.conv_in.forward(x)?;
        for block in &self.blocks {
            x = block.layers.forward(&x, None, &mut no_noise)?;
            if let Some(downsample) = &block.downsample {
                x = downsample.forward(&x)?;
            }
            if let Some(widen) = &block.widen {
                x = widen.forward(&x, None, &mut no_noise)?;
            }
        }
        let x = self.middle.forward(&x, None, &mut no_noise)?;
        self.conv_out.forward(&pixel_norm(&x)?.silu()?)
    }
}
