//! The transformer of Wan 2.1 and 2.2.

use super::attention::{attend, Rope};
use super::blocks::PlainNorm;
use crate::models::attention::attention;
use crate::models::config::within;
use crate::models::layers::{layer_norm, linear, sinusoidal, Linear, TimestepEmbedding};
use crate::models::norm::RmsNorm;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::LayerNorm;
use serde::Deserialize;

/// Places along an axis that the network was trained with.
const LONGEST: usize = 1024;

/// `config.json` of a `WanTransformer3DModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct WanConfig {
    /// Frames, rows and columns of latents in a patch.
    pub patch_size: Vec<usize>,
    /// Heads.
    pub num_attention_heads: usize,
    /// Size of a head.
    pub attention_head_dim: usize,
    /// Channels of the input: latents, and for models that start from a picture a mask and the picture's latents.
    pub in_channels: usize,
    /// Channels of a latent.
    pub out_channels: usize,
    /// Width of the text.
    pub text_dim: usize,
    /// Width of the sinusoidal embedding of time.
    pub freq_dim: usize,
    /// Width of the feed-forward layers.
    pub ffn_dim: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Whether there is a norm before the text is looked at.
    pub cross_attn_norm: bool,
    /// Of the norms.
    pub eps: f64,
    /// Width of CLIP's view of the picture to start from, for models that look at it.
    pub image_dim: Option<usize>,
    /// Width in which blocks take that view.
    pub added_kv_proj_dim: Option<usize>,
    /// Rows of that view in all, where they have places of their own: models that know the last picture, too.
    pub pos_embed_seq_len: Option<usize>,
    pub(crate) qk_norm: Option<String>,
    pub(crate) rope_max_seq_len: usize,
}

impl Default for WanConfig {
    fn default() -> Self {
        Self {
            patch_size: vec![1, 2, 2],
            num_attention_heads: 40,
            attention_head_dim: 128,
            in_channels: 16,
            out_channels: 16,
            text_dim: 4096,
            freq_dim: 256,
            ffn_dim: 13824,
            num_layers: 40,
            cross_attn_norm: true,
            eps: 1e-6,
            image_dim: None,
            added_kv_proj_dim: None,
            pos_embed_seq_len: None,
            qk_norm: Some("rms_norm_across_heads".to_string()),
            rope_max_seq_len: LONGEST,
        }
    }
}

impl WanConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        within(
            &[
                ("num_attention_heads", self.num_attention_heads),
                ("attention_head_dim", self.attention_head_dim),
                ("in_channels", self.in_channels),
                ("out_channels", self.out_channels),
                ("text_dim", self.text_dim),
                ("freq_dim", self.freq_dim),
                ("ffn_dim", self.ffn_dim),
                ("num_layers", self.num_layers),
                ("image_dim", self.image_dim.unwrap_or(1)),
                ("pos_embed_seq_len", self.pos_embed_seq_len.unwrap_or(1)),
                ("rope_max_seq_len", self.rope_max_seq_len),
            ],
            1 << 16,
        )?;
        if self.patch_size != [1, 2, 2] {
            return Err(format!(
                "patch_size {:?} is not implemented; there is [1, 2, 2]",
                self.patch_size
            ));
        }
        if !self.attention_head_dim.is_multiple_of(2) || self.attention_head_dim < 6 {
            return Err(format!(
                "heads of {} have no room for the places of three axes",
                self.attention_head_dim
            ));
        }
        if self.qk_norm.as_deref() != Some("rms_norm_across_heads") {
            return Err(format!("qk_norm {:?} is not implemented", self.qk_norm));
        }
        if self.image_dim.is_some() != self.added_kv_proj_dim.is_some()
            || self.added_kv_proj_dim.is_some_and(|w| w != self.width())
        {
            return Err(
                "added_kv_proj_dim must be the network's width if there is image_dim, else nothing"
                    .to_string(),
            );
        }
        Ok(())
    }

    /// Channels inside.
    pub fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }
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
    fn new(vb: &VarBuilder, config: &WanConfig) -> Result<Self> {
        let width = config.width();
        let project = |name: &str| linear(vb.pp(name), width, width);
        Ok(Self {
            q: project("to_q")?,
            k: project("to_k")?,
            v: project("to_v")?,
            norm_q: RmsNorm::new(vb.pp("norm_q"), width, config.eps)?,
            norm_k: RmsNorm::new(vb.pp("norm_k"), width, config.eps)?,
            out: project("to_out.0")?,
        })
    }

    fn queries(&self, x: &Tensor) -> Result<Tensor> {
        self.norm_q.forward(&self.q.forward(x)?)
    }

    fn keys(&self, x: &Tensor) -> Result<Tensor> {
        self.norm_k.forward(&self.k.forward(x)?)
    }
}

/// Keys and values of the picture to start from.
#[derive(Debug, Clone)]
struct PictureKeys {
    k: Linear,
    v: Linear,
    norm_k: RmsNorm,
}

#[derive(Debug, Clone)]
struct Block {
    norm: PlainNorm,
    itself: Projections,
    text_norm: Option<LayerNorm>,
    text: Projections,
    picture: Option<PictureKeys>,
    up: Linear,
    down: Linear,
    /// `(6, width)`, f32.
    table: Tensor,
    heads: usize,
}

impl Block {
    fn new(vb: VarBuilder, config: &WanConfig) -> Result<Self> {
        let width = config.width();
        let attn2 = vb.pp("attn2");
        Ok(Self {
            norm: PlainNorm::with_eps(&vb, width, config.eps)?,
            itself: Projections::new(&vb.pp("attn1"), config)?,
            text_norm: match config.cross_attn_norm {
                true => Some(layer_norm(vb.pp("norm2"), width, config.eps)?),
                false => None,
            },
            text: Projections::new(&attn2, config)?,
            picture: match config.added_kv_proj_dim {
                Some(inputs) => Some(PictureKeys {
                    k: linear(attn2.pp("add_k_proj"), inputs, width)?,
                    v: linear(attn2.pp("add_v_proj"), inputs, width)?,
                    norm_k: RmsNorm::new(attn2.pp("norm_added_k"), width, config.eps)?,
                }),
                None => None,
            },
            up: linear(vb.pp("ffn.net.0.proj"), width, config.ffn_dim)?,
            down: linear(vb.pp("ffn.net.2"), config.ffn_dim, width)?,
            table: table(&vb, 6, width)?,
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, x: &Tensor, by: &[Stretch], context: &Context) -> Result<Tensor> {
        let by = modulations(&self.table, by, x.dtype())?;
        let h = in_stretches(x, &by, |x, by| self.norm.modulated(x, &by[1], Some(&by[0])))?;
        let itself = &self.itself;
        let qkv = [itself.queries(&h)?, itself.keys(&h)?, itself.v.forward(&h)?];
        let h = itself
            .out
            .forward(&attend(&qkv, self.heads, Some(&context.rope))?)?;
        let x = (x + in_stretches(&h, &by, |h, by| h.broadcast_mul(&by[2]))?)?;

        let h = match &self.text_norm {
            Some(norm) => norm.forward(&x)?,
            None => x.clone(),
        };
        let q = self.text.queries(&h)?;
        let (k, v) = (
            self.text.keys(&context.text)?,
            self.text.v.forward(&context.text)?,
        );
        let mut h = attention(&q, &k, &v, self.heads, false)?;
        if let (Some(layers), Some(picture)) = (&self.picture, &context.picture) {
            let k = layers.norm_k.forward(&layers.k.forward(picture)?)?;
            let v = layers.v.forward(picture)?;
            h = (h + attention(&q, &k, &v, self.heads, false)?)?;
        }
        let x = (x + self.text.out.forward(&h)?)?;

        let h = in_stretches(&x, &by, |x, by| {
            self.norm.modulated(x, &by[4], Some(&by[3]))
        })?;
        let h = self.down.forward(&self.up.forward(&h)?.gelu()?)?;
        x + in_stretches(&h, &by, |h, by| h.broadcast_mul(&by[5]))?
    }
}

/// A table of scales and shifts, `(rows, width)`, f32.
fn table(vb: &VarBuilder, rows: usize, width: usize) -> Result<Tensor> {
    let table = vb.get((1, rows, width), "scale_shift_table")?;
    table.to_dtype(DType::F32)?.squeeze(0)
}

/// So many successive tokens, and the projected time that they are at, `(rows, width)`, f32.
#[derive(Debug, Clone)]
struct Stretch {
    tokens: usize,
    time: Tensor,
}

/// For each stretch the table's rows with its time added, `(1, 1, width)` each.
type Modulated = Vec<(usize, Vec<Tensor>)>;

fn modulations(table: &Tensor, stretches: &[Stretch], dtype: DType) -> Result<Modulated> {
    let stretches = stretches.iter().map(|stretch| {
        let rows = (table + &stretch.time)?.to_dtype(dtype)?;
        let rows = rows.chunk(rows.dim(0)?, 0)?;
        let rows = rows.iter().map(|row| row.unsqueeze(0)?.contiguous());
        Ok((stretch.tokens, rows.collect::<Result<_>>()?))
    });
    stretches.collect()
}

/// `of` every stretch of tokens of `x`, `(batch, tokens, width)`.
fn in_stretches(
    x: &Tensor,
    by: &Modulated,
    of: impl Fn(&Tensor, &[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    if let [(_, by)] = by.as_slice() {
        return of(x, by);
    }
    let mut start = 0;
    let mut parts = Vec::new();
    for (tokens, by) in by {
        parts.push(of(&x.narrow(1, start, *tokens)?.contiguous()?, by)?);
        start += tokens;
    }
    Tensor::cat(&parts, 1)
}

/// CLIP's view of the picture to start from, brought to the network's width.
#[derive(Debug, Clone)]
struct PictureEmbedding {
    places: Option<Tensor>,
    norms: [LayerNorm; 2],
    up: Linear,
    down: Linear,
}

impl PictureEmbedding {
    fn new(vb: VarBuilder, inputs: usize, config: &WanConfig) -> Result<Self> {
        let width = config.width();
        Ok(Self {
            places: match config.pos_embed_seq_len {
                Some(rows) => Some(vb.get((1, rows, inputs), "pos_embed")?),
                None => None,
            },
            norms: [
                layer_norm(vb.pp("norm1"), inputs, 1e-5)?,
                layer_norm(vb.pp("norm2"), width, 1e-5)?,
            ],
            up: linear(vb.pp("ff.net.0.proj"), inputs, inputs)?,
            down: linear(vb.pp("ff.net.2"), inputs, width)?,
        })
    }

    /// Of views `(pictures, rows, width)`: `(1, pictures * rows, width)`.
    fn forward(&self, views: &Tensor) -> Result<Tensor> {
        let (pictures, rows, width) = views.dims3()?;
        let mut x = views.reshape((1, pictures * rows, width))?;
        if let Some(places) = &self.places {
            if places.dim(1)? != pictures * rows {
                candle_core::bail!(
                    "{} rows of pictures to start from; the model takes {}",
                    pictures * rows,
                    places.dim(1)?
                )
            }
            x = (x + places)?;
        }
        let x = self.up.forward(&self.norms[0].forward(&x)?)?.gelu_erf()?;
        self.norms[1].forward(&self.down.forward(&x)?)
    }
}

/// What all steps of a video share.
#[derive(Debug, Clone)]
pub struct Context {
    rope: Rope,
    /// `(batch, tokens, width)`.
    text: Tensor,
    /// `(batch, rows, width)`.
    picture: Option<Tensor>,
}

/// The network.
#[derive(Debug, Clone)]
pub struct Wan {
    config: WanConfig,
    patches: Linear,
    time: TimestepEmbedding,
    time_parts: Linear,
    text: [Linear; 2],
    picture: Option<PictureEmbedding>,
    blocks: Vec<Block>,
    norm: PlainNorm,
    /// `(2, width)`, f32.
    table: Tensor,
    out: Linear,
    dtype: DType,
}

impl Wan {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &WanConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let width = config.width();
        let patch = 4 * config.in_channels;
        let embed = vb.pp("condition_embedder");
        // A convolution whose kernel is a patch; some files have its matrix.
        let conv = vb.pp("patch_embedding");
        let matrix = conv.get_unchecked("weight")?;
        if matrix.elem_count() != width * patch || matrix.dim(0)? != width {
            candle_core::bail!(
                "patch_embedding.weight has shape {:?}; the configuration wants {width} rows of {patch}",
                matrix.dims()
            )
        }
        let patches = candle_nn::Linear::new(
            matrix.reshape((width, patch))?,
            Some(conv.get(width, "bias")?),
        );
        let text = embed.pp("text_embedder");
        let blocks = vb.pp("blocks");
        Ok(Self {
            patches: Linear::Plain(patches),
            time: TimestepEmbedding::new(embed.pp("time_embedder"), config.freq_dim, width, None)?,
            time_parts: linear(embed.pp("time_proj"), width, 6 * width)?,
            text: [
                linear(text.pp("linear_1"), config.text_dim, width)?,
                linear(text.pp("linear_2"), width, width)?,
            ],
            picture: match config.image_dim {
                Some(inputs) => Some(PictureEmbedding::new(
                    embed.pp("image_embedder"),
                    inputs,
                    config,
                )?),
                None => None,
            },
            blocks: (0..config.num_layers)
                .map(|i| Block::new(blocks.pp(i), config))
                .collect::<Result<_>>()?,
            norm: PlainNorm::with_eps(&vb, width, config.eps)?,
            table: table(&vb, 2, width)?,
            out: linear(vb.pp("proj_out"), width, 4 * config.out_channels)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &WanConfig {
        &self.config
    }

    /// What all steps share, for a text `(batch, tokens, width)`, CLIP's views `(pictures, rows, width)` of pictures to
    /// start from, where the model looks at them, and latents of so many frames, rows and columns.
    ///
    /// # Errors
    /// If the video is larger than in training, shapes do not fit together, or the device fails.
    pub fn context(
        &self,
        text: &Tensor,
        views: Option<&Tensor>,
        [frames, height, width]: [usize; 3],
    ) -> Result<Context> {
        let (rows, columns) = (height / 2, width / 2);
        let longest = self.config.rope_max_seq_len;
        if frames.max(rows).max(columns) > longest {
            candle_core::bail!(
                "{frames} frames of {rows}x{columns} patches; the model takes up to {longest} each"
            )
        }
        let positions: Vec<[f64; 3]> = (0..frames * rows * columns)
            .map(|i| {
                let (frame, place) = (i / (rows * columns), i % (rows * columns));
                [frame, place / columns, place % columns].map(|at| at as f64)
            })
            .collect();
        let size = self.config.attention_head_dim;
        let side = 2 * (size / 6);
        let sizes = [size - 2 * side, side, side];
        let [first, second] = &self.text;
        let text = second.forward(&first.forward(text)?.gelu()?)?;
        let picture = match (&self.picture, views) {
            (Some(embedding), Some(views)) => {
                let one = embedding.forward(&views.to_dtype(self.dtype)?)?;
                Some(one.repeat((text.dim(0)?, 1, 1))?)
            }
            (Some(_), None) => candle_core::bail!("the model starts from a picture"),
            (None, _) => None,
        };
        Ok(Context {
            rope: Rope::new(&positions, &sizes, 10_000.0, self.dtype, text.device())?,
            text,
            picture,
        })
    }

    /// The network's output for `x`, `(batch, channels, frames, height, width)`, at time `t` in 0 to 1000; with
    /// `first_is_clean` the first frame is at time 0.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward(
        &self,
        x: &Tensor,
        t: f64,
        first_is_clean: bool,
        context: &Context,
    ) -> Result<Tensor> {
        let (batch, channels, frames, height, width) = x.dims5()?;
        let (rows, columns) = (height / 2, width / 2);
        // Patches with channels outermost. Six dimensions at most: batch and channels, or frames, go together.
        let patches = x
            .reshape(vec![batch * channels, frames, rows, 2, columns, 2])?
            .permute(vec![0, 1, 2, 4, 3, 5])?
            .contiguous()?
            .reshape((batch, channels, frames * rows * columns, 4))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch, frames * rows * columns, channels * 4))?;
        let mut x = self.patches.forward(&patches)?;
        let whole = (frames * rows * columns, t);
        let stretches = match first_is_clean && frames > 1 {
            true => vec![(rows * columns, 0.0), (whole.0 - rows * columns, t)],
            false => vec![whole],
        };
        let mut times = Vec::new();
        let mut parts = Vec::new();
        for (tokens, t) in stretches {
            let row = sinusoidal(&[t], self.config.freq_dim, true, 0.0, x.device())?;
            let time = self.time.forward(&row.to_dtype(self.dtype)?, None)?;
            let part = self.time_parts.forward(&time.silu()?)?;
            parts.push(Stretch {
                tokens,
                time: part.to_dtype(DType::F32)?.reshape((6, ()))?,
            });
            times.push(Stretch {
                tokens,
                time: time.to_dtype(DType::F32)?.repeat((2, 1))?,
            });
        }
        for block in &self.blocks {
            x = block.forward(&x, &parts, context)?;
        }
        let by = modulations(&self.table, &times, x.dtype())?;
        let x = in_stretches(&x, &by, |x, by| {
            self.norm.modulated(x, &by[1], Some(&by[0]))
        })?;
        let channels = self.config.out_channels;
        self.out
            .forward(&x)?
            .reshape((batch, frames * rows * columns, 4, channels))?
            .permute((0, 3, 1, 2))?
            .contiguous()?
            .reshape(vec![batch * channels, frames, rows, columns, 2, 2])?
            .permute(vec![0, 1, 2, 4, 3, 5])?
            .contiguous()?
            .reshape((batch, channels, frames, height, width))
    }
}
