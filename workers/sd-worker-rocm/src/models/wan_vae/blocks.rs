//! What encoder and decoder have in common. All take and give frames, `(frames, channels, height, width)`.

use super::causal::{CausalConv, Past};
use crate::models::attention::attention;
use crate::models::layers::{conv, pixels_as_rows, rows_as_pixels};
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::Conv2d;

/// What a walk through a network remembers of the chunks before: a place for each layer that looks back, in the order
/// in which they come.
#[derive(Debug, Default)]
pub(super) struct Memory {
    places: Vec<Past>,
    next: usize,
    /// No chunk has gone through yet.
    pub first: bool,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            first: true,
            ..Self::default()
        }
    }

    /// Of the next layer.
    pub(super) fn past(&mut self) -> &mut Past {
        if self.next == self.places.len() {
            self.places.push(None);
        }
        self.next += 1;
        &mut self.places[self.next - 1]
    }

    /// A chunk has gone through.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
        self.first = false;
    }
}

/// Divides each pixel's channels by the root of their mean square, then scales each channel.
#[derive(Debug, Clone)]
pub(super) struct PixelNorm {
    /// Times the root of the number of channels.
    gamma: Tensor,
}

impl PixelNorm {
    /// Reads `gamma`, which has `ones` dimensions of size 1 behind the channels.
    pub(super) fn new(vb: VarBuilder, channels: usize, ones: usize) -> Result<Self> {
        let mut shape = vec![1; 1 + ones];
        shape[0] = channels;
        let gamma = vb.get(shape, "gamma")?.reshape((1, channels, 1, 1))?;
        let gamma = (gamma.to_dtype(DType::F32)? * (channels as f64).sqrt())?;
        Ok(Self { gamma })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let wide = x.to_dtype(DType::F32)?;
        let length = wide.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(1e-12)?;
        wide.broadcast_div(&length)?
            .broadcast_mul(&self.gamma)?
            .to_dtype(x.dtype())
    }
}

/// Two convolutions and what goes around them.
#[derive(Debug, Clone)]
pub(super) struct Residual {
    norms: [PixelNorm; 2],
    convs: [CausalConv; 2],
    skip: Option<CausalConv>,
}

impl Residual {
    pub(super) fn new(vb: VarBuilder, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self {
            norms: [
                PixelNorm::new(vb.pp("norm1"), inputs, 3)?,
                PixelNorm::new(vb.pp("norm2"), outputs, 3)?,
            ],
            convs: [
                CausalConv::new(vb.pp("conv1"), inputs, outputs, 3, 3)?,
                CausalConv::new(vb.pp("conv2"), outputs, outputs, 3, 3)?,
            ],
            skip: match inputs == outputs {
                true => None,
                false => Some(CausalConv::new(
                    vb.pp("conv_shortcut"),
                    inputs,
                    outputs,
                    1,
                    1,
                )?),
            },
        })
    }

    pub(super) fn forward(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let mut h = x.clone();
        for (norm, conv) in self.norms.iter().zip(&self.convs) {
            h = conv.forward(&norm.forward(&h)?.silu()?, memory.past())?;
        }
        match &self.skip {
            Some(skip) => h + skip.forward(x, &mut None)?,
            None => h + x,
        }
    }
}

/// Attention of each frame's pixels to each other.
#[derive(Debug, Clone)]
struct FrameAttention {
    norm: PixelNorm,
    qkv: Conv2d,
    out: Conv2d,
}

impl FrameAttention {
    fn new(vb: VarBuilder, channels: usize) -> Result<Self> {
        Ok(Self {
            norm: PixelNorm::new(vb.pp("norm"), channels, 2)?,
            qkv: conv(vb.pp("to_qkv"), channels, 3 * channels, 1, 1, 0)?,
            out: conv(vb.pp("proj"), channels, channels, 1, 1, 0)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let rows = pixels_as_rows(&self.qkv.forward(&self.norm.forward(x)?)?)?;
        let parts = rows.chunk(3, D::Minus1)?;
        let [q, k, v] = parts.as_slice() else {
            candle_core::bail!("to_qkv does not make three parts")
        };
        let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
        let h = rows_as_pixels(&attention(&q, &k, &v, 1, false)?, height, width)?;
        x + self.out.forward(&h)?
    }
}

/// Residual layer, attention within frames, residual layer.
#[derive(Debug, Clone)]
pub(super) struct Middle {
    residuals: [Residual; 2],
    attention: FrameAttention,
}

impl Middle {
    pub(super) fn new(vb: VarBuilder, channels: usize) -> Result<Self> {
        Ok(Self {
            residuals: [
                Residual::new(vb.pp("resnets.0"), channels, channels)?,
                Residual::new(vb.pp("resnets.1"), channels, channels)?,
            ],
            attention: FrameAttention::new(vb.pp("attentions.0"), channels)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let x = self.residuals[0].forward(x, memory)?;
        let x = self.attention.forward(&x)?;
        self.residuals[1].forward(&x, memory)
    }
}

/// Norm, SiLU and the last convolution.
#[derive(Debug, Clone)]
pub(super) struct Head {
    norm: PixelNorm,
    conv: CausalConv,
}

impl Head {
    pub(super) fn new(vb: &VarBuilder, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self {
            norm: PixelNorm::new(vb.pp("norm_out"), inputs, 3)?,
            conv: CausalConv::new(vb.pp("conv_out"), inputs, outputs, 3, 3)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, memory: &mut Memory) -> Result<Tensor> {
        let x = self.norm.forward(x)?.silu()?;
        self.conv.forward(&x, memory.past())
    }
}
