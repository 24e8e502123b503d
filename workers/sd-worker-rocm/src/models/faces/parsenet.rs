//! ParseNet: to which of 19 parts each pixel of a face belongs, as trained for CelebAMask-HQ (arXiv:1907.11922).

use super::conv_norm;
use crate::models::layers::{conv, leaky_relu, mirrored_around};
use crate::models::upscale::{count, MOST_LAYERS};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// Parts that are told apart.
pub const PARTS: usize = 19;

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Channels of the first layer and behind each halving.
    widths: Vec<usize>,
    body: usize,
    /// Channels behind each doubling.
    up: Vec<usize>,
}

impl Layout {
    /// What a file's names and shapes say.
    ///
    /// # Errors
    /// If they are those of no ParseNet.
    pub fn of(weights: &Weights) -> std::result::Result<Self, String> {
        let outputs = |name: String| match weights.shape(&name).as_deref() {
            Some([outputs, _, 3, 3]) => Ok(*outputs),
            _ => Err(format!("{name} is missing or no convolution")),
        };
        let counts = ["encoder", "body", "decoder"].map(|part| count(weights, part));
        let [encoder, body, decoder] = counts;
        if counts.iter().any(|count| *count > MOST_LAYERS) || encoder != decoder + 1 || decoder > 5
        {
            return Err(format!(
                "{encoder}, {body} and {decoder} layers are not known ones"
            ));
        }
        let mut widths = vec![outputs("encoder.0.conv2d.weight".to_string())?];
        for i in 1..encoder {
            widths.push(outputs(format!("encoder.{i}.conv1.conv2d.weight"))?);
        }
        let up = (0..decoder).map(|i| outputs(format!("decoder.{i}.conv1.conv2d.weight")));
        Ok(Self {
            widths,
            body,
            up: up.collect::<std::result::Result<_, _>>()?,
        })
    }
}

/// How a block changes the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Half,
    Double,
}

/// A convolution with pixels mirrored around.
fn mirrored(layer: &Conv2d, x: &Tensor) -> Result<Tensor> {
    layer.forward(&mirrored_around(x, 1)?)
}

fn doubled(x: &Tensor) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    x.upsample_nearest2d(2 * height, 2 * width)
}

#[derive(Debug, Clone)]
struct Block {
    conv1: Conv2d,
    conv2: Conv2d,
    shortcut: Option<Conv2d>,
    change: Change,
}

impl Block {
    fn new(vb: VarBuilder, inputs: usize, outputs: usize, change: Change) -> Result<Self> {
        let stride = if change == Change::Half { 2 } else { 1 };
        let layer = |name: &str, inputs, stride| {
            let vb = vb.pp(name);
            conv_norm(
                (vb.pp("conv2d"), vb.pp("norm.norm")),
                (inputs, outputs),
                3,
                stride,
                0,
            )
        };
        let plain = change == Change::None && inputs == outputs;
        Ok(Self {
            conv1: layer("conv1", inputs, 1)?,
            conv2: layer("conv2", outputs, stride)?,
            shortcut: match plain {
                true => None,
                false => Some(conv(
                    vb.pp("shortcut_func.conv2d"),
                    inputs,
                    outputs,
                    3,
                    stride,
                    0,
                )?),
            },
            change,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = match self.change {
            Change::Double => doubled(x)?,
            _ => x.clone(),
        };
        let y = leaky_relu(&mirrored(&self.conv1, &x)?, 0.2)?;
        let y = mirrored(&self.conv2, &y)?;
        match &self.shortcut {
            Some(shortcut) => mirrored(shortcut, &x)? + y,
            None => x + y,
        }
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct ParseNet {
    first: Conv2d,
    down: Vec<Block>,
    body: Vec<Block>,
    up: Vec<Block>,
    parts: Conv2d,
}

impl ParseNet {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let widths = &layout.widths;
        let down = |i: usize| {
            let vb = vb.pp("encoder").pp(i + 1);
            Block::new(vb, widths[i], widths[i + 1], Change::Half)
        };
        let middle = widths[widths.len() - 1];
        let body = |i: usize| Block::new(vb.pp("body").pp(i), middle, middle, Change::None);
        let up = |i: usize| {
            let inputs = if i == 0 { middle } else { layout.up[i - 1] };
            Block::new(vb.pp("decoder").pp(i), inputs, layout.up[i], Change::Double)
        };
        let last = layout.up.last().copied().unwrap_or(middle);
        Ok(Self {
            first: conv(vb.pp("encoder.0.conv2d"), 3, widths[0], 3, 1, 0)?,
            down: (0..widths.len() - 1).map(down).collect::<Result<_>>()?,
            body: (0..layout.body).map(body).collect::<Result<_>>()?,
            up: (0..layout.up.len()).map(up).collect::<Result<_>>()?,
            parts: conv(vb.pp("out_mask_conv.conv2d"), last, PARTS, 3, 1, 0)?,
        })
    }

    /// How likely each part is, `(1, 19, height, width)`, of a picture `(1, 3, height, width)` in -1..1.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = mirrored(&self.first, x)?;
        for block in &self.down {
            x = block.forward(&x)?;
        }
        let found = x.clone();
        for block in &self.body {
            x = block.forward(&x)?;
        }
        x = (x + found)?;
        for block in &self.up {
            x = block.forward(&x)?;
        }
        mirrored(&self.parts, &x)
    }
}
