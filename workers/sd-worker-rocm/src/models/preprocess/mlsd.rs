//! M-LSD (arXiv:2106.00186): straight lines, by where their middles are and how far their ends are from there.

use super::layers::{channels, conv_of_file, BatchNorm, Depthwise};
use crate::editing::resample::Resample;
use crate::models::layers::conv;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig};

/// Of the batch norms.
const EPS: f64 = 1e-5;

/// Widening, blocks and first stride of each group of the network that looks first.
const GROUPS: [(usize, usize, usize); 5] = [(1, 1, 1), (6, 2, 2), (6, 3, 2), (6, 4, 2), (6, 3, 1)];

/// The name by which a file is known.
pub const MARK: &str = "backbone.features.0.0.weight";

/// Channels of the maps that are of use, behind as many that only training needs.
pub const MAPS: usize = 9;
const UNUSED: usize = 7;

/// A convolution with the file's channels, and a batch norm.
#[derive(Debug, Clone)]
struct Normed {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Normed {
    fn new(vb: &VarBuilder, at: usize, inputs: usize) -> Result<Self> {
        let conv = conv_of_file(vb.pp(at), inputs)?;
        let norm = BatchNorm::new(vb.pp(at + 1), channels(&conv), EPS)?;
        Ok(Self { conv, norm })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?)
    }

    fn channels(&self) -> usize {
        channels(&self.conv)
    }
}

/// A convolution of each channel, which may halve the picture, and a batch norm.
#[derive(Debug, Clone)]
struct Each {
    conv: Depthwise,
    norm: BatchNorm,
    stride: usize,
}

/// Widens, looks around, narrows.
#[derive(Debug, Clone)]
struct Inverted {
    widen: Option<Normed>,
    each: Each,
    narrow: Normed,
    residual: bool,
}

impl Inverted {
    fn new(vb: VarBuilder, inputs: usize, widening: usize, stride: usize) -> Result<Self> {
        let vb = vb.pp("conv");
        let widen = match widening {
            1 => None,
            _ => Some(Normed::new(&vb.pp(0), 0, inputs)?),
        };
        let width = widen.as_ref().map_or(inputs, Normed::channels);
        let at = usize::from(widen.is_some());
        let each = vb.pp(at);
        let narrow = Normed::new(&vb, at + 1, width)?;
        Ok(Self {
            each: Each {
                conv: Depthwise::new(each.pp(0), width, 3)?,
                norm: BatchNorm::new(each.pp(1), width, EPS)?,
                stride,
            },
            widen,
            residual: stride == 1 && narrow.channels() == inputs,
            narrow,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut h = x.clone();
        if let Some(widen) = &self.widen {
            h = widen.forward(&h)?.clamp(0f32, 6f32)?;
        }
        h = self.each.conv.forward(&h)?;
        if self.each.stride == 2 {
            // The original pads below and on the right only: what it sees around a pixel is around the next one here.
            h = odd(&h)?;
        }
        h = self.each.norm.forward(&h)?.clamp(0f32, 6f32)?;
        h = self.narrow.forward(&h)?;
        match self.residual {
            true => x + h,
            false => Ok(h),
        }
    }
}

/// Every second pixel, from the second on.
fn odd(x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for dim in [2, 3] {
        let size = x.dim(dim)?;
        let ids: Vec<u32> = (0..size / 2).map(|i| 2 * i as u32 + 1).collect();
        x = x.index_select(&Tensor::new(ids, x.device())?, dim)?;
    }
    Ok(x)
}

/// Joins what was seen in a larger and in a smaller size.
#[derive(Debug, Clone)]
struct Join {
    small: Normed,
    large: Normed,
    /// With and without a residual connection.
    mix: [Normed; 2],
}

impl Join {
    fn new(vb: &VarBuilder, at: usize, large: usize, small: usize) -> Result<Self> {
        let block = |at: usize| vb.pp(format!("block{at}"));
        let small = Normed::new(&block(at).pp("conv1"), 0, small)?;
        let large = Normed::new(&block(at).pp("conv2"), 0, large)?;
        let both = small.channels() + large.channels();
        let mix = block(at + 1);
        Ok(Self {
            small,
            large,
            mix: [
                Normed::new(&mix.pp("conv1"), 0, both)?,
                Normed::new(&mix.pp("conv2"), 0, both)?,
            ],
        })
    }

    fn forward(&self, large: &Tensor, small: &Tensor) -> Result<Tensor> {
        let large = self.large.forward(large)?.relu()?;
        let small = self.small.forward(small)?.relu()?;
        let (_, _, height, width) = large.dims4()?;
        let small = Resample::Corners.apply(&small, height, width)?;
        let x = Tensor::cat(&[&large, &small], 1)?;
        let x = (self.mix[0].forward(&x)?.relu()? + x)?;
        self.mix[1].forward(&x)?.relu()
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Mlsd {
    first: (Conv2d, BatchNorm),
    groups: Vec<Vec<Inverted>>,
    joins: Vec<Join>,
    wide: (Conv2d, BatchNorm),
    last: Normed,
    maps: Conv2d,
}

impl Mlsd {
    /// Reads the original's names; widths are those of the file.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let features = vb.pp("backbone.features");
        let first = features.pp(0);
        let weight = first.pp(0).get_unchecked("weight")?;
        let mut inputs = weight.dims().first().copied().unwrap_or(0);
        let first = (
            conv(first.pp(0), 4, inputs, 3, 2, 0)?,
            BatchNorm::new(first.pp(1), inputs, EPS)?,
        );
        let mut at = 1;
        let (mut groups, mut widths) = (Vec::new(), Vec::new());
        for (widening, blocks, stride) in GROUPS {
            let mut group = Vec::with_capacity(blocks);
            for block in 0..blocks {
                let stride = if block == 0 { stride } else { 1 };
                let made = Inverted::new(features.pp(at), inputs, widening, stride)?;
                inputs = made.narrow.channels();
                group.push(made);
                at += 1;
            }
            groups.push(group);
            widths.push(inputs);
        }
        let mut joins: Vec<Join> = Vec::new();
        for (i, at) in [15, 17, 19, 21].into_iter().enumerate() {
            let small = joins
                .last()
                .map_or(widths[4], |join| join.mix[1].channels());
            joins.push(Join::new(&vb, at, widths[3 - i], small)?);
        }
        let width = joins.last().map_or(0, |join| join.mix[1].channels());
        let block = vb.pp("block23");
        let wide = block.pp("conv1.0").get((width, width, 3, 3), "weight")?;
        let config = Conv2dConfig {
            padding: 5,
            dilation: 5,
            ..Default::default()
        };
        Ok(Self {
            first,
            groups,
            joins,
            wide: (
                Conv2d::new(wide, Some(block.get(width, "conv1.0.bias")?), config),
                BatchNorm::new(block.pp("conv1.1"), width, EPS)?,
            ),
            last: Normed::new(&block.pp("conv2"), 0, width)?,
            maps: conv(block.pp("conv3"), width, UNUSED + MAPS, 1, 1, 0)?,
        })
    }

    /// Maps `(1, 9, height / 2, width / 2)`: of lines' middles, before the sigmoid, then of how far their first and
    /// their second end are from there, across and down; of `(1, 4, height, width)` in -1..1, whose last channel is as
    /// if it were 1 of 255. Sides are multiples of 16.
    ///
    /// # Errors
    /// If they are not, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        if height % 16 != 0 || width % 16 != 0 || height * width == 0 {
            candle_core::bail!("lines of {width} x {height} pixels: multiples of 16 are wanted")
        }
        let (conv, norm) = &self.first;
        let padded = x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?;
        let mut x = norm.forward(&conv.forward(&padded.contiguous()?)?)?;
        x = x.clamp(0f32, 6f32)?;
        let mut seen = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            for block in group {
                x = block.forward(&x)?;
            }
            seen.push(x.clone());
        }
        for (i, join) in self.joins.iter().enumerate() {
            x = join.forward(&seen[3 - i], &x)?;
        }
        let (conv, norm) = &self.wide;
        let x = norm.forward(&conv.forward(&x)?)?.relu()?;
        let x = self.last.forward(&x)?.relu()?;
        self.maps.forward(&x)?.narrow(1, UNUSED, MAPS)
    }
}
