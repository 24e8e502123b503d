//! Holistically nested edges (arXiv:1504.06375), as trained for ControlNet: VGG's convolutions, with an edge map from
//! each of five scales.

use crate::models::layers::conv;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// Convolutions of each scale.
const LAYERS: [usize; 5] = [2, 2, 3, 3, 3];

/// Channels of a scale and of the one before.
fn widths(scale: usize, first: usize) -> (usize, usize) {
    let width = |scale: usize| first << scale.min(3);
    match scale {
        0 => (3, width(0)),
        scale => (width(scale - 1), width(scale)),
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Hed {
    /// Subtracted from the picture, `(1, 3, 1, 1)`.
    norm: Tensor,
    scales: Vec<(Vec<Conv2d>, Conv2d)>,
}

impl Hed {
    /// Reads `norm`, `block1` to `block5`. The width of the first scale (64) is read from its shape.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let first = vb.get_unchecked("block1.projection.weight")?;
        let first = first.dims().get(1).copied().unwrap_or(0);
        let scale = |(scale, layers): (usize, usize)| {
            let vb = vb.pp(format!("block{}", scale + 1));
            let (inputs, width) = widths(scale, first);
            let layer = |i: usize| {
                let inputs = if i == 0 { inputs } else { width };
                conv(vb.pp("convs").pp(i), inputs, width, 3, 1, 1)
            };
            let layers = (0..layers).map(layer).collect::<Result<_>>()?;
            Ok((layers, conv(vb.pp("projection"), width, 1, 1, 1, 0)?))
        };
        let scales = LAYERS.into_iter().enumerate();
        Ok(Self {
            norm: vb.get((1, 3, 1, 1), "norm")?,
            scales: scales.map(scale).collect::<Result<_>>()?,
        })
    }

    /// Edges of five scales, each half as large as the one before, before the sigmoid; of `(1, 3, height, width)` in
    /// 0..255.
    ///
    /// # Errors
    /// If the picture is smaller than 16 pixels, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let (_, _, height, width) = x.dims4()?;
        if height.min(width) < 1 << (LAYERS.len() - 1) {
            candle_core::bail!("the picture has {width} x {height} pixels, too few for five scales")
        }
        let mut x = x.broadcast_sub(&self.norm)?;
        let mut edges = Vec::with_capacity(self.scales.len());
        for (i, (layers, projection)) in self.scales.iter().enumerate() {
            if i > 0 {
                x = x.max_pool2d(2)?;
            }
            for layer in layers {
                x = layer.forward(&x)?.relu()?;
            }
            edges.push(projection.forward(&x)?);
        }
        Ok(edges)
    }
}
