//! ControlNet: a copy of the UNet's way down that follows a picture.

use super::layers::conv;
use super::unet::config::UNetConfig;
use super::unet::{Condition, Extra, Residuals, Trunk};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// The network.
#[derive(Debug, Clone)]
pub struct ControlNet {
    trunk: Trunk,
    hint_in: Conv2d,
    hint: Vec<Conv2d>,
    hint_out: Conv2d,
    down: Vec<Conv2d>,
    mid: Conv2d,
}

impl ControlNet {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &UNetConfig) -> Result<Self> {
        let plan = config.plan().map_err(candle_core::Error::msg)?;
        let hint = vb.pp("controlnet_cond_embedding");
        let widths = &config.conditioning_embedding_out_channels;
        let (Some(first), Some(last)) = (widths.first(), widths.last()) else {
            candle_core::bail!("conditioning_embedding_out_channels is empty")
        };
        let mut blocks = Vec::new();
        for (i, pair) in widths.windows(2).enumerate() {
            let vb = hint.pp("blocks");
            blocks.push(conv(vb.pp(2 * i), pair[0], pair[0], 3, 1, 1)?);
            blocks.push(conv(vb.pp(2 * i + 1), pair[0], pair[1], 3, 2, 1)?);
        }
        let out = config.block_out_channels[0];
        let zero = |vb: VarBuilder, channels| conv(vb, channels, channels, 1, 1, 0);
        Ok(Self {
            hint_in: conv(
                hint.pp("conv_in"),
                config.conditioning_channels,
                *first,
                3,
                1,
                1,
            )?,
            hint: blocks,
            hint_out: conv(hint.pp("conv_out"), *last, out, 3, 1, 1)?,
            down: super::unet::skip_channels(config, &plan)
                .into_iter()
                .enumerate()
                .map(|(i, channels)| zero(vb.pp("controlnet_down_blocks").pp(i), channels))
                .collect::<Result<_>>()?,
            mid: zero(vb.pp("controlnet_mid_block"), plan.mid.channels)?,
            trunk: Trunk::new(&vb, config, &plan)?,
        })
    }

    /// Embeds the picture, `(1, 3, height, width)` in 0..1 with 8 pixels a latent: done once for all steps.
    ///
    /// # Errors
    /// If the device fails.
    pub fn hint(&self, picture: &Tensor) -> Result<Tensor> {
        let mut x = self.hint_in.forward(picture)?.silu()?;
        for layer in &self.hint {
            x = layer.forward(&x)?.silu()?;
        }
        self.hint_out.forward(&x)
    }

    /// Prepares what does not change from step to step.
    ///
    /// # Errors
    /// If the text has another width than the network wants.
    pub fn condition(&self, text: &Tensor, extra: &Extra) -> Result<Condition> {
        self.trunk.condition(text, extra, |_, _| Ok(()))
    }

    /// Residuals, times `strength`, for the UNet at time `t`.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward(
        &self,
        x: &Tensor,
        t: f64,
        condition: &Condition,
        hint: &Tensor,
        strength: f64,
    ) -> Result<Residuals> {
        let (way, _) = self.trunk.forward(x, t, condition, Some(hint))?;
        let down = self.down.iter().zip(&way.skips);
        Ok(Residuals {
            down: down
                .map(|(layer, skip)| layer.forward(skip)? * strength)
                .collect::<Result<_>>()?,
            mid: (self.mid.forward(&way.x)? * strength)?,
        })
    }
}
