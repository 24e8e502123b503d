//! Pictures whose opposite edges meet, so that they can be laid side by side: convolutions that go on at the other edge.

use super::layers::conv;
use super::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::fused::Epilogue;
use candle_nn::{Conv2d, Conv2dConfig};

/// Which opposite edges of a picture meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wrap {
    /// The left and the right one.
    pub x: bool,
    /// The upper and the lower one.
    pub y: bool,
}

impl Wrap {
    /// Whether none do.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// `(batch, channels, height, width)` with so many pixels more above, below, on the left and on the right: those of
    /// the opposite edge where the edges meet, else zeros.
    ///
    /// # Errors
    /// If the device fails.
    pub fn padded(self, x: &Tensor, [above, below, left, right]: [usize; 4]) -> Result<Tensor> {
        let x = match self.y {
            true => around(x, 2, above, below)?,
            false => x.pad_with_zeros(2, above, below)?,
        };
        match self.x {
            true => around(&x, 3, left, right),
            false => x.pad_with_zeros(3, left, right),
        }
    }
}

/// `x` with `before` and `after` more along a dimension, which begins anew where it ends.
pub fn around(x: &Tensor, dim: usize, before: usize, after: usize) -> Result<Tensor> {
    let size = x.dim(dim)?;
    if size == 0 || before + after == 0 {
        return Ok(x.clone());
    }
    if before.max(after) <= size {
        // Without anything from the host: evaluations are recorded.
        let last = x.narrow(dim, size - before, before)?;
        let first = x.narrow(dim, 0, after)?;
        let parts = [(before, &last), (size, x), (after, &first)];
        let parts = parts.into_iter().filter(|(pixels, _)| *pixels > 0);
        return Tensor::cat(&parts.map(|(_, part)| part).collect::<Vec<_>>(), dim);
    }
    let first = before.next_multiple_of(size) - before;
    let ids = (0..before + size + after).map(|i| ((first + i) % size) as u32);
    let ids = Tensor::new(ids.collect::<Vec<_>>(), x.device())?;
    x.index_select(&ids, dim)
}

/// A square convolution that goes on at the other edge of the picture where the network's edges meet.
#[derive(Debug, Clone)]
pub struct WrappedConv {
    /// Without padding of its own where edges meet.
    conv: Conv2d,
    padding: usize,
    wrap: Wrap,
}

impl WrappedConv {
    /// As [`conv`]; which edges meet is the builder's.
    ///
    /// # Errors
    /// If the tensors are missing or of other shapes.
    pub fn new(
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let wrap = vb.wrap();
        let conv = conv(vb, inputs, outputs, kernel, stride, padding)?;
        let conv = match wrap.is_none() || padding == 0 {
            true => conv,
            false => {
                let config = Conv2dConfig {
                    padding: 0,
                    ..*conv.config()
                };
                Conv2d::new(conv.weight().clone(), conv.bias().cloned(), config)
            }
        };
        Ok(Self {
            conv,
            padding,
            wrap,
        })
    }

    /// The convolution of `x`, to which numbers for each channel, `(batch, channels)`, and a picture like it are added.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward_added(
        &self,
        x: &Tensor,
        channels: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        // Elsewhere convolutions take the bias along.
        let (conv, bias) = match (x.device().is_rocm(), self.conv.bias()) {
            (true, Some(bias)) => (
                Conv2d::new(self.conv.weight().clone(), None, *self.conv.config()),
                Some(bias),
            ),
            _ => (self.conv.clone(), None),
        };
        let product = self.of(&conv, x)?;
        let added = match (channels, bias) {
            (Some(channels), Some(bias)) => Some(channels.broadcast_add(bias)?),
            (Some(channels), None) => Some(channels.clone()),
            (None, Some(bias)) => Some(bias.unsqueeze(0)?),
            (None, None) => None,
        };
        let added = added.map(|added| added.unsqueeze(2)).transpose()?;
        let residual = residual.map(|x| x.flatten_from(2)).transpose()?;
        let after = Epilogue {
            bias: added.as_ref(),
            residual: residual.as_ref(),
            ..Default::default()
        };
        after
            .of(&product.flatten_from(2)?)?
            .reshape(product.shape())
    }

    /// The convolution of `x`, `(batch, channels, height, width)`, doubled in height and width by nearest neighbour.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward_doubled(&self, x: &Tensor) -> Result<Tensor> {
        if self.wrap.is_none() || self.padding == 0 {
            return candle_nn::fused::conv2d_of_doubled(x, &self.conv);
        }
        let (_, _, height, width) = x.dims4()?;
        self.forward(&x.upsample_nearest2d(2 * height, 2 * width)?)
    }
}

impl WrappedConv {
    /// `conv` of `x`, with the edges of this.
    fn of(&self, conv: &Conv2d, x: &Tensor) -> Result<Tensor> {
        match self.wrap.is_none() || self.padding == 0 {
            true => conv.forward(x),
            false => {
                let x = self.wrap.padded(x, [self.padding; 4])?;
                conv.forward(&x.contiguous()?)
            }
        }
    }
}

impl Module for WrappedConv {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.of(&self.conv, x)
    }
}
