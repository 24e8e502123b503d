//! TAESD's decoder: pictures from latents at a fraction of the VAE's cost, for previews.

use super::wrap::WrappedConv;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};

/// Channels inside.
const WIDTH: usize = 64;

#[derive(Debug, Clone)]
enum Layer {
    Conv(WrappedConv),
    Relu,
    Upsample,
    /// Three convolutions around a residual connection.
    Block([WrappedConv; 3]),
}

/// The decoder.
#[derive(Debug, Clone)]
pub struct Taesd {
    layers: Vec<Layer>,
    dtype: DType,
}

impl Taesd {
    /// Reads the layers of a decoder for latents of `channels`: `decoder.layers.N` as diffusers writes them, or,
    /// counted from one more, bare numbers as in the original files.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, channels: usize) -> Result<Self> {
        // The original's first layer is the clamp, which has no weights.
        let (vb, first) = match vb.contains_tensor("decoder.layers.0.weight") {
            true => (vb.pp("decoder.layers"), 0),
            false if vb.contains_tensor("decoder.1.weight") => (vb.pp("decoder"), 1),
            false => (vb, 1),
        };
        let mut at = first;
        let mut next = || {
            at += 1;
            vb.pp(at - 1)
        };
        let mut layers = vec![
            Layer::Conv(WrappedConv::new(next(), channels, WIDTH, 3, 1, 1)?),
            Layer::Relu,
        ];
        next();
        for blocks in [3, 3, 3] {
            for _ in 0..blocks {
                layers.push(block(next())?);
            }
            next();
            layers.push(Layer::Upsample);
            layers.push(Layer::Conv(WrappedConv::new(
                next(),
                WIDTH,
                WIDTH,
                3,
                1,
                1,
            )?));
        }
        layers.push(block(next())?);
        layers.push(Layer::Conv(WrappedConv::new(next(), WIDTH, 3, 3, 1, 1)?));
        Ok(Self {
            layers,
            dtype: vb.dtype(),
        })
    }

    /// Pictures in about 0..1, `(batch, 3, 8 height, 8 width)`, f32, of latents as the denoiser has them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn decode(&self, latents: &Tensor) -> Result<Tensor> {
        let mut x = ((latents.to_dtype(self.dtype)? / 3.0)?.tanh()? * 3.0)?;
        for layer in &self.layers {
            x = match layer {
                Layer::Conv(conv) => conv.forward(&x)?,
                Layer::Relu => x.relu()?,
                Layer::Upsample => {
                    let (_, _, height, width) = x.dims4()?;
                    x.upsample_nearest2d(2 * height, 2 * width)?
                }
                Layer::Block([a, b, c]) => {
                    let h = b.forward(&a.forward(&x)?.relu()?)?.relu()?;
                    (c.forward(&h)? + x)?.relu()?
                }
            };
        }
        x.to_dtype(DType::F32)
    }
}

fn block(vb: VarBuilder) -> Result<Layer> {
    let layer = |i: usize| WrappedConv::new(vb.pp("conv").pp(i), WIDTH, WIDTH, 3, 1, 1);
    Ok(Layer::Block([layer(0)?, layer(2)?, layer(4)?]))
}
