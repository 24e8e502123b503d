//! The transformer of HiDream-I1.

use super::attention::{attend, Rope};
use super::blocks::{Modulation, PlainNorm, TIME};
use super::experts::{Experts, Gated};
use super::{pack_inner, unpack_inner};
use crate::models::config::{check_axes, within, Others};
use crate::models::layers::{linear, Linear, TimestepEmbedding};
use crate::models::norm::RmsNorm;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use serde::Deserialize;

/// `config.json` of a `HiDreamImageTransformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
pub struct HiDreamConfig {
    /// Channels of a latent.
    pub in_channels: usize,
    /// Blocks with layers of their own for picture and text.
    pub num_layers: usize,
    /// Blocks with the same layers for both.
    pub num_single_layers: usize,
    /// Channels of a head.
    pub attention_head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Width of T5's text, and of the language model's.
    pub caption_channels: Vec<usize>,
    /// Width of the pooled texts.
    pub text_emb_dim: usize,
    /// Experts of a block; there may be none, but a layer for all.
    pub num_routed_experts: usize,
    /// Experts that a token goes through.
    pub num_activated_experts: usize,
    /// Shares of a head that turn with index, row and column.
    pub axes_dims_rope: Vec<usize>,
    /// Latents, downwards and across, up to which pictures that are not square are filled up.
    pub max_resolution: Vec<usize>,
    /// The language model's layer that each block reads.
    pub llama_layers: Vec<usize>,
    #[serde(default)]
    pub(crate) out_channels: Option<usize>,
    #[serde(default = "patch")]
    pub(crate) patch_size: usize,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

fn patch() -> usize {
    2
}

impl HiDreamConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        // Experts in training give the same another way.
        self.others.refuse(&["force_inference_output"])?;
        let [t5, llama] = *self.caption_channels else {
            return Err("caption_channels other than two are not implemented".to_string());
        };
        let [high, wide] = *self.max_resolution else {
            return Err("max_resolution other than two numbers".to_string());
        };
        within(
            &[
                ("in_channels", self.in_channels),
                ("num_layers", self.num_layers),
                ("num_single_layers", self.num_single_layers),
                ("attention_head_dim", self.attention_head_dim),
                ("num_attention_heads", self.num_attention_heads),
                ("caption_channels", t5),
                ("caption_channels", llama),
                ("text_emb_dim", self.text_emb_dim),
                ("max_resolution", high),
                ("max_resolution", wide),
            ],
            1 << 14,
        )?;
        within(&[("width", self.width())], 1 << 16)?;
        within(
            &[("max_resolution's patches", self.most_patches())],
            1 << 16,
        )?;
        if self.num_routed_experts > 64 {
            return Err(format!("{} experts are too many", self.num_routed_experts));
        }
        let active = self.num_activated_experts;
        if self.num_routed_experts > 0 && !(1..=self.num_routed_experts).contains(&active) {
            return Err(format!(
                "num_activated_experts {active} of {}",
                self.num_routed_experts
            ));
        }
        if self.patch_size != 2 {
            return Err("patch_size other than 2 is not implemented".to_string());
        }
        if self
            .out_channels
            .is_some_and(|channels| channels != self.in_channels)
        {
            return Err("out_channels other than in_channels is not implemented".to_string());
        }
        check_axes::<3>(
            "axes_dims_rope",
            &self.axes_dims_rope,
            self.attention_head_dim,
        )?;
        let blocks = self.num_layers + self.num_single_layers;
        if self.llama_layers.len() != blocks {
            return Err(format!(
                "llama_layers has {} values for {blocks} blocks",
                self.llama_layers.len()
            ));
        }
        Ok(())
    }

    fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Patches of the largest picture that the model was made for.
    pub fn most_patches(&self) -> usize {
        self.max_resolution.iter().product::<usize>() / 4
    }
}

/// Queries, keys and values of one kind of tokens, normalised over all heads, and the way back.
#[derive(Debug, Clone)]
struct Stream {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    norm_q: RmsNorm,
    norm_k: RmsNorm,
}

impl Stream {
    fn new(vb: &VarBuilder, kind: &str, width: usize) -> Result<Self> {
        let layer = |name: &str| linear(vb.pp(format!("{name}{kind}")), width, width);
        let norm = |name: &str| RmsNorm::new(vb.pp(format!("{name}{kind}")), width, 1e-5);
        Ok(Self {
            q: layer("to_q")?,
            k: layer("to_k")?,
            v: layer("to_v")?,
            out: layer("to_out")?,
            norm_q: norm("q_rms_norm")?,
            norm_k: norm("k_rms_norm")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        Ok([
            self.norm_q.forward(&self.q.forward(x)?)?,
            self.norm_k.forward(&self.k.forward(x)?)?,
            self.v.forward(x)?,
        ])
    }
}

#[derive(Debug, Clone)]
enum Feed {
    One(Gated),
    Several(Experts),
}

impl Feed {
    fn new(vb: VarBuilder, config: &HiDreamConfig) -> Result<Self> {
        let (width, count) = (config.width(), config.num_routed_experts);
        match count {
            0 => Gated::new(vb, width, 4 * width).map(Self::One),
            _ => {
                let active = config.num_activated_experts;
                Experts::new(vb, width, 4 * width, count, active).map(Self::Several)
            }
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::One(layers) => layers.forward(x),
            Self::Several(experts) => experts.forward(x),
        }
    }
}

/// Where tokens stand: those of the picture, then those of the text.
#[derive(Debug, Clone)]
pub struct Places {
    rope: Rope,
    /// 0 for what fills a picture up, 1 for all else: `(1, tokens, 1)`.
    mask: Option<Tensor>,
    /// Tokens of the picture with what fills it up.
    filled: usize,
}

/// Attention of all tokens. What fills a picture up is seen with a score of nothing.
fn look([q, k, v]: [Tensor; 3], heads: usize, places: &Places) -> Result<Tensor> {
    let k = match &places.mask {
        Some(mask) => k.broadcast_mul(mask)?,
        None => k,
    };
    attend(&[q, k, v], heads, Some(&places.rope))
}

#[derive(Debug, Clone)]
struct Block {
    modulation: Modulation,
    norm: PlainNorm,
    picture: Stream,
    feed: Feed,
    /// In blocks with layers of its own for the text.
    text: Option<(Stream, Gated)>,
    heads: usize,
}

impl Block {
    fn new(vb: VarBuilder, config: &HiDreamConfig, double: bool) -> Result<Self> {
        let vb = vb.pp("block");
        let width = config.width();
        let attn = vb.pp("attn1");
        let parts = if double { 12 } else { 6 };
        Ok(Self {
            modulation: Modulation::new(vb.pp("adaLN_modulation.1"), width, width, parts)?,
            norm: PlainNorm::default(),
            picture: Stream::new(&attn, "", width)?,
            feed: Feed::new(vb.pp("ff_i"), config)?,
            text: match double {
                true => Some((
                    Stream::new(&attn, "_t", width)?,
                    Gated::new(vb.pp("ff_t"), width, 4 * width)?,
                )),
                false => None,
            },
            heads: config.num_attention_heads,
        })
    }

    fn fed(
        &self,
        x: &Tensor,
        by: &[Tensor],
        feed: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let normed = self.norm.modulated(x, &by[1], Some(&by[0]))?;
        x + feed(&normed)?.broadcast_mul(&by[2])?
    }

    /// Picture and text in one.
    fn single(&self, x: &Tensor, conditions: &Tensor, places: &Places) -> Result<Tensor> {
        let by = self.modulation.forward(conditions)?;
        let normed = self.norm.modulated(x, &by[1], Some(&by[0]))?;
        let seen = look(self.picture.forward(&normed)?, self.heads, places)?;
        let x = self.picture.out.forward_onto(x, &seen, &by[2])?;
        self.fed(&x, &by[3..], |x| self.feed.forward(x))
    }

    /// Picture and text, each with layers of its own.
    fn double(
        &self,
        picture: &Tensor,
        text: &Tensor,
        conditions: &Tensor,
        places: &Places,
    ) -> Result<(Tensor, Tensor)> {
        let Some((stream, feed)) = &self.text else {
            candle_core::bail!("a block without layers for the text")
        };
        let by = self.modulation.forward(conditions)?;
        let normed = self.norm.modulated(picture, &by[1], Some(&by[0]))?;
        let of_picture = self.picture.forward(&normed)?;
        let normed = self.norm.modulated(text, &by[7], Some(&by[6]))?;
        let of_text = stream.forward(&normed)?;
        let joint = |i: usize| Tensor::cat(&[&of_picture[i], &of_text[i]], 1);
        let seen = look([joint(0)?, joint(1)?, joint(2)?], self.heads, places)?;
        let (count, tokens) = (picture.dim(1)?, text.dim(1)?);
        let part = |from, count| seen.narrow(1, from, count)?.contiguous();
        let out = &self.picture.out;
        let picture = out.forward_onto(picture, &part(0, count)?, &by[2])?;
        let text = stream
            .out
            .forward_onto(text, &part(count, tokens)?, &by[8])?;
        Ok((
            self.fed(&picture, &by[3..], |x| self.feed.forward(x))?,
            self.fed(&text, &by[9..], |x| feed.forward(x))?,
        ))
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct HiDream {
    config: HiDreamConfig,
    picture: Linear,
    time: TimestepEmbedding,
    pooled: TimestepEmbedding,
    /// A layer for each block's text, and T5's.
    texts: Vec<Linear>,
    double: Vec<Block>,
    single: Vec<Block>,
    norm: PlainNorm,
    modulation: Modulation,
    out: Linear,
    dtype: DType,
}

impl HiDream {
    /// Builds the network that `config` describes; the originals' names are diffusers'.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &HiDreamConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let width = config.width();
        let patch = 4 * config.in_channels;
        let blocks = |name: &str, count: usize, double: bool| {
            let vb = vb.pp(name);
            (0..count)
                .map(|i| Block::new(vb.pp(i), config, double))
                .collect::<Result<Vec<_>>>()
        };
        let embed = |name: &str, inputs| TimestepEmbedding::new(vb.pp(name), inputs, width, None);
        let count = config.llama_layers.len();
        let text = |i: usize| {
            let channels = config.caption_channels[usize::from(i < count)];
            let layer = vb.pp(format!("caption_projection.{i}.linear"));
            linear(layer, channels, width)
        };
        let last = vb.pp("final_layer");
        Ok(Self {
            picture: linear(vb.pp("x_embedder.proj"), patch, width)?,
            time: embed("t_embedder.timestep_embedder", TIME)?,
            pooled: embed("p_embedder.pooled_embedder", config.text_emb_dim)?,
            texts: (0..=count).map(text).collect::<Result<_>>()?,
            double: blocks("double_stream_blocks", config.num_layers, true)?,
            single: blocks("single_stream_blocks", config.num_single_layers, false)?,
            norm: PlainNorm::default(),
            modulation: Modulation::new(last.pp("adaLN_modulation.1"), width, width, 2)?,
            out: linear(last.pp("linear"), width, patch)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// Where the tokens of a picture of so many latents stand, and `tokens` of text behind them, at the origin: T5's and
    /// twice the language model's.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn places(
        &self,
        tokens: usize,
        height: usize,
        width: usize,
        like: &Tensor,
    ) -> Result<Places> {
        let count = height / 2 * (width / 2);
        // As in its training, where pictures that are not square stood in batches.
        let filled = match height == width {
            true => count,
            false => count.max(self.config.most_patches()),
        };
        let mut positions: Vec<[f64; 3]> = (0..height / 2)
            .flat_map(|row| (0..width / 2).map(move |column| [0.0, row as f64, column as f64]))
            .collect();
        positions.resize(filled + tokens, [0.0; 3]);
        let mask = (filled > count).then(|| {
            let seen = |at: usize| f32::from(u8::from(at < count || at >= filled));
            let mask: Vec<f32> = (0..filled + tokens).map(seen).collect();
            Tensor::from_vec(mask, (1, filled + tokens, 1), like.device())?.to_dtype(like.dtype())
        });
        let sizes = &self.config.axes_dims_rope;
        Ok(Places {
            rope: Rope::new(&positions, sizes, 10_000.0, self.dtype, like.device())?,
            mask: mask.transpose()?,
            filled,
        })
    }

    /// What the blocks read of T5's text, `(batch, tokens, width)`, and of the language model's states side by side,
    /// `(batch, tokens, layers * width)`: one for each block, T5's as the last.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn texts(&self, t5: &Tensor, states: &Tensor) -> Result<Vec<Tensor>> {
        let width = self.config.caption_channels[1];
        let layers = self.config.llama_layers.iter().zip(&self.texts);
        let mut texts = layers
            .map(|(layer, project)| {
                let state = states.narrow(2, layer * width, width)?;
                project.forward(&state.contiguous()?)
            })
            .collect::<Result<Vec<_>>>()?;
        texts.push(self.texts[self.config.llama_layers.len()].forward(t5)?);
        Ok(texts)
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 to 1000, with what
    /// [`HiDream::texts`] gives and a pooled text `(batch, width)`.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        texts: &[Tensor],
        pooled: &Tensor,
        places: &Places,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let patches = pack_inner(x)?;
        let count = patches.dim(1)?;
        let patches = patches.pad_with_zeros(1, 0, places.filled - count)?;
        let mut picture = self.picture.forward(&patches)?;
        let row = t.into().embedding(TIME, true, 0.0, x.device())?;
        let time = self.time.forward(&row.to_dtype(self.dtype)?, None)?;
        let pooled = self.pooled.forward(pooled, None)?;
        let conditions = pooled.broadcast_add(&time)?.silu()?;
        let blocks = self.config.llama_layers.len();
        let mut text = Tensor::cat(&[&texts[blocks], &texts[blocks - 1]], 1)?;
        let tokens = text.dim(1)?;
        for (block, state) in self.double.iter().zip(texts) {
            let whole = Tensor::cat(&[&text, state], 1)?;
            let (seen, after) = block.double(&picture, &whole, &conditions, places)?;
            picture = seen;
            text = after.narrow(1, 0, tokens)?.contiguous()?;
        }
        let mut both = Tensor::cat(&[&picture, &text], 1)?;
        let kept = places.filled + tokens;
        for (block, state) in self.single.iter().zip(&texts[self.double.len()..]) {
            let whole = Tensor::cat(&[&both, state], 1)?;
            let after = block.single(&whole, &conditions, places)?;
            both = after.narrow(1, 0, kept)?.contiguous()?;
        }
        let picture = both.narrow(1, 0, count)?.contiguous()?;
        let by = self.modulation.forward(&conditions)?;
        let picture = self.norm.modulated(&picture, &by[1], Some(&by[0]))?;
        unpack_inner(&self.out.forward(&picture)?, height, width)
    }
}
