//! Networks that make pictures larger. Their files have no configuration: kind, scale and sizes are read from names and
//! shapes.

pub mod compact;
pub mod dat;
pub mod hat;
pub mod rrdb;
pub mod swin;
mod tail;
mod windows;

use super::layers::leaky_relu;
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::Conv2d;

/// Most layers of one kind that are looked for in a file.
pub(crate) const MOST_LAYERS: usize = 256;

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq)]
pub enum Layout {
    /// ESRGAN, Real-ESRGAN.
    Rrdb(rrdb::Layout),
    /// Real-ESRGAN's small ones for videos and drawings.
    Compact(compact::Layout),
    /// SwinIR, Swin2SR.
    Swin(swin::Layout),
    /// HAT.
    Hat(hat::Layout),
    /// DAT.
    Dat(dat::Layout),
}

/// Names of kinds that are known and not implemented, by a name of a tensor that only they have.
const OTHERS: [(&str, &str); 4] = [
    ("block_1.c1_r.sk.weight", "SPAN"),
    ("head.0.weight", "EDSR or RCAN"),
    ("stylegan_decoder.style_mlp.1.weight", "GFPGAN"),
    ("quantize.embedding.weight", "CodeFormer"),
];

impl Layout {
    /// Reads a file, and gives its tensors under the names that the networks read.
    ///
    /// # Errors
    /// Names the kind of a network that is not implemented, or says that it is none.
    pub fn of(weights: &Weights) -> std::result::Result<(Self, Weights), String> {
        let weights = bare(weights);
        for (name, kind) in OTHERS {
            if weights.contains(name) {
                return Err(format!("this is {kind}, which is not implemented"));
            }
        }
        if let Some((layout, weights)) = rrdb::Layout::of(&weights) {
            return Ok((Self::Rrdb(layout?), weights));
        }
        if let Some(layout) = compact::Layout::of(&weights) {
            return Ok((Self::Compact(layout?), weights));
        }
        if let Some(layout) = dat::Layout::of(&weights) {
            return Ok((Self::Dat(layout?), weights));
        }
        if let Some(layout) = hat::Layout::of(&weights) {
            return Ok((Self::Hat(layout?), weights));
        }
        if let Some((layout, weights)) = swin::Layout::of(&weights) {
            return Ok((Self::Swin(layout?), weights));
        }
        let known = "ESRGAN, Real-ESRGAN, SwinIR, Swin2SR, HAT, DAT";
        Err(format!(
            "this is no upscaler of a kind that is known ({known})"
        ))
    }

    /// Pixels that a pixel becomes, each way.
    pub fn scale(&self) -> usize {
        match self {
            Self::Rrdb(layout) => layout.scale(),
            Self::Compact(layout) => layout.scale,
            Self::Swin(layout) => layout.scale(),
            Self::Hat(layout) => layout.scale(),
            Self::Dat(layout) => layout.scale(),
        }
    }

    /// The kind, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Rrdb(_) => "ESRGAN",
            Self::Compact(_) => "Real-ESRGAN (compact)",
            Self::Swin(layout) => layout.kind(),
            Self::Hat(_) => "HAT",
            Self::Dat(_) => "DAT",
        }
    }

    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn build(&self, vb: VarBuilder) -> Result<Upscaler> {
        Ok(match self {
            Self::Rrdb(layout) => Upscaler::Rrdb(rrdb::Rrdb::new(vb, layout)?),
            Self::Compact(layout) => Upscaler::Compact(compact::Compact::new(vb, layout)?),
            Self::Swin(layout) => Upscaler::Swin(swin::Swin::new(vb, layout)?),
            Self::Hat(layout) => Upscaler::Hat(hat::Hat::new(vb, layout)?),
            Self::Dat(layout) => Upscaler::Dat(dat::Dat::new(vb, layout)?),
        })
    }
}

/// Without what training programs put before all names; of two sets the smoothed one.
pub(crate) fn bare(weights: &Weights) -> Weights {
    for prefix in ["params_ema.", "params.", "module.", "model_state_dict."] {
        let under = weights.under(prefix);
        if !under.is_empty() {
            return under;
        }
    }
    weights.clone()
}

/// How many layers of a kind there are: names below `prefix` are numbered from 0.
pub(crate) fn count(weights: &Weights, prefix: &str) -> usize {
    let numbers = weights.names().filter_map(|name| {
        let rest = name.strip_prefix(prefix)?.strip_prefix('.')?;
        rest.split('.').next()?.parse::<usize>().ok()
    });
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

/// A network that makes pictures larger.
#[derive(Debug, Clone)]
pub enum Upscaler {
    /// See [`Layout::Rrdb`].
    Rrdb(rrdb::Rrdb),
    /// See [`Layout::Compact`].
    Compact(compact::Compact),
    /// See [`Layout::Swin`].
    Swin(swin::Swin),
    /// See [`Layout::Hat`].
    Hat(hat::Hat),
    /// See [`Layout::Dat`].
    Dat(dat::Dat),
}

impl Upscaler {
    /// Pictures `(batch, 3, height, width)` in about 0..1, the scale times as large.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rrdb(net) => net.forward(x),
            Self::Compact(net) => net.forward(x),
            Self::Swin(net) => net.forward(x),
            Self::Hat(net) => net.forward(x),
            Self::Dat(net) => net.forward(x),
        }
    }
}

/// Doubles height and width by nearest neighbour, convolves, and lets a fifth of what is negative through.
fn doubled(conv: &Conv2d, x: &Tensor) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    let x = x.upsample_nearest2d(2 * height, 2 * width)?;
    leaky_relu(&conv.forward(&x)?, 0.2)
}

/// Mean colour of the pictures that networks of attention were trained on, `(1, 3, 1, 1)`.
fn colour_mean(device: &Device, dtype: DType) -> Result<Tensor> {
    Tensor::new(&[0.4488f32, 0.4371, 0.4040], device)?
        .reshape((1, 3, 1, 1))?
        .to_dtype(dtype)
}
