//! The transformer of FLUX.2.

use super::attention::{attend, HeadNorm, Rope};
use super::blocks::{halves_gated, JointBlock, JointKind, Modulation, PlainNorm, TIME};
use crate::models::config::{check_axes, within, Others};
use crate::models::layers::{linear, pixels_as_rows, rows_as_pixels, Linear, TimestepEmbedding};
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor, D};
use serde::Deserialize;

/// How far apart pictures to look at are in time.
const APART: usize = 10;

/// `config.json` of a `Flux2Transformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Flux2Config {
    /// Patches, of what is 2x2 latents already.
    pub patch_size: usize,
    /// Channels of a latent.
    pub in_channels: usize,
    /// Channels of what is predicted; `None` is as many.
    pub out_channels: Option<usize>,
    /// Blocks with layers of their own for picture and text.
    pub num_layers: usize,
    /// Blocks with the same layers for both.
    pub num_single_layers: usize,
    /// Channels of a head.
    pub attention_head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Width of the text.
    pub joint_attention_dim: usize,
    /// Width of the embeddings of time and guidance.
    pub timestep_guidance_channels: usize,
    /// How much wider feed-forward layers are.
    pub mlp_ratio: f64,
    /// Shares of a head that turn with time, row, column and place in the text.
    pub axes_dims_rope: Vec<usize>,
    /// Of the rotations.
    pub rope_theta: f64,
    /// Of the norms.
    pub eps: f64,
    /// Whether guidance is a condition.
    pub guidance_embeds: bool,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for Flux2Config {
    /// The sizes of dev.
    fn default() -> Self {
        Self {
            patch_size: 1,
            in_channels: 128,
            out_channels: None,
            num_layers: 8,
            num_single_layers: 48,
            attention_head_dim: 128,
            num_attention_heads: 48,
            joint_attention_dim: 15360,
            timestep_guidance_channels: TIME,
            mlp_ratio: 3.0,
            axes_dims_rope: vec![32; 4],
            rope_theta: 2000.0,
            eps: 1e-6,
            guidance_embeds: true,
            others: Others::default(),
        }
    }
}

impl Flux2Config {
    /// Whether the settings make sense and are implemented.
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
            ],
            1 << 16,
        )?;
        check_axes::<4>(
            "axes_dims_rope",
            &self.axes_dims_rope,
            self.attention_head_dim,
        )?;
        let other = self
            .out_channels
            .is_some_and(|output| output != self.in_channels);
        if other || self.patch_size != 1 {
            return Err(format!(
                "out_channels {:?} for {} in_channels and patch_size {} are not implemented",
                self.out_channels, self.in_channels, self.patch_size
            ));
        }
        if self.timestep_guidance_channels != TIME {
            return Err(format!(
                "timestep_guidance_channels other than {TIME} are not implemented"
            ));
        }
        if !(0.1..=64.0).contains(&self.mlp_ratio) {
            return Err(format!("mlp_ratio is {}", self.mlp_ratio));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 1.0) {
            return Err(format!("rope_theta is {}", self.rope_theta));
        }
        if self.eps != 1e-6 {
            return Err(format!("eps {} is not implemented, 1e-6 is", self.eps));
        }
        Ok(())
    }

    /// Channels inside.
    pub fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Channels inside feed-forward layers.
    fn hidden(&self) -> usize {
        (self.width() as f64 * self.mlp_ratio) as usize
    }
}

/// A block in which text and picture are one sequence, and one layer gives what attention and feed-forward take.
#[derive(Debug, Clone)]
struct SingleBlock {
    norm: PlainNorm,
    all: Linear,
    norms: [Option<HeadNorm>; 2],
    out: Linear,
    heads: usize,
}

impl SingleBlock {
    fn new(vb: VarBuilder, config: &Flux2Config) -> Result<Self> {
        let (width, hidden) = (config.width(), config.hidden());
        let attn = vb.pp("attn");
        let norm = |name: &str| HeadNorm::new(attn.pp(name), config.attention_head_dim, config.eps);
        Ok(Self {
            norm: PlainNorm::default(),
            all: linear(attn.pp("to_qkv_mlp_proj"), width, 3 * width + 2 * hidden)?,
            norms: [norm("norm_q")?, norm("norm_k")?],
            out: linear(attn.pp("to_out"), width + hidden, width)?,
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, x: &Tensor, by: &[Tensor], rope: &Rope) -> Result<Tensor> {
        let width = x.dim(D::Minus1)?;
        let normed = self.norm.modulated(x, &by[1], Some(&by[0]))?;
        let all = self.all.forward(&normed)?;
        let part = |i: usize| all.narrow(D::Minus1, i * width, width)?.contiguous();
        let normed = |i: usize| match &self.norms[i] {
            Some(norm) => norm.forward(&part(i)?),
            None => part(i),
        };
        let attended = attend(&[normed(0)?, normed(1)?, part(2)?], self.heads, Some(rope))?;
        let rest = all.dim(D::Minus1)? - 3 * width;
        let hidden = halves_gated(&all.narrow(D::Minus1, 3 * width, rest)?)?;
        let out = Tensor::cat(&[&attended, &hidden], D::Minus1)?;
        self.out.forward_onto(x, &out, &by[2])
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Flux2 {
    config: Flux2Config,
    time: TimestepEmbedding,
    guidance: Option<TimestepEmbedding>,
    /// Of pictures, texts and both, the same for all blocks.
    modulations: [Modulation; 3],
    picture: Linear,
    text: Linear,
    double: Vec<JointBlock>,
    single: Vec<SingleBlock>,
    norm: PlainNorm,
    modulation: Modulation,
    out: Linear,
    dtype: DType,
}

impl Flux2 {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &Flux2Config) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let width = config.width();
        let embed = |name: &str| {
            let vb = vb.pp("time_guidance_embed").pp(name);
            TimestepEmbedding::new(vb, TIME, width, None)
        };
        let modulation = |name: &str, parts| {
            Modulation::new(vb.pp(format!("{name}.linear")), width, width, parts)
        };
        let kind = JointKind {
            given: true,
            gated: Some(config.hidden()),
            ..JointKind::default()
        };
        let (double, single) = (
            vb.pp("transformer_blocks"),
            vb.pp("single_transformer_blocks"),
        );
        Ok(Self {
            time: embed("timestep_embedder")?,
            guidance: match config.guidance_embeds {
                true => Some(embed("guidance_embedder")?),
                false => None,
            },
            modulations: [
                modulation("double_stream_modulation_img", 6)?,
                modulation("double_stream_modulation_txt", 6)?,
                modulation("single_stream_modulation", 3)?,
            ],
            picture: linear(vb.pp("x_embedder"), config.in_channels, width)?,
            text: linear(vb.pp("context_embedder"), config.joint_attention_dim, width)?,
            double: (0..config.num_layers)
                .map(|i| JointBlock::new(double.pp(i), width, config.num_attention_heads, kind))
                .collect::<Result<_>>()?,
            single: (0..config.num_single_layers)
                .map(|i| SingleBlock::new(single.pp(i), config))
                .collect::<Result<_>>()?,
            norm: PlainNorm::default(),
            modulation: Modulation::new(vb.pp("norm_out.linear"), width, width, 2)?,
            out: linear(vb.pp("proj_out"), width, config.in_channels)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// Rotations for `tokens` of text, a picture of so many latents, height and width, and pictures of so many to look
    /// at.
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
        let mut positions: Vec<[f64; 4]> =
            (0..tokens).map(|at| [0.0, 0.0, 0.0, at as f64]).collect();
        for (i, (height, width)) in std::iter::once(&picture).chain(references).enumerate() {
            let time = (APART * i) as f64;
            positions.extend((0..*height).flat_map(|row| {
                (0..*width).map(move |column| [time, row as f64, column as f64, 0.0])
            }));
        }
        let (sizes, theta) = (&self.config.axes_dims_rope, self.config.rope_theta);
        Rope::new(&positions, sizes, theta, like.dtype(), like.device())
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 to 1000, with a text `(batch,
    /// tokens, width)`, and the latents of pictures to look at, `(batch, latents, channels)`.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        guidance: f64,
        text: &Tensor,
        references: Option<&Tensor>,
        rope: &Rope,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let t = t.into();
        let embed = |layer: &TimestepEmbedding, value: Time| {
            let row = value.embedding(TIME, true, 0.0, x.device())?;
            layer.forward(&row.to_dtype(self.dtype)?, None)
        };
        let mut conditions = embed(&self.time, t)?;
        if let Some(layer) = &self.guidance {
            conditions = (conditions + embed(layer, t.constant(1000.0 * guidance))?)?;
        }
        let conditions = conditions.silu()?;
        let [of_picture, of_text, of_both] = &self.modulations;
        let (of_picture, of_text, of_both) = (
            of_picture.forward(&conditions)?,
            of_text.forward(&conditions)?,
            of_both.forward(&conditions)?,
        );
        let own = pixels_as_rows(x)?;
        let patches = own.dim(1)?;
        let all = match references {
            Some(references) => Tensor::cat(&[&own, references], 1)?,
            None => own,
        };
        let mut picture = self.picture.forward(&all.contiguous()?)?;
        let mut text = self.text.forward(text)?;
        for block in &self.double {
            (picture, text) =
                block.forward_by(&picture, &text, &of_picture, &of_text, Some(rope))?;
        }
        let tokens = text.dim(1)?;
        let mut both = Tensor::cat(&[&text, &picture], 1)?;
        for block in &self.single {
            both = block.forward(&both, &of_both, rope)?;
        }
        let picture = both.narrow(1, tokens, patches)?.contiguous()?;
        let by = self.modulation.forward(&conditions)?;
        let picture = self.norm.modulated(&picture, &by[0], Some(&by[1]))?;
        rows_as_pixels(&self.out.forward(&picture)?, height, width)
    }
}
