//! How networks that look at small pictures give large ones at their end.

use super::{count, doubled, MOST_LAYERS};
use crate::models::layers::{conv, leaky_relu};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// Height and width of a convolution or matrix in a file: what it gives, and what it takes.
pub(super) fn matrix(weights: &Weights, name: &str) -> std::result::Result<(usize, usize), String> {
    match weights.shape(&format!("{name}.weight")).as_deref() {
        Some([outputs, inputs, ..]) => Ok((*outputs, *inputs)),
        _ => Err(format!("{name}.weight is missing or no matrix")),
    }
}

/// How pixels become more.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Enlarge {
    /// Channels become pixels, by each of these factors.
    Shuffle(Vec<usize>),
    /// The same in one layer, without one before it.
    ShuffleAtOnce(usize),
    /// Nearest pixels, so many doublings.
    Nearest(usize),
    /// Not at all: what is wrong with the picture is learnt.
    None,
}

/// What a file's names and shapes say of the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    enlarge: Enlarge,
    /// Channels before.
    width: usize,
    /// Channels while pixels become more.
    features: usize,
}

impl Layout {
    /// Reads `conv_before_upsample`, `upsample`, `conv_up1`, `conv_up2`, behind `width` channels.
    ///
    /// # Errors
    /// If they are no known end.
    pub fn of(weights: &Weights, width: usize) -> std::result::Result<Self, String> {
        let squared = |channels: usize, each: usize| {
            let scale = (1..=8).find(|scale| scale * scale * each == channels);
            scale.ok_or_else(|| format!("{channels} channels of {each} are no scale"))
        };
        let (mut features, mut enlarge) = (width, Enlarge::None);
        if weights.contains("conv_before_upsample.0.weight") {
            features = matrix(weights, "conv_before_upsample.0")?.0;
            enlarge = match weights.contains("conv_up1.weight") {
                true => Enlarge::Nearest(1 + usize::from(weights.contains("conv_up2.weight"))),
                false => {
                    let layers = count(weights, "upsample").min(MOST_LAYERS);
                    let factors = (0..layers).filter_map(|i| {
                        let (channels, _) = matrix(weights, &format!("upsample.{i}")).ok()?;
                        Some(squared(channels, features))
                    });
                    Enlarge::Shuffle(factors.collect::<std::result::Result<_, _>>()?)
                }
            };
        } else if weights.contains("upsample.0.weight") {
            enlarge = Enlarge::ShuffleAtOnce(squared(matrix(weights, "upsample.0")?.0, 3)?);
        }
        let layout = Self {
            enlarge,
            width,
            features,
        };
        match layout.scale() {
            1..=8 => Ok(layout),
            scale => Err(format!("a scale of {scale} is too much")),
        }
    }

    /// Pixels that a pixel becomes, each way.
    pub fn scale(&self) -> usize {
        match &self.enlarge {
            Enlarge::Shuffle(factors) => factors.iter().product(),
            Enlarge::ShuffleAtOnce(scale) => *scale,
            Enlarge::Nearest(doublings) => 1 << doublings,
            Enlarge::None => 1,
        }
    }

    /// Whether the network learns what is added to its picture.
    pub fn mends(&self) -> bool {
        self.enlarge == Enlarge::None
    }

    /// Channels while pixels become more.
    pub fn features(&self) -> usize {
        self.features
    }
}

/// The end.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    layout: Layout,
    before: Option<Conv2d>,
    enlarge: Vec<Conv2d>,
    high: Option<Conv2d>,
    last: Option<Conv2d>,
}

impl Tail {
    /// Builds it.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let features = layout.features;
        let wide = |vb: VarBuilder, outputs| conv(vb, features, outputs, 3, 1, 1);
        let before = || {
            let vb = vb.pp("conv_before_upsample.0");
            conv(vb, layout.width, features, 3, 1, 1)
        };
        let last = || wide(vb.pp("conv_last"), 3).map(Some);
        let mut tail = Self {
            layout: layout.clone(),
            before: None,
            enlarge: Vec::new(),
            high: None,
            last: None,
        };
        match &layout.enlarge {
            Enlarge::Shuffle(factors) => {
                (tail.before, tail.last) = (Some(before()?), last()?);
                for (i, factor) in factors.iter().enumerate() {
                    // Every second layer has no weights.
                    let layer = wide(vb.pp("upsample").pp(2 * i), features * factor * factor)?;
                    tail.enlarge.push(layer);
                }
            }
            Enlarge::ShuffleAtOnce(scale) => {
                tail.enlarge = vec![wide(vb.pp("upsample.0"), 3 * scale * scale)?];
            }
            Enlarge::Nearest(doublings) => {
                (tail.before, tail.last) = (Some(before()?), last()?);
                tail.high = Some(wide(vb.pp("conv_hr"), features)?);
                for i in 1..=*doublings {
                    tail.enlarge
                        .push(wide(vb.pp(format!("conv_up{i}")), features)?);
                }
            }
            Enlarge::None => tail.last = last()?,
        }
        Ok(tail)
    }

    /// Channels `(batch, width, height, width)` as colours, [`Layout::scale`] times as large.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.before(x)?;
        self.after(&self.enlarged(x)?)
    }

    /// The channels that become pixels.
    pub fn before(&self, x: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(before) => leaky_relu(&before.forward(x)?, 0.01),
            None => Ok(x.clone()),
        }
    }

    /// More pixels of as many channels.
    pub fn enlarged(&self, mut x: Tensor) -> Result<Tensor> {
        for (i, layer) in self.enlarge.iter().enumerate() {
            x = match &self.layout.enlarge {
                Enlarge::Shuffle(factors) => {
                    candle_nn::ops::pixel_shuffle(&layer.forward(&x)?, factors[i])?
                }
                Enlarge::ShuffleAtOnce(scale) => {
                    candle_nn::ops::pixel_shuffle(&layer.forward(&x)?, *scale)?
                }
                _ => doubled(layer, &x)?,
            };
        }
        Ok(x)
    }

    /// Their colours.
    pub fn after(&self, x: &Tensor) -> Result<Tensor> {
        match (&self.high, &self.last) {
            (Some(high), Some(last)) => last.forward(&leaky_relu(&high.forward(x)?, 0.2)?),
            (_, Some(last)) => last.forward(x),
            _ => Ok(x.clone()),
        }
    }
}
