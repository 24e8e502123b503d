//! A vision transformer: patches of pictures to as many rows.
//!
//! "An Image is Worth 16x16 Words", Dosovitskiy et al., 2020; windows and turned patches: "Qwen2.5-VL Technical Report",
//! Bai et al., 2025.

use super::attention::Segments;
use super::block::{Block, LOADING};
use super::config::VisionConfig;
use super::kinds::Kind;
use super::positions::{angles, by_column_and_row, interpolated, windows};
use super::preprocess::Tile;
use super::weights::{Linear, Loader, Norm};
use candle_core::{DType, Device, Module, Result, Tensor};
use worker::{Error, Result as WorkerResult};

/// A vision transformer's weights.
pub(super) struct Tower {
    /// From a patch's pixels to the width.
    patch: Linear,
    /// The same of each of a video's two frames, where they go together.
    frames: Option<[Linear; 2]>,
    /// `(places, width)`, or `(2, places of a side, width)` of columns and rows.
    positions: Option<Tensor>,
    /// A row before all patches, `(1, width)`.
    class: Option<Tensor>,
    pre_norm: Option<Norm>,
    blocks: Vec<Block>,
}

impl Tower {
    pub(super) fn load(loader: &Loader, c: &VisionConfig) -> WorkerResult<Self> {
        let (width, rms, epsilon) = (c.width, c.traits.rms, c.epsilon);
        let kernel = [width, 3, c.patch, c.patch];
        let mut patch = loader.shaped("v.patch_embd.weight", &kernel)?;
        let bias = match loader.has("v.patch_embd.bias") {
            true => Some(loader.vector("v.patch_embd.bias", width)?),
            false => None,
        };
        let flat = |weight: &Tensor| {
            let flat = weight.reshape((width, 3 * c.patch * c.patch));
            flat.map_err(Error::candle(LOADING))
        };
        let mut frames = None;
        if loader.has("v.patch_embd.weight.1") {
            // A picture is a video's two frames that are alike.
            let second = loader.shaped("v.patch_embd.weight.1", &kernel)?;
            frames = Some([
                loader.turned(flat(&patch)?, bias.clone())?,
                loader.turned(flat(&second)?, None)?,
            ]);
            patch = (patch + second).map_err(Error::candle(LOADING))?;
        }
        let patch = flat(&patch)?;
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
                [2, _, columns] => c.traits.kind == Kind::Gemma4 && columns == width,
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
            frames,
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
        let mut x = self.embedded(c, tiles, device, dtype)?;
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
            let rows = match c.traits.kind {
                _ if c.traits.sections => interpolated(positions, first, c.merge)?,
                Kind::Gemma4 => by_column_and_row(positions, first)?,
                _ => positions.clone(),
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
                let groups = order.len() as u32;
                let all = (0..tiles.len() as u32)
                    .flat_map(|tile| order.iter().map(move |group| tile * groups + group));
                let all: Vec<u32> = all.collect();
                let lengths = std::iter::repeat_n(lengths, tiles.len()).flatten();
                Some((period, all, Segments::new(lengths, device)?))
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
            Some(base) => {
                let (cos, sin) = angles(first, c, base, device)?;
                let of_all = |one: Tensor| one.repeat((tiles.len(), 1));
                Some((of_all(cos)?, of_all(sin)?))
            }
            None => None,
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

    /// Patches of tiles as rows of the width.
    fn embedded(
        &self,
        c: &VisionConfig,
        tiles: &[&Tile],
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor> {
        let size = 3 * c.patch * c.patch;
        let rows = |part: fn(&Tile) -> &[u8]| -> Result<Tensor> {
            let numbers = tiles.iter().flat_map(|tile| c.numbers(part(tile)));
            let numbers: Vec<f32> = numbers.collect();
            let shape = (numbers.len() / size, size);
            Tensor::from_vec(numbers, shape, device)?.to_dtype(dtype)
        };
        let first = rows(|tile| &tile.patches)?;
        match &self.frames {
            Some([one, other]) if !tiles[0].second.is_empty() => {
                one.forward(&first)? + other.forward(&rows(|tile| &tile.second)?)?
            }
            _ => self.patch.forward(&first),
        }
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
