//! SwinIR (arXiv:2108.10257) and Swin2SR (arXiv:2209.11345): windows of attention, every second one shifted.

use super::tail::{matrix, Layout as TailLayout, Tail};
use super::windows::{attend, split, Window};
use super::{colour_mean, count, MOST_LAYERS};
use crate::editing::resample::Resample;
use crate::models::layers::{
    conv, extended, layer_norm, leaky_relu, linear, normalised, pixels_as_rows, rows_as_pixels,
    Linear,
};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{Conv2d, LayerNorm};

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
    /// Swin2SR: queries and keys of length 1, offsets through a small network, norms behind what they norm.
    second: bool,
    /// Swin2SR for compressed pictures: a small picture on the way, and the enlarged one added.
    compressed: bool,
    tail: TailLayout,
}

const BLOCK: &str = "layers.0.residual_group.blocks.0";

/// Windows of the published Swin2SR; in transformers' layout the file does not say it.
const USUAL_WINDOW: usize = 8;

/// Windows of networks that mend compressed pictures. They alone were trained on colours from 0 to 255.
const WINDOW_OF_255: usize = 7;

/// transformers' names of Swin2SR as the original's.
fn original_name(name: &str) -> String {
    let mut name = name.trim_start_matches("swin2sr.").to_string();
    for (from, to) in [
        ("first_convolution.", "conv_first."),
        (
            "embeddings.patch_embeddings.projection.",
            "patch_embed.proj.",
        ),
        (
            "embeddings.patch_embeddings.layernorm.",
            "patch_embed.norm.",
        ),
        ("layernorm.", "norm."),
        ("upsample.conv_before_upsample.", "conv_before_upsample.0."),
        ("upsample.upsample.convolution.", "upsample.0."),
        ("upsample.upsample.convolution_0.", "upsample.0."),
        ("upsample.upsample.convolution_1.", "upsample.2."),
        ("upsample.upsample.convolution_2.", "upsample.4."),
        ("upsample.conv.", "upsample.0."),
        ("upsample.final_convolution.", "conv_last."),
        ("upsample.conv_", "conv_"),
        ("final_convolution.", "conv_last."),
    ] {
        if let Some(rest) = name.strip_prefix(from) {
            name = format!("{to}{rest}");
            break;
        }
    }
    let Some(rest) = name.strip_prefix("encoder.stages.") else {
        return name;
    };
    let mut rest = rest.replacen(".layers.", ".residual_group.blocks.", 1);
    for (from, to) in [
        (
            ".attention.self.continuous_position_bias_mlp.",
            ".attn.cpb_mlp.",
        ),
        (".attention.self.", ".attn."),
        (".attention.output.dense.", ".attn.proj."),
        (".layernorm_before.", ".norm1."),
        (".layernorm_after.", ".norm2."),
        (".intermediate.dense.", ".mlp.fc1."),
        (".output.dense.", ".mlp.fc2."),
        (".patch_embed.projection.", ".patch_embed.proj."),
    ] {
        rest = rest.replacen(from, to, 1);
    }
    format!("layers.{rest}")
}

impl Layout {
    /// What a file's names and shapes say, and its tensors under the original's names; `None` if it is of another kind.
    #[allow(clippy::type_complexity)]
    pub(super) fn of(weights: &Weights) -> Option<(std::result::Result<Self, String>, Weights)> {
        let weights = match weights.contains("swin2sr.first_convolution.weight") {
            true => weights.renamed(|name| Some(original_name(name))),
            false => weights.clone(),
        };
        let second = weights.contains(&format!("{BLOCK}.attn.logit_scale"));
        let table = weights.contains(&format!("{BLOCK}.attn.relative_position_bias_table"));
        (second || table).then(|| (Self::read(&weights, second), weights))
    }

    fn read(weights: &Weights, second: bool) -> std::result::Result<Self, String> {
        let (width, inputs) = matrix(weights, "conv_first")?;
        if inputs != 3 {
            return Err(format!("it takes {inputs} channels; pictures have 3"));
        }
        for name in ["absolute_pos_embed", "conv_first_hf.0.weight"] {
            if weights.contains(name) {
                return Err(format!("{name} is not implemented"));
            }
        }
        let shape = |name: &str| weights.shape(&format!("{BLOCK}.attn.{name}"));
        let (offsets, heads) = match second {
            false => match shape("relative_position_bias_table").as_deref() {
                Some([offsets, heads]) => (Some(*offsets), *heads),
                _ => return Err("relative_position_bias_table is no matrix".to_string()),
            },
            true => {
                let (heads, _) = matrix(weights, &format!("{BLOCK}.attn.cpb_mlp.2"))?;
                let table = shape("relative_coords_table");
                (
                    table.map(|shape| shape.iter().product::<usize>() / 2),
                    heads,
                )
            }
        };
        let window = match offsets {
            None => USUAL_WINDOW,
            Some(offsets) => (1..=64)
                .find(|w| (2 * w - 1) * (2 * w - 1) == offsets)
                .ok_or_else(|| format!("{offsets} offsets are no window's"))?,
        };
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(format!("{heads} heads do not divide {width} channels"));
        }
        let groups = count(weights, "layers");
        let depth = |i| count(weights, &format!("layers.{i}.residual_group.blocks"));
        if groups > MOST_LAYERS || (0..groups).any(|i| depth(i) > MOST_LAYERS) {
            return Err("it has too many layers".to_string());
        }
        let (hidden, _) = matrix(weights, &format!("{BLOCK}.mlp.fc1"))?;
        Ok(Self {
            width,
            depths: (0..groups).map(depth).collect(),
            heads,
            window,
            hidden,
            three: weights.contains("conv_after_body.4.weight"),
            norm_at_start: weights.contains("patch_embed.norm.weight"),
            second,
            compressed: weights.contains("conv_bicubic.weight"),
            tail: TailLayout::of(weights, width)?,
        })
    }

    /// Pixels that a pixel becomes, each way.
    pub fn scale(&self) -> usize {
        self.tail.scale()
    }

    /// The kind, for people.
    pub fn kind(&self) -> &'static str {
        match self.second {
            true => "Swin2SR",
            false => "SwinIR",
        }
    }
}

/// One convolution, or three with the middle narrower.
#[derive(Debug, Clone)]
pub(super) struct Mix(Vec<Conv2d>);

impl Mix {
    pub fn new(vb: VarBuilder, width: usize, three: bool) -> Result<Self> {
        let narrow = width / 4;
        Ok(Self(match three {
            false => vec![conv(vb, width, width, 3, 1, 1)?],
            true => vec![
                conv(vb.pp(0), width, narrow, 3, 1, 1)?,
                conv(vb.pp(2), narrow, narrow, 1, 1, 0)?,
                conv(vb.pp(4), narrow, width, 3, 1, 1)?,
            ],
        }))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
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

/// A window's attention, `x` as `(windows, pixels, channels)`.
#[derive(Debug, Clone)]
pub(super) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    /// By what queries' products are multiplied: one number, or one a head, `(heads, 1, 1)`.
    scale: Scale,
    /// `(1, heads, pixels, pixels)`.
    bias: Tensor,
    proj: Linear,
    heads: usize,
}

#[derive(Debug, Clone)]
enum Scale {
    Plain(f64),
    /// Queries and keys have length 1.
    Cosine(Tensor),
}

/// Queries, keys and values of one matrix, with a bias for all of them, for the first and last, or for none.
fn query_key_value(vb: &VarBuilder, width: usize) -> Result<[Linear; 3]> {
    if vb.contains_tensor("query.weight") {
        let part = |name| linear(vb.pp(name), width, width);
        return Ok([part("query")?, part("key")?, part("value")?]);
    }
    let weight = vb.get((3 * width, width), "qkv.weight")?;
    let bias = match vb.contains_tensor("qkv.bias") {
        true => Some(vb.get(3 * width, "qkv.bias")?),
        false => None,
    };
    let part = |i: usize, own: &str| {
        let bias = match &bias {
            Some(bias) => Some(bias.narrow(0, i * width, width)?),
            None if vb.contains_tensor(own) => Some(vb.get(width, own)?),
            None => None,
        };
        let weight = weight.narrow(0, i * width, width)?.contiguous()?;
        Ok::<_, candle_core::Error>(Linear::Plain(candle_nn::Linear::new(weight, bias)))
    };
    Ok([part(0, "q_bias")?, part(1, "k_bias")?, part(2, "v_bias")?])
}

/// The table of offsets of a continuous position bias: a small network of the logarithms of offsets.
fn continuous_table(vb: VarBuilder, window: usize, heads: usize) -> Result<Tensor> {
    let (device, dtype) = (vb.device().clone(), vb.dtype());
    let last = (window - 1) as f64;
    let place = |i: usize| {
        let offset = (i as f64 - last) / last.max(1.0) * 8.0;
        (offset.signum() * (offset.abs() + 1.0).log2() / 3.0) as f32
    };
    let side = 2 * window - 1;
    let places = (0..side).flat_map(|y| (0..side).flat_map(move |x| [y, x]));
    let places = places.map(|i| if 2 * i + 1 == side { 0.0 } else { place(i) });
    let table = Tensor::from_vec(places.collect(), (side * side, 2), &device)?.to_dtype(dtype)?;
    let inner = vb.get_unchecked("0.bias")?.elem_count();
    let hidden = linear(vb.pp(0), 2, inner)?.forward(&table)?.relu()?;
    let table = linear(vb.pp(2), inner, heads)?.forward(&hidden)?;
    candle_nn::ops::sigmoid(&table)? * 16.0
}

impl Attention {
    pub fn new(
        vb: VarBuilder,
        width: usize,
        heads: usize,
        window: usize,
        second: bool,
    ) -> Result<Self> {
        let [query, key, value] = query_key_value(&vb, width)?;
        let side = 2 * window - 1;
        let (scale, table) = match second {
            false => {
                let table = vb.get((side * side, heads), "relative_position_bias_table")?;
                (Scale::Plain(1.0 / ((width / heads) as f64).sqrt()), table)
            }
            true => {
                let scale = vb.get((heads, 1, 1), "logit_scale")?;
                let scale = scale.to_dtype(DType::F32)?.minimum(100f64.ln())?.exp()?;
                let table = continuous_table(vb.pp("cpb_mlp"), window, heads)?;
                (Scale::Cosine(scale.to_dtype(vb.dtype())?), table)
            }
        };
        Ok(Self {
            query,
            key,
            value,
            scale,
            bias: Window::square(window).bias(&table)?,
            proj: linear(vb.pp("proj"), width, width)?,
            heads,
        })
    }

    pub fn forward(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let part = |layer: &Linear| split(&layer.forward(x)?, self.heads);
        let (q, k, v) = (part(&self.query)?, part(&self.key)?, part(&self.value)?);
        let (q, k) = match &self.scale {
            Scale::Plain(scale) => ((q * *scale)?, k),
            Scale::Cosine(scale) => (normalised(&q)?.broadcast_mul(scale)?, normalised(&k)?),
        };
        self.proj.forward(&attend(&q, &k, &v, &self.bias, mask)?)
    }
}

#[derive(Debug, Clone)]
struct Block {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    window: Window,
    shift: i32,
    /// Norms behind what they norm.
    second: bool,
}

impl Block {
    fn new(vb: VarBuilder, layout: &Layout, shifted: bool) -> Result<Self> {
        let (width, hidden, window) = (layout.width, layout.hidden, layout.window);
        Ok(Self {
            norm1: layer_norm(vb.pp("norm1"), width, 1e-5)?,
            attn: Attention::new(vb.pp("attn"), width, layout.heads, window, layout.second)?,
            norm2: layer_norm(vb.pp("norm2"), width, 1e-5)?,
            fc1: linear(vb.pp("mlp.fc1"), width, hidden)?,
            fc2: linear(vb.pp("mlp.fc2"), hidden, width)?,
            window: Window::square(window),
            shift: if shifted { (window / 2) as i32 } else { 0 },
            second: layout.second,
        })
    }

    /// `x` is `(batch, height * width, channels)`; `mask` is [`Window::borders`]'.
    fn forward(&self, x: &Tensor, size: (usize, usize), mask: &Tensor) -> Result<Tensor> {
        let attend =
            |x: &Tensor| shifted_attention(x, size, self.window, self.shift, mask, &self.attn);
        let feed = |x: &Tensor| self.fc2.forward(&self.fc1.forward(x)?.gelu_erf()?);
        if self.second {
            let x = (x + self.norm1.forward(&attend(x)?)?)?;
            return &x + self.norm2.forward(&feed(&x)?)?;
        }
        let x = (x + attend(&self.norm1.forward(x)?)?)?;
        &x + feed(&self.norm2.forward(&x)?)?
    }
}

/// Attention in windows shifted by so many pixels, of `(batch, height * width, channels)`.
pub(super) fn shifted_attention(
    x: &Tensor,
    (height, width): (usize, usize),
    window: Window,
    shift: i32,
    mask: &Tensor,
    attention: &Attention,
) -> Result<Tensor> {
    let (batch, rows, channels) = x.dims3()?;
    let x = x.reshape((batch, height, width, channels))?;
    let y = match shift {
        0 => attention.forward(&window.cut(&x)?, None)?,
        shift => {
            let x = x.roll(-shift, 1)?.roll(-shift, 2)?;
            attention.forward(&window.cut(&x)?, Some(mask))?
        }
    };
    let y = window.join(&y, (height, width))?;
    let y = match shift {
        0 => y,
        shift => y.roll(shift, 1)?.roll(shift, 2)?,
    };
    y.reshape((batch, rows, channels))
}

#[derive(Debug, Clone)]
struct Group {
    blocks: Vec<Block>,
    mix: Mix,
    /// Swin2SR's, of one pixel.
    embed: Option<Conv2d>,
}

/// What Swin2SR for compressed pictures has beside.
#[derive(Debug, Clone)]
struct Compressed {
    bicubic: Conv2d,
    small: Conv2d,
    after: Conv2d,
}

/// The network.
#[derive(Debug, Clone)]
pub struct Swin {
    layout: Layout,
    first: Conv2d,
    embed: Option<Conv2d>,
    norm_at_start: Option<LayerNorm>,
    groups: Vec<Group>,
    norm: LayerNorm,
    after: Mix,
    compressed: Option<Compressed>,
    tail: Tail,
    mean: Tensor,
}

impl Swin {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let (width, features) = (layout.width, layout.tail.features());
        let embed = |vb: VarBuilder| match layout.second {
            true => conv(vb.pp("patch_embed.proj"), width, width, 1, 1, 0).map(Some),
            false => Ok(None),
        };
        let group = |(i, depth): (usize, &usize)| {
            let vb = vb.pp("layers").pp(i);
            let blocks = (0..*depth).map(|j| {
                let vb = vb.pp("residual_group.blocks").pp(j);
                Block::new(vb, layout, j % 2 == 1)
            });
            Ok(Group {
                blocks: blocks.collect::<Result<_>>()?,
                mix: Mix::new(vb.pp("conv"), width, layout.three)?,
                embed: embed(vb)?,
            })
        };
        Ok(Self {
            first: conv(vb.pp("conv_first"), 3, width, 3, 1, 1)?,
            embed: embed(vb.clone())?,
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
            after: Mix::new(vb.pp("conv_after_body"), width, layout.three)?,
            compressed: match layout.compressed {
                false => None,
                true => Some(Compressed {
                    bicubic: conv(vb.pp("conv_bicubic"), 3, features, 3, 1, 1)?,
                    small: conv(vb.pp("conv_aux"), features, 3, 3, 1, 1)?,
                    after: conv(vb.pp("conv_after_aux.0"), 3, features, 3, 1, 1)?,
                }),
            },
            tail: Tail::new(vb.clone(), &layout.tail)?,
            mean: colour_mean(vb.device(), vb.dtype())?,
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
        let range = if window == WINDOW_OF_255 { 255.0 } else { 1.0 };
        let picture = extended(x, size.0, size.1)?.broadcast_sub(&self.mean)?;
        let picture = (picture * range)?;
        let first = self.first.forward(&picture)?;
        let x = (self.after.forward(&self.features(&first, size)?)? + first)?;
        let scale = self.layout.scale();
        let x = match &self.compressed {
            None => self.tail.forward(&x)?,
            Some(more) => {
                let small = more.small.forward(&self.tail.before(&x)?)?;
                let x = leaky_relu(&more.after.forward(&small)?, 0.01)?;
                // Stretched from the extended picture to the size of the other, as it was trained.
                let (height, width) = (height * scale, width * scale);
                let wide = picture.to_dtype(DType::F32)?;
                let large = Resample::Bicubic { antialias: false }.apply(&wide, height, width)?;
                let large = more.bicubic.forward(&large.to_dtype(x.dtype())?)?;
                let x = self.tail.enlarged(x)?;
                let x = x.narrow(2, 0, height)?.narrow(3, 0, width)?;
                self.tail.after(&(x + large)?)?
            }
        };
        let x = match self.layout.tail.mends() {
            true => (x + picture)?,
            false => x,
        };
        (x.narrow(2, 0, height * scale)?
            .narrow(3, 0, width * scale)?
            / range)?
            .broadcast_add(&self.mean)
    }

    fn features(&self, x: &Tensor, size: (usize, usize)) -> Result<Tensor> {
        let (height, width) = size;
        let embed = |layer: &Option<Conv2d>, x: &Tensor| match layer {
            Some(layer) => layer.forward(x),
            None => Ok(x.clone()),
        };
        let mut x = pixels_as_rows(&embed(&self.embed, x)?)?;
        if let Some(norm) = &self.norm_at_start {
            x = norm.forward(&x)?;
        }
        let mask = borders(self.layout.window, size, x.device())?;
        for group in &self.groups {
            let mut y = x.clone();
            for block in &group.blocks {
                y = block.forward(&y, size, &mask)?;
            }
            let y = group.mix.forward(&rows_as_pixels(&y, height, width)?)?;
            x = (x + pixels_as_rows(&embed(&group.embed, &y)?)?)?;
        }
        rows_as_pixels(&self.norm.forward(&x)?, height, width)
    }
}

/// [`Window::borders`] of square windows.
pub(super) fn borders(window: usize, size: (usize, usize), device: &Device) -> Result<Tensor> {
    Window::square(window).borders(size.0, size.1, device)
}
