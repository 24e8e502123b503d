//! Networks for faces: one that finds them, those that restore them, and one that says what belongs to them. Their files
//! have no configuration: kind and sizes are read from names and shapes.
//!
//! | Module         | Is                                                                                    |
//! |----------------|---------------------------------------------------------------------------------------|
//! | [`retinaface`] | RetinaFace: boxes and five landmarks                                                  |
//! | [`gfpgan`]     | GFPGAN of versions 1.2 to 1.4                                                         |
//! | [`codeformer`] | CodeFormer                                                                            |
//! | [`parsenet`]   | ParseNet: which pixels are skin, hair, a hat                                          |

pub mod codeformer;
pub mod gfpgan;
pub mod parsenet;
pub mod retinaface;

use super::layers::{conv, trained_norm};
use super::VarBuilder;
use crate::weights::Weights;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig};

/// What a file with a network for faces is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Finds faces.
    Detector,
    /// Says what belongs to a face.
    Parser,
    /// GFPGAN.
    Gfpgan,
    /// CodeFormer.
    CodeFormer,
}

/// Tensors by which kinds are known.
const KINDS: [(&str, Kind); 4] = [
    ("LandmarkHead.0.conv1x1.weight", Kind::Detector),
    ("out_mask_conv.conv2d.weight", Kind::Parser),
    (
        "stylegan_decoder.style_conv1.modulated_conv.weight",
        Kind::Gfpgan,
    ),
    ("position_emb", Kind::CodeFormer),
];

/// Networks that are known and not implemented, by a tensor that only they have.
const OTHERS: [(&str, &str); 4] = [
    (
        "conv_body_first.0.weight",
        "GFPGAN 1 with its own CUDA operations",
    ),
    ("conv_body_first.weight_orig", "GFPGAN with bilinear layers"),
    ("encoder.mid.attn_1.q.weight", "RestoreFormer"),
    ("cp.arm16.conv.conv.weight", "BiSeNet"),
];

impl Kind {
    /// What a file is, and its tensors under the names that the networks read.
    ///
    /// # Errors
    /// Names the kind of a network that is not implemented, or says that it is none for faces.
    pub fn of(weights: &Weights) -> std::result::Result<(Self, Weights), String> {
        let weights = super::upscale::bare(weights);
        for (name, kind) in OTHERS {
            if weights.contains(name) {
                return Err(format!("this is {kind}, which is not implemented"));
            }
        }
        match KINDS.into_iter().find(|(name, _)| weights.contains(name)) {
            Some((_, kind)) => Ok((kind, weights)),
            None => Err(
                "this is no network for faces that is known (GFPGAN, CodeFormer, RetinaFace, ParseNet)"
                    .to_string(),
            ),
        }
    }

    /// What it is, for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Detector => "RetinaFace",
            Self::Parser => "ParseNet",
            Self::Gfpgan => "GFPGAN",
            Self::CodeFormer => "CodeFormer",
        }
    }

    /// Whether it restores faces.
    pub fn restores(self) -> bool {
        matches!(self, Self::Gfpgan | Self::CodeFormer)
    }
}

/// A convolution and the batch norm behind it as one convolution.
fn conv_norm(
    (layer, norm): (VarBuilder, VarBuilder),
    (inputs, outputs): (usize, usize),
    kernel: usize,
    stride: usize,
    padding: usize,
) -> Result<Conv2d> {
    let plain = conv(layer, inputs, outputs, kernel, stride, padding)?;
    let (factor, sum) = trained_norm(&norm, outputs)?;
    let weight = plain
        .weight()
        .broadcast_mul(&factor.reshape((outputs, 1, 1, 1))?)?;
    let sum = match plain.bias() {
        Some(bias) => (sum + (bias * factor)?)?,
        None => sum,
    };
    let config = Conv2dConfig {
        stride,
        padding,
        ..Default::default()
    };
    Ok(Conv2d::new(weight, Some(sum), config))
}

/// Two convolutions with what is negative let through by a fifth between.
#[derive(Debug, Clone)]
struct Pair(Conv2d, Conv2d);

impl Pair {
    /// Layers 0 and 2.
    fn new(vb: VarBuilder, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self(
            conv(vb.pp(0), inputs, inputs, 3, 1, 1)?,
            conv(vb.pp(2), inputs, outputs, 3, 1, 1)?,
        ))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = super::layers::leaky_relu(&self.0.forward(x)?, 0.2)?;
        self.1.forward(&x)
    }
}
