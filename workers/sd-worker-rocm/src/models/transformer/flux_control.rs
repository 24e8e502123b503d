//! ControlNets of FLUX.1: fewer blocks of the same kind, which follow a picture's latents.

use super::attention::Rope;
use super::block_residuals::{BlockResiduals, Spread};
use super::blocks::{Conditions, JointBlock, JointKind};
use super::flux::{FluxConfig, SingleBlock};
use super::pack;
use crate::models::config::within;
use crate::models::controlnet::HintEmbedder;
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
    /// Of XLabs' kind, which sees pixels: channels of what is in front.
    #[serde(default)]
    pub conditioning_embedding_channels: Option<usize>,
}

impl FluxControlConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// Names the first that makes no sense or is not implemented.
    pub fn check(&self) -> std::result::Result<(), String> {
        FluxConfig {
            // One with joint blocks only has no single ones.
            num_single_layers: self.flux.num_single_layers.max(1),
            // Of what is in front of XLabs' kind.
            patch_size: 1,
            ..self.flux.clone()
        }
        .check()?;
        let (patch, inputs) = match self.conditioning_embedding_channels {
            None => (1, self.flux.in_channels),
            Some(channels) => {
                let name = "conditioning_embedding_channels";
                within(&[(name, channels)], 1 << 12)?;
                (2, 4 * channels)
            }
        };
        if self.flux.patch_size != patch {
            return Err(format!(
                "patch_size {} is not implemented; {patch} is",
                self.flux.patch_size
            ));
        }
        if inputs != self.flux.in_channels {
            return Err(format!(
                "conditioning_embedding_channels are a quarter of in_channels {}",
                self.flux.in_channels
            ));
        }
        within(&[("num_layers", self.flux.num_layers)], 256)?;
        if self.flux.num_single_layers > 256 {
            return Err("num_single_layers is above 256".to_string());
        }
        if let Some(kinds) = self.num_mode {
            within(&[("num_mode", kinds)], 1 << 10)?;
        }
        Ok(())
    }
}

/// Channels in front of networks that see pixels: a picture is halved three times.
const PIXEL_WIDTHS: [usize; 4] = [16; 4];

/// The network.
#[derive(Debug, Clone)]
pub struct FluxControl {
    config: FluxControlConfig,
    picture: Linear,
    /// In front of [`Self::hint`], where the network sees pixels.
    pixels: Option<HintEmbedder>,
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
            pixels: match config.conditioning_embedding_channels {
                Some(channels) => {
                    let vb = vb.pp("input_hint_block");
                    Some(HintEmbedder::new(vb, 3, &PIXEL_WIDTHS, channels)?)
                }
                None => None,
            },
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

    /// Whether its picture is given as pixels, not as latents.
    pub fn sees_pixels(&self) -> bool {
        self.pixels.is_some()
    }

    /// What the network makes of the picture's latents, `(1, channels, height, width)`, or of its pixels in -1..1: done
    /// once for all steps.
    ///
    /// # Errors
    /// If shapes do not fit, or the device fails.
    pub fn hint(&self, picture: &Tensor) -> Result<Tensor> {
        let embedded = match &self.pixels {
            Some(pixels) => pixels.forward(picture)?,
            None => picture.clone(),
        };
        self.hint.forward(&pack(&embedded)?)
    }

    /// Residuals for a transformer with so many blocks, times `strength`, for `x` as the transformer gets it, and what
    /// [`Self::hint`] gave, of a picture of this kind.
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
        blocks: (usize, usize),
    ) -> Result<BlockResiduals> {
        let mut picture = self.picture.forward(&pack(x)?)?.broadcast_add(hint)?;
        let mut text = self.text.forward(text)?;
        if let Some(kinds) = &self.kinds {
            let (batch, _, _) = text.dims3()?;
            let told = kinds.narrow(0, kind, 1)?.unsqueeze(0)?;
            text = Tensor::cat(&[&told.repeat((batch, 1, 1))?, &text], 1)?;
        }
        let conditions = self.conditions.forward(t, Some(guidance), pooled)?;
        let (mut double, mut single) = (Vec::new(), Vec::new());
        for (block, out) in &self.double {
            (picture, text) = block.forward(&picture, &text, &conditions, Some(rope))?;
            double.push((out.forward(&picture)? * strength)?);
        }
        let (tokens, patches) = (text.dim(1)?, picture.dim(1)?);
        let mut both = Tensor::cat(&[&text, &picture], 1)?;
        for (block, out) in &self.single {
            both = block.forward(&both, &conditions, rope)?;
            let picture = both.narrow(1, tokens, patches)?.contiguous()?;
            single.push((out.forward(&picture)? * strength)?);
        }
        let spread = match self.sees_pixels() {
            true => Spread::Turns,
            false => Spread::Groups,
        };
        Ok(BlockResiduals {
            double: spread.over(&double, blocks.0),
            single: Spread::Groups.over(&single, blocks.1),
        })
    }
}
