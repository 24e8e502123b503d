//! Layers that networks which look at pictures share.

use crate::models::layers::conv;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, ConvTranspose2d, ConvTranspose2dConfig};

/// What a batch norm makes of a channel once it is trained: a factor and a summand.
#[derive(Debug, Clone)]
pub struct BatchNorm {
    scale: Tensor,
    shift: Tensor,
}

impl BatchNorm {
    /// Reads `weight`, `bias`, `running_mean` and `running_var`.
    ///
    /// # Errors
    /// If they are missing or of another size.
    pub fn new(vb: VarBuilder, channels: usize, eps: f64) -> Result<Self> {
        let get = |name: &str| vb.get(channels, name)?.reshape((1, channels, 1, 1));
        let deviation = (get("running_var")? + eps)?.sqrt()?;
        let scale = (get("weight")? / deviation)?;
        let shift = (get("bias")? - (get("running_mean")? * &scale)?)?;
        Ok(Self { scale, shift })
    }
}

impl Module for BatchNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)
    }
}

/// A convolution of each channel on its own, as wide as it is padded: sums of moved pictures, which need no kernel of
/// their own.
#[derive(Debug, Clone)]
pub struct Depthwise {
    /// A factor a channel, `(1, channels, 1, 1)`, for each place of the kernel, row by row.
    taps: Vec<Tensor>,
    bias: Option<Tensor>,
    kernel: usize,
}

impl Depthwise {
    /// Reads `weight` and, where there is one, `bias`; `kernel` is odd.
    ///
    /// # Errors
    /// If they are missing or of another size.
    pub fn new(vb: VarBuilder, channels: usize, kernel: usize) -> Result<Self> {
        let weight = vb.get((channels, 1, kernel, kernel), "weight")?;
        let weight = weight.reshape((channels, kernel * kernel))?;
        let tap = |i: usize| {
            weight
                .narrow(1, i, 1)?
                .contiguous()?
                .reshape((1, channels, 1, 1))
        };
        Ok(Self {
            taps: (0..kernel * kernel).map(tap).collect::<Result<_>>()?,
            bias: match vb.contains_tensor("bias") {
                true => Some(vb.get(channels, "bias")?.reshape((1, channels, 1, 1))?),
                false => None,
            },
            kernel,
        })
    }
}

impl Module for Depthwise {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let around = self.kernel / 2;
        let padded = x.pad_with_zeros(2, around, around)?;
        let padded = padded.pad_with_zeros(3, around, around)?;
        let mut sum = x.zeros_like()?;
        for (i, tap) in self.taps.iter().enumerate() {
            let (top, left) = (i / self.kernel, i % self.kernel);
            let moved = padded.narrow(2, top, height)?.narrow(3, left, width)?;
            sum = (sum + moved.broadcast_mul(tap)?)?;
        }
        match &self.bias {
            Some(bias) => sum.broadcast_add(bias),
            None => Ok(sum),
        }
    }
}

/// A transposed convolution that makes each pixel a square of `factor` pixels.
///
/// # Errors
/// If tensors are missing or of other shapes.
pub fn spread(vb: VarBuilder, channels: usize, factor: usize) -> Result<ConvTranspose2d> {
    let config = ConvTranspose2dConfig {
        stride: factor,
        ..Default::default()
    };
    let weight = vb.get((channels, channels, factor, factor), "weight")?;
    Ok(ConvTranspose2d::new(
        weight,
        Some(vb.get(channels, "bias")?),
        config,
    ))
}

/// Most channels of a layer whose sizes are those of its file.
const MOST_CHANNELS: usize = 1 << 13;

/// A convolution with the channels and the kernel that the file has, which keeps the picture's size.
///
/// # Errors
/// If tensors are missing or of other shapes than `inputs` allows.
pub fn conv_of_file(vb: VarBuilder, inputs: usize) -> Result<Conv2d> {
    let weight = vb.get_unchecked("weight")?;
    match *weight.dims() {
        [outputs, channels, kernel, width]
            if channels == inputs
                && kernel == width
                && kernel % 2 == 1
                && kernel <= 15
                && (1..=MOST_CHANNELS).contains(&outputs) =>
        {
            conv(vb, inputs, outputs, kernel, 1, kernel / 2)
        }
        ref dims => candle_core::bail!(
            "{}.weight has shape {dims:?}; a convolution of {inputs} channels is wanted",
            vb.prefix()
        ),
    }
}

/// Channels that a convolution gives.
pub fn channels(conv: &Conv2d) -> usize {
    conv.weight().dims().first().copied().unwrap_or(0)
}
