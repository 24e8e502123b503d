//! The transformer of Z-Image.

use super::attention::Rope;
use super::blocks::{Modulation, PlainNorm, TIME};
use super::sandwich::{SandwichBlock, SandwichNames, SandwichSizes};
use super::{pack_inner, unpack_inner};
use crate::models::config::{check_axes, within, Others};
use crate::models::layers::linear;
use crate::models::layers::Linear;
use crate::models::norm::RmsNorm;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use serde::Deserialize;

/// Text and picture are filled up to multiples of so many tokens.
const MULTIPLE: usize = 32;
/// Widest conditions.
const CONDITIONS: usize = 256;

/// `config.json` of a `ZImageTransformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
pub struct ZImageConfig {
    /// Channels of a latent.
    #[serde(default = "channels")]
    pub in_channels: usize,
    /// Channels inside.
    pub dim: usize,
    /// Blocks.
    pub n_layers: usize,
    /// Blocks that picture and text go through each on its own first.
    #[serde(default = "refiners")]
    pub n_refiner_layers: usize,
    /// Heads.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Of the norms.
    #[serde(default = "eps")]
    pub norm_eps: f64,
    /// Width of the text.
    pub cap_feat_dim: usize,
    /// Of the rotations.
    #[serde(default = "theta")]
    pub rope_theta: f64,
    /// Times go up to this.
    #[serde(default = "time_scale")]
    pub t_scale: f64,
    /// Shares of a head that turn with index, row and column.
    #[serde(default = "axes")]
    pub axes_dims: Vec<usize>,
    #[serde(default = "patch")]
    pub(crate) all_patch_size: Vec<usize>,
    #[serde(default = "frames")]
    pub(crate) all_f_patch_size: Vec<usize>,
    #[serde(default = "qk_norm")]
    pub(crate) qk_norm: bool,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

fn channels() -> usize {
    16
}

fn refiners() -> usize {
    2
}

fn eps() -> f64 {
    1e-5
}

fn theta() -> f64 {
    256.0
}

fn time_scale() -> f64 {
    1000.0
}

fn axes() -> Vec<usize> {
    vec![32, 48, 48]
}

fn patch() -> Vec<usize> {
    vec![2]
}

fn frames() -> Vec<usize> {
    vec![1]
}

fn qk_norm() -> bool {
    true
}

impl Default for ZImageConfig {
    /// The sizes of the published model.
    fn default() -> Self {
        Self {
            in_channels: channels(),
            dim: 3840,
            n_layers: 30,
            n_refiner_layers: refiners(),
            n_heads: 30,
            n_kv_heads: 30,
            norm_eps: eps(),
            cap_feat_dim: 2560,
            rope_theta: theta(),
            t_scale: time_scale(),
            axes_dims: axes(),
            all_patch_size: patch(),
            all_f_patch_size: frames(),
            qk_norm: qk_norm(),
            others: Others::default(),
        }
    }
}

impl ZImageConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        // Rotations are computed for the places that there are, not read from tables of these lengths.
        self.others.refuse(&["axes_lens"])?;
        if !self.qk_norm {
            return Err("qk_norm false is not implemented".to_string());
        }
        within(
            &[
                ("in_channels", self.in_channels),
                ("dim", self.dim),
                ("n_layers", self.n_layers),
                ("n_refiner_layers", self.n_refiner_layers),
                ("n_heads", self.n_heads),
                ("cap_feat_dim", self.cap_feat_dim),
            ],
            1 << 14,
        )?;
        if self.n_heads != self.n_kv_heads {
            return Err("n_kv_heads other than n_heads is not implemented".to_string());
        }
        if self.all_patch_size != [2] || self.all_f_patch_size != [1] {
            return Err("patches other than 2x2 are not implemented".to_string());
        }
        if !self.dim.is_multiple_of(self.n_heads) {
            return Err(format!(
                "{} n_heads do not divide dim {}",
                self.n_heads, self.dim
            ));
        }
        check_axes::<3>("axes_dims", &self.axes_dims, self.dim / self.n_heads)
    }
}

/// Names of a block's parts.
const NAMES: SandwichNames = SandwichNames {
    modulation: "adaLN_modulation.0",
    before: ["attention_norm1", "attention_norm1"],
    after: "attention_norm2",
    feed: ["ffn_norm1", "ffn_norm2"],
    attention: "attention",
    layers: ["feed_forward.w1", "feed_forward.w3", "feed_forward.w2"],
};

fn block(vb: &VarBuilder, config: &ZImageConfig, modulated: bool) -> Result<SandwichBlock> {
    let sizes = SandwichSizes {
        width: config.dim,
        hidden: config.dim * 8 / 3,
        heads: config.n_heads,
        shared: config.n_kv_heads,
        conditions: modulated.then(|| config.dim.min(CONDITIONS)),
        eps: config.norm_eps,
        head_eps: config.norm_eps,
    };
    SandwichBlock::new(vb, &NAMES, &sizes)
}

/// The network.
#[derive(Debug, Clone)]
pub struct ZImage {
    config: ZImageConfig,
    time: [Linear; 2],
    text_norm: RmsNorm,
    text: Linear,
    picture: Linear,
    /// What fills picture and text up.
    fill: [Tensor; 2],
    picture_blocks: Vec<SandwichBlock>,
    text_blocks: Vec<SandwichBlock>,
    blocks: Vec<SandwichBlock>,
    norm: PlainNorm,
    modulation: Modulation,
    out: Linear,
    dtype: DType,
}

/// Where the tokens of a picture and its text stand.
#[derive(Debug, Clone)]
pub struct Positions {
    picture: Rope,
    text: Rope,
    both: Rope,
}

impl ZImage {
    /// Builds the network that `config` describes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &ZImageConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let width = config.dim;
        let conditions = width.min(CONDITIONS);
        let patch = 4 * config.in_channels;
        let blocks = |name: &str, count: usize, modulated: bool| {
            let vb = vb.pp(name);
            (0..count)
                .map(|i| block(&vb.pp(i), config, modulated))
                .collect::<Result<Vec<_>>>()
        };
        let last = vb.pp("all_final_layer.2-1");
        let fill = |name: &str| vb.get((1, width), name)?.reshape((1, 1, width));
        Ok(Self {
            time: [
                linear(vb.pp("t_embedder.mlp.0"), TIME, 1024)?,
                linear(vb.pp("t_embedder.mlp.2"), 1024, conditions)?,
            ],
            text_norm: RmsNorm::new(
                vb.pp("cap_embedder.0"),
                config.cap_feat_dim,
                config.norm_eps,
            )?,
            text: linear(vb.pp("cap_embedder.1"), config.cap_feat_dim, width)?,
            picture: linear(vb.pp("all_x_embedder.2-1"), patch, width)?,
            fill: [fill("x_pad_token")?, fill("cap_pad_token")?],
            picture_blocks: blocks("noise_refiner", config.n_refiner_layers, true)?,
            text_blocks: blocks("context_refiner", config.n_refiner_layers, false)?,
            blocks: blocks("layers", config.n_layers, true)?,
            norm: PlainNorm::default(),
            modulation: Modulation::new(last.pp("adaLN_modulation.1"), conditions, width, 1)?,
            out: linear(last.pp("linear"), width, patch)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// Rotations for `tokens` of text and a picture of so many latents, filled up as [`ZImage::forward`] does.
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
        let tokens = tokens.next_multiple_of(MULTIPLE);
        let text: Vec<[f64; 3]> = (1..=tokens).map(|i| [i as f64, 0.0, 0.0]).collect();
        let start = tokens as f64 + 1.0;
        let mut picture: Vec<[f64; 3]> = (0..height / 2)
            .flat_map(|row| (0..width / 2).map(move |column| [start, row as f64, column as f64]))
            .collect();
        picture.resize(picture.len().next_multiple_of(MULTIPLE), [0.0; 3]);
        let both: Vec<[f64; 3]> = picture.iter().chain(&text).copied().collect();
        let rope = |positions: &[[f64; 3]]| {
            let (sizes, theta) = (&self.config.axes_dims, self.config.rope_theta);
            Rope::new(positions, sizes, theta, self.dtype, like.device())
        };
        Ok(Positions {
            picture: rope(&picture)?,
            text: rope(&text)?,
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
        let t = t.into().times(self.config.t_scale);
        let row = t.embedding(TIME, true, 0.0, x.device())?;
        let [first, second] = &self.time;
        let conditions = second.forward(&first.forward(&row.to_dtype(self.dtype)?)?.silu()?)?;
        let patches = pack_inner(x)?;
        let count = patches.dim(1)?;
        let [picture_fill, text_fill] = &self.fill;
        let mut picture = filled(self.picture.forward(&patches)?, picture_fill)?;
        for block in &self.picture_blocks {
            picture = block.forward(&picture, &positions.picture, Some(&conditions))?;
        }
        let text = self.text.forward(&self.text_norm.forward(text)?)?;
        let mut text = filled(text, text_fill)?;
        for block in &self.text_blocks {
            text = block.forward(&text, &positions.text, None)?;
        }
        let mut both = Tensor::cat(&[&picture, &text], 1)?;
        for block in &self.blocks {
            both = block.forward(&both, &positions.both, Some(&conditions))?;
        }
        let picture = both.narrow(1, 0, count)?.contiguous()?;
        let by = self.modulation.forward(&conditions.silu()?)?;
        let picture = self.norm.modulated(&picture, &by[0], None)?;
        unpack_inner(&self.out.forward(&picture)?, height, width)
    }
}

/// `x`, `(batch, tokens, width)`, filled up to a multiple of tokens.
fn filled(x: Tensor, fill: &Tensor) -> Result<Tensor> {
    let (batch, tokens, width) = x.dims3()?;
    let missing = tokens.next_multiple_of(MULTIPLE) - tokens;
    if missing == 0 {
        return Ok(x);
    }
    let fill = fill.broadcast_as((batch, missing, width))?.contiguous()?;
    Tensor::cat(&[&x, &fill], 1)
}
