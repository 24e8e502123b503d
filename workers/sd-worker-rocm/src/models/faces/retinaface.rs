//! RetinaFace (arXiv:1905.00641): boxes and landmarks of faces, from features of three sizes. Behind MobileNet (a quarter
//! as wide) or ResNet.

use super::conv_norm;
use crate::models::layers::{conv, depthwise, leaky_relu, trained_norm};
use crate::models::upscale::{count, MOST_LAYERS};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Device, Module, Result, Tensor};
use candle_nn::Conv2d;

/// Faces that each place is asked for.
pub const FACES: usize = 2;

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    body: Body,
    /// Channels of the features that faces are found in.
    width: usize,
    /// Channels of the three sizes that they are made of.
    inputs: [usize; 3],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    /// Inputs and outputs of each layer of three stages.
    Mobile([Vec<(usize, usize)>; 3]),
    /// Channels of the first layer; for each of four stages inner and outer channels and blocks.
    Residual(usize, [(usize, usize, usize); 4]),
}

impl Layout {
    /// What a file's names and shapes say.
    ///
    /// # Errors
    /// If they are those of no RetinaFace.
    pub fn of(weights: &Weights) -> std::result::Result<Self, String> {
        let sizes = |name: &str| match weights.shape(name).as_deref() {
            Some([outputs, inputs, _, _]) => Ok((*outputs, *inputs)),
            _ => Err(format!("{name} is missing or no convolution")),
        };
        let bounded = |prefix: &str| match count(weights, prefix) {
            count if (1..=MOST_LAYERS).contains(&count) => Ok(count),
            count => Err(format!("{prefix} has {count} layers")),
        };
        let input = |i: usize| sizes(&format!("fpn.output{i}.0.weight"));
        let (width, _) = input(1)?;
        if !width.is_multiple_of(4) {
            return Err(format!("{width} channels cannot be quartered"));
        }
        let body = match weights.contains("body.stage1.0.0.weight") {
            true => {
                let stage = |i: usize| {
                    let layer = |j: usize| {
                        // The first of all is a plain convolution.
                        let name = match (i, j) {
                            (1, 0) => "body.stage1.0.0.weight".to_string(),
                            _ => format!("body.stage{i}.{j}.3.weight"),
                        };
                        sizes(&name).map(|(outputs, inputs)| (inputs, outputs))
                    };
                    (0..bounded(&format!("body.stage{i}"))?)
                        .map(layer)
                        .collect::<std::result::Result<Vec<_>, String>>()
                };
                Body::Mobile([stage(1)?, stage(2)?, stage(3)?])
            }
            false => {
                let stage = |i: usize| {
                    let (inner, _) = sizes(&format!("body.layer{i}.0.conv1.weight"))?;
                    let (outer, _) = sizes(&format!("body.layer{i}.0.conv3.weight"))?;
                    Ok::<_, String>((inner, outer, bounded(&format!("body.layer{i}"))?))
                };
                let (first, _) = sizes("body.conv1.weight")?;
                Body::Residual(first, [stage(1)?, stage(2)?, stage(3)?, stage(4)?])
            }
        };
        Ok(Self {
            body,
            width,
            inputs: [input(1)?.1, input(2)?.1, input(3)?.1],
        })
    }
}

/// What is negative counts this much behind layers of so many channels.
fn slope(width: usize) -> f64 {
    if width <= 64 {
        0.1
    } else {
        0.0
    }
}

/// A convolution, the norm behind it, and by how much what is negative is let through; `None` lets all through.
#[derive(Debug, Clone)]
struct Layer(Conv2d, Option<f64>);

impl Layer {
    /// Of 3 x 3 or one pixel.
    fn new(
        vb: VarBuilder,
        sizes: (usize, usize),
        kernel: usize,
        stride: usize,
        slope: Option<f64>,
    ) -> Result<Self> {
        let layer = conv_norm((vb.pp(0), vb.pp(1)), sizes, kernel, stride, kernel / 2)?;
        Ok(Self(layer, slope))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.0.forward(x)?;
        match self.1 {
            Some(slope) => leaky_relu(&x, slope),
            None => Ok(x),
        }
    }
}

/// A convolution of each channel, then one between channels.
#[derive(Debug, Clone)]
struct Separable {
    each: (Tensor, Tensor),
    half: bool,
    between: Conv2d,
}

impl Separable {
    fn new(vb: VarBuilder, (inputs, outputs): (usize, usize), half: bool) -> Result<Self> {
        let weight = vb.get((inputs, 1, 3, 3), "0.weight")?;
        let (factor, sum) = trained_norm(&vb.pp(1), inputs)?;
        let weight = weight.broadcast_mul(&factor.reshape((inputs, 1, 1, 1))?)?;
        Ok(Self {
            each: (weight, sum),
            half,
            between: conv_norm((vb.pp(3), vb.pp(4)), (inputs, outputs), 1, 1, 0)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = depthwise(x, &self.each.0, Some(&self.each.1))?;
        if self.half {
            for dim in [2, 3] {
                y = y.index_select(&every_second(y.dim(dim)?, y.device())?, dim)?;
            }
        }
        let y = self.between.forward(&leaky_relu(&y, 0.1)?)?;
        leaky_relu(&y, 0.1)
    }
}

fn every_second(size: usize, device: &Device) -> Result<Tensor> {
    let ids: Vec<u32> = (0..size as u32).step_by(2).collect();
    Tensor::new(ids, device)
}

/// Three convolutions beside a shortcut.
#[derive(Debug, Clone)]
struct Bottleneck {
    layers: [Conv2d; 3],
    shortcut: Option<Conv2d>,
}

impl Bottleneck {
    fn new(
        vb: VarBuilder,
        inputs: usize,
        (inner, outer): (usize, usize),
        stride: usize,
    ) -> Result<Self> {
        let layer = |i: usize, sizes, kernel: usize, stride| {
            let names = (vb.pp(format!("conv{i}")), vb.pp(format!("bn{i}")));
            conv_norm(names, sizes, kernel, stride, kernel / 2)
        };
        let beside = vb.pp("downsample");
        Ok(Self {
            layers: [
                layer(1, (inputs, inner), 1, 1)?,
                layer(2, (inner, inner), 3, stride)?,
                layer(3, (inner, outer), 1, 1)?,
            ],
            shortcut: match beside.contains_tensor("0.weight") {
                true => {
                    let names = (beside.pp(0), beside.pp(1));
                    Some(conv_norm(names, (inputs, outer), 1, stride, 0)?)
                }
                false => None,
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [a, b, c] = &self.layers;
        let y = c.forward(&b.forward(&a.forward(x)?.relu()?)?.relu()?)?;
        match &self.shortcut {
            Some(shortcut) => (y + shortcut.forward(x)?)?.relu(),
            None => (y + x)?.relu(),
        }
    }
}

#[derive(Debug, Clone)]
enum Features {
    Mobile(Layer, [Vec<Separable>; 3]),
    Residual(Conv2d, [Vec<Bottleneck>; 4]),
}

impl Features {
    fn new(vb: VarBuilder, body: &Body) -> Result<Self> {
        match body {
            Body::Mobile(stages) => {
                let stage = |i: usize| {
                    let layers = stages[i].iter().enumerate().skip(usize::from(i == 0));
                    let layer = |(j, sizes): (usize, &(usize, usize))| {
                        // The first stage halves three times, the others once, at their beginning.
                        let half = if i == 0 { j == 2 || j == 4 } else { j == 0 };
                        let vb = vb.pp(format!("stage{}", i + 1)).pp(j);
                        Separable::new(vb, *sizes, half)
                    };
                    layers.map(layer).collect::<Result<Vec<_>>>()
                };
                let first = Layer::new(vb.pp("stage1.0"), stages[0][0], 3, 2, Some(0.1))?;
                Ok(Self::Mobile(first, [stage(0)?, stage(1)?, stage(2)?]))
            }
            Body::Residual(first, stages) => {
                let stage = |i: usize| {
                    let (inner, outer, count) = stages[i];
                    let before = if i == 0 { *first } else { stages[i - 1].1 };
                    let block = |j: usize| {
                        let inputs = if j == 0 { before } else { outer };
                        let stride = if i > 0 && j == 0 { 2 } else { 1 };
                        let vb = vb.pp(format!("layer{}", i + 1)).pp(j);
                        Bottleneck::new(vb, inputs, (inner, outer), stride)
                    };
                    (0..count).map(block).collect::<Result<Vec<_>>>()
                };
                let names = (vb.pp("conv1"), vb.pp("bn1"));
                Ok(Self::Residual(
                    conv_norm(names, (3, *first), 7, 2, 3)?,
                    [stage(0)?, stage(1)?, stage(2)?, stage(3)?],
                ))
            }
        }
    }

    /// An eighth, a sixteenth and a thirty-second of the picture's size.
    fn forward(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        match self {
            Self::Mobile(first, [a, b, c]) => {
                let through = |x: Tensor, stage: &[Separable]| {
                    stage.iter().try_fold(x, |x, layer| layer.forward(&x))
                };
                let a = through(first.forward(x)?, a)?;
                let b = through(a.clone(), b)?;
                let c = through(b.clone(), c)?;
                Ok([a, b, c])
            }
            Self::Residual(first, [a, b, c, d]) => {
                let through = |x: Tensor, stage: &[Bottleneck]| {
                    stage.iter().try_fold(x, |x, block| block.forward(&x))
                };
                // Nothing is negative, so zeros around change no maximum.
                let x = first.forward(x)?.relu()?;
                let x = x.pad_with_zeros(2, 1, 1)?.pad_with_zeros(3, 1, 1)?;
                let x = through(x.max_pool2d_with_stride((3, 3), (2, 2))?, a)?;
                let b = through(x, b)?;
                let c = through(b.clone(), c)?;
                let d = through(c.clone(), d)?;
                Ok([b, c, d])
            }
        }
    }
}

/// Features that see different distances.
#[derive(Debug, Clone)]
struct Context([Layer; 5]);

impl Context {
    fn new(vb: VarBuilder, width: usize) -> Result<Self> {
        let layer = |name: &str, inputs, part: usize, slope| {
            Layer::new(vb.pp(name), (inputs, width / part), 3, 1, slope)
        };
        let leaky = Some(slope(width));
        Ok(Self([
            layer("conv3X3", width, 2, None)?,
            layer("conv5X5_1", width, 4, leaky)?,
            layer("conv5X5_2", width / 4, 4, None)?,
            layer("conv7X7_2", width / 4, 4, leaky)?,
            layer("conv7x7_3", width / 4, 4, None)?,
        ]))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [near, first, middle, second, far] = &self.0;
        let first = first.forward(x)?;
        let far = far.forward(&second.forward(&first)?)?;
        Tensor::cat(&[near.forward(x)?, middle.forward(&first)?, far], 1)?.relu()
    }
}

/// What is found, a row a face that is asked for: the first size's places row by row, then the next's.
#[derive(Debug, Clone)]
pub struct Found {
    /// `(faces, 4)`: offset of the middle and logarithm of the size, by those asked for.
    pub boxes: Tensor,
    /// `(faces, 2)`: none and face, before the softmax.
    pub scores: Tensor,
    /// `(faces, 10)`: offsets of eyes, nose and corners of the mouth.
    pub landmarks: Tensor,
}

/// The network.
#[derive(Debug, Clone)]
pub struct RetinaFace {
    body: Features,
    outputs: [Layer; 3],
    merge: [Layer; 2],
    contexts: [Context; 3],
    scores: Vec<Conv2d>,
    boxes: Vec<Conv2d>,
    landmarks: Vec<Conv2d>,
}

impl RetinaFace {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let width = layout.width;
        let leaky = Some(slope(width));
        let output = |i: usize| {
            let vb = vb.pp(format!("fpn.output{}", i + 1));
            Layer::new(vb, (layout.inputs[i], width), 1, 1, leaky)
        };
        let merge = |i: usize| {
            let vb = vb.pp(format!("fpn.merge{i}"));
            Layer::new(vb, (width, width), 3, 1, leaky)
        };
        let context = |i: usize| Context::new(vb.pp(format!("ssh{i}")), width);
        let heads = |name: &str, numbers: usize| {
            let head = |i: usize| {
                let vb = vb.pp(name).pp(i).pp("conv1x1");
                conv(vb, width, FACES * numbers, 1, 1, 0)
            };
            (0..3).map(head).collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            body: Features::new(vb.pp("body"), &layout.body)?,
            outputs: [output(0)?, output(1)?, output(2)?],
            merge: [merge(1)?, merge(2)?],
            contexts: [context(1)?, context(2)?, context(3)?],
            scores: heads("ClassHead", 2)?,
            boxes: heads("BboxHead", 4)?,
            landmarks: heads("LandmarkHead", 10)?,
        })
    }

    /// Faces of a picture `(1, 3, height, width)`, blue first, mean colours taken off.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Found> {
        let features = self.body.forward(x)?;
        let [near, middle, far] = &self.outputs;
        let (near, middle, far) = (
            near.forward(&features[0])?,
            middle.forward(&features[1])?,
            far.forward(&features[2])?,
        );
        let onto = |x: &Tensor, larger: &Tensor| {
            let (_, _, height, width) = larger.dims4()?;
            larger + x.upsample_nearest2d(height, width)?
        };
        let middle = self.merge[1].forward(&onto(&far, &middle)?)?;
        let near = self.merge[0].forward(&onto(&middle, &near)?)?;
        let [a, b, c] = &self.contexts;
        let features = [a.forward(&near)?, b.forward(&middle)?, c.forward(&far)?];
        let rows = |heads: &[Conv2d], numbers: usize| {
            let rows = heads.iter().zip(&features).map(|(head, x)| {
                let x = head.forward(x)?.permute((0, 2, 3, 1))?.contiguous()?;
                x.reshape((x.elem_count() / numbers, numbers))
            });
            Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
        };
        Ok(Found {
            boxes: rows(&self.boxes, 4)?,
            scores: rows(&self.scores, 2)?,
            landmarks: rows(&self.landmarks, 10)?,
        })
    }
}
