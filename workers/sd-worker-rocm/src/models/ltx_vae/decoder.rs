//! Latents to frames.

use super::blocks::{
    modulated, pixel_norm, rows_at, unfold_all, Kind, Layers, Residual, TimeConv, TimeTable,
};
use super::config::{LtxVaeConfig, Up};
use super::Draw;
use crate::models::VarBuilder;
use candle_core::{DType, Result, Tensor};

/// Doubles frames, rows and columns; the first frame stays one.
#[derive(Debug, Clone)]
struct Upsample {
    conv: TimeConv,
    /// How often what is made larger beside it is repeated in the channels.
    repeats: Option<usize>,
}

impl Upsample {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let larger = unfold_all(&self.conv.forward(x)?)?;
        match self.repeats {
            None => Ok(larger),
            Some(times) => larger + unfold_all(x)?.repeat((1, times, 1, 1))?,
        }
    }
}

#[derive(Debug, Clone)]
struct Block {
    /// To other channels.
    change: Option<Residual>,
    upsample: Option<Upsample>,
    layers: Layers,
}

/// The decoder.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    conv_in: TimeConv,
    middle: Layers,
    blocks: Vec<Block>,
    conv_out: TimeConv,
    /// By what its time is multiplied, the embedding in front of the last convolution, and its table, `(2, channels)`.
    time: Option<(f64, TimeTable, Tensor)>,
}

impl Decoder {
    pub(super) fn new(vb: VarBuilder, config: &LtxVaeConfig) -> Result<Self> {
        let causal = config.decoder_causal;
        let (middle, blocks) = config.up();
        let kind = |block: &Up| Kind {
            causal,
            noise: block.noise,
            timed: config.timestep_conditioning,
            eps: config.resnet_norm_eps,
        };
        let layers =
            |vb: &VarBuilder, block: &Up| Layers::new(vb, block.layers, block.outputs, kind(block));
        let build = |(i, block): (usize, &Up)| {
            let vb = vb.pp(format!("up_blocks.{i}"));
            let (inputs, outputs) = (block.inputs, block.outputs);
            Ok(Block {
                change: match inputs == outputs {
                    true => None,
                    false => {
                        let vb = vb.pp("conv_in");
                        Some(Residual::new(&vb, inputs, outputs, kind(block))?)
                    }
                },
                upsample: match block.larger {
                    None => None,
                    Some((factor, residual)) => {
                        let vb = vb.pp("upsamplers.0.conv");
                        let (wide, folded) = (outputs * factor, 8 * outputs);
                        Some(Upsample {
                            conv: TimeConv::new(&vb, wide, folded, (3, 1), causal)?,
                            repeats: residual.then_some(8 / factor),
                        })
                    }
                },
                layers: layers(&vb, block)?,
            })
        };
        let last = blocks.last().map_or(middle.outputs, |block| block.outputs);
        let pixels = 3 * config.patch_size * config.patch_size;
        let conv = |name: &str, inputs, outputs| {
            TimeConv::new(&vb.pp(name), inputs, outputs, (3, 1), causal)
        };
        Ok(Self {
            conv_in: conv("conv_in", config.latent_channels, middle.inputs)?,
            middle: layers(&vb.pp("mid_block"), &middle)?,
            blocks: blocks
                .iter()
                .enumerate()
                .map(build)
                .collect::<Result<_>>()?,
            conv_out: conv("conv_out", last, pixels)?,
            time: match config.timestep_conditioning {
                false => None,
                true => {
                    let factor = vb.get((), "timestep_scale_multiplier")?;
                    Some((
                        f64::from(factor.to_dtype(DType::F32)?.to_scalar::<f32>()?),
                        TimeTable::new(&vb, 2, last)?,
                        vb.get((2, last), "scale_shift_table")?,
                    ))
                }
            },
        })
    }

    /// All frames of latents `(latents, channels, height, width)`, at time `t`, 0 to 1, for decoders that are told it.
    pub(super) fn forward(&self, x: &Tensor, t: f64, draw: Draw) -> Result<Tensor> {
        let time = self.time.as_ref().map(|(factor, _, _)| t * factor);
        let mut x = self.conv_in.forward(x)?;
        x = self.middle.forward(&x, time, draw)?;
        for block in &self.blocks {
            if let Some(change) = &block.change {
                x = change.forward(&x, None, draw)?;
            }
            if let Some(upsample) = &block.upsample {
                x = upsample.forward(&x)?;
            }
            x = block.layers.forward(&x, time, draw)?;
        }
        let mut x = pixel_norm(&x)?;
        if let (Some(time), Some((_, embedding, table))) = (time, &self.time) {
            let rows = rows_at(table, &embedding.forward(time, &x)?)?;
            x = modulated(&x, &rows[0], &rows[1])?;
        }
        self.conv_out.forward(&x.silu()?)
    }

    /// How many latents around a pixel can have a say in it.
    pub(super) fn reach(&self) -> usize {
        let mut size = 1.0;
        let mut reach = (1 + self.middle.convolutions()) as f64;
        for block in &self.blocks {
            let convolutions = 2 * usize::from(block.change.is_some());
            reach += convolutions as f64 * size;
            if block.upsample.is_some() {
                reach += size;
                size /= 2.0;
            }
            reach += block.layers.convolutions() as f64 * size;
        }
        (reach + size).ceil() as usize
    }
}
