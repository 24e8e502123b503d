//! HAT (arXiv:2205.04437, arXiv:2309.05239): windows of attention beside convolutions that weigh channels, and windows
//! that see beyond their edges.

use super::swin::{borders, shifted_attention, Attention, Mix};
use super::tail::{matrix, Layout as TailLayout, Tail};
use super::windows::{attend, split, Window};
use super::{colour_mean, count, MOST_LAYERS};
use crate::models::layers::{
    conv, extended, layer_norm, linear, pixels_as_rows, rows_as_pixels, Linear,
};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{Device, Module, Result, Tensor};
use candle_nn::{Conv2d, LayerNorm};

/// How much of the convolutions' result counts; no file says it, all were trained with it.
const CONV_SCALE: f64 = 0.01;

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    width: usize,
    /// Blocks and heads of each group.
    groups: Vec<(usize, usize)>,
    window: usize,
    /// What a window of [`Overlap`] sees, each way.
    seen: usize,
    hidden: usize,
    hidden_of_overlap: usize,
    /// Channels between the convolutions, and between those that weigh channels.
    narrow: (usize, usize),
    norm_at_start: bool,
    tail: TailLayout,
}

const GROUP: &str = "layers.0.residual_group";

impl Layout {
    /// What a file's names and shapes say; `None` if it is of another kind.
    pub(super) fn of(weights: &Weights) -> Option<std::result::Result<Self, String>> {
        weights
            .contains(&format!("{GROUP}.overlap_attn.qkv.weight"))
            .then(|| Self::read(weights))
    }

    fn read(weights: &Weights) -> std::result::Result<Self, String> {
        let (width, inputs) = matrix(weights, "conv_first")?;
        if inputs != 3 {
            return Err(format!("it takes {inputs} channels; pictures have 3"));
        }
        if weights.contains("absolute_pos_embed") {
            return Err("absolute_pos_embed is not implemented".to_string());
        }
        let table = |name: &str| {
            let name = format!("{name}.relative_position_bias_table");
            match weights.shape(&name).as_deref() {
                Some([offsets, heads]) if *heads > 0 && width.is_multiple_of(*heads) => {
                    Ok((*offsets, *heads))
                }
                _ => Err(format!(
                    "{name} is missing or does not fit {width} channels"
                )),
            }
        };
        let root = |offsets: usize| {
            let side = (1..=256).find(|side| side * side == offsets);
            side.ok_or_else(|| format!("{offsets} offsets are no window's"))
        };
        let window = root(table(&format!("{GROUP}.blocks.0.attn"))?.0)?.div_ceil(2);
        let both = root(table(&format!("{GROUP}.overlap_attn"))?.0)?;
        let seen = match (both + 1).checked_sub(window) {
            Some(seen) if seen >= window && (seen - window).is_multiple_of(2) => seen,
            _ => return Err(format!("windows of {window} cannot see {both} offsets")),
        };
        let count_of = count(weights, "layers");
        let depth = |i| count(weights, &format!("layers.{i}.residual_group.blocks"));
        if count_of > MOST_LAYERS || (0..count_of).any(|i| depth(i) > MOST_LAYERS) {
            return Err("it has too many layers".to_string());
        }
        let heads = |i| table(&format!("layers.{i}.residual_group.overlap_attn"));
        let groups = (0..count_of).map(|i| Ok((depth(i), heads(i)?.1)));
        let outputs = |name: &str| matrix(weights, &format!("{GROUP}.{name}")).map(|m| m.0);
        Ok(Self {
            width,
            groups: groups.collect::<std::result::Result<_, String>>()?,
            window,
            seen,
            hidden: outputs("blocks.0.mlp.fc1")?,
            hidden_of_overlap: outputs("overlap_attn.mlp.fc1")?,
            narrow: (
                outputs("blocks.0.conv_block.cab.0")?,
                outputs("blocks.0.conv_block.cab.3.attention.1")?,
            ),
            norm_at_start: weights.contains("patch_embed.norm.weight"),
            tail: TailLayout::of(weights, width)?,
        })
    }

    /// Pixels that a pixel becomes, each way.
    pub fn scale(&self) -> usize {
        self.tail.scale()
    }
}

/// Two linear layers with a GELU between.
#[derive(Debug, Clone)]
struct Feed(Linear, Linear);

impl Feed {
    fn new(vb: VarBuilder, width: usize, hidden: usize) -> Result<Self> {
        Ok(Self(
            linear(vb.pp("fc1"), width, hidden)?,
            linear(vb.pp("fc2"), hidden, width)?,
        ))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward(&self.0.forward(x)?.gelu_erf()?)
    }
}

/// Two convolutions, and how much each of their channels counts.
#[derive(Debug, Clone)]
struct Channels {
    convs: [Conv2d; 2],
    weigh: [Conv2d; 2],
}

impl Channels {
    fn new(vb: VarBuilder, width: usize, (narrow, squeezed): (usize, usize)) -> Result<Self> {
        let weigh = vb.pp("3.attention");
        Ok(Self {
            convs: [
                conv(vb.pp(0), width, narrow, 3, 1, 1)?,
                conv(vb.pp(2), narrow, width, 3, 1, 1)?,
            ],
            weigh: [
                conv(weigh.pp(1), width, squeezed, 1, 1, 0)?,
                conv(weigh.pp(3), squeezed, width, 1, 1, 0)?,
            ],
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [a, b] = &self.convs;
        let x = b.forward(&a.forward(x)?.gelu_erf()?)?;
        let [a, b] = &self.weigh;
        let share = b.forward(&a.forward(&x.mean_keepdim((2, 3))?)?.relu()?)?;
        x.broadcast_mul(&candle_nn::ops::sigmoid(&share)?)
    }
}

#[derive(Debug, Clone)]
struct Block {
    norm1: LayerNorm,
    attn: Attention,
    channels: Channels,
    norm2: LayerNorm,
    feed: Feed,
    window: Window,
    shift: i32,
}

impl Block {
    fn new(vb: VarBuilder, layout: &Layout, heads: usize, shifted: bool) -> Result<Self> {
        let (width, window) = (layout.width, layout.window);
        Ok(Self {
            norm1: layer_norm(vb.pp("norm1"), width, 1e-5)?,
            attn: Attention::new(vb.pp("attn"), width, heads, window, false)?,
            channels: Channels::new(vb.pp("conv_block.cab"), width, layout.narrow)?,
            norm2: layer_norm(vb.pp("norm2"), width, 1e-5)?,
            feed: Feed::new(vb.pp("mlp"), width, layout.hidden)?,
            window: Window::square(window),
            shift: if shifted { (window / 2) as i32 } else { 0 },
        })
    }

    fn forward(&self, x: &Tensor, size: (usize, usize), mask: &Tensor) -> Result<Tensor> {
        let y = self.norm1.forward(x)?;
        let channels = self
            .channels
            .forward(&rows_as_pixels(&y, size.0, size.1)?)?;
        let y = shifted_attention(&y, size, self.window, self.shift, mask, &self.attn)?;
        let x = ((x + y)? + (pixels_as_rows(&channels)? * CONV_SCALE)?)?;
        &x + self.feed.forward(&self.norm2.forward(&x)?)?
    }
}

/// Attention of each window to a larger one around it.
#[derive(Debug, Clone)]
struct Overlap {
    norm1: LayerNorm,
    qkv: Linear,
    /// `(1, heads, pixels, pixels seen)`.
    bias: Tensor,
    proj: Linear,
    norm2: LayerNorm,
    feed: Feed,
    heads: usize,
    window: usize,
    seen: usize,
}

/// Rows of the table for each pixel of a window and each that it sees. A negative number counts from the table's end, as
/// in the program that these networks were trained with.
fn overlap_offsets(window: usize, seen: usize, device: &Device) -> Result<Tensor> {
    let side = (window + seen - 1) as i64;
    let places =
        |size: usize| (0..size).flat_map(move |y| (0..size).map(move |x| (y as i64, x as i64)));
    let first = window as i64 - seen as i64 + 1;
    let ids: Vec<u32> = places(window)
        .flat_map(|own| {
            places(seen).map(move |other| {
                let (dy, dx) = (other.0 - own.0 + first, other.1 - own.1 + first);
                (dy * side + dx).rem_euclid(side * side) as u32
            })
        })
        .collect();
    let count = ids.len();
    Tensor::from_vec(ids, count, device)
}

impl Overlap {
    fn new(vb: VarBuilder, layout: &Layout, heads: usize) -> Result<Self> {
        let Layout {
            width,
            window,
            seen,
            ..
        } = *layout;
        let side = window + seen - 1;
        let table = vb.get((side * side, heads), "relative_position_bias_table")?;
        let bias = table.index_select(&overlap_offsets(window, seen, vb.device())?, 0)?;
        let bias = bias.reshape((window * window, seen * seen, heads))?;
        Ok(Self {
            norm1: layer_norm(vb.pp("norm1"), width, 1e-5)?,
            qkv: linear(vb.pp("qkv"), width, 3 * width)?,
            bias: bias.permute((2, 0, 1))?.contiguous()?.unsqueeze(0)?,
            proj: linear(vb.pp("proj"), width, width)?,
            norm2: layer_norm(vb.pp("norm2"), width, 1e-5)?,
            feed: Feed::new(vb.pp("mlp"), width, layout.hidden_of_overlap)?,
            heads,
            window,
            seen,
        })
    }

    /// What each window sees, `(batch * windows, pixels seen, channels)` of `(batch, height, width, channels)`; nothing
    /// beyond the picture.
    fn around(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, height, width, channels) = x.dims4()?;
        let (window, seen) = (self.window, self.seen);
        let more = (seen - window) / 2;
        let pick = |x: &Tensor, dim: usize, size: usize| {
            let starts = (0..size / window).map(|i| i * window);
            let ids: Vec<u32> = starts
                .flat_map(|start| (start..start + seen).map(|i| i as u32))
                .collect();
            x.pad_with_zeros(dim, more, more)?
                .index_select(&Tensor::new(ids, x.device())?, dim)
        };
        let x = pick(&pick(x, 1, height)?, 2, width)?;
        let (rows, columns) = (height / window, width / window);
        x.reshape((batch * rows, seen, columns, seen * channels))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch * rows * columns, seen * seen, channels))
    }

    fn forward(&self, x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
        let (batch, rows, channels) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?;
        let part = |i: usize| {
            qkv.narrow(2, i * channels, channels)?
                .reshape((batch, height, width, channels))
        };
        let window = Window::square(self.window);
        let scale = 1.0 / ((channels / self.heads) as f64).sqrt();
        let q = (split(&window.cut(&part(0)?)?, self.heads)? * scale)?;
        let k = split(&self.around(&part(1)?)?, self.heads)?;
        let v = split(&self.around(&part(2)?)?, self.heads)?;
        let y = attend(&q, &k, &v, &self.bias, None)?;
        let y = window.join(&y, (height, width))?;
        let y = self.proj.forward(&y.reshape((batch, rows, channels))?)?;
        let x = (x + y)?;
        &x + self.feed.forward(&self.norm2.forward(&x)?)?
    }
}

#[derive(Debug, Clone)]
struct Group {
    blocks: Vec<Block>,
    overlap: Overlap,
    mix: Mix,
}

/// The network.
#[derive(Debug, Clone)]
pub struct Hat {
    layout: Layout,
    first: Conv2d,
    norm_at_start: Option<LayerNorm>,
    groups: Vec<Group>,
    norm: LayerNorm,
    after: Mix,
    tail: Tail,
    mean: Tensor,
}

impl Hat {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let width = layout.width;
        let group = |(i, (depth, heads)): (usize, &(usize, usize))| {
            let vb = vb.pp("layers").pp(i);
            let inner = vb.pp("residual_group");
            let blocks = (0..*depth)
                .map(|j| Block::new(inner.pp("blocks").pp(j), layout, *heads, j % 2 == 1));
            Ok(Group {
                blocks: blocks.collect::<Result<_>>()?,
                overlap: Overlap::new(inner.pp("overlap_attn"), layout, *heads)?,
                mix: Mix::new(vb.pp("conv"), width, false)?,
            })
        };
        let groups = layout.groups.iter().enumerate();
        Ok(Self {
            first: conv(vb.pp("conv_first"), 3, width, 3, 1, 1)?,
            norm_at_start: match layout.norm_at_start {
                true => Some(layer_norm(vb.pp("patch_embed.norm"), width, 1e-5)?),
                false => None,
            },
            groups: groups.map(group).collect::<Result<_>>()?,
            norm: layer_norm(vb.pp("norm"), width, 1e-5)?,
            after: Mix::new(vb.pp("conv_after_body"), width, false)?,
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
        let picture = extended(&x.broadcast_sub(&self.mean)?, size.0, size.1)?;
        let first = self.first.forward(&picture)?;
        let mut x = pixels_as_rows(&first)?;
        if let Some(norm) = &self.norm_at_start {
            x = norm.forward(&x)?;
        }
        let mask = borders(window, size, x.device())?;
        for group in &self.groups {
            let mut y = x.clone();
            for block in &group.blocks {
                y = block.forward(&y, size, &mask)?;
            }
            let y = rows_as_pixels(&group.overlap.forward(&y, size)?, size.0, size.1)?;
            x = (x + pixels_as_rows(&group.mix.forward(&y)?)?)?;
        }
        let x = rows_as_pixels(&self.norm.forward(&x)?, size.0, size.1)?;
        let x = self.tail.forward(&(self.after.forward(&x)? + first)?)?;
        let scale = self.layout.scale();
        x.narrow(2, 0, height * scale)?
            .narrow(3, 0, width * scale)?
            .broadcast_add(&self.mean)
    }
}
