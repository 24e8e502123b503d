//! ControlNets of Stable Diffusion 3 and 3.5: fewer blocks, which follow a picture's latents.

use super::blocks::{Conditions, JointBlock, JointKind, PictureBlock};
use super::sd3::Entry;
use crate::models::config::{within, Others};
use crate::models::layers::{conv, linear, pixels_as_rows, Linear};
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;
use serde::Deserialize;

/// `config.json` of an `SD3ControlNetModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Sd3ControlConfig {
    /// Latents a patch, each way.
    pub patch_size: usize,
    /// Channels of a latent.
    pub in_channels: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Channels of a head.
    pub attention_head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Width of the text; without it the network does not read the text.
    pub joint_attention_dim: Option<usize>,
    /// Width of the pooled text.
    pub pooled_projection_dim: usize,
    /// Patches each way in the table of positions.
    pub pos_embed_max_size: Option<usize>,
    /// Channels of the picture's latents beside theirs: one, of what is shown of it, or none.
    pub extra_conditioning_channels: usize,
    /// Blocks in which the picture has a second attention.
    pub dual_attention_layers: Vec<usize>,
    /// Norm of queries and keys.
    pub qk_norm: Option<String>,
    /// Whether there is a table of positions where latents enter.
    pub pos_embed_type: Option<String>,
    /// Whether latents enter by layers of the network's own, not the transformer's.
    pub use_pos_embed: bool,
    /// Whether zeros stand for the pooled text, and the picture's latents are not shifted.
    pub force_zeros_for_pooled_projection: bool,
    pub(crate) caption_projection_dim: usize,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for Sd3ControlConfig {
    fn default() -> Self {
        Self {
            patch_size: 2,
            in_channels: 16,
            num_layers: 18,
            attention_head_dim: 64,
            num_attention_heads: 18,
            joint_attention_dim: Some(4096),
            pooled_projection_dim: 2048,
            pos_embed_max_size: Some(96),
            extra_conditioning_channels: 0,
            dual_attention_layers: Vec::new(),
            qk_norm: None,
            pos_embed_type: Some("sincos".to_string()),
            use_pos_embed: true,
            force_zeros_for_pooled_projection: true,
            caption_projection_dim: 1152,
            others: Others::default(),
        }
    }
}

impl Sd3ControlConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// Names the first that makes no sense or is not implemented.
    pub fn check(&self) -> std::result::Result<(), String> {
        // The table of positions, which is as large as `sample_size` says, is among the weights; nothing is as wide as
        // `out_channels`.
        self.others.refuse(&["out_channels", "sample_size"])?;
        within(
            &[
                ("patch_size", self.patch_size),
                ("in_channels", self.in_channels),
                ("num_layers", self.num_layers),
                ("num_attention_heads", self.num_attention_heads),
                ("attention_head_dim", self.attention_head_dim),
                ("joint_attention_dim", self.joint_attention_dim.unwrap_or(1)),
                ("pooled_projection_dim", self.pooled_projection_dim),
                ("pos_embed_max_size", self.pos_embed_max_size.unwrap_or(1)),
            ],
            1 << 14,
        )?;
        within(&[("num_layers", self.num_layers)], 256)?;
        if self.extra_conditioning_channels > 1 {
            return Err(format!(
                "extra_conditioning_channels {} are not implemented, one (of a mask) is",
                self.extra_conditioning_channels
            ));
        }
        if self.joint_attention_dim.is_some() && self.caption_projection_dim != self.width() {
            return Err(format!(
                "caption_projection_dim other than {} is not implemented",
                self.width()
            ));
        }
        match self.pos_embed_type.as_deref() {
            None | Some("sincos") => {}
            Some(other) => return Err(format!("pos_embed_type {other} is not implemented")),
        }
        if self.table().is_none() && self.use_pos_embed && self.pos_embed_type.is_some() {
            return Err("pos_embed_max_size is null; a size is needed".to_string());
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

    /// Patches each way in the table of positions, if there is one.
    fn table(&self) -> Option<usize> {
        self.pos_embed_type.as_ref().and(self.pos_embed_max_size)
    }
}

/// What Stability's networks for 3.5 large follow, each of them one.
pub const KINDS: [&str; 3] = ["blur", "canny", "depth"];

/// Pixels in -1..1 as a network for pictures of this kind was trained to see them, by its makers' example: edges as the
/// numbers of bytes around 0.
///
/// # Errors
/// If the device fails.
pub fn pixels_of_kind(pixels: &Tensor, kind: &str) -> Result<Tensor> {
    match kind {
        "canny" => pixels.affine(127.5, 0.5),
        _ => Ok(pixels.clone()),
    }
}

/// The blocks.
#[derive(Debug, Clone)]
enum Blocks {
    /// Of picture and text.
    Joint { text: Linear, all: Vec<JointBlock> },
    /// Of the picture alone.
    Picture(Vec<PictureBlock>),
}

/// The network.
#[derive(Debug, Clone)]
pub struct Sd3Control {
    config: Sd3ControlConfig,
    /// Absent where the transformer's is used.
    entry: Option<Entry>,
    hint: Conv2d,
    conditions: Conditions,
    blocks: Blocks,
    out: Vec<Linear>,
}

impl Sd3Control {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &Sd3ControlConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let (width, patch, heads) = (
            config.width(),
            config.patch_size,
            config.num_attention_heads,
        );
        let each = |name: &str| {
            let vb = vb.pp(name);
            (0..config.num_layers).map(move |i| (i, vb.pp(i)))
        };
        let seen = config.in_channels + config.extra_conditioning_channels;
        let blocks = match config.joint_attention_dim {
            Some(inputs) => Blocks::Joint {
                text: linear(vb.pp("context_embedder"), inputs, width)?,
                all: each("transformer_blocks")
                    .map(|(i, vb)| {
                        let kind = JointKind {
                            alone: config.dual_attention_layers.contains(&i),
                            ..JointKind::default()
                        };
                        JointBlock::new(vb, width, heads, kind)
                    })
                    .collect::<Result<_>>()?,
            },
            None => Blocks::Picture(
                each("transformer_blocks")
                    .map(|(_, vb)| PictureBlock::new(vb, width, heads))
                    .collect::<Result<_>>()?,
            ),
        };
        Ok(Self {
            entry: match config.use_pos_embed {
                true => Some(Entry::new(
                    vb.pp("pos_embed"),
                    (config.in_channels, width),
                    patch,
                    config.table(),
                )?),
                false => None,
            },
            hint: conv(vb.pp("pos_embed_input.proj"), seen, width, patch, patch, 0)?,
            conditions: Conditions::new(
                vb.pp("time_text_embed"),
                width,
                config.pooled_projection_dim,
                false,
            )?,
            blocks,
            out: each("controlnet_blocks")
                .map(|(_, vb)| linear(vb, width, width))
                .collect::<Result<_>>()?,
            config: config.clone(),
        })
    }

    /// Whether the kind of its picture may be said, one of [`KINDS`].
    pub fn is_told(&self) -> bool {
        matches!(self.blocks, Blocks::Picture(_))
    }

    /// Whether it paints what is not shown of its picture.
    pub fn paints(&self) -> bool {
        self.config.extra_conditioning_channels == 1
    }

    /// Whether the latents of the picture are shifted as the transformer's are.
    pub fn shifts(&self) -> bool {
        // Those that paint are given shifted ones in any case.
        self.paints() || !self.config.force_zeros_for_pooled_projection
    }

    /// What the network makes of the picture's latents, `(1, channels, height, width)` with those of the mask: done once
    /// for all steps.
    ///
    /// # Errors
    /// If there are other channels, or the device fails.
    pub fn hint(&self, latents: &Tensor) -> Result<Tensor> {
        pixels_as_rows(&self.hint.forward(latents)?)
    }

    /// Residuals, times `strength`, for latents `x` as the transformer gets them, or as they are behind its entry
    /// (`entered`), with what [`Self::hint`] gave.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward(
        &self,
        (x, entered): (&Tensor, &Tensor),
        hint: &Tensor,
        t: Time,
        text: &Tensor,
        pooled: &Tensor,
        strength: f64,
    ) -> Result<Vec<Tensor>> {
        let pooled = match self.paints() || self.config.force_zeros_for_pooled_projection {
            true => &pooled.zeros_like()?,
            false => pooled,
        };
        let conditions = self.conditions.forward(t, None, pooled)?;
        let mut picture = match &self.entry {
            Some(entry) => entry.forward(x)?,
            None => entered.clone(),
        }
        .broadcast_add(hint)?;
        let mut residuals = Vec::with_capacity(self.out.len());
        let mut keep = |out: &Linear, picture: &Tensor| {
            residuals.push((out.forward(picture)? * strength)?);
            Result::Ok(())
        };
        match &self.blocks {
            Blocks::Joint { text: layer, all } => {
                let mut text = layer.forward(text)?;
                for (block, out) in all.iter().zip(&self.out) {
                    (picture, text) = block.forward(&picture, &text, &conditions, None)?;
                    keep(out, &picture)?;
                }
            }
            Blocks::Picture(all) => {
                for (block, out) in all.iter().zip(&self.out) {
                    picture = block.forward(&picture, &conditions)?;
                    keep(out, &picture)?;
                }
            }
        }
        Ok(residuals)
    }
}
