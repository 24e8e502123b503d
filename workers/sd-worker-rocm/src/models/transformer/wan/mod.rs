//! The transformer of Wan 2.1 and 2.2.

mod blocks;
mod config;

pub use config::WanConfig;

use super::attention::Rope;
use super::blocks::PlainNorm;
use super::stretches::{in_stretches, modulations, table, Stretch};
use crate::models::layers::{linear, Linear, TimestepEmbedding};
use crate::models::time::Time;
use crate::models::VarBuilder;
use blocks::{Block, PictureEmbedding};
use candle_core::{DType, Module, Result, Tensor};

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
            norm: PlainNorm { eps: config.eps },
            table: table(&vb, &[1, 2, width])?,
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
        let text = second.forward(&first.forward_gelu(text)?)?;
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
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
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
        let t = t.into();
        let whole = (frames * rows * columns, t);
        let stretches = match first_is_clean && frames > 1 {
            true => vec![
                (rows * columns, t.constant(0.0)),
                (whole.0 - rows * columns, t),
            ],
            false => vec![whole],
        };
        let mut times = Vec::new();
        let mut parts = Vec::new();
        for (tokens, t) in stretches {
            let row = t.embedding(self.config.freq_dim, true, 0.0, x.device())?;
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
