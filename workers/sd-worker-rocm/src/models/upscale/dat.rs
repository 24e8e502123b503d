//! DAT (arXiv:2308.03364): attention between pixels of windows and between channels by turns, each beside a convolution.

use super::swin::Mix;
use super::tail::{matrix, Layout as TailLayout, Tail};
use super::windows::{attend, split, Window};
use super::{colour_mean, count, MOST_LAYERS};
use crate::models::layers::{
    conv, depthwise, layer_norm, linear, normalised, pixels_as_rows, rows_as_pixels, softmax,
    trained_norm, Linear,
};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{Conv2d, LayerNorm};

/// What a file's names, shapes and offsets say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    width: usize,
    /// Blocks and heads of each group.
    groups: Vec<(usize, usize)>,
    /// Of the first half of the channels; the second has it turned.
    window: Window,
    hidden: usize,
    three: bool,
    tail: TailLayout,
}

const SPATIAL: &str = "layers.0.blocks.0.attn.attns.0";

impl Layout {
    /// What a file says; `None` if it is of another kind.
    pub(super) fn of(weights: &Weights) -> Option<std::result::Result<Self, String>> {
        let offsets = format!("{SPATIAL}.rpe_biases");
        weights
            .contains(&offsets)
            .then(|| Self::read(weights, &offsets))
    }

    fn read(weights: &Weights, offsets: &str) -> std::result::Result<Self, String> {
        let (width, inputs) = matrix(weights, "conv_first")?;
        if inputs != 3 {
            return Err(format!("it takes {inputs} channels; pictures have 3"));
        }
        let window = window(weights, offsets)?;
        let count_of = count(weights, "layers");
        let depth = |i| count(weights, &format!("layers.{i}.blocks"));
        if count_of > MOST_LAYERS || (0..count_of).any(|i| depth(i) > MOST_LAYERS) {
            return Err("it has too many layers".to_string());
        }
        let heads = |i: usize| {
            let own = weights.shape(&format!("layers.{i}.blocks.1.attn.temperature"));
            let heads = match own.and_then(|shape| shape.first().copied()) {
                Some(heads) => heads,
                // Only half of them are in each half of the channels.
                None => {
                    let name = format!("layers.{i}.blocks.0.attn.attns.0.pos.pos3.2");
                    matrix(weights, &name)?.0 * 2
                }
            };
            match heads >= 2 && heads.is_multiple_of(2) && width.is_multiple_of(heads) {
                true => Ok(heads),
                false => Err(format!("{heads} heads do not fit {width} channels")),
            }
        };
        let groups = (0..count_of).map(|i| Ok((depth(i), heads(i)?)));
        Ok(Self {
            width,
            groups: groups.collect::<std::result::Result<_, String>>()?,
            window,
            hidden: matrix(weights, "layers.0.blocks.0.ffn.fc1")?.0,
            three: weights.contains("conv_after_body.4.weight"),
            tail: TailLayout::of(weights, width)?,
        })
    }

    /// Pixels that a pixel becomes, each way.
    pub fn scale(&self) -> usize {
        self.tail.scale()
    }
}

/// The windows that a list of offsets belongs to: its last is between the first and the last pixel.
fn window(weights: &Weights, offsets: &str) -> std::result::Result<Window, String> {
    const MOST: usize = 128;
    let bad = || format!("{offsets} is no list of offsets in windows");
    let count = match weights.shape(offsets).as_deref() {
        Some([count, 2]) if *count <= 4 * MOST * MOST => *count,
        _ => return Err(bad()),
    };
    let list = weights.load(offsets, DType::F32, &Device::Cpu);
    let list = list.and_then(|list| {
        list.to_vec2::<f32>()
            .map_err(worker::Error::candle("reading offsets"))
    });
    let list = list.map_err(|error| error.to_string())?;
    let last = list.last().ok_or_else(bad)?;
    let side = |offset: f32| (offset >= 0.0 && offset < MOST as f32).then(|| offset as usize + 1);
    let (Some(height), Some(width)) = (side(last[0]), side(last[1])) else {
        return Err(bad());
    };
    let window = Window { height, width };
    let fits = (2 * height - 1) * (2 * width - 1) == count;
    match fits && height.max(width).is_multiple_of(height.min(width)) {
        true => Ok(window),
        false => Err(bad()),
    }
}

/// Normalisation with the statistics of training: a factor and a sum a channel, `(1, channels, 1, 1)`.
#[derive(Debug, Clone)]
struct Trained(Tensor, Tensor);

impl Trained {
    fn new(vb: VarBuilder, width: usize) -> Result<Self> {
        let (factor, sum) = trained_norm(&vb, width)?;
        let shaped = |x: Tensor| x.reshape((1, width, 1, 1));
        Ok(Self(shaped(factor)?, shaped(sum)?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.broadcast_mul(&self.0)?.broadcast_add(&self.1)
    }
}

/// Two convolutions of one pixel with a norm and GELU between.
#[derive(Debug, Clone)]
struct Interaction(Conv2d, Trained, Conv2d);

impl Interaction {
    /// Layers are numbered from `first`.
    fn new(vb: VarBuilder, first: usize, sizes: (usize, usize, usize)) -> Result<Self> {
        let (inputs, inner, outputs) = sizes;
        Ok(Self(
            conv(vb.pp(first), inputs, inner, 1, 1, 0)?,
            Trained::new(vb.pp(first + 1), inner)?,
            conv(vb.pp(first + 3), inner, outputs, 1, 1, 0)?,
        ))
    }

    /// Shares.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.1.forward(&self.0.forward(x)?)?.gelu_erf()?;
        candle_nn::ops::sigmoid(&self.2.forward(&x)?)
    }
}

/// Attention in windows of half of the channels.
#[derive(Debug, Clone)]
struct Spatial {
    window: Window,
    /// `(1, heads, pixels, pixels)`.
    bias: Tensor,
    heads: usize,
}

/// The table of offsets: a network of them.
fn table(vb: VarBuilder, window: Window, width: usize, heads: usize) -> Result<Tensor> {
    let inner = width / 4 / 4;
    let rows = (1 - window.height as i32)..window.height as i32;
    let columns = (1 - window.width as i32)..window.width as i32;
    let places = rows.flat_map(|y| columns.clone().flat_map(move |x| [y as f32, x as f32]));
    let places: Vec<f32> = places.collect();
    let places = Tensor::from_vec(places.clone(), (places.len() / 2, 2), vb.device())?;
    let x = linear(vb.pp("pos_proj"), 2, inner)?.forward(&places.to_dtype(vb.dtype())?)?;
    let layer = |x: Tensor, name: &str, outputs: usize| {
        let vb = vb.pp(name);
        let x = layer_norm(vb.pp(0), inner, 1e-5)?.forward(&x)?.relu()?;
        linear(vb.pp(2), inner, outputs)?.forward(&x)
    };
    layer(
        layer(layer(x, "pos1", inner)?, "pos2", inner)?,
        "pos3",
        heads,
    )
}

impl Spatial {
    fn new(vb: VarBuilder, window: Window, width: usize, heads: usize) -> Result<Self> {
        let table = table(vb.pp("pos"), window, width, heads)?;
        Ok(Self {
            window,
            bias: window.bias(&table)?,
            heads,
        })
    }

    /// `q`, `k` and `v` are `(batch, height, width, channels)`.
    fn forward(&self, qkv: &[Tensor; 3], shifted: bool) -> Result<Tensor> {
        let (_, height, width, channels) = qkv[0].dims4()?;
        let by = |sign: i32| {
            let half = |side: usize| sign * (side / 2) as i32;
            (half(self.window.height), half(self.window.width))
        };
        let roll = |x: &Tensor, (y, x_by): (i32, i32)| match shifted {
            true => x.roll(y, 1)?.roll(x_by, 2),
            false => Ok(x.clone()),
        };
        let part = |x: &Tensor| split(&self.window.cut(&roll(x, by(-1))?)?, self.heads);
        let mask = match shifted {
            true => Some(self.window.borders(height, width, qkv[0].device())?),
            false => None,
        };
        let q = (part(&qkv[0])? / ((channels / self.heads) as f64).sqrt())?;
        let y = attend(
            &q,
            &part(&qkv[1])?,
            &part(&qkv[2])?,
            &self.bias,
            mask.as_ref(),
        )?;
        roll(&self.window.join(&y, (height, width))?, by(1))
    }
}

#[derive(Debug, Clone)]
enum Kind {
    /// Between pixels, and whether windows are shifted.
    Pixels([Spatial; 2], bool),
    /// Between channels of each head, with the temperature `(heads, 1, 1)`.
    Channels(Tensor, usize),
}

/// Attention beside a convolution; each says how much of the other counts.
#[derive(Debug, Clone)]
struct Attention {
    qkv: Linear,
    kind: Kind,
    convolution: (Tensor, Tensor),
    norm: Trained,
    channels: Interaction,
    pixels: Interaction,
    proj: Linear,
}

impl Attention {
    fn new(
        vb: VarBuilder,
        layout: &Layout,
        heads: usize,
        (group, i): (usize, usize),
    ) -> Result<Self> {
        let (width, window) = (layout.width, layout.window);
        let kind = match i % 2 {
            0 => {
                // Every second of them, in every second group beginning with the first.
                let shifted = if group % 2 == 0 {
                    i % 4 == 2
                } else {
                    i % 4 == 0
                };
                let turned = Window {
                    height: window.width,
                    width: window.height,
                };
                let part = |j: usize, window| {
                    Spatial::new(vb.pp("attns").pp(j), window, width / 2, heads / 2)
                };
                Kind::Pixels([part(0, window)?, part(1, turned)?], shifted)
            }
            _ => Kind::Channels(vb.get((heads, 1, 1), "temperature")?, heads),
        };
        let own = vb.pp("dwconv.0");
        Ok(Self {
            qkv: linear(vb.pp("qkv"), width, 3 * width)?,
            kind,
            convolution: (
                own.get((width, 1, 3, 3), "weight")?,
                own.get(width, "bias")?,
            ),
            norm: Trained::new(vb.pp("dwconv.1"), width)?,
            channels: Interaction::new(vb.pp("channel_interaction"), 1, (width, width / 8, width))?,
            pixels: Interaction::new(vb.pp("spatial_interaction"), 0, (width, width / 16, 1))?,
            proj: linear(vb.pp("proj"), width, width)?,
        })
    }

    fn forward(&self, x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
        let (_, _, channels) = x.dims3()?;
        let qkv = self.qkv.forward(x)?;
        let part = |i: usize| qkv.narrow(2, i * channels, channels)?.contiguous();
        let qkv = [part(0)?, part(1)?, part(2)?];
        let v = rows_as_pixels(&qkv[2], height, width)?;
        let beside = depthwise(&v, &self.convolution.0, Some(&self.convolution.1))?;
        let beside = self.norm.forward(&beside)?.gelu_erf()?;
        let (seen, beside) = match &self.kind {
            Kind::Pixels(halves, shifted) => {
                let seen = pixels(&qkv, halves, *shifted, (height, width))?;
                let seen = rows_as_pixels(&seen, height, width)?;
                let of_channels = self.channels.forward(&beside.mean_keepdim((2, 3))?)?;
                let of_pixels = self.pixels.forward(&seen)?;
                (
                    seen.broadcast_mul(&of_channels)?,
                    beside.broadcast_mul(&of_pixels)?,
                )
            }
            Kind::Channels(temperature, heads) => {
                let seen = between_channels(&qkv, temperature, *heads)?;
                let seen = rows_as_pixels(&seen, height, width)?;
                let of_channels = self.channels.forward(&seen.mean_keepdim((2, 3))?)?;
                let of_pixels = self.pixels.forward(&beside)?;
                (
                    seen.broadcast_mul(&of_pixels)?,
                    beside.broadcast_mul(&of_channels)?,
                )
            }
        };
        self.proj.forward(&pixels_as_rows(&(seen + beside)?)?)
    }
}

/// Attention in windows, `(batch, height * width, channels)`. What lacks to whole windows is zeros.
fn pixels(
    qkv: &[Tensor; 3],
    halves: &[Spatial; 2],
    shifted: bool,
    (height, width): (usize, usize),
) -> Result<Tensor> {
    let (batch, rows, channels) = qkv[0].dims3()?;
    let side = halves[0].window.height.max(halves[0].window.width);
    let more = |size: usize| size.next_multiple_of(side) - size;
    let half = |i: usize| {
        let part = |x: &Tensor| {
            x.narrow(2, i * channels / 2, channels / 2)?
                .reshape((batch, height, width, channels / 2))?
                .pad_with_zeros(1, 0, more(height))?
                .pad_with_zeros(2, 0, more(width))
        };
        let qkv = [part(&qkv[0])?, part(&qkv[1])?, part(&qkv[2])?];
        halves[i]
            .forward(&qkv, shifted)?
            .narrow(1, 0, height)?
            .narrow(2, 0, width)?
            .contiguous()?
            .reshape((batch, rows, channels / 2))
    };
    Tensor::cat(&[half(0)?, half(1)?], 2)
}

/// Attention of each head's channels to one another, `(batch, height * width, channels)`.
fn between_channels(qkv: &[Tensor; 3], temperature: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, rows, channels) = qkv[0].dims3()?;
    let part = |x: &Tensor| {
        let x = x.transpose(1, 2)?.contiguous()?;
        x.reshape((batch, heads, channels / heads, rows))
    };
    let (q, k) = (normalised(&part(&qkv[0])?)?, normalised(&part(&qkv[1])?)?);
    let scores = q.matmul(&k.t()?.contiguous()?)?;
    let seen = softmax(&scores.broadcast_mul(temperature)?)?.matmul(&part(&qkv[2])?)?;
    let seen = seen.reshape((batch, channels, rows))?;
    seen.transpose(1, 2)?.contiguous()
}

#[derive(Debug, Clone)]
struct Block {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    fc1: Linear,
    gate_norm: LayerNorm,
    gate: (Tensor, Tensor),
    fc2: Linear,
}

impl Block {
    fn new(vb: VarBuilder, layout: &Layout, heads: usize, place: (usize, usize)) -> Result<Self> {
        let (width, half) = (layout.width, layout.hidden / 2);
        let (ffn, gate) = (vb.pp("ffn"), vb.pp("ffn.sg.conv"));
        Ok(Self {
            norm1: layer_norm(vb.pp("norm1"), width, 1e-5)?,
            attn: Attention::new(vb.pp("attn"), layout, heads, place)?,
            norm2: layer_norm(vb.pp("norm2"), width, 1e-5)?,
            fc1: linear(ffn.pp("fc1"), width, 2 * half)?,
            gate_norm: layer_norm(ffn.pp("sg.norm"), half, 1e-5)?,
            gate: (
                gate.get((half, 1, 3, 3), "weight")?,
                gate.get(half, "bias")?,
            ),
            fc2: linear(ffn.pp("fc2"), half, width)?,
        })
    }

    fn forward(&self, x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
        let size = (height, width);
        let x = (x + self.attn.forward(&self.norm1.forward(x)?, size)?)?;
        let y = self.fc1.forward(&self.norm2.forward(&x)?)?.gelu_erf()?;
        let halves = y.chunk(2, 2)?;
        let gate = self.gate_norm.forward(&halves[1].contiguous()?)?;
        let gate = depthwise(
            &rows_as_pixels(&gate, height, width)?,
            &self.gate.0,
            Some(&self.gate.1),
        )?;
        x + self.fc2.forward(&(&halves[0] * pixels_as_rows(&gate)?)?)?
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Dat {
    first: Conv2d,
    norm_at_start: LayerNorm,
    groups: Vec<(Vec<Block>, Mix)>,
    norm: LayerNorm,
    after: Mix,
    tail: Tail,
    mean: Tensor,
}

impl Dat {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let width = layout.width;
        let group = |(i, (depth, heads)): (usize, &(usize, usize))| {
            let vb = vb.pp("layers").pp(i);
            let blocks =
                (0..*depth).map(|j| Block::new(vb.pp("blocks").pp(j), layout, *heads, (i, j)));
            let blocks = blocks.collect::<Result<_>>()?;
            Ok((blocks, Mix::new(vb.pp("conv"), width, layout.three)?))
        };
        let groups = layout.groups.iter().enumerate();
        Ok(Self {
            first: conv(vb.pp("conv_first"), 3, width, 3, 1, 1)?,
            norm_at_start: layer_norm(vb.pp("before_RG.1"), width, 1e-5)?,
            groups: groups.map(group).collect::<Result<_>>()?,
            norm: layer_norm(vb.pp("norm"), width, 1e-5)?,
            after: Mix::new(vb.pp("conv_after_body"), width, layout.three)?,
            tail: Tail::new(vb.clone(), &layout.tail)?,
            mean: colour_mean(vb.device(), vb.dtype())?,
        })
    }

    /// See [`super::Upscaler::forward`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let first = self.first.forward(&x.broadcast_sub(&self.mean)?)?;
        let mut x = self.norm_at_start.forward(&pixels_as_rows(&first)?)?;
        for (blocks, mix) in &self.groups {
            let mut y = x.clone();
            for block in blocks {
                y = block.forward(&y, (height, width))?;
            }
            let y = mix.forward(&rows_as_pixels(&y, height, width)?)?;
            x = (x + pixels_as_rows(&y)?)?;
        }
        let x = rows_as_pixels(&self.norm.forward(&x)?, height, width)?;
        let x = self.tail.forward(&(self.after.forward(&x)? + first)?)?;
        x.broadcast_add(&self.mean)
    }
}
