//! The transformer of Stable Diffusion 3 and 3.5.

use super::block_residuals::BlockResiduals;
use super::blocks::{Conditions, JointBlock, JointKind, Modulation, PlainNorm};
use super::numbers;
use crate::models::config::{within, Others};
use crate::models::layers::Linear;
use crate::models::layers::{conv, linear, pixels_as_rows};
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;
use serde::Deserialize;

/// `config.json` of an `SD3Transformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
pub struct Sd3Config {
    /// Latents a patch, each way.
    #[serde(default = "patch_size")]
    pub patch_size: usize,
    /// Channels of a latent.
    #[serde(default = "channels")]
    pub in_channels: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Channels of a head.
    #[serde(default = "head")]
    pub attention_head_dim: usize,
    /// Width of the text.
    #[serde(default = "joint")]
    pub joint_attention_dim: usize,
    /// Width of the pooled text.
    #[serde(default = "pooled")]
    pub pooled_projection_dim: usize,
    /// Patches each way in the table of positions.
    #[serde(default = "positions")]
    pub pos_embed_max_size: usize,
    /// Blocks in which the picture has a second attention.
    #[serde(default)]
    pub dual_attention_layers: Vec<usize>,
    /// Norm of queries and keys.
    #[serde(default)]
    pub qk_norm: Option<String>,
    #[serde(default)]
    pub(crate) caption_projection_dim: Option<usize>,
    #[serde(default)]
    pub(crate) out_channels: Option<usize>,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

fn patch_size() -> usize {
    2
}

fn channels() -> usize {
    16
}

fn head() -> usize {
    64
}

fn joint() -> usize {
    4096
}

fn pooled() -> usize {
    2048
}

fn positions() -> usize {
    192
}

impl Sd3Config {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        // The table of positions, which is as large as `sample_size` says, is among the weights.
        self.others.refuse(&["sample_size"])?;
        within(
            &[
                ("patch_size", self.patch_size),
                ("in_channels", self.in_channels),
                ("num_layers", self.num_layers),
                ("num_attention_heads", self.num_attention_heads),
                ("attention_head_dim", self.attention_head_dim),
                ("joint_attention_dim", self.joint_attention_dim),
                ("pooled_projection_dim", self.pooled_projection_dim),
                ("pos_embed_max_size", self.pos_embed_max_size),
            ],
            1 << 14,
        )?;
        let fixed = [
            (
                "caption_projection_dim",
                self.caption_projection_dim,
                self.width(),
            ),
            ("out_channels", self.out_channels, self.in_channels),
        ];
        for (name, said, is) in fixed {
            if said.is_some_and(|said| said != is) {
                return Err(format!("{name} other than {is} is not implemented"));
            }
        }
        match self.qk_norm.as_deref() {
            None | Some("rms_norm") => Ok(()),
            Some(other) => Err(format!("qk_norm {other} is not implemented")),
        }
    }

    /// Channels inside.
    pub fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }
}

/// Where latents enter: patches become rows, which are told their places.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    patches: Conv2d,
    /// `(rows, columns, width)`, of which the middle is used.
    positions: Option<Tensor>,
    patch: usize,
}

impl Entry {
    /// Reads `proj` and, for so many patches each way, `pos_embed`.
    pub(super) fn new(
        vb: VarBuilder,
        (channels, width): (usize, usize),
        patch: usize,
        table: Option<usize>,
    ) -> Result<Self> {
        let positions = |table: usize| {
            vb.get((1, table * table, width), "pos_embed")?
                .reshape((table, table, width))
        };
        Ok(Self {
            patches: conv(vb.pp("proj"), channels, width, patch, patch, 0)?,
            positions: table.map(positions).transpose()?,
            patch,
        })
    }

    /// The rows of latents `(batch, channels, height, width)`: `(batch, patches, width)`.
    ///
    /// # Errors
    /// If the latents are larger than the table of positions or no whole patches, or the device fails.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let patch = self.patch;
        let (rows, columns) = (height / patch, width / patch);
        let table = match &self.positions {
            Some(positions) => positions.dim(0)?,
            None => usize::MAX / patch,
        };
        if rows > table
            || columns > table
            || !height.is_multiple_of(patch)
            || !width.is_multiple_of(patch)
        {
            candle_core::bail!(
                "{height}x{width} latents; the model takes multiples of {patch} up to {}",
                table * patch
            )
        }
        let x = pixels_as_rows(&self.patches.forward(x)?)?;
        let Some(positions) = &self.positions else {
            return Ok(x);
        };
        let positions = positions
            .narrow(0, (table - rows) / 2, rows)?
            .narrow(1, (table - columns) / 2, columns)?
            .contiguous()?
            .reshape((1, rows * columns, ()))?;
        x.broadcast_add(&positions)
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Sd3 {
    config: Sd3Config,
    entry: Entry,
    conditions: Conditions,
    text: Linear,
    blocks: Vec<JointBlock>,
    /// Blocks that are left out, by number.
    without: Vec<usize>,
    norm: PlainNorm,
    modulation: Modulation,
    out: Linear,
}

impl Sd3 {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &Sd3Config) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let (width, patch) = (config.width(), config.patch_size);
        let blocks = vb.pp("transformer_blocks");
        let block = |i: usize| {
            let ends = i + 1 == config.num_layers;
            let alone = config.dual_attention_layers.contains(&i);
            let kind = JointKind {
                ends,
                alone,
                ..JointKind::default()
            };
            JointBlock::new(blocks.pp(i), width, config.num_attention_heads, kind)
        };
        Ok(Self {
            entry: Entry::new(
                vb.pp("pos_embed"),
                (config.in_channels, width),
                patch,
                Some(config.pos_embed_max_size),
            )?,
            conditions: Conditions::new(
                vb.pp("time_text_embed"),
                width,
                config.pooled_projection_dim,
                false,
            )?,
            text: linear(vb.pp("context_embedder"), config.joint_attention_dim, width)?,
            blocks: (0..config.num_layers).map(block).collect::<Result<_>>()?,
            without: Vec::new(),
            norm: PlainNorm::default(),
            modulation: Modulation::new(vb.pp("norm_out.linear"), width, width, 2)?,
            out: linear(vb.pp("proj_out"), width, patch * patch * config.in_channels)?,
            config: config.clone(),
        })
    }

    /// The same network without some of its blocks, by number.
    ///
    /// # Errors
    /// If there is no such block.
    pub fn without(&self, blocks: &[usize]) -> Result<Self> {
        if let Some(absent) = blocks.iter().find(|i| **i >= self.blocks.len()) {
            candle_core::bail!(
                "there is no layer {absent}; they go from 0 to {}",
                self.blocks.len() - 1
            )
        }
        let mut fewer = self.clone();
        fewer.without.extend(blocks);
        Ok(fewer)
    }

    /// The same network in whose blocks of these names, `blocks.3`, the picture's tokens do not see one another; without
    /// names in the middle one.
    ///
    /// # Errors
    /// If there is no such block, or it has a second attention.
    pub fn apart(&self, names: &[String]) -> Result<Self> {
        let mut worse = self.clone();
        let count = self.blocks.len();
        for i in numbers(names, count, count / 2)? {
            worse.blocks[i] = self.blocks[i].apart()?;
        }
        Ok(worse)
    }

    /// Latents `(batch, channels, height, width)` behind the network's entry, as [`Self::forward`] goes on from.
    ///
    /// # Errors
    /// If the picture is larger than the table of positions, or the device fails.
    pub fn entered(&self, x: &Tensor) -> Result<Tensor> {
        self.entry.forward(x)
    }

    /// Blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 to 1000, with a text `(batch,
    /// tokens, width)` and a pooled one `(batch, width)`.
    ///
    /// # Errors
    /// If the picture is larger than the table of positions, shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        text: &Tensor,
        pooled: &Tensor,
    ) -> Result<Tensor> {
        let entered = self.entered(x)?;
        self.forward_steered(x, entered, t, text, pooled, &BlockResiduals::default())
    }

    /// As [`Self::forward`] with latents behind the entry, and with what ControlNets add.
    ///
    /// # Errors
    /// Those of [`Self::forward`].
    pub fn forward_steered<'a>(
        &self,
        x: &Tensor,
        entered: Tensor,
        t: impl Into<Time<'a>>,
        text: &Tensor,
        pooled: &Tensor,
        added: &BlockResiduals,
    ) -> Result<Tensor> {
        let (batch, channels, height, width) = x.dims4()?;
        let patch = self.config.patch_size;
        let (rows, columns) = (height / patch, width / patch);
        let mut picture = entered;
        let conditions = self.conditions.forward(t, None, pooled)?;
        let mut text = self.text.forward(text)?;
        for (i, block) in self.blocks.iter().enumerate() {
            if !self.without.contains(&i) {
                (picture, text) = block.forward(&picture, &text, &conditions, None)?;
            }
            // Nothing is added behind the last one.
            match added.double.get(i) {
                Some(more) if i + 1 < self.blocks.len() => picture = (picture + more)?,
                _ => {}
            }
        }
        let by = self.modulation.forward(&conditions)?;
        let picture = self.norm.modulated(&picture, &by[0], Some(&by[1]))?;
        self.out
            .forward(&picture)?
            .reshape(vec![batch, rows, columns, patch, patch, channels])?
            .permute(vec![0, 5, 1, 3, 2, 4])?
            .contiguous()?
            .reshape((batch, channels, height, width))
    }
}
