//! SwinIR (arXiv:2108.10257): windows of attention, every second one shifted.

use super::{count, doubled, MOST_LAYERS};
use crate::models::layers::{
    conv, extended, layer_norm, leaky_relu, linear, pixels_as_rows, rows_as_pixels, softmax, Linear,
};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Device, Module, Result, Tensor};
use candle_nn::{Conv2d, LayerNorm};

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

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    width: usize,
    /// Blocks of each group.
    depths: Vec<usize>,
    heads: usize,
    window: usize,
    hidden: usize,
    /// Three convolutions at a group's end in place of one.
    three: bool,
    norm_at_start: bool,
    enlarge: Enlarge,
    /// Channels before pixels are enlarged.
    features: usize,
}

const BLOCK: &str = "layers.0.residual_group.blocks.0";

impl Layout {
    /// What a file's names and shapes say; `None` if it is of another kind.
    pub(super) fn of(weights: &Weights) -> Option<std::result::Result<Self, String>> {
        let table = weights.shape(&format!("{BLOCK}.attn.relative_position_bias_table"))?;
        Some(Self::read(weights, &table))
    }

    fn read(weights: &Weights, table: &[usize]) -> std::result::Result<Self, String> {
        let shape = |name: &str| match weights.shape(&format!("{name}.weight")).as_deref() {
            Some([outputs, inputs, ..]) => Ok((*outputs, *inputs)),
            _ => Err(format!("{name}.weight is missing or no matrix")),
        };
        let (width, inputs) = shape("conv_first")?;
        if inputs != 3 {
            return Err(format!("it takes {inputs} channels; pictures have 3"));
        }
        if weights.contains("absolute_pos_embed") {
            return Err("absolute_pos_embed is not implemented".to_string());
        }
        let (offsets, heads) = match table {
            [offsets, heads] => (*offsets, *heads),
            _ => return Err("relative_position_bias_table is no matrix".to_string()),
        };
        let window = (1..=64).find(|w| (2 * w - 1) * (2 * w - 1) == offsets);
        let window = window.ok_or_else(|| format!("{offsets} offsets are no window's"))?;
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(format!("{heads} heads do not divide {width} channels"));
        }
        let groups = count(weights, "layers");
        let depth = |i| count(weights, &format!("layers.{i}.residual_group.blocks"));
        if groups > MOST_LAYERS || (0..groups).any(|i| depth(i) > MOST_LAYERS) {
            return Err("it has too many layers".to_string());
        }
        let (hidden, _) = shape(&format!("{BLOCK}.mlp.fc1"))?;
        let squared = |channels: usize, each: usize| {
            let scale = (1..=8).find(|scale| scale * scale * each == channels);
            scale.ok_or_else(|| format!("{channels} channels of {each} are no scale"))
        };
        let (mut features, mut enlarge) = (width, Enlarge::None);
        if weights.contains("conv_before_upsample.0.weight") {
            features = shape("conv_before_upsample.0")?.0;
            enlarge = match weights.contains("conv_up1.weight") {
                true => Enlarge::Nearest(1 + usize::from(weights.contains("conv_up2.weight"))),
                false => {
                    let layers = count(weights, "upsample").min(MOST_LAYERS);
                    let factors = (0..layers).filter_map(|i| {
                        let (channels, _) = shape(&format!("upsample.{i}")).ok()?;
                        Some(squared(channels, features))
                    });
                    Enlarge::Shuffle(factors.collect::<std::result::Result<_, _>>()?)
                }
            };
        } else if weights.contains("upsample.0.weight") {
            enlarge = Enlarge::ShuffleAtOnce(squared(shape("upsample.0")?.0, 3)?);
        }
        let layout = Self {
            width,
            depths: (0..groups).map(depth).collect(),
            heads,
            window,
            hidden,
            three: weights.contains("conv_after_body.4.weight"),
            norm_at_start: weights.contains("patch_embed.norm.weight"),
            enlarge,
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
}

/// One convolution, or three with the middle narrower.
#[derive(Debug, Clone)]
struct Mix(Vec<Conv2d>);

impl Mix {
    fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let (width, narrow) = (layout.width, layout.width / 4);
        Ok(Self(match layout.three {
            false => vec![conv(vb, width, width, 3, 1, 1)?],
            true => vec![
                conv(vb.pp(0), width, narrow, 3, 1, 1)?,
                conv(vb.pp(2), narrow, narrow, 1, 1, 0)?,
                conv(vb.pp(4), narrow, width, 3, 1, 1)?,
            ],
        }))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for (i, layer) in self.0.iter().enumerate() {
            if i > 0 {
                x = leaky_relu(&x, 0.2)?;
            }
            x = layer.forward(&x)?;
        }
        Ok(x)
    }
}

/// Rows of the table of offsets for each pair of a window's pixels.
fn offsets(window: usize, device: &Device) -> Result<Tensor> {
    let pixels = window * window;
    let side = 2 * window - 1;
    let index = |i: usize| {
        let (a, b) = (i / pixels, i % pixels);
        let dy = a / window + window - 1 - b / window;
        let dx = a % window + window - 1 - b % window;
        (dy * side + dx) as u32
    };
    let ids = (0..pixels * pixels).map(index).collect();
    Tensor::from_vec(ids, pixels * pixels, device)
}

/// What a shifted window's pixels may not see: `(windows, 1, pixels, pixels)`, 0 or -100. The shift brings pixels from
/// the far side into the last windows; they are no neighbours.
fn borders(height: usize, width: usize, window: usize, device: &Device) -> Result<Tensor> {
    let shift = window / 2;
    let part = |i: usize, size: usize| match size - i {
        left if left > window => 0,
        left if left > shift => 1,
        _ => 2,
    };
    let (rows, columns, pixels) = (height / window, width / window, window * window);
    let mut values = Vec::with_capacity(rows * columns * pixels * pixels);
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
        let place = |i: usize| {
            let (y, x) = (row * window + i / window, column * window + i % window);
            3 * part(y, height) + part(x, width)
        };
        let places: Vec<usize> = (0..pixels).map(place).collect();
        for a in &places {
            values.extend(places.iter().map(|b| if a == b { 0f32 } else { -100.0 }));
        }
    }
    Tensor::from_vec(values, (rows * columns, 1, pixels, pixels), device)
}

#[derive(Debug, Clone)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    /// `(1, heads, pixels, pixels)`.
    bias: Tensor,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    heads: usize,
    window: usize,
    shifted: bool,
}

impl Block {
    fn new(vb: VarBuilder, layout: &Layout, shifted: bool) -> Result<Self> {
        let Layout {
            width,
            heads,
            window,
            hidden,
            ..
        } = *layout;
        let attn = vb.pp("attn");
        let side = 2 * window - 1;
        let table = attn.get((side * side, heads), "relative_position_bias_table")?;
        let pixels = window * window;
        let bias = table.index_select(&offsets(window, vb.device())?, 0)?;
        let bias = bias.reshape((pixels, pixels, heads))?.permute((2, 0, 1))?;
        Ok(Self {
            norm1: layer_norm(vb.pp("norm1"), width, 1e-5)?,
            qkv: linear(attn.pp("qkv"), width, 3 * width)?,
            bias: bias.contiguous()?.unsqueeze(0)?,
            proj: linear(attn.pp("proj"), width, width)?,
            norm2: layer_norm(vb.pp("norm2"), width, 1e-5)?,
            fc1: linear(vb.pp("mlp.fc1"), width, hidden)?,
            fc2: linear(vb.pp("mlp.fc2"), hidden, width)?,
            heads,
            window,
            shifted,
        })
    }

    /// `x` is `(batch, height * width, channels)`; `mask` is [`borders`]'.
    fn forward(
        &self,
        x: &Tensor,
        (height, width): (usize, usize),
        mask: &Tensor,
    ) -> Result<Tensor> {
        let (batch, _, channels) = x.dims3()?;
        let (window, pixels) = (self.window, self.window * self.window);
        let (rows, columns) = (height / window, width / window);
        let shift = if self.shifted { (window / 2) as i32 } else { 0 };
        let y = self
            .norm1
            .forward(x)?
            .reshape((batch, height, width, channels))?;
        let y = match shift {
            0 => y,
            shift => y.roll(-shift, 1)?.roll(-shift, 2)?,
        };
        let windows = y
            .reshape((batch * rows, window, columns, window * channels))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch * rows * columns, pixels, channels))?;
        let qkv = self.qkv.forward(&windows)?;
        let count = batch * rows * columns;
        let qkv = qkv.reshape((count, pixels, 3, self.heads, channels / self.heads))?;
        let qkv = qkv.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let scale = 1.0 / ((channels / self.heads) as f64).sqrt();
        let (q, k, v) = ((qkv.get(0)? * scale)?, qkv.get(1)?, qkv.get(2)?);
        let mut scores = q
            .matmul(&k.transpose(2, 3)?.contiguous()?)?
            .broadcast_add(&self.bias)?;
        if shift > 0 {
            let each = (batch, rows * columns, self.heads * pixels, pixels);
            let mask = mask.to_dtype(scores.dtype())?;
            let mask = mask.broadcast_as((rows * columns, self.heads, pixels, pixels))?;
            let mask =
                mask.contiguous()?
                    .reshape((1, rows * columns, self.heads * pixels, pixels))?;
            scores = scores.reshape(each)?.broadcast_add(&mask)?;
            scores = scores.reshape((count, self.heads, pixels, pixels))?;
        }
        let y = softmax(&scores)?.matmul(&v)?;
        let y = y
            .transpose(1, 2)?
            .contiguous()?
            .reshape((count, pixels, channels))?;
        let y = self.proj.forward(&y)?;
        let y = y
            .reshape((batch * rows, columns, window, window * channels))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch, height, width, channels))?;
        let y = match shift {
            0 => y,
            shift => y.roll(shift, 1)?.roll(shift, 2)?,
        };
        let x = (x + y.reshape((batch, height * width, channels))?)?;
        let y = self.fc1.forward(&self.norm2.forward(&x)?)?.gelu_erf()?;
        x + self.fc2.forward(&y)?
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Swin {
    layout: Layout,
    first: Conv2d,
    norm_at_start: Option<LayerNorm>,
    groups: Vec<(Vec<Block>, Mix)>,
    norm: LayerNorm,
    after: Mix,
    before: Option<Conv2d>,
    enlarge: Vec<Conv2d>,
    high: Option<Conv2d>,
    last: Option<Conv2d>,
    /// Mean colour of the training pictures, `(1, 3, 1, 1)`.
    mean: Tensor,
}

impl Swin {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let (width, features) = (layout.width, layout.features);
        let group = |(i, depth): (usize, &usize)| {
            let vb = vb.pp("layers").pp(i);
            let blocks = (0..*depth).map(|j| {
                let vb = vb.pp("residual_group.blocks").pp(j);
                Block::new(vb, layout, j % 2 == 1)
            });
            Ok((
                blocks.collect::<Result<_>>()?,
                Mix::new(vb.pp("conv"), layout)?,
            ))
        };
        let wide = |vb: VarBuilder, outputs| conv(vb, features, outputs, 3, 1, 1);
        let before = || conv(vb.pp("conv_before_upsample.0"), width, features, 3, 1, 1);
        let (mut high, mut last, mut first) = (None, None, None);
        let enlarge = match &layout.enlarge {
            Enlarge::Shuffle(factors) => {
                (first, last) = (Some(before()?), Some(wide(vb.pp("conv_last"), 3)?));
                let layers = factors.iter().enumerate();
                // Every second layer has no weights.
                let layers = layers.map(|(i, factor)| {
                    wide(vb.pp("upsample").pp(2 * i), features * factor * factor)
                });
                layers.collect::<Result<_>>()?
            }
            Enlarge::ShuffleAtOnce(scale) => vec![wide(vb.pp("upsample.0"), 3 * scale * scale)?],
            Enlarge::Nearest(doublings) => {
                (first, last) = (Some(before()?), Some(wide(vb.pp("conv_last"), 3)?));
                high = Some(wide(vb.pp("conv_hr"), features)?);
                let layers = 1..=*doublings;
                let layers = layers.map(|i| wide(vb.pp(format!("conv_up{i}")), features));
                layers.collect::<Result<_>>()?
            }
            Enlarge::None => {
                last = Some(wide(vb.pp("conv_last"), 3)?);
                Vec::new()
            }
        };
        Ok(Self {
            first: conv(vb.pp("conv_first"), 3, width, 3, 1, 1)?,
            norm_at_start: match layout.norm_at_start {
                true => Some(layer_norm(vb.pp("patch_embed.norm"), width, 1e-5)?),
                false => None,
            },
            groups: layout
                .depths
                .iter()
                .enumerate()
                .map(group)
                .collect::<Result<_>>()?,
            norm: layer_norm(vb.pp("norm"), width, 1e-5)?,
            after: Mix::new(vb.pp("conv_after_body"), layout)?,
            before: first,
            enlarge,
            high,
            last,
            mean: Tensor::new(&[0.4488f32, 0.4371, 0.4040], vb.device())?
                .reshape((1, 3, 1, 1))?
                .to_dtype(vb.dtype())?,
            layout: layout.clone(),
        })
    }

    /// See [`super::Upscaler::forward`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let window = self.layout.window;
        let size = (
            height.next_multiple_of(window),
            width.next_multiple_of(window),
        );
        let picture = extended(x, size.0, size.1)?.broadcast_sub(&self.mean)?;
        let first = self.first.forward(&picture)?;
        let x = (self.after.forward(&self.features(&first, size)?)? + first)?;
        let x = match &self.before {
            Some(before) => leaky_relu(&before.forward(&x)?, 0.01)?,
            None => x,
        };
        let x = self.enlarged(x)?;
        let x = match (&self.high, &self.last) {
            (Some(high), Some(last)) => last.forward(&leaky_relu(&high.forward(&x)?, 0.2)?)?,
            (_, Some(last)) => last.forward(&x)?,
            _ => x,
        };
        let x = match self.layout.enlarge {
            Enlarge::None => (x + picture)?,
            _ => x,
        };
        let scale = self.layout.scale();
        x.narrow(2, 0, height * scale)?
            .narrow(3, 0, width * scale)?
            .broadcast_add(&self.mean)
    }

    fn features(&self, x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
        let mut x = pixels_as_rows(x)?;
        if let Some(norm) = &self.norm_at_start {
            x = norm.forward(&x)?;
        }
        let mask = borders(height, width, self.layout.window, x.device())?;
        for (blocks, mix) in &self.groups {
            let mut y = x.clone();
            for block in blocks {
                y = block.forward(&y, (height, width), &mask)?;
            }
            let y = mix.forward(&rows_as_pixels(&y, height, width)?)?;
            x = (x + pixels_as_rows(&y)?)?;
        }
        rows_as_pixels(&self.norm.forward(&x)?, height, width)
    }

    fn enlarged(&self, mut x: Tensor) -> Result<Tensor> {
        match &self.layout.enlarge {
            Enlarge::Shuffle(factors) => {
                for (layer, factor) in self.enlarge.iter().zip(factors) {
                    x = candle_nn::ops::pixel_shuffle(&layer.forward(&x)?, *factor)?;
                }
            }
            Enlarge::ShuffleAtOnce(scale) => {
                for layer in &self.enlarge {
                    x = candle_nn::ops::pixel_shuffle(&layer.forward(&x)?, *scale)?;
                }
            }
            Enlarge::Nearest(_) => {
                for layer in &self.enlarge {
                    x = doubled(layer, &x)?;
                }
            }
            Enlarge::None => {}
        }
        Ok(x)
    }
}
