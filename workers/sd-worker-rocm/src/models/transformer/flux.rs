//! The transformer of FLUX.1.

use super::attention::{attend, Projections, Rope, PICTURE};
use super::block_residuals::BlockResiduals;
use super::blocks::{Conditions, JointBlock, JointKind, Modulation, PlainNorm};
use super::step_cache::BlockCache;
use super::{pack, unpack};
use crate::models::config::{check_axes, within, Others};
use crate::models::layers::linear;
use crate::models::layers::Linear;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor, D};
use serde::Deserialize;

/// `config.json` of a `FluxTransformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
pub struct FluxConfig {
    /// Channels of a patch of 2x2 latents, with those of pictures and masks beside them.
    #[serde(default = "channels")]
    pub in_channels: usize,
    /// Channels of a patch of what is predicted; `None` is as many.
    #[serde(default)]
    pub out_channels: Option<usize>,
    /// Patches, of what is 2x2 latents already.
    #[serde(default = "patch")]
    pub patch_size: usize,
    /// Blocks with layers of their own for picture and text.
    #[serde(default = "double")]
    pub num_layers: usize,
    /// Blocks with the same layers for both.
    #[serde(default = "single")]
    pub num_single_layers: usize,
    /// Channels of a head.
    #[serde(default = "head")]
    pub attention_head_dim: usize,
    /// Heads.
    #[serde(default = "heads")]
    pub num_attention_heads: usize,
    /// Width of the text.
    #[serde(default = "joint")]
    pub joint_attention_dim: usize,
    /// Width of the pooled text.
    #[serde(default = "pooled")]
    pub pooled_projection_dim: usize,
    /// Whether guidance is a condition.
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Shares of a head that turn with index, row and column.
    #[serde(default = "axes")]
    pub axes_dims_rope: Vec<usize>,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

fn channels() -> usize {
    64
}

fn patch() -> usize {
    1
}

fn double() -> usize {
    19
}

fn single() -> usize {
    38
}

fn head() -> usize {
    128
}

fn heads() -> usize {
    24
}

fn joint() -> usize {
    4096
}

fn pooled() -> usize {
    768
}

fn axes() -> Vec<usize> {
    vec![16, 56, 56]
}

impl FluxConfig {
    /// Whether the settings make sense.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.others.refuse(&[])?;
        within(
            &[
                ("in_channels", self.in_channels),
                ("num_layers", self.num_layers),
                ("num_single_layers", self.num_single_layers),
                ("attention_head_dim", self.attention_head_dim),
                ("num_attention_heads", self.num_attention_heads),
                ("joint_attention_dim", self.joint_attention_dim),
                ("pooled_projection_dim", self.pooled_projection_dim),
            ],
            1 << 14,
        )?;
        check_axes::<3>(
            "axes_dims_rope",
            &self.axes_dims_rope,
            self.attention_head_dim,
        )?;
        let (input, output) = (self.in_channels, self.out());
        if !input.is_multiple_of(4) || !output.is_multiple_of(4) || output == 0 || output > input {
            return Err(format!(
                "in_channels {input} and out_channels {output} are not patches of 2x2"
            ));
        }
        if self.patch_size != 1 {
            return Err(format!("patch_size {} is not implemented", self.patch_size));
        }
        Ok(())
    }

    /// Channels of a patch of what is predicted.
    pub fn out(&self) -> usize {
        self.out_channels.unwrap_or(self.in_channels)
    }

    /// Channels inside.
    pub fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }
}

/// A block in which text and picture are one sequence: attention and feed-forward side by side.
#[derive(Debug, Clone)]
pub(super) struct SingleBlock {
    /// Absent where scales, shifts and gates come from outside.
    modulation: Option<Modulation>,
    norm: PlainNorm,
    projections: Projections,
    up: Linear,
    out: Linear,
    heads: usize,
}

impl SingleBlock {
    /// Reads a block with so many heads; `given` says that scales, shifts and gates come from outside.
    pub(super) fn new(vb: VarBuilder, width: usize, heads: usize, given: bool) -> Result<Self> {
        let size = width / heads;
        Ok(Self {
            modulation: match given {
                true => None,
                false => Some(Modulation::new(vb.pp("norm.linear"), width, width, 3)?),
            },
            norm: PlainNorm::default(),
            projections: Projections::new(&vb.pp("attn"), &PICTURE, width, size, 1e-6)?,
            up: linear(vb.pp("proj_mlp"), width, 4 * width)?,
            out: linear(vb.pp("proj_out"), 5 * width, width)?,
            heads,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, conditions: &Tensor, rope: &Rope) -> Result<Tensor> {
        match &self.modulation {
            Some(modulation) => self.forward_by(x, &modulation.forward(conditions)?, rope),
            None => candle_core::bail!("the block has no modulation of its own"),
        }
    }

    /// The block with shift, scale and gate, `(batch or 1, 1, width)` each.
    pub(super) fn forward_by(&self, x: &Tensor, by: &[Tensor], rope: &Rope) -> Result<Tensor> {
        let normed = self.norm.modulated(x, &by[1], Some(&by[0]))?;
        let attended = attend(&self.projections.forward(&normed)?, self.heads, Some(rope))?;
        let hidden = self.up.forward_gelu(&normed)?;
        let both = Tensor::cat(&[&attended, &hidden], D::Minus1)?;
        self.out.forward_onto(x, &both, &by[2])
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Flux {
    config: FluxConfig,
    picture: Linear,
    text: Linear,
    conditions: Conditions,
    double: Vec<JointBlock>,
    single: Vec<SingleBlock>,
    norm: PlainNorm,
    modulation: Modulation,
    out: Linear,
}

impl Flux {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration makes no sense, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &FluxConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let width = config.width();
        let (double, single) = (
            vb.pp("transformer_blocks"),
            vb.pp("single_transformer_blocks"),
        );
        Ok(Self {
            picture: linear(vb.pp("x_embedder"), config.in_channels, width)?,
            text: linear(vb.pp("context_embedder"), config.joint_attention_dim, width)?,
            conditions: Conditions::new(
                vb.pp("time_text_embed"),
                width,
                config.pooled_projection_dim,
                config.guidance_embeds,
            )?,
            double: (0..config.num_layers)
                .map(|i| {
                    let heads = config.num_attention_heads;
                    JointBlock::new(double.pp(i), width, heads, JointKind::default())
                })
                .collect::<Result<_>>()?,
            single: (0..config.num_single_layers)
                .map(|i| SingleBlock::new(single.pp(i), width, config.num_attention_heads, false))
                .collect::<Result<_>>()?,
            norm: PlainNorm::default(),
            modulation: Modulation::new(vb.pp("norm_out.linear"), width, width, 2)?,
            out: linear(vb.pp("proj_out"), width, config.out())?,
            config: config.clone(),
        })
    }

    /// Blocks with layers of their own for picture and text, and others.
    pub fn block_counts(&self) -> (usize, usize) {
        (self.double.len(), self.single.len())
    }

    /// Channels of the latents, and of what is beside them.
    pub fn channels(&self) -> usize {
        self.config.in_channels / 4
    }

    /// Rotations for `tokens` of text, which all stand at the origin, a picture of so many latents, height and width,
    /// and pictures of so many beside it.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn rope(
        &self,
        tokens: usize,
        picture: (usize, usize),
        references: &[(usize, usize)],
        like: &Tensor,
    ) -> Result<Rope> {
        let positions = positions(tokens, picture, references);
        let sizes = &self.config.axes_dims_rope;
        Rope::new(&positions, sizes, 10_000.0, like.dtype(), like.device())
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 to 1000, with a text `(batch,
    /// tokens, width)`, a pooled one `(batch, width)`, patches of pictures beside it, `(batch, patches, channels * 4)`,
    /// and what ControlNets add.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    #[allow(clippy::too_many_arguments)]
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        guidance: f64,
        text: &Tensor,
        pooled: &Tensor,
        references: Option<&Tensor>,
        rope: &Rope,
        added: &BlockResiduals,
    ) -> Result<Tensor> {
        self.forward_cached(x, t, guidance, text, pooled, references, rope, added, None)
    }

    /// As [`Self::forward`], with a memory of earlier steps and whether this is the first or last of them.
    ///
    /// # Errors
    /// Those of [`Self::forward`].
    #[allow(clippy::too_many_arguments)]
    pub fn forward_cached<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        guidance: f64,
        text: &Tensor,
        pooled: &Tensor,
        references: Option<&Tensor>,
        rope: &Rope,
        added: &BlockResiduals,
        cache: Option<(&BlockCache, bool)>,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let own = pack(x)?;
        let patches = own.dim(1)?;
        let all = match references {
            Some(references) => Tensor::cat(&[&own, references], 1)?,
            None => own,
        };
        let picture = self.picture.forward(&all)?;
        let text = self.text.forward(text)?;
        let conditions = self.conditions.forward(t, Some(guidance), pooled)?;
        let picture = self.blocks(picture, text, &conditions, rope, added, cache)?;
        let picture = picture.narrow(1, 0, patches)?.contiguous()?;
        let by = self.modulation.forward(&conditions)?;
        let picture = self.norm.modulated(&picture, &by[0], Some(&by[1]))?;
        unpack(&self.out.forward(&picture)?, height, width)
    }
}

impl Flux {
    /// The picture after all blocks, some of which an earlier step may stand for.
    fn blocks(
        &self,
        mut picture: Tensor,
        mut text: Tensor,
        conditions: &Tensor,
        rope: &Rope,
        added: &BlockResiduals,
        cache: Option<(&BlockCache, bool)>,
    ) -> Result<Tensor> {
        if let (Some((cache, ends)), Some(first)) = (cache, self.double.first()) {
            let modulated = || first.modulated(&picture, conditions);
            if let Some(end) = cache.instead_of_all(&picture, &modulated, ends)? {
                return Ok(end);
            }
        }
        for (i, block) in self.double.iter().enumerate() {
            let before = picture.clone();
            (picture, text) = block.forward(&picture, &text, conditions, Some(rope))?;
            if let Some(more) = added.double.get(i) {
                let further = picture.dim(1)? - more.dim(1)?;
                picture = (picture + more.pad_with_zeros(1, 0, further)?)?;
            }
            if let (0, Some((cache, _))) = (i, cache) {
                if let Some(end) = cache.instead_of_rest(&before, &picture)? {
                    return Ok(end);
                }
            }
        }
        let (tokens, patches) = (text.dim(1)?, picture.dim(1)?);
        let mut both = Tensor::cat(&[&text, &picture], 1)?;
        for (i, block) in self.single.iter().enumerate() {
            both = block.forward(&both, conditions, rope)?;
            if let Some(more) = added.single.get(i) {
                let further = patches - more.dim(1)?;
                both = (both + more.pad_with_zeros(1, tokens, further)?)?;
            }
        }
        let picture = both.narrow(1, tokens, patches)?.contiguous()?;
        if let Some((cache, _)) = cache {
            cache.keep(&picture)?;
        }
        Ok(picture)
    }
}

/// Index, row and column of `tokens` of text, of a picture of so many latents, height and width, and of pictures of so
/// many beside it.
pub(super) fn positions(
    tokens: usize,
    picture: (usize, usize),
    references: &[(usize, usize)],
) -> Vec<[f64; 3]> {
    let mut positions = vec![[0.0; 3]; tokens];
    positions.extend(patches(0, (0, 0), picture));
    for (origin, size) in side_by_side(references) {
        positions.extend(patches(1, origin, size));
    }
    positions
}

/// Positions of a picture's patches, whose first is at `origin`, of a picture of this index.
fn patches(
    index: usize,
    (top, left): (usize, usize),
    (height, width): (usize, usize),
) -> impl Iterator<Item = [f64; 3]> {
    (0..height / 2).flat_map(move |row| {
        (0..width / 2).map(move |column| [index as f64, (top + row) as f64, (left + column) as f64])
    })
}

/// Where pictures beside the painted one stand, in patches, with their sizes in latents: the first at the origin, each
/// further one at the side where the whole stays smaller, as ComfyUI places them. (diffusers knows one.)
fn side_by_side(pictures: &[(usize, usize)]) -> Vec<((usize, usize), (usize, usize))> {
    let (mut height, mut width) = (0, 0);
    let mut placed = Vec::with_capacity(pictures.len());
    for (h, w) in pictures {
        let (rows, columns) = (h / 2, w / 2);
        let origin = match rows + height > columns + width {
            true => (0, width),
            false => (height, 0),
        };
        placed.push((origin, (*h, *w)));
        height = height.max(rows + origin.0);
        width = width.max(columns + origin.1);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_stand_beside_each_other() {
        let origins = |pictures: &[(usize, usize)]| -> Vec<_> {
            let placed = side_by_side(pictures).into_iter();
            placed.map(|(origin, _)| origin).collect()
        };
        assert_eq!(origins(&[(8, 6)]), [(0, 0)]);
        // Two portraits side by side, two landscapes below each other; a third where it makes the less high or wide.
        assert_eq!(origins(&[(8, 6), (8, 6)]), [(0, 0), (0, 3)]);
        assert_eq!(origins(&[(6, 8), (6, 8)]), [(0, 0), (3, 0)]);
        assert_eq!(origins(&[(6, 8), (6, 8), (2, 2)]), [(0, 0), (3, 0), (0, 4)]);
    }
}
