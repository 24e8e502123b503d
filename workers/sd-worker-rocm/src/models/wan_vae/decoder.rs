//! Latents to frames.

use super::blocks::{Head, Memory, Middle, Residual};
use super::causal::CausalConv;
use super::config::WanVaeConfig;
use crate::models::layers::conv;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// Doubles height and width, and the number of frames if it has a convolution over time.
#[derive(Debug, Clone)]
struct Upsample {
    conv: Conv2d,
    time: Option<CausalConv>,
}

impl Upsample {
    fn new(vb: VarBuilder, inputs: usize, outputs: usize, time: bool) -> Result<Self> {
        Ok(Self {
            conv: conv(vb.pp("resample.1"), inputs, outputs, 3, 1, 1)?,
            time: match time {
                true => Some(CausalConv::new(
                    vb.pp("time_conv"),
                    inputs,
                    2 * inputs,
                    3,
                    1,
                )?),
                false => None,
            },
        })
    }

    fn forward(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let mut x = x.clone();
        if let Some(time) = &self.time {
            let first = memory.first;
            let past = memory.past();
            // The first frame of all stays one, and the convolution does not look back at it.
            if !first {
                let (f, c, h, w) = x.dims4()?;
                x = time.forward(&x, past)?.reshape((2 * f, c, h, w))?;
            }
        }
        let (_, _, height, width) = x.dims4()?;
        self.conv
            .forward(&x.upsample_nearest2d(2 * height, 2 * width)?)
    }
}

/// The path around a block that only repeats (Wan 2.2).
#[derive(Debug, Clone)]
struct Repeat {
    outputs: usize,
    time: usize,
}

impl Repeat {
    fn forward(&self, x: &Tensor, first: bool) -> Result<Tensor> {
        let (f, c, h, w) = x.dims4()?;
        let (outputs, time) = (self.outputs, self.time);
        let times = outputs * time * 4 / c;
        let x = x
            .unsqueeze(2)?
            .broadcast_as((f, c, times, h, w))?
            .contiguous()?
            .reshape(vec![f, outputs * time, 2, 2, h, w])?
            .permute(vec![0, 1, 4, 2, 5, 3])?
            .contiguous()?
            .reshape((f, outputs, time, 4 * h * w))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((f * time, outputs, 2 * h, 2 * w))?;
        match first {
            true => x.narrow(0, time - 1, f * time - (time - 1))?.contiguous(),
            false => Ok(x),
        }
    }
}

#[derive(Debug, Clone)]
struct Block {
    residuals: Vec<Residual>,
    upsample: Option<Upsample>,
    around: Option<Repeat>,
}

/// The decoder.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    conv_in: CausalConv,
    middle: Middle,
    blocks: Vec<Block>,
    head: Head,
}

impl Decoder {
    pub(super) fn new(vb: VarBuilder, config: &WanVaeConfig) -> Result<Self> {
        let base = config.decoder_base();
        let widths: Vec<usize> = config.dim_mult.iter().rev().map(|m| base * m).collect();
        let blocks = widths.len();
        let times: Vec<bool> = config.temperal_downsample.iter().rev().copied().collect();
        let up = vb.pp("up_blocks");
        let build = |i: usize| {
            let (before, outputs) = (widths[i.saturating_sub(1)], widths[i]);
            let last = i + 1 == blocks;
            let time = !last && times[i];
            // Of Wan 2.1, upsampling halves the channels.
            let mut inputs = match i > 0 && !config.is_residual {
                true => before / 2,
                false => before,
            };
            let around = Repeat {
                outputs,
                time: if time { 2 } else { 1 },
            };
            if config.is_residual && !last && !(outputs * around.time * 4).is_multiple_of(inputs) {
                candle_core::bail!("{inputs} channels cannot be repeated to {outputs}")
            }
            let mut residuals = Vec::new();
            for j in 0..=config.num_res_blocks {
                let vb = up.pp(format!("{i}.resnets.{j}"));
                residuals.push(Residual::new(vb, inputs, outputs)?);
                inputs = outputs;
            }
            let (name, narrower) = match config.is_residual {
                true => ("upsampler", outputs),
                false => ("upsamplers.0", outputs / 2),
            };
            Ok(Block {
                residuals,
                upsample: match last {
                    true => None,
                    false => {
                        let vb = up.pp(format!("{i}.{name}"));
                        Some(Upsample::new(vb, outputs, narrower, time)?)
                    }
                },
                around: (config.is_residual && !last).then_some(around),
            })
        };
        let patch = config.patch();
        Ok(Self {
            conv_in: CausalConv::new(vb.pp("conv_in"), config.z_dim, widths[0], 3, 3)?,
            middle: Middle::new(vb.pp("mid_block"), widths[0])?,
            blocks: (0..blocks).map(build).collect::<Result<_>>()?,
            head: Head::new(&vb, widths[blocks - 1], 3 * patch * patch)?,
        })
    }

    /// The layers whose pixels see each other: what comes of it can be cut into tiles.
    pub(super) fn begin(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let x = self.conv_in.forward(x, memory.past())?;
        let x = self.middle.forward(&x, memory);
        memory.rewind();
        x
    }

    /// The rest, of a piece of what [`Decoder::begin`] gives; each piece has a memory of its own.
    pub(super) fn finish(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let mut x = x.clone();
        for block in &self.blocks {
            let before = x.clone();
            for residual in &block.residuals {
                x = residual.forward(&x, memory)?;
            }
            if let Some(upsample) = &block.upsample {
                x = upsample.forward(&x, memory)?;
            }
            if let Some(around) = &block.around {
                x = (x + around.forward(&before, memory.first)?)?;
            }
        }
        let x = self.head.forward(&x, memory);
        memory.rewind();
        x
    }

    /// How many latents around a pixel can have a say in it from the first block on.
    pub(super) fn reach(&self) -> usize {
        let size = |level: usize| 1.0 / f64::from(1u32 << level.min(31));
        // The last convolution.
        let mut reach = size(self.blocks.len() - 1);
        for (level, block) in self.blocks.iter().enumerate() {
            reach += 2.0 * block.residuals.len() as f64 * size(level);
            if block.upsample.is_some() {
                reach += size(level) / 2.0;
            }
        }
        reach.ceil() as usize
    }
}
