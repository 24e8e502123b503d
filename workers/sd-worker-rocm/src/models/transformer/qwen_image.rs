//! The transformer of Qwen-Image and Qwen-Image-Edit.

use super::attention::Rope;
use super::blocks::{JointBlock, Modulation, PlainNorm, TIME};
use super::{pack, unpack};
use crate::models::config::{check_axes, within, Others};
use crate::models::layers::{linear, Linear, TimestepEmbedding};
use crate::models::norm::RmsNorm;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use serde::Deserialize;

/// `config.json` of a `QwenImageTransformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
pub struct QwenImageConfig {
    /// Channels of a patch of 2x2 latents.
    #[serde(default = "channels")]
    pub in_channels: usize,
    /// Channels of a latent that comes out.
    #[serde(default = "out_channels")]
    pub out_channels: Option<usize>,
    /// Blocks.
    #[serde(default = "layers")]
    pub num_layers: usize,
    /// Channels of a head.
    #[serde(default = "head")]
    pub attention_head_dim: usize,
    /// Heads.
    #[serde(default = "heads")]
    pub num_attention_heads: usize,
    /// Width of the text.
    #[serde(default = "joint")]
    pub joint_attention_dim: usize,
    /// Shares of a head that turn with picture, row and column.
    #[serde(default = "axes")]
    pub axes_dims_rope: Vec<usize>,
    /// Whether reference pictures are conditioned on a time of their own: the end.
    #[serde(default)]
    pub zero_cond_t: bool,
    #[serde(default = "patch")]
    pub(crate) patch_size: usize,
    #[serde(default)]
    pub(crate) guidance_embeds: bool,
    #[serde(default)]
    pub(crate) use_additional_t_cond: bool,
    #[serde(default)]
    pub(crate) use_layer3d_rope: bool,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

fn channels() -> usize {
    64
}

fn out_channels() -> Option<usize> {
    Some(16)
}

fn layers() -> usize {
    60
}

fn head() -> usize {
    128
}

fn heads() -> usize {
    24
}

fn joint() -> usize {
    3584
}

fn axes() -> Vec<usize> {
    vec![16, 56, 56]
}

fn patch() -> usize {
    2
}

impl Default for QwenImageConfig {
    /// The sizes of the published model.
    fn default() -> Self {
        Self {
            in_channels: channels(),
            out_channels: out_channels(),
            num_layers: layers(),
            attention_head_dim: head(),
            num_attention_heads: heads(),
            joint_attention_dim: joint(),
            axes_dims_rope: axes(),
            zero_cond_t: false,
            patch_size: patch(),
            guidance_embeds: false,
            use_additional_t_cond: false,
            use_layer3d_rope: false,
            others: Others::default(),
        }
    }
}

impl QwenImageConfig {
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
                ("attention_head_dim", self.attention_head_dim),
                ("num_attention_heads", self.num_attention_heads),
                ("joint_attention_dim", self.joint_attention_dim),
            ],
            1 << 14,
        )?;
        for (name, set) in [
            ("guidance_embeds", self.guidance_embeds),
            (
                "use_additional_t_cond (Qwen-Image-Layered)",
                self.use_additional_t_cond,
            ),
            (
                "use_layer3d_rope (Qwen-Image-Layered)",
                self.use_layer3d_rope,
            ),
        ] {
            if set {
                return Err(format!("{name} is not implemented"));
            }
        }
        if self.patch_size != 2 {
            return Err("patch_size other than 2 is not implemented".to_string());
        }
        let out = self.out_channels.unwrap_or(self.in_channels);
        if !self.in_channels.is_multiple_of(4) || out != self.in_channels / 4 {
            return Err(format!(
                "in_channels {} are not patches of 2x2 of {out} out_channels",
                self.in_channels
            ));
        }
        check_axes::<3>(
            "axes_dims_rope",
            &self.axes_dims_rope,
            self.attention_head_dim,
        )?;
        Ok(())
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct QwenImage {
    config: QwenImageConfig,
    picture: Linear,
    text_norm: RmsNorm,
    text: Linear,
    time: TimestepEmbedding,
    blocks: Vec<JointBlock>,
    norm: PlainNorm,
    modulation: Modulation,
    out: Linear,
    dtype: DType,
}

impl QwenImage {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &QwenImageConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let heads = config.num_attention_heads;
        let width = heads * config.attention_head_dim;
        let blocks = vb.pp("transformer_blocks");
        let time = vb.pp("time_text_embed.timestep_embedder");
        Ok(Self {
            picture: linear(vb.pp("img_in"), config.in_channels, width)?,
            text_norm: RmsNorm::new(vb.pp("txt_norm"), config.joint_attention_dim, 1e-6)?,
            text: linear(vb.pp("txt_in"), config.joint_attention_dim, width)?,
            time: TimestepEmbedding::new(time, TIME, width, None)?,
            blocks: (0..config.num_layers)
                .map(|i| JointBlock::of_qwen(blocks.pp(i), width, heads))
                .collect::<Result<_>>()?,
            norm: PlainNorm::default(),
            modulation: Modulation::new(vb.pp("norm_out.linear"), width, width, 2)?,
            out: linear(vb.pp("proj_out"), width, config.in_channels)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// Rotations for `tokens` of text and pictures of so many latents (height, width): the one that is made, then its
    /// references. Pictures lie around the origin, each on a plane of its own; the text goes on outside them, along the
    /// diagonal.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn rope(&self, tokens: usize, pictures: &[(usize, usize)], like: &Tensor) -> Result<Rope> {
        let patches = pictures
            .iter()
            .map(|(height, width)| (height / 2, width / 2));
        let edge = patches.clone().map(|(h, w)| (h / 2).max(w / 2)).max();
        let edge = edge.unwrap_or(0);
        let text = (edge..edge + tokens).map(|at| [at as f64; 3]);
        let centred = |at: usize, size: usize| at as f64 - (size - size / 2) as f64;
        let places = patches.enumerate().flat_map(|(plane, (h, w))| {
            (0..h).flat_map(move |row| {
                let column = move |column| [plane as f64, centred(row, h), centred(column, w)];
                (0..w).map(column)
            })
        });
        let positions: Vec<[f64; 3]> = text.chain(places).collect();
        let sizes = &self.config.axes_dims_rope;
        Rope::new(&positions, sizes, 10_000.0, like.dtype(), like.device())
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 to 1000, with a text `(batch,
    /// tokens, width)` and the latents of reference pictures, `(1 or batch, channels, height, width)` each.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        text: &Tensor,
        references: &[Tensor],
        rope: &Rope,
    ) -> Result<Tensor> {
        let (batch, _, height, width) = x.dims4()?;
        let mut patches = vec![pack(x)?];
        for reference in references {
            let reference = pack(reference)?;
            let (_, count, channels) = reference.dims3()?;
            patches.push(
                reference
                    .broadcast_as((batch, count, channels))?
                    .contiguous()?,
            );
        }
        let count = patches[0].dim(1)?;
        let mut picture = self.picture.forward(&Tensor::cat(&patches, 1)?)?;
        let mut text = self.text.forward(&self.text_norm.forward(text)?)?;
        let t = t.into();
        let conditions = |t: Time| {
            let row = t.embedding(TIME, true, 0.0, x.device())?;
            self.time.forward(&row.to_dtype(self.dtype)?, None)?.silu()
        };
        let by = conditions(t)?;
        let still = match self.config.zero_cond_t && !references.is_empty() {
            true => Some((conditions(t.constant(0.0))?, count)),
            false => None,
        };
        let still = still.as_ref().map(|(by, count)| (by, *count));
        for block in &self.blocks {
            (picture, text) = block.forward_with(&picture, &text, &by, still, Some(rope))?;
            if self.dtype == DType::F16 {
                // What exceeds it stays finite.
                picture = picture.clamp(-65504f32, 65504f32)?;
                text = text.clamp(-65504f32, 65504f32)?;
            }
        }
        let picture = picture.narrow(1, 0, count)?.contiguous()?;
        let by = self.modulation.forward(&by)?;
        let picture = self.norm.modulated(&picture, &by[0], Some(&by[1]))?;
        unpack(&self.out.forward(&picture)?, height, width)
    }
}
