//! Frames to latents.

use super::blocks::{Head, Memory, Middle, Residual};
use super::causal::CausalConv;
use super::config::WanVaeConfig;
use crate::models::layers::conv;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// Halves height and width, and the number of frames if it has a convolution over time.
#[derive(Debug, Clone)]
struct Downsample {
    conv: Conv2d,
    time: Option<CausalConv>,
}

impl Downsample {
    fn new(vb: VarBuilder, channels: usize, time: bool) -> Result<Self> {
        Ok(Self {
            conv: conv(vb.pp("resample.1"), channels, channels, 3, 2, 0)?,
            time: match time {
                true => Some(CausalConv::new(
                    vb.pp("time_conv"),
                    channels,
                    channels,
                    3,
                    1,
                )?),
                false => None,
            },
        })
    }

    fn forward(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        // The original pads on the right and below only.
        let padded = x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?;
        let x = self.conv.forward(&padded)?;
        let Some(time) = &self.time else {
            return Ok(x);
        };
        let last = x.narrow(0, x.dim(0)? - 1, 1)?.contiguous()?;
        // The first frame of all stays alone.
        match memory.past().replace(last) {
            None => Ok(x),
            Some(before) => time.halve(&Tensor::cat(&[&before, &x], 0)?),
        }
    }
}

/// The path around a block that only averages (Wan 2.2).
#[derive(Debug, Clone)]
struct Average {
    outputs: usize,
    time: usize,
    space: usize,
}

impl Average {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let missing = x.dim(0)?.next_multiple_of(self.time) - x.dim(0)?;
        let x = x.pad_with_zeros(0, missing, 0)?;
        let (f, c, h, w) = x.dims4()?;
        let (frames, time, space) = (f / self.time, self.time, self.space);
        let (h, w) = (h / space, w / space);
        // Channels outermost, then frames, rows and columns of what becomes one pixel.
        let x = x
            .reshape((frames, time, c, h * space * w * space))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape(vec![frames, c * time, h, space, w, space])?
            .permute(vec![0, 1, 3, 5, 2, 4])?
            .contiguous()?;
        let together = c * time * space * space / self.outputs;
        x.reshape((frames, self.outputs, together, h * w))?
            .mean(2)?
            .reshape((frames, self.outputs, h, w))
    }
}

#[derive(Debug, Clone)]
struct Block {
    residuals: Vec<Residual>,
    downsample: Option<Downsample>,
    around: Option<Average>,
}

/// The encoder.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    conv_in: CausalConv,
    blocks: Vec<Block>,
    middle: Middle,
    head: Head,
}

impl Encoder {
    pub(super) fn new(vb: VarBuilder, config: &WanVaeConfig) -> Result<Self> {
        let patch = config.patch();
        let mut inputs = config.base_dim;
        let conv_in = CausalConv::new(vb.pp("conv_in"), 3 * patch * patch, inputs, 3, 3)?;
        let down = vb.pp("down_blocks");
        // Of Wan 2.1 all layers are in one list.
        let mut layer = 0;
        let mut blocks = Vec::new();
        for (i, multiple) in config.dim_mult.iter().enumerate() {
            let outputs = config.base_dim * multiple;
            let last = i + 1 == config.dim_mult.len();
            let time = !last && config.temperal_downsample[i];
            let mut place = |residual: Option<usize>| {
                layer += 1;
                match (config.is_residual, residual) {
                    (false, _) => down.pp(layer - 1),
                    (true, Some(j)) => down.pp(format!("{i}.resnets.{j}")),
                    (true, None) => down.pp(format!("{i}.downsampler")),
                }
            };
            let around = Average {
                outputs,
                time: if time { 2 } else { 1 },
                space: if last { 1 } else { 2 },
            };
            if config.is_residual
                && !(inputs * around.time * around.space.pow(2)).is_multiple_of(outputs)
            {
                candle_core::bail!("{inputs} channels cannot be averaged to {outputs}")
            }
            let mut residuals = Vec::new();
            for j in 0..config.num_res_blocks {
                residuals.push(Residual::new(place(Some(j)), inputs, outputs)?);
                inputs = outputs;
            }
            blocks.push(Block {
                residuals,
                downsample: match last {
                    true => None,
                    false => Some(Downsample::new(place(None), outputs, time)?),
                },
                around: config.is_residual.then_some(around),
            });
        }
        Ok(Self {
            conv_in,
            blocks,
            middle: Middle::new(vb.pp("mid_block"), inputs)?,
            head: Head::new(&vb, inputs, 2 * config.z_dim)?,
        })
    }

    /// Of the first frame, or of as many further ones as make a latent.
    pub(super) fn forward(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let mut x = self.conv_in.forward(x, memory.past())?;
        for block in &self.blocks {
            let before = x.clone();
            for residual in &block.residuals {
                x = residual.forward(&x, memory)?;
            }
            if let Some(downsample) = &block.downsample {
                x = downsample.forward(&x, memory)?;
            }
            if let Some(around) = &block.around {
                x = (x + around.forward(&before)?)?;
            }
        }
        let x = self.middle.forward(&x, memory)?;
        let x = self.head.forward(&x, memory);
        memory.rewind();
        x
    }
}
