//! CodeFormer (arXiv:2206.11253): a transformer guesses the codes of a good face; how much of the given one is let through
//! is chosen.

use super::Pair;
use crate::models::layers::{
    conv, layer_norm, linear, pixels_as_rows, rows_as_pixels, softmax, Linear,
};
use crate::models::norm::GroupNorm;
use crate::models::upscale::{count, MOST_LAYERS};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::{Conv2d, LayerNorm};
use std::collections::BTreeMap;

/// Groups of every norm.
const GROUPS: usize = 32;
const EPS: f64 = 1e-6;

/// A layer of the encoder or the generator.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Layer {
    Conv(usize, usize),
    Residual(usize, usize),
    Attention(usize),
    /// Half or twice as large.
    Resize(usize),
    Norm(usize),
}

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    encoder: Vec<Layer>,
    generator: Vec<Layer>,
    /// Codes, and numbers of each.
    codes: (usize, usize),
    /// Codes of a face, each way.
    side: usize,
    /// Channels of the transformer, between its layers, and its layers.
    width: usize,
    hidden: usize,
    depth: usize,
    /// Sizes at which the given face is let through, with their channels.
    fuse: BTreeMap<usize, usize>,
}

/// Heads of the transformer; no shape says it, all have so many.
const HEADS: usize = 8;

impl Layout {
    /// What a file's names and shapes say.
    ///
    /// # Errors
    /// If they are those of no CodeFormer.
    pub fn of(weights: &Weights) -> std::result::Result<Self, String> {
        let pair = |name: &str| match weights.shape(name).as_deref() {
            Some([a, b, ..]) if *a > 0 && *b > 0 => Ok((*a, *b)),
            _ => Err(format!("{name} is missing or no matrix")),
        };
        let layers = |part: &str| {
            let count = count(weights, &format!("{part}.blocks"));
            if count > MOST_LAYERS {
                return Err(format!("{count} layers are too many"));
            }
            let layer = |i: usize| {
                let has =
                    |name: &str| weights.contains(&format!("{part}.blocks.{i}.{name}.weight"));
                let shape = |name: &str| pair(&format!("{part}.blocks.{i}.{name}"));
                if has("norm1") {
                    let (outputs, inputs) = shape("conv1.weight")?;
                    return Ok(Layer::Residual(inputs, outputs));
                }
                if has("q") {
                    return Ok(Layer::Attention(shape("q.weight")?.0));
                }
                if has("conv") {
                    return Ok(Layer::Resize(shape("conv.weight")?.0));
                }
                let name = format!("{part}.blocks.{i}.weight");
                match weights.shape(&name).as_deref() {
                    Some([width]) => Ok(Layer::Norm(*width)),
                    Some([outputs, inputs, 3, 3]) => Ok(Layer::Conv(*inputs, *outputs)),
                    _ => Err(format!("{part}.blocks.{i} is of no known kind")),
                }
            };
            (0..count)
                .map(layer)
                .collect::<std::result::Result<Vec<_>, String>>()
        };
        let (places, width) = pair("position_emb")?;
        let side = (1..=64).find(|side| side * side == places);
        let depth = count(weights, "ft_layers");
        if depth > MOST_LAYERS || !width.is_multiple_of(HEADS) {
            return Err(format!(
                "a transformer of {depth} layers, {width} wide, is not a known one"
            ));
        }
        let layout = Self {
            encoder: layers("encoder")?,
            generator: layers("generator")?,
            codes: pair("quantize.embedding.weight")?,
            side: side.ok_or_else(|| format!("{places} places are no square"))?,
            width,
            hidden: pair("ft_layers.0.linear1.weight")?.0,
            depth,
            fuse: fused(weights)?,
        };
        let levels = |layers: &[Layer]| {
            let resizes = layers.iter().filter(|l| matches!(l, Layer::Resize(_)));
            resizes.count()
        };
        let (down, up) = (levels(&layout.encoder), levels(&layout.generator));
        if down != up || down > 8 || layout.size() > 1024 {
            return Err(format!(
                "{down} halvings and {up} doublings do not fit together"
            ));
        }
        // Behind each doubling but the last that is told apart by its size.
        let reached = (1..=up).map(|i| layout.side << i);
        let reached: Vec<usize> = reached.collect();
        match layout.fuse.keys().find(|size| !reached.contains(size)) {
            Some(size) => Err(format!("fuse_convs_dict.{size} is not implemented")),
            None => Ok(layout),
        }
    }

    /// Pixels of the pictures that it takes, each way.
    pub fn size(&self) -> usize {
        let halvings = self
            .encoder
            .iter()
            .filter(|l| matches!(l, Layer::Resize(_)));
        self.side << halvings.count()
    }
}

/// Sizes at which the given face is let through, and their channels.
fn fused(weights: &Weights) -> std::result::Result<BTreeMap<usize, usize>, String> {
    let mut fuse = BTreeMap::new();
    for name in weights.names() {
        let Some(rest) = name.strip_prefix("fuse_convs_dict.") else {
            continue;
        };
        let size = rest.split('.').next().and_then(|size| size.parse().ok());
        let size: usize = size.ok_or_else(|| format!("{name} names no size"))?;
        let shape = weights.shape(&format!("fuse_convs_dict.{size}.scale.0.weight"));
        let width = shape.and_then(|shape| shape.first().copied());
        fuse.insert(size, width.ok_or_else(|| format!("{name} stands alone"))?);
    }
    Ok(fuse)
}

#[derive(Debug, Clone)]
struct Residual {
    norm1: GroupNorm,
    conv1: Conv2d,
    norm2: GroupNorm,
    conv2: Conv2d,
    skip: Option<Conv2d>,
}

impl Residual {
    fn new(vb: VarBuilder, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self {
            norm1: GroupNorm::new(vb.pp("norm1"), GROUPS, inputs, EPS)?,
            conv1: conv(vb.pp("conv1"), inputs, outputs, 3, 1, 1)?,
            norm2: GroupNorm::new(vb.pp("norm2"), GROUPS, outputs, EPS)?,
            conv2: conv(vb.pp("conv2"), outputs, outputs, 3, 1, 1)?,
            skip: match inputs == outputs {
                true => None,
                false => Some(conv(vb.pp("conv_out"), inputs, outputs, 1, 1, 0)?),
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.conv1.forward(&self.norm1.forward_silu(x)?)?;
        let y = self.conv2.forward(&self.norm2.forward_silu(&y)?)?;
        match &self.skip {
            Some(skip) => y + skip.forward(x)?,
            None => y + x,
        }
    }
}

#[derive(Debug, Clone)]
struct Attention {
    norm: GroupNorm,
    qkv: [Linear; 3],
    proj: Linear,
}

impl Attention {
    fn new(vb: VarBuilder, width: usize) -> Result<Self> {
        let part = |name| linear(vb.pp(name), width, width);
        Ok(Self {
            norm: GroupNorm::new(vb.pp("norm"), GROUPS, width, EPS)?,
            qkv: [part("q")?, part("k")?, part("v")?],
            proj: part("proj_out")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, channels, height, width) = x.dims4()?;
        let rows = pixels_as_rows(&self.norm.forward(x)?)?;
        let [q, k, v] = &self.qkv;
        let (q, k, v) = (q.forward(&rows)?, k.forward(&rows)?, v.forward(&rows)?);
        let scores = (q.matmul(&k.t()?.contiguous()?)? / (channels as f64).sqrt())?;
        let y = self.proj.forward(&softmax(&scores)?.matmul(&v)?)?;
        x + rows_as_pixels(&y, height, width)?
    }
}

#[derive(Debug, Clone)]
enum Built {
    Conv(Conv2d),
    Residual(Box<Residual>),
    Attention(Box<Attention>),
    Down(Conv2d),
    Up(Conv2d),
    Norm(GroupNorm),
}

impl Built {
    fn new(vb: VarBuilder, layer: &Layer, up: bool) -> Result<Self> {
        Ok(match *layer {
            Layer::Conv(inputs, outputs) => Self::Conv(conv(vb, inputs, outputs, 3, 1, 1)?),
            Layer::Residual(inputs, outputs) => {
                Self::Residual(Box::new(Residual::new(vb, inputs, outputs)?))
            }
            Layer::Attention(width) => Self::Attention(Box::new(Attention::new(vb, width)?)),
            Layer::Resize(width) if up => Self::Up(conv(vb.pp("conv"), width, width, 3, 1, 1)?),
            Layer::Resize(width) => Self::Down(conv(vb.pp("conv"), width, width, 3, 2, 0)?),
            Layer::Norm(width) => Self::Norm(GroupNorm::new(vb, GROUPS, width, EPS)?),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Conv(layer) => layer.forward(x),
            Self::Residual(layer) => layer.forward(x),
            Self::Attention(layer) => layer.forward(x),
            Self::Norm(layer) => layer.forward(x),
            // Zeros at the right and lower edge only.
            Self::Down(layer) => {
                layer.forward(&x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?)
            }
            Self::Up(layer) => {
                let (_, _, height, width) = x.dims4()?;
                layer.forward(&x.upsample_nearest2d(2 * height, 2 * width)?)
            }
        }
    }
}

/// A layer of the transformer.
#[derive(Debug, Clone)]
struct Block {
    norm1: LayerNorm,
    /// Queries, keys and values in one.
    inner: (Tensor, Tensor),
    out: Linear,
    norm2: LayerNorm,
    linear1: Linear,
    linear2: Linear,
}

impl Block {
    fn new(vb: VarBuilder, width: usize, hidden: usize) -> Result<Self> {
        let attn = vb.pp("self_attn");
        Ok(Self {
            norm1: layer_norm(vb.pp("norm1"), width, 1e-5)?,
            inner: (
                attn.get((3 * width, width), "in_proj_weight")?,
                attn.get(3 * width, "in_proj_bias")?,
            ),
            out: linear(attn.pp("out_proj"), width, width)?,
            norm2: layer_norm(vb.pp("norm2"), width, 1e-5)?,
            linear1: linear(vb.pp("linear1"), width, hidden)?,
            linear2: linear(vb.pp("linear2"), hidden, width)?,
        })
    }

    /// `x` is `(1, places, width)`, `places` `(1, places, width)`.
    fn forward(&self, x: &Tensor, places: &Tensor) -> Result<Tensor> {
        let (batch, rows, width) = x.dims3()?;
        let y = self.norm1.forward(x)?;
        let placed = y.broadcast_add(places)?;
        let part = |i: usize, x: &Tensor| {
            let weight = self.inner.0.narrow(0, i * width, width)?.contiguous()?;
            let bias = self.inner.1.narrow(0, i * width, width)?;
            let x = candle_nn::Linear::new(weight, Some(bias)).forward(x)?;
            let x = x.reshape((batch, rows, HEADS, width / HEADS))?;
            x.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (part(0, &placed)?, part(1, &placed)?, part(2, &y)?);
        let scale = 1.0 / ((width / HEADS) as f64).sqrt();
        let scores = ((q * scale)?.matmul(&k.t()?.contiguous()?))?;
        let y = softmax(&scores)?
            .matmul(&v)?
            .transpose(1, 2)?
            .contiguous()?;
        let x = (x + self.out.forward(&y.reshape((batch, rows, width))?)?)?;
        let y = self.linear1.forward(&self.norm2.forward(&x)?)?.gelu_erf()?;
        &x + self.linear2.forward(&y)?
    }
}

/// How much of the given face is let through at one size.
#[derive(Debug, Clone)]
struct Fuse {
    both: Residual,
    scale: Pair,
    shift: Pair,
}

impl Fuse {
    fn new(vb: VarBuilder, width: usize) -> Result<Self> {
        Ok(Self {
            both: Residual::new(vb.pp("encode_enc"), 2 * width, width)?,
            scale: Pair::new(vb.pp("scale"), width, width)?,
            shift: Pair::new(vb.pp("shift"), width, width)?,
        })
    }

    fn forward(&self, given: &Tensor, made: &Tensor, weight: f64) -> Result<Tensor> {
        let both = self.both.forward(&Tensor::cat(&[given, made], 1)?)?;
        let more = ((made * self.scale.forward(&both)?)? + self.shift.forward(&both)?)?;
        made + (more * weight)?
    }
}

/// Mean and deviation of each channel over all pixels, `(1, channels, 1, 1)`.
fn moments(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (_, _, height, width) = x.dims4()?;
    let mean = x.mean_keepdim((2, 3))?;
    let squares = x.broadcast_sub(&mean)?.sqr()?.sum_keepdim((2, 3))?;
    let pixels = (height * width) as f64;
    let variance = (squares / (pixels - 1.0).max(1.0))?;
    Ok((mean, (variance + 1e-5)?.sqrt()?))
}

/// The network.
#[derive(Debug, Clone)]
pub struct CodeFormer {
    layout: Layout,
    encoder: Vec<Built>,
    generator: Vec<Built>,
    /// `(codes, numbers)`.
    codes: Tensor,
    places: Tensor,
    embed: Linear,
    blocks: Vec<Block>,
    guess: (LayerNorm, Linear),
    fuse: BTreeMap<usize, Fuse>,
}

impl CodeFormer {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let (width, (codes, numbers)) = (layout.width, layout.codes);
        let layers = |part: &str, layers: &[Layer], up: bool| {
            let layers = layers.iter().enumerate();
            let layers =
                layers.map(|(i, layer)| Built::new(vb.pp(part).pp("blocks").pp(i), layer, up));
            layers.collect::<Result<Vec<_>>>()
        };
        let places = (layout.side * layout.side, width);
        let block = |i: usize| Block::new(vb.pp("ft_layers").pp(i), width, layout.hidden);
        let guess = vb.pp("idx_pred_layer");
        let fuse = layout.fuse.iter().map(|(size, width)| {
            let vb = vb.pp("fuse_convs_dict").pp(size);
            Ok((*size, Fuse::new(vb, *width)?))
        });
        Ok(Self {
            encoder: layers("encoder", &layout.encoder, false)?,
            generator: layers("generator", &layout.generator, true)?,
            codes: vb.get((codes, numbers), "quantize.embedding.weight")?,
            places: vb.get(places, "position_emb")?.unsqueeze(0)?,
            embed: linear(vb.pp("feat_emb"), numbers, width)?,
            blocks: (0..layout.depth).map(block).collect::<Result<_>>()?,
            guess: (
                layer_norm(guess.pp(0), width, 1e-5)?,
                linear(guess.pp(1), width, codes)?,
            ),
            fuse: fuse.collect::<Result<_>>()?,
            layout: layout.clone(),
        })
    }

    /// A face restored: one picture `(1, 3, size, size)` in -1..1, about so again. `weight` is how much of the given face
    /// is let through: from 0, the best face, to 1, the same one.
    ///
    /// # Errors
    /// If it has another size, or the device fails.
    pub fn forward(&self, x: &Tensor, weight: f64) -> Result<Tensor> {
        let size = self.layout.size();
        if x.dims4()? != (1, 3, size, size) {
            candle_core::bail!("a face of shape {:?}; {size} x {size} is wanted", x.shape())
        }
        let mut x = x.clone();
        let mut given = BTreeMap::new();
        for layer in &self.encoder {
            if matches!(layer, Built::Down(_)) {
                let side = x.dim(3)?;
                if self.fuse.contains_key(&side) {
                    given.insert(side, x.clone());
                }
            }
            x = layer.forward(&x)?;
        }
        let found = x;
        let mut rows = self.embed.forward(&pixels_as_rows(&found)?)?;
        for block in &self.blocks {
            rows = block.forward(&rows, &self.places)?;
        }
        let guesses = self.guess.1.forward(&self.guess.0.forward(&rows)?)?;
        let ids = guesses
            .to_dtype(DType::F32)?
            .argmax(D::Minus1)?
            .flatten_all()?;
        let codes = self.codes.index_select(&ids, 0)?.unsqueeze(0)?;
        let codes = rows_as_pixels(&codes, self.layout.side, self.layout.side)?;
        // As bright and as strong as what the encoder found.
        let ((mean, deviation), (of_codes, deviation_of_codes)) =
            (moments(&found)?, moments(&codes)?);
        let mut x = codes
            .broadcast_sub(&of_codes)?
            .broadcast_div(&deviation_of_codes)?
            .broadcast_mul(&deviation)?
            .broadcast_add(&mean)?;
        let mut doubled = false;
        for layer in &self.generator {
            x = layer.forward(&x)?;
            if doubled && weight > 0.0 {
                let side = x.dim(3)?;
                if let (Some(fuse), Some(given)) = (self.fuse.get(&side), given.get(&side)) {
                    x = fuse.forward(given, &x, weight)?;
                }
            }
            doubled = matches!(layer, Built::Up(_));
        }
        Ok(x)
    }
}
