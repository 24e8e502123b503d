//! A chain of convolutions: Real-ESRGAN's SRVGGNetCompact.

use super::{count, MOST_LAYERS};
use crate::models::layers::conv;
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    width: usize,
    /// Between the first and the last.
    layers: usize,
    /// Pixels that a pixel becomes, each way.
    pub scale: usize,
}

impl Layout {
    /// What a file's names and shapes say; `None` if it is of another kind.
    pub(super) fn of(weights: &Weights) -> Option<std::result::Result<Self, String>> {
        let first = weights.shape("body.0.weight")?;
        let [width, 3, 3, 3] = first[..] else {
            return None;
        };
        Some(Self::read(weights, width))
    }

    fn read(weights: &Weights, width: usize) -> std::result::Result<Self, String> {
        // Convolutions have the even numbers, PReLU the odd ones.
        let count = count(weights, "body");
        if count < 3 || count.is_multiple_of(2) || count / 2 > MOST_LAYERS {
            return Err(format!("a chain of {count} layers is not a known one"));
        }
        if weights
            .shape("body.1.weight")
            .is_none_or(|shape| shape.len() != 1)
        {
            return Err("its activation is not PReLU, which alone is implemented".to_string());
        }
        let last = weights.shape(&format!("body.{}.weight", count - 1));
        let outputs = last.and_then(|shape| shape.first().copied()).unwrap_or(0);
        let scale = (1..=8).find(|scale| 3 * scale * scale == outputs);
        Ok(Self {
            width,
            layers: (count - 3) / 2,
            scale: scale.ok_or_else(|| format!("{outputs} channels at the end are no scale"))?,
        })
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Compact {
    /// Each with the slopes behind it, `(1, channels, 1, 1)`.
    layers: Vec<(Conv2d, Tensor)>,
    last: Conv2d,
    scale: usize,
}

impl Compact {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let (vb, width) = (vb.pp("body"), layout.width);
        let layer = |i: usize| {
            let inputs = if i == 0 { 3 } else { width };
            let slopes = vb.get(width, &format!("{}.weight", 2 * i + 1))?;
            Ok((
                conv(vb.pp(2 * i), inputs, width, 3, 1, 1)?,
                slopes.reshape((1, width, 1, 1))?,
            ))
        };
        let outputs = 3 * layout.scale * layout.scale;
        let count = layout.layers + 1;
        Ok(Self {
            layers: (0..count).map(layer).collect::<Result<_>>()?,
            last: conv(vb.pp(2 * count), width, outputs, 3, 1, 1)?,
            scale: layout.scale,
        })
    }

    /// See [`super::Upscaler::forward`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let mut y = x.clone();
        for (layer, slopes) in &self.layers {
            y = layer.forward(&y)?;
            let negative = (&y - y.relu()?)?;
            y = (y.relu()? + negative.broadcast_mul(slopes)?)?;
        }
        let y = candle_nn::ops::pixel_shuffle(&self.last.forward(&y)?, self.scale)?;
        // It learnt what is missing in the nearest pixels.
        y + x.upsample_nearest2d(height * self.scale, width * self.scale)?
    }
}
