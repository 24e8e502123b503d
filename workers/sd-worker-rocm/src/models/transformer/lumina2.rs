//! The transformer of Lumina Image 2.

use super::attention::Rope;
use super::blocks::{PlainNorm, TIME};
use super::sandwich::{SandwichBlock, SandwichNames, SandwichSizes};
use super::{pack_inner, unpack_inner};
use crate::models::config::{check_axes, check_heads, within, Others};
use crate::models::layers::{linear, Linear, TimestepEmbedding};
use crate::models::norm::RmsNorm;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use serde::Deserialize;

/// Widest conditions.
const CONDITIONS: usize = 1024;

/// `config.json` of a `Lumina2Transformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
pub struct Lumina2Config {
    /// Channels of a latent.
    #[serde(default = "channels")]
    pub in_channels: usize,
    /// Channels inside.
    #[serde(default = "width")]
    pub hidden_size: usize,
    /// Blocks.
    #[serde(default = "layers")]
    pub num_layers: usize,
    /// Blocks that picture and text go through each on its own first.
    #[serde(default = "refiners")]
    pub num_refiner_layers: usize,
    /// Heads of queries.
    #[serde(default = "heads")]
    pub num_attention_heads: usize,
    /// Heads of keys and values.
    #[serde(default = "shared")]
    pub num_kv_heads: usize,
    /// Of what the feed-forward layers' inner width is a multiple.
    #[serde(default = "multiple")]
    pub multiple_of: usize,
    /// By what four times the width is multiplied for that.
    #[serde(default)]
    pub ffn_dim_multiplier: Option<f64>,
    /// Of the norms.
    #[serde(default = "eps")]
    pub norm_eps: f64,
    /// Shares of a head that turn with index, row and column.
    #[serde(default = "axes")]
    pub axes_dim_rope: Vec<usize>,
    /// Width of the text.
    #[serde(default = "text")]
    pub cap_feat_dim: usize,
    /// Channels inside the feed-forward layers, where files say them and no configuration does.
    #[serde(skip)]
    pub inner: Option<usize>,
    #[serde(default)]
    pub(crate) out_channels: Option<usize>,
    #[serde(default = "patch")]
    pub(crate) patch_size: usize,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

fn channels() -> usize {
    16
}

fn width() -> usize {
    2304
}

fn layers() -> usize {
    26
}

fn refiners() -> usize {
    2
}

fn heads() -> usize {
    24
}

fn shared() -> usize {
    8
}

fn multiple() -> usize {
    256
}

fn eps() -> f64 {
    1e-5
}

fn axes() -> Vec<usize> {
    vec![32, 32, 32]
}

fn text() -> usize {
    1024
}

fn patch() -> usize {
    2
}

impl Default for Lumina2Config {
    /// The sizes of the published model.
    fn default() -> Self {
        Self {
            in_channels: channels(),
            hidden_size: width(),
            num_layers: layers(),
            num_refiner_layers: refiners(),
            num_attention_heads: heads(),
            num_kv_heads: shared(),
            multiple_of: multiple(),
            ffn_dim_multiplier: None,
            norm_eps: eps(),
            axes_dim_rope: axes(),
            cap_feat_dim: 2304,
            inner: None,
            out_channels: None,
            patch_size: patch(),
            others: Others::default(),
        }
    }
}

impl Lumina2Config {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        // Rotations are computed for the places that there are, not read from tables of these lengths; the others are
        // read by no code of diffusers'.
        self.others
            .refuse(&["axes_lens", "sample_size", "scaling_factor"])?;
        within(
            &[
                ("in_channels", self.in_channels),
                ("hidden_size", self.hidden_size),
                ("num_layers", self.num_layers),
                ("num_refiner_layers", self.num_refiner_layers),
                ("num_attention_heads", self.num_attention_heads),
                ("num_kv_heads", self.num_kv_heads),
                ("multiple_of", self.multiple_of),
                ("cap_feat_dim", self.cap_feat_dim),
            ],
            1 << 14,
        )?;
        within(
            &[("the feed-forward layers' width", self.hidden())],
            1 << 18,
        )?;
        if self.patch_size != 2 {
            return Err("patch_size other than 2 is not implemented".to_string());
        }
        if self
            .out_channels
            .is_some_and(|channels| channels != self.in_channels)
        {
            return Err("out_channels other than in_channels is not implemented".to_string());
        }
        if !self.num_attention_heads.is_multiple_of(self.num_kv_heads) {
            return Err(format!(
                "{} heads for {} of keys are not possible",
                self.num_attention_heads, self.num_kv_heads
            ));
        }
        check_heads(self.hidden_size, self.num_attention_heads)?;
        let head = self.hidden_size / self.num_attention_heads;
        check_axes::<3>("axes_dim_rope", &self.axes_dim_rope, head)
    }

    /// Channels inside the feed-forward layers.
    fn hidden(&self) -> usize {
        if let Some(inner) = self.inner {
            return inner;
        }
        let hidden = 4 * self.hidden_size;
        let hidden = match self.ffn_dim_multiplier {
            // A number of whatever size becomes one that is checked.
            Some(factor) => (factor * hidden as f64) as u32 as usize,
            None => hidden,
        };
        hidden.next_multiple_of(self.multiple_of.max(1))
    }

    fn conditions(&self) -> usize {
        self.hidden_size.min(CONDITIONS)
    }
}

/// Names of a block's parts.
const NAMES: SandwichNames = SandwichNames {
    modulation: "norm1.linear",
    before: ["norm1.norm", "norm1"],
    after: "norm2",
    feed: ["ffn_norm1", "ffn_norm2"],
    attention: "attn",
    layers: [
        "feed_forward.linear_1",
        "feed_forward.linear_3",
        "feed_forward.linear_2",
    ],
};

/// The network.
#[derive(Debug, Clone)]
pub struct Lumina2 {
    config: Lumina2Config,
    picture: Linear,
    time: TimestepEmbedding,
    text_norm: RmsNorm,
    text: Linear,
    picture_blocks: Vec<SandwichBlock>,
    text_blocks: Vec<SandwichBlock>,
    blocks: Vec<SandwichBlock>,
    norm: PlainNorm,
    scale: Linear,
    out: Linear,
    dtype: DType,
}

/// Where the tokens of a text and a picture stand.
#[derive(Debug, Clone)]
pub struct Positions {
    text: Rope,
    picture: Rope,
    both: Rope,
}

impl Lumina2 {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &Lumina2Config) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let width = config.hidden_size;
        let conditions = config.conditions();
        let patch = 4 * config.in_channels;
        let blocks = |name: &str, count: usize, modulated: bool| {
            let vb = vb.pp(name);
            let sizes = SandwichSizes {
                width,
                hidden: config.hidden(),
                heads: config.num_attention_heads,
                shared: config.num_kv_heads,
                conditions: modulated.then_some(conditions),
                eps: config.norm_eps,
                head_eps: 1e-5,
            };
            (0..count)
                .map(|i| SandwichBlock::new(&vb.pp(i), &NAMES, &sizes))
                .collect::<Result<Vec<_>>>()
        };
        let embed = vb.pp("time_caption_embed");
        let last = vb.pp("norm_out");
        Ok(Self {
            picture: linear(vb.pp("x_embedder"), patch, width)?,
            time: TimestepEmbedding::new(embed.pp("timestep_embedder"), TIME, conditions, None)?,
            text_norm: RmsNorm::new(
                embed.pp("caption_embedder.0"),
                config.cap_feat_dim,
                config.norm_eps,
            )?,
            text: linear(embed.pp("caption_embedder.1"), config.cap_feat_dim, width)?,
            picture_blocks: blocks("noise_refiner", config.num_refiner_layers, true)?,
            text_blocks: blocks("context_refiner", config.num_refiner_layers, false)?,
            blocks: blocks("layers", config.num_layers, true)?,
            norm: PlainNorm::default(),
            scale: linear(last.pp("linear_1"), conditions, width)?,
            out: linear(last.pp("linear_2"), width, patch)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// Rotations for `tokens` of text and a picture of so many latents.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn positions(
        &self,
        tokens: usize,
        height: usize,
        width: usize,
        like: &Tensor,
    ) -> Result<Positions> {
        let text: Vec<[f64; 3]> = (0..tokens).map(|i| [i as f64, 0.0, 0.0]).collect();
        let plane = tokens as f64;
        let picture: Vec<[f64; 3]> = (0..height / 2)
            .flat_map(|row| (0..width / 2).map(move |column| [plane, row as f64, column as f64]))
            .collect();
        let both: Vec<[f64; 3]> = text.iter().chain(&picture).copied().collect();
        let rope = |positions: &[[f64; 3]]| {
            let sizes = &self.config.axes_dim_rope;
            Rope::new(positions, sizes, 10_000.0, self.dtype, like.device())
        };
        Ok(Positions {
            text: rope(&text)?,
            picture: rope(&picture)?,
            both: rope(&both)?,
        })
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 (noise) to 1 (picture), with
    /// a text `(batch, tokens, width)`.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        text: &Tensor,
        positions: &Positions,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let row = t.into().embedding(TIME, true, 0.0, x.device())?;
        let conditions = self
            .time
            .forward(&row.to_dtype(self.dtype)?, None)?
            .silu()?;
        let mut text = self.text.forward(&self.text_norm.forward(text)?)?;
        for block in &self.text_blocks {
            text = block.forward(&text, &positions.text, None)?;
        }
        let mut picture = self.picture.forward(&pack_inner(x)?)?;
        for block in &self.picture_blocks {
            picture = block.forward(&picture, &positions.picture, Some(&conditions))?;
        }
        let (tokens, count) = (text.dim(1)?, picture.dim(1)?);
        let mut both = Tensor::cat(&[&text, &picture], 1)?;
        for block in &self.blocks {
            both = block.forward(&both, &positions.both, Some(&conditions))?;
        }
        let picture = both.narrow(1, tokens, count)?.contiguous()?;
        let scale = self.scale.forward(&conditions)?.unsqueeze(1)?;
        let picture = self.norm.modulated(&picture, &scale, None)?;
        unpack_inner(&self.out.forward(&picture)?, height, width)
    }
}
