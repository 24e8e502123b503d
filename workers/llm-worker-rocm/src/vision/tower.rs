//! A vision transformer: patches of pictures to as many rows.
//!
//! "An Image is Worth 16x16 Words", Dosovitskiy et al., 2020; windows and turned patches: "Qwen2.5-VL Technical Report",
//! Bai et al., 2025.

use super::attention::{attend, Segments};
use super::config::VisionConfig;
use super::kinds::{Activation, Kind};
use super::preprocess::Tile;
use super::weights::{Linear, Loader, Norm};
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::{ops, rotary_emb::rope_thd};
use worker::{Error, Result as WorkerResult};

/// Base of the rotary frequencies of patches.
const ROTARY_BASE: f64 = 10_000.0;

/// A vision transformer's weights.
pub(super) struct Tower {
    /// From a patch's pixels to the width.
    patch: Linear,
    /// `(places, width)`.
    positions: Option<Tensor>,
    /// A row before all patches, `(1, width)`.
    class: Option<Tensor>,
    pre_norm: Option<Norm>,
    blocks: Vec<Block>,
}

struct Block {
    norms: [Norm; 2],
    attention: Attention,
    up: Linear,
    gate: Option<Linear>,
    down: Linear,
    /// Factors of what attention and the feed-forward part give.
    scales: [Option<Tensor>; 2],
}

struct Attention {
    /// Queries, keys and values behind each other.
    all: Linear,
    output: Linear,
    heads: usize,
}

pub(super) fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Gelu => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::QuickGelu => x * ops::sigmoid(&(x * 1.702)?)?,
        Activation::Silu => x.silu(),
    }
}

impl Tower {
    pub(super) fn load(loader: &Loader, c: &VisionConfig) -> WorkerResult<Self> {
        const LOADING: &str = "loading the encoder of pictures";
        let (width, rms, epsilon) = (c.width, c.traits.rms, c.epsilon);
        let kernel = [width, 3, c.patch, c.patch];
        let mut patch = loader.shaped("v.patch_embd.weight", &kernel)?;
        if loader.has("v.patch_embd.weight.1") {
            // A picture is a video's two frames that are alike.
            let second = loader.shaped("v.patch_embd.weight.1", &kernel)?;
            patch = (patch + second).map_err(Error::candle(LOADING))?;
        }
        let patch = patch
            .reshape((width, 3 * c.patch * c.patch))
            .map_err(Error::candle(LOADING))?;
        let bias = match loader.has("v.patch_embd.bias") {
            true => Some(loader.vector("v.patch_embd.bias", width)?),
            false => None,
        };
        let positions = match loader.has("v.position_embd.weight") {
            true => Some(loader.tensor("v.position_embd.weight")?),
            false => None,
        };
        let class = match loader.has("v.class_embd") {
            true => {
                let row = loader.tensor("v.class_embd")?.reshape((1, width));
                Some(row.map_err(Error::candle(LOADING))?)
            }
            false => None,
        };
        let places = (c.side / c.patch).pow(2) + usize::from(class.is_some());
        if let Some(positions) = &positions {
            let fits = match *positions.dims() {
                // Brought to each picture's size.
                [rows, columns] if c.traits.sections => {
                    rows.isqrt().pow(2) == rows && columns == width
                }
                [rows, columns] => rows == places && columns == width,
                _ => false,
            };
            if !fits {
                return Err(loader.bad(format!(
                    "tensor v.position_embd.weight has shape {:?}",
                    positions.dims()
                )));
            }
        }
        Ok(Self {
            patch: loader.turned(patch, bias)?,
            positions,
            class,
            pre_norm: loader.norm_if_there("v.pre_ln", width, rms, epsilon)?,
            blocks: (0..c.blocks)
                .map(|block| Block::load(loader, c, block))
                .collect::<WorkerResult<_>>()?,
        })
    }

    /// Tiles of one size, to `(tiles * rows, width)` without the row before all patches; for `deepstack`, what `take`
    /// is given behind those blocks. Rows of a tile are in the order of its patches.
    pub(super) fn forward(
        &self,
        c: &VisionConfig,
        tiles: &[&Tile],
        device: &Device,
        dtype: DType,
        mut take: impl FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let pixels: Vec<f32> = tiles.iter().flat_map(|tile| c.floats(tile)).collect();
        let size = 3 * c.patch * c.patch;
        let count = pixels.len() / size;
        let patches = Tensor::from_vec(pixels, (count, size), device)?;
        let mut x = self.patch.forward(&patches.to_dtype(dtype)?)?;
        let first = tiles[0];
        let count = first.rows * first.columns;
        let places = count + usize::from(self.class.is_some());
        if let Some(class) = &self.class {
            let parts = (0..tiles.len()).flat_map(|tile| [(tile, true), (tile, false)]);
            let parts = parts.map(|(tile, is_class)| match is_class {
                true => Ok(class.clone()),
                false => x.narrow(0, tile * count, count),
            });
            x = Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?;
        }
        if let Some(positions) = &self.positions {
            let rows = match c.traits.sections {
                true => interpolated(positions, first, c.merge)?,
                false => positions.clone(),
            };
            let width = rows.dim(1)?;
            x = x
                .reshape((tiles.len(), places, width))?
                .broadcast_add(&rows)?
                .reshape((tiles.len() * places, width))?;
        }
        if let Some(norm) = &self.pre_norm {
            x = norm.forward(&x)?;
        }
        let whole = Segments::new(tiles.iter().map(|_| places), device)?;
        let windows = match c.windows {
            Some((period, window)) => {
                let (order, lengths) = windows(first, c.merge, window / c.merge / c.patch);
                Some((period, order, Segments::new(lengths.into_iter(), device)?))
            }
            None => None,
        };
        let unit = c.merge * c.merge;
        let reorder = |x: &Tensor, order: &[u32]| -> Result<Tensor> {
            let (rows, width) = x.dims2()?;
            let order = Tensor::new(order, device)?;
            x.reshape((rows / unit, unit * width))?
                .index_select(&order, 0)?
                .reshape((rows, width))
        };
        let mut rotary = match c.traits.turned {
            true => Some(angles(first, c, device)?),
            false => None,
        };
        if let Some((_, order, _)) = &windows {
            x = reorder(&x, order)?;
            if let Some((cos, sin)) = &mut rotary {
                *cos = reorder(cos, order)?;
                *sin = reorder(sin, order)?;
            }
        }
        let rotary = match rotary {
            Some((cos, sin)) => Some((cos.to_dtype(dtype)?, sin.to_dtype(dtype)?)),
            None => None,
        };
        for (index, block) in self.blocks.iter().enumerate() {
            let segments = match &windows {
                Some((period, _, windows)) if (index + 1) % period != 0 => windows,
                _ => &whole,
            };
            x = block.forward(&x, segments, rotary.as_ref(), c)?;
            take(index, &x)?;
        }
        if let Some((_, order, _)) = &windows {
            let mut back = vec![0u32; order.len()];
            for (place, from) in order.iter().enumerate() {
                back[*from as usize] = place as u32;
            }
            x = reorder(&x, &back)?;
        }
        self.without_class(x, tiles.len(), count)
    }

    /// Rows without those before all patches.
    pub(super) fn without_class(&self, x: Tensor, tiles: usize, count: usize) -> Result<Tensor> {
        if self.class.is_none() {
            return Ok(x);
        }
        let width = x.dim(1)?;
        x.reshape((tiles, count + 1, width))?
            .narrow(1, 1, count)?
            .reshape((tiles * count, width))
    }
}

impl Block {
    fn load(loader: &Loader, c: &VisionConfig, block: usize) -> WorkerResult<Self> {
        const LOADING: &str = "loading the encoder of pictures";
        let (width, rms) = (c.width, c.traits.rms);
        let name = |part: &str| format!("v.blk.{block}.{part}");
        let norm = |part: &str| loader.norm(&name(part), width, rms, c.epsilon);
        let all = match loader.has(&name("attn_qkv.weight")) {
            true => loader.linear(&name("attn_qkv"), width, 3 * width)?,
            false => {
                let parts = ["attn_q", "attn_k", "attn_v"].map(|part| {
                    let turns = c.traits.kind == Kind::Pixtral && part != "attn_v";
                    match turns {
                        true => in_halves(loader, &name(part), width, c.heads),
                        false => loader.linear(&name(part), width, width),
                    }
                });
                let parts = parts.into_iter().collect::<WorkerResult<Vec<_>>>()?;
                let weights: Vec<&Tensor> = parts.iter().map(|p| &p.weight).collect();
                let biases: Option<Vec<&Tensor>> = parts.iter().map(|p| p.bias.as_ref()).collect();
                let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose();
                Linear {
                    weight: Tensor::cat(&weights, 1).map_err(Error::candle(LOADING))?,
                    bias: bias.map_err(Error::candle(LOADING))?,
                }
            }
        };
        // Early files have the two the other way round.
        let first = loader.file.header().tensor(&name("ffn_up.weight"));
        let swapped = first
            .is_some_and(|t| c.hidden != width && t.dims[..] == [c.hidden as u64, width as u64]);
        let (up, down) = match swapped {
            true => ("ffn_down", "ffn_up"),
            false => ("ffn_up", "ffn_down"),
        };
        let scale = |part: &str| match loader.has(&name(part)) {
            true => loader.vector(&name(part), width).map(Some),
            false => Ok(None),
        };
        let gate = match loader.has(&name("ffn_gate.weight")) {
            true => Some(loader.linear(&name("ffn_gate"), width, c.hidden)?),
            false => None,
        };
        Ok(Self {
            norms: [norm("ln1")?, norm("ln2")?],
            attention: Attention {
                all,
                output: loader.linear(&name("attn_out"), width, width)?,
                heads: c.heads,
            },
            up: loader.linear(&name(up), width, c.hidden)?,
            gate,
            down: loader.linear(&name(down), c.hidden, width)?,
            scales: [scale("ls1.weight")?, scale("ls2.weight")?],
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        segments: &Segments,
        rotary: Option<&(Tensor, Tensor)>,
        c: &VisionConfig,
    ) -> Result<Tensor> {
        let scaled = |x: Tensor, scale: &Option<Tensor>| match scale {
            Some(scale) => x.broadcast_mul(scale),
            None => Ok(x),
        };
        let mixed = self
            .attention
            .forward(&self.norms[0].forward(x)?, segments, rotary)?;
        let x = (x + scaled(mixed, &self.scales[0])?)?;
        let input = self.norms[1].forward(&x)?;
        let up = self.up.forward(&input)?;
        let inner = match &self.gate {
            Some(gate) => (activate(&gate.forward(&input)?, c.activation)? * up)?,
            None => activate(&up, c.activation)?,
        };
        let fed = self.down.forward(&inner)?;
        x + scaled(fed, &self.scales[1])?
    }
}

impl Attention {
    fn forward(
        &self,
        x: &Tensor,
        segments: &Segments,
        rotary: Option<&(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let size = width / self.heads;
        let all = self.all.forward(x)?.reshape((rows, 3, self.heads, size))?;
        let part = |index: usize| all.narrow(1, index, 1)?.squeeze(1)?.contiguous();
        let (mut q, mut k, v) = (part(0)?, part(1)?, part(2)?);
        if let Some((cos, sin)) = rotary {
            let turned = |x: Tensor| rope_thd(&x.unsqueeze(0)?, cos, sin)?.squeeze(0);
            (q, k) = (turned(q)?, turned(k)?);
        }
        let mixed = attend(&q, &k, &v, segments)?;
        self.output.forward(&mixed.reshape((rows, width))?)
    }
}

/// A matrix whose heads' rows GGUF has in the order of pairs of neighbours, in that of halves.
fn in_halves(loader: &Loader, name: &str, width: usize, heads: usize) -> WorkerResult<Linear> {
    let weight = loader.shaped(&format!("{name}.weight"), &[width, width])?;
    let turned = weight
        .reshape((heads, width / heads / 2, 2, width))
        .and_then(|weight| weight.transpose(1, 2)?.contiguous())
        .and_then(|weight| weight.reshape((width, width)));
    let turned = turned.map_err(Error::candle("loading the encoder of pictures"))?;
    loader.turned(turned, None)
}

/// Rows and columns of a tile's patches, in their order.
fn places(tile: &Tile, group: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let across = tile.columns / group;
    (0..tile.rows * tile.columns).map(move |place| {
        let (inner, outer) = (place % (group * group), place / (group * group));
        let row = outer / across * group + inner / group;
        (row, outer % across * group + inner % group)
    })
}

/// Cosines and sines of patches, f32 `(patches, half of a head)`: a quarter turns by the row, a quarter by the column.
fn angles(tile: &Tile, c: &VisionConfig, device: &Device) -> Result<(Tensor, Tensor)> {
    let quarter = c.width / c.heads / 4;
    let frequency = |i: f64| ROTARY_BASE.powf(-i / quarter as f64);
    let mut values = Vec::with_capacity(tile.rows * tile.columns * 2 * quarter);
    // Pixtral's columns have the frequencies between those of rows.
    let between = if c.traits.sections { 0.0 } else { 0.5 };
    for (row, column) in places(tile, c.group()) {
        for (place, shift) in [(row, 0.0), (column, between)] {
            values.extend((0..quarter).map(|i| place as f64 * frequency(i as f64 + shift)));
        }
    }
    let shape = (values.len() / (2 * quarter), 2 * quarter);
    let table = |function: fn(f64) -> f64| {
        let values: Vec<f32> = values.iter().map(|x| function(*x) as f32).collect();
        Tensor::from_vec(values, shape, device)
    };
    Ok((table(f64::cos)?, table(f64::sin)?))
}

/// A square of learned positions brought to a tile's size, linearly, its corners at the tile's.
fn interpolated(positions: &Tensor, tile: &Tile, group: usize) -> Result<Tensor> {
    let side = positions.dim(0)?.isqrt();
    let taps = |place: usize, count: usize| {
        let at = place as f32 * (side - 1) as f32 / (count.max(2) - 1) as f32;
        let low = (at.floor() as usize).min(side - 1);
        [
            (low, 1.0 - at.fract()),
            ((low + 1).min(side - 1), at.fract()),
        ]
    };
    let (mut indices, mut weights) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
    for (row, column) in places(tile, group) {
        let (down, across) = (taps(row, tile.rows), taps(column, tile.columns));
        for tap in 0..4 {
            let ((y, a), (x, b)) = (down[tap / 2], across[tap % 2]);
            indices[tap].push((y * side + x) as u32);
            weights[tap].push(a * b);
        }
    }
    let device = positions.device();
    let mut sum: Option<Tensor> = None;
    for (indices, weights) in indices.iter().zip(&weights) {
        let weights = Tensor::new(weights.as_slice(), device)?.to_dtype(positions.dtype())?;
        let rows = positions.index_select(&Tensor::new(indices.as_slice(), device)?, 0)?;
        let part = rows.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?;
        sum = Some(match sum {
            Some(sum) => (sum + part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| candle_core::Error::Msg("no taps".to_string()))
}

/// Groups of patches window by window, and patches of each window.
fn windows(tile: &Tile, group: usize, window: usize) -> (Vec<u32>, Vec<usize>) {
    let (rows, columns) = (tile.rows / group, tile.columns / group);
    let (mut order, mut lengths) = (Vec::new(), Vec::new());
    for top in (0..rows).step_by(window) {
        for left in (0..columns).step_by(window) {
            let before = order.len();
            for row in top..(top + window).min(rows) {
                let end = (left + window).min(columns);
                order.extend((left..end).map(|column| (row * columns + column) as u32));
            }
            lengths.push((order.len() - before) * group * group);
        }
    }
    (order, lengths)
}
