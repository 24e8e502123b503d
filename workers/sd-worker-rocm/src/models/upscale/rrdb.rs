//! Residual-in-residual dense blocks: ESRGAN (arXiv:1809.00219) and Real-ESRGAN (arXiv:2107.10833).

use super::{count, doubled, MOST_LAYERS};
use crate::models::layers::{conv, leaky_relu};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Pixels that become one at the beginning, each way.
    unshuffle: usize,
    width: usize,
    /// Channels that each layer of a dense block adds.
    growth: usize,
    blocks: usize,
    /// How often height and width are doubled at the end.
    doublings: usize,
}

/// The original's numbers of top-level layers as the later names.
fn new_name(old: &str, doublings: usize) -> Option<String> {
    if let Some(rest) = old.strip_prefix("model.1.sub.") {
        let (block, rest) = rest.split_once('.')?;
        return Some(match rest.split_once(".conv") {
            Some((dense, layer)) => {
                // conv1.0.weight
                let (layer, end) = layer.split_once(".0.")?;
                let dense = dense.to_lowercase();
                format!("body.{block}.{dense}.conv{layer}.{end}")
            }
            None => format!("conv_body.{rest}"),
        });
    }
    let (number, end) = old.strip_prefix("model.")?.split_once('.')?;
    // Each doubling has a layer without weights before and behind it, as has the one before the last.
    let number: usize = number.parse().ok()?;
    let layer = match number.checked_sub(3 * doublings) {
        _ if number == 0 => "conv_first".to_string(),
        _ if number.is_multiple_of(3) && number <= 3 * doublings => {
            format!("conv_up{}", number / 3)
        }
        Some(2) => "conv_hr".to_string(),
        Some(4) => "conv_last".to_string(),
        _ => return None,
    };
    Some(format!("{layer}.{end}"))
}

/// The names between: those of the first release in PyTorch.
fn later_name(old: &str) -> String {
    let mut name = old.replace("RRDB_trunk.", "body.").replace(".RDB", ".rdb");
    for (from, to) in [
        ("trunk_conv.", "conv_body."),
        ("upconv", "conv_up"),
        ("HRconv.", "conv_hr."),
    ] {
        if let Some(rest) = old.strip_prefix(from) {
            name = format!("{to}{rest}");
        }
    }
    name
}

impl Layout {
    /// What a file's names and shapes say, and its tensors under the later names; `None` if it is of another kind.
    #[allow(clippy::type_complexity)]
    pub(super) fn of(weights: &Weights) -> Option<(std::result::Result<Self, String>, Weights)> {
        let weights = if weights.contains("model.1.sub.0.RDB1.conv1.0.weight") {
            let top = count(weights, "model");
            // model.0, model.1, then three a doubling, then HR and last with one between.
            let doublings = top.checked_sub(5)? / 3;
            weights.renamed(|name| new_name(name, doublings))
        } else if weights.contains("RRDB_trunk.0.RDB1.conv1.weight") {
            weights.renamed(|name| Some(later_name(name)))
        } else {
            weights.clone()
        };
        if !weights.contains("body.0.rdb1.conv1.weight") {
            return None;
        }
        Some((Self::read(&weights), weights))
    }

    fn read(weights: &Weights) -> std::result::Result<Self, String> {
        let shape = |name: &str| {
            let shape = weights.shape(&format!("{name}.weight"));
            match shape.as_deref() {
                Some([outputs, inputs, ..]) => Ok((*outputs, *inputs)),
                _ => Err(format!("{name}.weight is missing or no convolution")),
            }
        };
        if weights.names().any(|name| name.contains("conv1x1")) {
            return Err("this is ESRGAN+, which is not implemented".to_string());
        }
        let (width, inputs) = shape("conv_first")?;
        let (growth, _) = shape("body.0.rdb1.conv1")?;
        let unshuffle = match inputs {
            3 => 1,
            12 => 2,
            48 => 4,
            _ => return Err(format!("it takes {inputs} channels; pictures have 3")),
        };
        let named = |i: &usize| weights.contains(&format!("conv_up{i}.weight"));
        let doublings = (1..=MOST_LAYERS).rev().find(named).unwrap_or(0);
        let blocks = count(weights, "body");
        if blocks > MOST_LAYERS || doublings > 4 {
            return Err(format!(
                "{blocks} blocks and {doublings} doublings are too many"
            ));
        }
        if 1 << doublings < unshuffle {
            return Err("it makes pictures smaller".to_string());
        }
        Ok(Self {
            unshuffle,
            width,
            growth,
            blocks,
            doublings,
        })
    }

    /// Pixels that a pixel becomes, each way.
    pub fn scale(&self) -> usize {
        (1 << self.doublings) / self.unshuffle
    }
}

/// Five convolutions, each of which sees what all before it gave.
#[derive(Debug, Clone)]
struct Dense(Vec<Conv2d>);

impl Dense {
    fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let (width, growth) = (layout.width, layout.growth);
        let layer = |i: usize| {
            let outputs = if i == 4 { width } else { growth };
            let vb = vb.pp(format!("conv{}", i + 1));
            conv(vb, width + i * growth, outputs, 3, 1, 1)
        };
        Ok(Self((0..5).map(layer).collect::<Result<_>>()?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut seen = x.clone();
        for (i, layer) in self.0.iter().enumerate() {
            let new = layer.forward(&seen)?;
            if i == 4 {
                return (new * 0.2)? + x;
            }
            seen = Tensor::cat(&[&seen, &leaky_relu(&new, 0.2)?], 1)?;
        }
        Ok(seen)
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Rrdb {
    layout: Layout,
    first: Conv2d,
    blocks: Vec<[Dense; 3]>,
    body: Conv2d,
    doublings: Vec<Conv2d>,
    high: Conv2d,
    last: Conv2d,
}

impl Rrdb {
    /// Builds the network, from Real-ESRGAN's names.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let width = layout.width;
        let inputs = 3 * layout.unshuffle * layout.unshuffle;
        let wide = |vb| conv(vb, width, width, 3, 1, 1);
        let block = |i: usize| {
            let vb = vb.pp("body").pp(i);
            let dense = |i: usize| Dense::new(vb.pp(format!("rdb{i}")), layout);
            Ok([dense(1)?, dense(2)?, dense(3)?])
        };
        Ok(Self {
            first: conv(vb.pp("conv_first"), inputs, width, 3, 1, 1)?,
            blocks: (0..layout.blocks).map(block).collect::<Result<_>>()?,
            body: wide(vb.pp("conv_body"))?,
            doublings: (1..=layout.doublings)
                .map(|i| wide(vb.pp(format!("conv_up{i}"))))
                .collect::<Result<_>>()?,
            high: wide(vb.pp("conv_hr"))?,
            last: conv(vb.pp("conv_last"), width, 3, 3, 1, 1)?,
            layout: layout.clone(),
        })
    }

    /// See [`super::Upscaler::forward`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let unshuffle = self.layout.unshuffle;
        let (h, w) = (
            height.next_multiple_of(unshuffle),
            width.next_multiple_of(unshuffle),
        );
        let x = super::super::layers::extended(x, h, w)?;
        let x = match unshuffle {
            1 => x,
            factor => candle_nn::ops::pixel_unshuffle(&x, factor)?,
        };
        let first = self.first.forward(&x)?;
        let mut x = first.clone();
        for [a, b, c] in &self.blocks {
            let inner = c.forward(&b.forward(&a.forward(&x)?)?)?;
            x = ((inner * 0.2)? + x)?;
        }
        let mut x = (self.body.forward(&x)? + first)?;
        for layer in &self.doublings {
            x = doubled(layer, &x)?;
        }
        let x = self
            .last
            .forward(&leaky_relu(&self.high.forward(&x)?, 0.2)?)?;
        let scale = self.layout.scale();
        x.narrow(2, 0, height * scale)?.narrow(3, 0, width * scale)
    }
}
