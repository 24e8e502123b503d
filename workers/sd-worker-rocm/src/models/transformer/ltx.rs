//! The transformer of LTX-Video.

use super::attention::{attend, Rope};
use super::blocks::{FeedForward, PlainNorm};
use super::stretches::{in_stretches, modulations, table, Stretch};
use crate::models::attention::attention;
use crate::models::config::{within, Others};
use crate::models::layers::{linear, Linear, TimestepEmbedding};
use crate::models::norm::RmsNorm;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use serde::Deserialize;

/// Width of the sinusoidal embedding of time.
const TIME: usize = 256;
/// The largest place along each axis, to which positions are related: seconds and pixels.
const LARGEST: [f32; 3] = [20.0, 2048.0, 2048.0];
/// Of rotations.
const THETA: f32 = 10_000.0;

/// `config.json` of an `LTXVideoTransformer3DModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct LtxConfig {
    /// Channels of a latent.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: Option<usize>,
    /// Heads.
    pub num_attention_heads: usize,
    /// Size of a head.
    pub attention_head_dim: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Width of the text.
    pub caption_channels: usize,
    /// Of the norms.
    pub norm_eps: f64,
    pub(crate) cross_attention_dim: usize,
    pub(crate) patch_size: usize,
    pub(crate) patch_size_t: usize,
    pub(crate) activation_fn: String,
    pub(crate) qk_norm: String,
    pub(crate) norm_elementwise_affine: bool,
    pub(crate) attention_bias: bool,
    pub(crate) attention_out_bias: bool,
    /// Settings that are not known.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for LtxConfig {
    fn default() -> Self {
        Self {
            in_channels: 128,
            out_channels: None,
            num_attention_heads: 32,
            attention_head_dim: 64,
            num_layers: 28,
            caption_channels: 4096,
            norm_eps: 1e-6,
            cross_attention_dim: 2048,
            patch_size: 1,
            patch_size_t: 1,
            activation_fn: "gelu-approximate".to_string(),
            qk_norm: "rms_norm_across_heads".to_string(),
            norm_elementwise_affine: false,
            attention_bias: true,
            attention_out_bias: true,
            others: Others::default(),
        }
    }
}

impl LtxConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        within(
            &[
                ("in_channels", self.in_channels),
                ("num_attention_heads", self.num_attention_heads),
                ("attention_head_dim", self.attention_head_dim),
                ("num_layers", self.num_layers),
                ("caption_channels", self.caption_channels),
            ],
            1 << 16,
        )?;
        for (name, wrong, is) in [
            (
                "out_channels",
                self.out_channels.is_some_and(|c| c != self.in_channels),
                format!("{:?}", self.out_channels),
            ),
            (
                "patch_size",
                self.patch_size != 1,
                self.patch_size.to_string(),
            ),
            (
                "patch_size_t",
                self.patch_size_t != 1,
                self.patch_size_t.to_string(),
            ),
            (
                "activation_fn",
                self.activation_fn != "gelu-approximate",
                self.activation_fn.clone(),
            ),
            (
                "qk_norm",
                self.qk_norm != "rms_norm_across_heads",
                self.qk_norm.clone(),
            ),
            (
                "norm_elementwise_affine",
                self.norm_elementwise_affine,
                "true".to_string(),
            ),
            ("attention_bias", !self.attention_bias, "false".to_string()),
            (
                "attention_out_bias",
                !self.attention_out_bias,
                "false".to_string(),
            ),
            (
                "cross_attention_dim",
                self.cross_attention_dim != self.width(),
                format!(
                    "{} in a network of width {}",
                    self.cross_attention_dim,
                    self.width()
                ),
            ),
        ] {
            if wrong {
                return Err(format!("{name} {is} is not implemented"));
            }
        }
        if self.width() < 6 || !self.width().is_multiple_of(2) {
            return Err(format!(
                "a width of {} has no room for the places of three axes",
                self.width()
            ));
        }
        self.others.refuse(&[])
    }

    /// Channels inside.
    pub fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }
}

/// Where the tokens of a video are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Of each latent, in seconds; latents behind those of the video are of further frames that are given.
    pub frames: Vec<f32>,
    /// Rows of latents.
    pub height: usize,
    /// Columns of latents.
    pub width: usize,
    /// Pixels a latent, each way.
    pub factor: usize,
}

/// What all steps of a video share.
#[derive(Debug, Clone)]
pub struct Context {
    rope: Rope,
    /// `(batch, tokens, width)`.
    text: Tensor,
}

/// How many of a video's latents, from the first, and how many behind them are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clean {
    /// At the beginning.
    pub first: usize,
    /// At the end.
    pub last: usize,
}

/// Queries and keys, normalised over all heads together, and values.
#[derive(Debug, Clone)]
struct Projections {
    q: Linear,
    k: Linear,
    v: Linear,
    norm_q: RmsNorm,
    norm_k: RmsNorm,
    out: Linear,
}

impl Projections {
    fn new(vb: &VarBuilder, width: usize) -> Result<Self> {
        let project = |name: &str| linear(vb.pp(name), width, width);
        Ok(Self {
            q: project("to_q")?,
            k: project("to_k")?,
            v: project("to_v")?,
            norm_q: RmsNorm::new(vb.pp("norm_q"), width, 1e-5)?,
            norm_k: RmsNorm::new(vb.pp("norm_k"), width, 1e-5)?,
            out: project("to_out.0")?,
        })
    }

    /// Of `x` and what it looks at.
    fn forward(&self, x: &Tensor, at: &Tensor) -> Result<[Tensor; 3]> {
        Ok([
            self.norm_q.forward(&self.q.forward(x)?)?,
            self.norm_k.forward(&self.k.forward(at)?)?,
            self.v.forward(at)?,
        ])
    }
}

/// Attention to all tokens, then to the text, then the feed-forward layers.
#[derive(Debug, Clone)]
struct Block {
    itself: Projections,
    text: Projections,
    feed: FeedForward,
    /// `(6, width)`, f32.
    table: Tensor,
    norm: PlainRms,
    heads: usize,
}

/// An RMS norm without weights.
#[derive(Debug, Clone)]
struct PlainRms {
    ones: Tensor,
    eps: f32,
}

impl PlainRms {
    /// `norm(x) * (1 + scale) + shift`, with scale and shift `(batch, 1, width)`.
    fn modulated(&self, x: &Tensor, scale: &Tensor, shift: &Tensor) -> Result<Tensor> {
        candle_nn::ops::rms_norm(&x.contiguous()?, &self.ones, self.eps)?
            .broadcast_mul(&(scale + 1.0)?)?
            .broadcast_add(shift)
    }
}

impl Block {
    fn new(vb: VarBuilder, config: &LtxConfig) -> Result<Self> {
        let width = config.width();
        Ok(Self {
            itself: Projections::new(&vb.pp("attn1"), width)?,
            text: Projections::new(&vb.pp("attn2"), width)?,
            feed: FeedForward::new(vb.pp("ff"), width)?,
            table: table(&vb, &[6, width])?,
            norm: PlainRms {
                ones: Tensor::ones(width, vb.dtype(), vb.device())?,
                eps: config.norm_eps as f32,
            },
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, x: &Tensor, times: &[Stretch], context: &Context) -> Result<Tensor> {
        let by = modulations(&self.table, times, x.dtype())?;
        let h = in_stretches(x, &by, |x, by| self.norm.modulated(x, &by[1], &by[0]))?;
        let h = attend(
            &self.itself.forward(&h, &h)?,
            self.heads,
            Some(&context.rope),
        )?;
        let h = self.itself.out.forward(&h)?;
        let x = (x + in_stretches(&h, &by, |h, by| h.broadcast_mul(&by[2]))?)?;

        let [q, k, v] = self.text.forward(&x, &context.text)?;
        let h = attention(&q, &k, &v, self.heads, false)?;
        let x = self.text.out.forward_added(&x, &h)?;

        let h = in_stretches(&x, &by, |x, by| self.norm.modulated(x, &by[4], &by[3]))?;
        let h = self.feed.forward(&h)?;
        x + in_stretches(&h, &by, |h, by| h.broadcast_mul(&by[5]))?
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Ltx {
    config: LtxConfig,
    patches: Linear,
    time: TimestepEmbedding,
    time_parts: Linear,
    text: [Linear; 2],
    blocks: Vec<Block>,
    norm: PlainNorm,
    /// `(2, width)`, f32.
    table: Tensor,
    out: Linear,
    dtype: DType,
}

impl Ltx {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &LtxConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let (width, channels) = (config.width(), config.in_channels);
        let (time, text) = (vb.pp("time_embed"), vb.pp("caption_projection"));
        let blocks = vb.pp("transformer_blocks");
        Ok(Self {
            patches: linear(vb.pp("proj_in"), channels, width)?,
            time: TimestepEmbedding::new(time.pp("emb.timestep_embedder"), TIME, width, None)?,
            time_parts: linear(time.pp("linear"), width, 6 * width)?,
            text: [
                linear(text.pp("linear_1"), config.caption_channels, width)?,
                linear(text.pp("linear_2"), width, width)?,
            ],
            blocks: (0..config.num_layers)
                .map(|i| Block::new(blocks.pp(i), config))
                .collect::<Result<_>>()?,
            norm: PlainNorm::default(),
            table: table(&vb, &[2, width])?,
            out: linear(vb.pp("proj_out"), width, channels)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// What all steps share, for a text `(batch, tokens, width)` and tokens at `places`.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn context(&self, text: &Tensor, places: &Places) -> Result<Context> {
        let [first, second] = &self.text;
        let half = self.config.width() / 2;
        Ok(Context {
            rope: Rope::of_all_heads(&self.angles(places), half, self.dtype, text.device())?,
            text: second.forward(&first.forward_gelu(text)?)?,
        })
    }

    /// Angles of all tokens, in f32 as in the original: its largest turn thousands of times, so that last bits matter.
    /// Axes are innermost; what a width that six does not divide has left over does not turn.
    fn angles(&self, places: &Places) -> Vec<f32> {
        let width = self.config.width();
        let count = width / 6;
        let still = (width % 6) / 2;
        let frequencies: Vec<f32> = (0..count)
            .map(|i| {
                let share = i as f32 / (count.max(2) - 1) as f32;
                THETA.powf(share) * std::f32::consts::PI / 2.0
            })
            .collect();
        let mut angles = Vec::new();
        let pixel = |at: usize| at as f32 * places.factor as f32;
        for frame in &places.frames {
            for row in 0..places.height {
                for column in 0..places.width {
                    let at = [*frame, pixel(row), pixel(column)];
                    angles.extend(std::iter::repeat_n(0.0, still));
                    for frequency in &frequencies {
                        let turn = |axis: usize| frequency * (at[axis] / LARGEST[axis] * 2.0 - 1.0);
                        angles.extend((0..3).map(turn));
                    }
                }
            }
        }
        angles
    }

    /// The network's output for `x`, `(batch, channels, frames, height, width)`, at time `t` in 0 to 1000, of which some
    /// frames are there already.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        clean: Clean,
        context: &Context,
    ) -> Result<Tensor> {
        let (batch, channels, frames, height, width) = x.dims5()?;
        let Some(noisy) = frames.checked_sub(clean.first + clean.last) else {
            candle_core::bail!("{frames} frames, of which {clean:?} are there already")
        };
        let tokens = x
            .reshape((batch, channels, frames * height * width))?
            .transpose(1, 2)?
            .contiguous()?;
        let mut x = self.patches.forward(&tokens)?;
        let (mut times, mut parts) = (Vec::new(), Vec::new());
        let t = t.into();
        let there = t.constant(0.0);
        for (frames, t) in [(clean.first, there), (noisy, t), (clean.last, there)] {
            if frames == 0 {
                continue;
            }
            let tokens = frames * height * width;
            let row = t.embedding(TIME, true, 0.0, x.device())?;
            let time = self.time.forward(&row.to_dtype(self.dtype)?, None)?;
            let part = self.time_parts.forward(&time.silu()?)?;
            let stretch = |time: Tensor| Stretch { tokens, time };
            parts.push(stretch(part.to_dtype(DType::F32)?.reshape((6, ()))?));
            times.push(stretch(time.to_dtype(DType::F32)?.repeat((2, 1))?));
        }
        for block in &self.blocks {
            x = block.forward(&x, &parts, context)?;
        }
        let by = modulations(&self.table, &times, x.dtype())?;
        let x = in_stretches(&x, &by, |x, by| {
            self.norm.modulated(x, &by[1], Some(&by[0]))
        })?;
        self.out
            .forward(&x)?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch, channels, frames, height, width))
    }
}
