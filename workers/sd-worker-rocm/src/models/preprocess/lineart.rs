//! Line drawings of pictures (arXiv:2203.12691): convolutions down, residual blocks, and up again.

use crate::models::layers::{conv, mirrored_around};
use crate::models::upscale::{count, MOST_LAYERS};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, ConvTranspose2d, ConvTranspose2dConfig};

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    width: usize,
    blocks: usize,
}

impl Layout {
    /// What a file's names and shapes say.
    ///
    /// # Errors
    /// If it is of another kind.
    pub fn of(weights: &Weights) -> std::result::Result<Self, String> {
        let blocks = count(weights, "model2");
        match weights.shape("model0.1.weight").as_deref() {
            Some([width, 3, 7, 7]) if blocks <= MOST_LAYERS => Ok(Self {
                width: *width,
                blocks,
            }),
            _ => Err("this is no network for line drawings (model0.1.weight)".to_string()),
        }
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Lineart {
    first: Conv2d,
    down: [Conv2d; 2],
    blocks: Vec<[Conv2d; 2]>,
    up: [ConvTranspose2d; 2],
    last: Conv2d,
}

/// Each channel of each picture with mean 0 and variance 1.
pub(super) fn normal(x: &Tensor) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim((2, 3))?)?;
    let variance = centred.sqr()?.mean_keepdim((2, 3))?;
    centred.broadcast_div(&(variance + 1e-5)?.sqrt()?)
}

impl Lineart {
    /// Reads `model0` to `model4`.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let width = layout.width;
        let up = |i: usize, inputs: usize| {
            let vb = vb.pp("model3").pp(i);
            let config = ConvTranspose2dConfig {
                padding: 1,
                output_padding: 1,
                stride: 2,
                dilation: 1,
            };
            let weight = vb.get((inputs, inputs / 2, 3, 3), "weight")?;
            let bias = vb.get(inputs / 2, "bias")?;
            Ok::<_, candle_core::Error>(ConvTranspose2d::new(weight, Some(bias), config))
        };
        let block = |i: usize| {
            let vb = vb.pp("model2").pp(i).pp("conv_block");
            let layer = |i: usize| conv(vb.pp(i), 4 * width, 4 * width, 3, 1, 0);
            Ok([layer(1)?, layer(5)?])
        };
        Ok(Self {
            first: conv(vb.pp("model0.1"), 3, width, 7, 1, 0)?,
            down: [
                conv(vb.pp("model1.0"), width, 2 * width, 3, 2, 1)?,
                conv(vb.pp("model1.3"), 2 * width, 4 * width, 3, 2, 1)?,
            ],
            blocks: (0..layout.blocks).map(block).collect::<Result<_>>()?,
            up: [up(0, 4 * width)?, up(3, 2 * width)?],
            last: conv(vb.pp("model4.1"), width, 1, 7, 1, 0)?,
        })
    }

    /// Black lines on white, `(1, 1, height, width)` in 0..1, of `(1, 3, height, width)` in 0..1; the size is rounded up
    /// to multiples of 4.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = normal(&self.first.forward(&mirrored_around(x, 3)?)?)?.relu()?;
        for layer in &self.down {
            x = normal(&layer.forward(&x)?)?.relu()?;
        }
        for [a, b] in &self.blocks {
            let y = normal(&a.forward(&mirrored_around(&x, 1)?)?)?.relu()?;
            x = (normal(&b.forward(&mirrored_around(&y, 1)?)?)? + x)?;
        }
        for layer in &self.up {
            x = normal(&layer.forward(&x)?)?.relu()?;
        }
        candle_nn::ops::sigmoid(&self.last.forward(&mirrored_around(&x, 3)?)?)
    }
}
