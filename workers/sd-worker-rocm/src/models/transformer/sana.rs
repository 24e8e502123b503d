//! The transformer of Sana (Xie et al. 2024): linear attention, and convolutions in its feed-forward layers.

use super::blocks::PlainNorm;
use super::numbers;
use super::stretches::table;
use crate::models::attention::{attention, linear_attention};
use crate::models::config::{within, Others};
use crate::models::layers::{depthwise, linear, rows_as_pixels, Linear, TimestepEmbedding};
use crate::models::norm::RmsNorm;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Device, Module, Result, Tensor, D};
use serde::Deserialize;

/// Width of the sinusoidal embedding of time.
const TIME: usize = 256;

/// `config.json` of a `SanaTransformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct SanaConfig {
    /// Channels of a latent.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: Option<usize>,
    /// Heads of attention to the picture.
    pub num_attention_heads: usize,
    /// Size of such a head.
    pub attention_head_dim: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Heads of attention to the text.
    pub num_cross_attention_heads: usize,
    /// Size of such a head.
    pub cross_attention_head_dim: usize,
    /// Width of the text.
    pub caption_channels: usize,
    /// How much wider feed-forward layers are inside.
    pub mlp_ratio: f64,
    /// Latents each way of the pictures of the training.
    pub sample_size: usize,
    /// By what places are divided, in models that know them: those for large pictures.
    pub interpolation_scale: Option<f64>,
    /// Of the norms.
    pub norm_eps: f64,
    /// How queries and keys are normalised, if they are.
    pub qk_norm: Option<String>,
    /// By what time is multiplied.
    pub timestep_scale: f64,
    pub(crate) cross_attention_dim: usize,
    pub(crate) patch_size: usize,
    pub(crate) norm_elementwise_affine: bool,
    pub(crate) guidance_embeds: bool,
    /// Settings that are not known.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for SanaConfig {
    fn default() -> Self {
        Self {
            in_channels: 32,
            out_channels: Some(32),
            num_attention_heads: 70,
            attention_head_dim: 32,
            num_layers: 20,
            num_cross_attention_heads: 20,
            cross_attention_head_dim: 112,
            caption_channels: 2304,
            mlp_ratio: 2.5,
            sample_size: 32,
            interpolation_scale: None,
            norm_eps: 1e-6,
            qk_norm: None,
            timestep_scale: 1.0,
            cross_attention_dim: 2240,
            patch_size: 1,
            norm_elementwise_affine: false,
            guidance_embeds: false,
            others: Others::default(),
        }
    }
}

impl SanaConfig {
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
                ("num_cross_attention_heads", self.num_cross_attention_heads),
                ("cross_attention_head_dim", self.cross_attention_head_dim),
                ("caption_channels", self.caption_channels),
                ("sample_size", self.sample_size),
            ],
            1 << 16,
        )?;
        if self.guidance_embeds {
            return Err("guidance_embeds: Sana Sprint is not implemented; Sana is".to_string());
        }
        let width = self.width();
        for (name, wrong) in [
            (
                "out_channels",
                self.out_channels.is_some_and(|c| c != self.in_channels),
            ),
            ("patch_size", self.patch_size != 1),
            ("norm_elementwise_affine", self.norm_elementwise_affine),
            ("cross_attention_dim", self.cross_attention_dim != width),
            (
                "cross_attention_head_dim",
                self.num_cross_attention_heads * self.cross_attention_head_dim != width,
            ),
            (
                "qk_norm",
                (self.qk_norm.as_deref()).is_some_and(|kind| kind != "rms_norm_across_heads"),
            ),
            ("mlp_ratio", !(0.1..=16.0).contains(&self.mlp_ratio)),
            (
                "interpolation_scale",
                (self.interpolation_scale).is_some_and(|s| !(s > 0.0 && s.is_finite())),
            ),
            ("timestep_scale", !self.timestep_scale.is_finite()),
        ] {
            if wrong {
                return Err(format!(
                    "{name} of this value is not implemented in a network of width {width}"
                ));
            }
        }
        if !width.is_multiple_of(4) {
            return Err(format!("a width of {width} has no room for places"));
        }
        // Biases are used where there are some.
        self.others
            .refuse(&["attention_bias", "dropout", "guidance_embeds_scale"])
    }

    /// Channels inside.
    pub fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    fn hidden(&self) -> usize {
        (self.mlp_ratio * self.width() as f64) as usize
    }
}

/// Queries, keys and values, and the way back.
#[derive(Debug, Clone)]
struct Projections {
    q: Linear,
    k: Linear,
    v: Linear,
    norms: Option<[RmsNorm; 2]>,
    out: Linear,
}

impl Projections {
    fn new(vb: &VarBuilder, config: &SanaConfig) -> Result<Self> {
        let width = config.width();
        let project = |name: &str| linear(vb.pp(name), width, width);
        let norm = |name: &str| RmsNorm::new(vb.pp(name), width, 1e-5);
        Ok(Self {
            q: project("to_q")?,
            k: project("to_k")?,
            v: project("to_v")?,
            norms: match config.qk_norm {
                Some(_) => Some([norm("norm_q")?, norm("norm_k")?]),
                None => None,
            },
            out: project("to_out.0")?,
        })
    }

    /// Of `x` and what it looks at.
    fn forward(&self, x: &Tensor, at: &Tensor) -> Result<[Tensor; 3]> {
        let (q, k, v) = (self.q.forward(x)?, self.k.forward(at)?, self.v.forward(at)?);
        Ok(match &self.norms {
            Some([norm_q, norm_k]) => [norm_q.forward(&q)?, norm_k.forward(&k)?, v],
            None => [q, k, v],
        })
    }
}

/// A feed-forward layer in which pixels see their neighbours.
#[derive(Debug, Clone)]
struct MixedForward {
    up: Linear,
    depth: (Tensor, Option<Tensor>),
    down: Linear,
}

impl MixedForward {
    fn new(vb: VarBuilder, config: &SanaConfig) -> Result<Self> {
        let (width, hidden) = (config.width(), config.hidden());
        let depth = vb.pp("conv_depth");
        Ok(Self {
            up: linear(vb.pp("conv_inverted"), width, 2 * hidden)?,
            depth: (
                depth.get((2 * hidden, 1, 3, 3), "weight")?,
                Some(depth.get(2 * hidden, "bias")?),
            ),
            down: linear(vb.pp("conv_point"), hidden, width)?,
        })
    }

    fn forward(&self, x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
        let x = self.up.forward(x)?.silu()?;
        let x = depthwise(
            &rows_as_pixels(&x, height, width)?,
            &self.depth.0,
            self.depth.1.as_ref(),
        )?;
        let halves = x.flatten_from(2)?.transpose(1, 2)?.chunk(2, D::Minus1)?;
        let gated = (halves[0].contiguous()? * halves[1].contiguous()?.silu()?)?;
        self.down.forward(&gated)
    }
}

/// Attention to all pixels, then to the text, then the feed-forward layer.
#[derive(Debug, Clone)]
struct Block {
    norm: PlainNorm,
    itself: Projections,
    text: Projections,
    feed: MixedForward,
    /// `(6, width)`, f32.
    table: Tensor,
    heads: (usize, usize),
    /// Whether pixels see themselves only, not one another.
    is_apart: bool,
}

impl Block {
    fn new(vb: VarBuilder, config: &SanaConfig) -> Result<Self> {
        Ok(Self {
            norm: PlainNorm {
                eps: config.norm_eps,
            },
            itself: Projections::new(&vb.pp("attn1"), config)?,
            text: Projections::new(&vb.pp("attn2"), config)?,
            feed: MixedForward::new(vb.pp("ff"), config)?,
            table: table(&vb, &[6, config.width()])?,
            heads: (config.num_attention_heads, config.num_cross_attention_heads),
            is_apart: false,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        time: &Tensor,
        text: &Tensor,
        (height, width): (usize, usize),
    ) -> Result<Tensor> {
        let by = rows(&self.table, time, x.dtype())?;
        let h = self.norm.modulated(x, &by[1], Some(&by[0]))?;
        let h = match self.is_apart {
            true => self.itself.v.forward(&h)?,
            false => {
                let [q, k, v] = self.itself.forward(&h, &h)?;
                linear_attention(&q.relu()?, &k.relu()?, &v, self.heads.0)?
            }
        };
        let x = self.itself.out.forward_onto(x, &h, &by[2])?;

        let [q, k, v] = self.text.forward(&x, text)?;
        let h = attention(&q, &k, &v, self.heads.1, false)?;
        let x = self.text.out.forward_added(&x, &h)?;

        let h = self.norm.modulated(&x, &by[4], Some(&by[3]))?;
        let h = self.feed.forward(&h, height, width)?;
        x + h.broadcast_mul(&by[5])?
    }
}

/// A table's rows with a time added, `(1, 1, width)` each.
fn rows(table: &Tensor, time: &Tensor, dtype: DType) -> Result<Vec<Tensor>> {
    let rows = table.broadcast_add(time)?.to_dtype(dtype)?;
    let rows = rows.chunk(rows.dim(0)?, 0)?;
    rows.iter()
        .map(|row| row.unsqueeze(0)?.contiguous())
        .collect()
}

/// The network.
#[derive(Debug, Clone)]
pub struct Sana {
    config: SanaConfig,
    patches: Linear,
    time: TimestepEmbedding,
    time_parts: Linear,
    text: [Linear; 2],
    text_norm: RmsNorm,
    blocks: Vec<Block>,
    norm: PlainNorm,
    /// `(2, width)`, f32.
    table: Tensor,
    out: Linear,
    dtype: DType,
}

impl Sana {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &SanaConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let (width, channels) = (config.width(), config.in_channels);
        let (time, text) = (vb.pp("time_embed"), vb.pp("caption_projection"));
        let blocks = vb.pp("transformer_blocks");
        let embedding = time.pp("emb.timestep_embedder");
        Ok(Self {
            patches: linear(vb.pp("patch_embed.proj"), channels, width)?,
            time: TimestepEmbedding::new(embedding, TIME, width, None)?,
            time_parts: linear(time.pp("linear"), width, 6 * width)?,
            text: [
                linear(text.pp("linear_1"), config.caption_channels, width)?,
                linear(text.pp("linear_2"), width, width)?,
            ],
            text_norm: RmsNorm::new(vb.pp("caption_norm"), width, 1e-5)?,
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

    /// The same network in whose blocks of these names, `blocks.3`, pixels do not see one another (perturbed-attention
    /// guidance); without names in the first one, as diffusers has it.
    ///
    /// # Errors
    /// If there is no such block.
    pub fn apart(&self, names: &[String]) -> Result<Self> {
        let mut worse = self.clone();
        for i in numbers(names, self.blocks.len(), 0)? {
            worse.blocks[i].is_apart = true;
        }
        Ok(worse)
    }

    /// A text `(batch, tokens, width)` as all steps see it.
    ///
    /// # Errors
    /// If it has another width, or the device fails.
    pub fn text(&self, text: &Tensor) -> Result<Tensor> {
        let [first, second] = &self.text;
        let text = second.forward(&first.forward_gelu(text)?)?;
        self.text_norm.forward(&text)
    }

    /// Where pixels are, `(1, height * width, channels)`, in models that know it.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn places(&self, height: usize, width: usize, device: &Device) -> Result<Option<Tensor>> {
        let Some(scale) = self.config.interpolation_scale else {
            return Ok(None);
        };
        let base = self.config.sample_size as f64;
        let quarter = self.config.width() / 4;
        let mut values = Vec::with_capacity(height * width * 4 * quarter);
        for row in 0..height {
            for column in 0..width {
                let at = |index: usize, side: usize| index as f64 * base / side as f64 / scale;
                for at in [at(column, width), at(row, height)] {
                    let angle = |i: usize| at / 10_000f64.powf(i as f64 / quarter as f64);
                    values.extend((0..quarter).map(|i| angle(i).sin() as f32));
                    values.extend((0..quarter).map(|i| angle(i).cos() as f32));
                }
            }
        }
        let shape = (1, height * width, 4 * quarter);
        Ok(Some(
            Tensor::from_vec(values, shape, device)?.to_dtype(self.dtype)?,
        ))
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 to 1000, under what
    /// [`Sana::text`] and [`Sana::places`] give.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        text: &Tensor,
        places: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let pixels = x.flatten_from(2)?.transpose(1, 2)?.contiguous()?;
        let mut x = self.patches.forward(&pixels)?;
        if let Some(places) = places {
            x = x.broadcast_add(places)?;
        }
        let t = t.into().times(self.config.timestep_scale);
        let row = t.embedding(TIME, true, 0.0, x.device())?;
        let time = self.time.forward(&row.to_dtype(self.dtype)?, None)?;
        let parts = self.time_parts.forward(&time.silu()?)?;
        let parts = parts.to_dtype(DType::F32)?.reshape((6, ()))?;
        for block in &self.blocks {
            x = block.forward(&x, &parts, text, (height, width))?;
        }
        let by = rows(&self.table, &time.to_dtype(DType::F32)?, x.dtype())?;
        let x = self.norm.modulated(&x, &by[1], Some(&by[0]))?;
        rows_as_pixels(&self.out.forward(&x)?, height, width)
    }
}
