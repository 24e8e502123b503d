//! ControlNets of FLUX.1: fewer blocks of the same kind, which follow a picture's latents.

use super::attention::Rope;
use super::blocks::{Conditions, JointBlock, JointKind};
use super::flux::{FluxConfig, SingleBlock};
use super::pack;
use crate::models::config::within;
use crate::models::layers::{linear, Linear};
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use serde::Deserialize;

/// `config.json` of a `FluxControlNetModel`.
#[derive(Debug, Clone, Deserialize)]
pub struct FluxControlConfig {
    /// What it has in common with the transformer.
    #[serde(flatten)]
    pub flux: FluxConfig,
    /// Of unions: kinds of pictures that it knows.
    #[serde(default)]
    pub num_mode: Option<usize>,
    /// Of XLabs' kind, which sees pixels.
    #[serde(default)]
    pub(crate) conditioning_embedding_channels: Option<usize>,
}

impl FluxControlConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// Names the first that makes no sense or is not implemented.
    pub fn check(&self) -> std::result::Result<(), String> {
        // One with joint blocks only has no single ones.
        FluxConfig {
            num_single_layers: self.flux.num_single_layers.max(1),
            ..self.flux.clone()
        }
        .check()?;
        within(&[("num_layers", self.flux.num_layers)], 256)?;
        if self.flux.num_single_layers > 256 {
            return Err("num_single_layers is above 256".to_string());
        }
        if let Some(kinds) = self.num_mode {
            within(&[("num_mode", kinds)], 1 << 10)?;
        }
        if self.conditioning_embedding_channels.is_some() {
            return Err(
                "conditioning_embedding_channels (XLabs' ControlNets) is not implemented"
                    .to_string(),
            );
        }
        Ok(())
    }
}

/// What is added to a transformer's blocks.
#[derive(Debug, Clone, Default)]
pub struct BlockResiduals {
    /// For the blocks with layers of their own for picture and text, `(batch, patches, width)` each; each stands for
    /// several blocks where there are fewer.
    pub double: Vec<Tensor>,
    /// For the others.
    pub single: Vec<Tensor>,
}

impl BlockResiduals {
    /// Those of two networks together.
    ///
    /// # Errors
    /// If they are for different transformers, or the device fails.
    pub fn plus(self, other: Self) -> Result<Self> {
        let sums = |a: Vec<Tensor>, b: Vec<Tensor>| match (a.as_slice(), b.as_slice()) {
            (_, []) => Ok(a),
            ([], _) => Ok(b),
            (a, b) if a.len() == b.len() => a.iter().zip(b).map(|(a, b)| a + b).collect(),
            _ => candle_core::bail!("two ControlNets with other numbers of blocks"),
        };
        Ok(Self {
            double: sums(self.double, other.double)?,
            single: sums(self.single, other.single)?,
        })
    }

    /// What is added behind block `index` of so many.
    pub(super) fn of(residuals: &[Tensor], index: usize, blocks: usize) -> Option<&Tensor> {
        let each = blocks.div_ceil(residuals.len().max(1));
        residuals.get(index / each.max(1))
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct FluxControl {
    config: FluxControlConfig,
    picture: Linear,
    hint: Linear,
    text: Linear,
    conditions: Conditions,
    double: Vec<(JointBlock, Linear)>,
    single: Vec<(SingleBlock, Linear)>,
    /// A row for each kind of picture.
    kinds: Option<Tensor>,
}

impl FluxControl {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &FluxControlConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let flux = &config.flux;
        let (width, heads) = (flux.width(), flux.num_attention_heads);
        let out = |name: &str, i: usize| linear(vb.pp(name).pp(i), width, width);
        let double = (0..flux.num_layers).map(|i| {
            let vb = vb.pp("transformer_blocks").pp(i);
            let block = JointBlock::new(vb, width, heads, JointKind::default())?;
            Ok((block, out("controlnet_blocks", i)?))
        });
        let single = (0..flux.num_single_layers).map(|i| {
            let vb = vb.pp("single_transformer_blocks").pp(i);
            let block = SingleBlock::new(vb, width, heads, false)?;
            Ok((block, out("controlnet_single_blocks", i)?))
        });
        Ok(Self {
            picture: linear(vb.pp("x_embedder"), flux.in_channels, width)?,
            hint: linear(vb.pp("controlnet_x_embedder"), flux.in_channels, width)?,
            text: linear(vb.pp("context_embedder"), flux.joint_attention_dim, width)?,
            conditions: Conditions::new(
                vb.pp("time_text_embed"),
                width,
                flux.pooled_projection_dim,
                flux.guidance_embeds,
            )?,
            double: double.collect::<Result<_>>()?,
            single: single.collect::<Result<_>>()?,
            kinds: match config.num_mode {
                Some(kinds) => Some(vb.get((kinds, width), "controlnet_mode_embedder.weight")?),
                None => None,
            },
            config: config.clone(),
        })
    }

    /// Kinds of pictures that a union knows.
    pub fn kinds(&self) -> Option<usize> {
        self.config.num_mode
    }

    /// Rotations for `tokens` of text, a union's own token in front, and a picture of so many latents, height and width.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn rope(&self, tokens: usize, picture: (usize, usize), like: &Tensor) -> Result<Rope> {
        let tokens = tokens + usize::from(self.kinds.is_some());
        let positions = super::flux::positions(tokens, picture, &[]);
        let sizes = &self.config.flux.axes_dims_rope;
        Rope::new(&positions, sizes, 10_000.0, like.dtype(), like.device())
    }

    /// Residuals, times `strength`, for `x` as the transformer gets it, and the latents of the picture, `(1 or batch,
    /// channels, height, width)`, of this kind.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    #[allow(clippy::too_many_arguments)]
    pub fn forward(
        &self,
        x: &Tensor,
        (hint, kind): (&Tensor, usize),
        (t, guidance): (Time, f64),
        text: &Tensor,
        pooled: &Tensor,
        rope: &Rope,
        strength: f64,
    ) -> Result<BlockResiduals> {
        let hint = self.hint.forward(&pack(hint)?)?;
        let mut picture = self.picture.forward(&pack(x)?)?.broadcast_add(&hint)?;
        let mut text = self.text.forward(text)?;
        if let Some(kinds) = &self.kinds {
            let (batch, _, _) = text.dims3()?;
            let told = kinds.narrow(0, kind, 1)?.unsqueeze(0)?;
            text = Tensor::cat(&[&told.repeat((batch, 1, 1))?, &text], 1)?;
        }
        let conditions = self.conditions.forward(t, Some(guidance), pooled)?;
        let mut residuals = BlockResiduals::default();
        for (block, out) in &self.double {
            (picture, text) = block.forward(&picture, &text, &conditions, Some(rope))?;
            residuals.double.push((out.forward(&picture)? * strength)?);
        }
        let (tokens, patches) = (text.dim(1)?, picture.dim(1)?);
        let mut both = Tensor::cat(&[&text, &picture], 1)?;
        for (block, out) in &self.single {
            both = block.forward(&both, &conditions, rope)?;
            let picture = both.narrow(1, tokens, patches)?.contiguous()?;
            residuals.single.push((out.forward(&picture)? * strength)?);
        }
        Ok(residuals)
    }
}
