//! Tensors of the gated delta rule and of short convolutions.

use super::{Check, Result};
use crate::engine::decoder::config::DecoderConfig;

impl Check<'_> {
    pub(super) fn delta(&mut self, c: &DecoderConfig, name: &dyn Fn(&str) -> String) -> Result<()> {
        self.norm(&name("attn_norm"), &[c.width])?;
        let Some(sizes) = c.delta else { return Ok(()) };
        let (width, heads, values) = (c.width, sizes.value_heads, sizes.values());
        let matrix = |part: &str| name(&format!("{part}.weight"));
        if self.gguf.tensor(&matrix("ssm_in")).is_some() {
            // As the first files of Qwen3-Next have it: all of a head of keys behind each other.
            self.require(&matrix("ssm_in"), &[width, sizes.channels() + values])?;
        } else {
            self.require(&matrix("attn_qkv"), &[width, sizes.channels()])?;
            self.require(&matrix("attn_gate"), &[width, values])?;
        }
        if c.traits.tiled_heads {
            self.require(&matrix("ssm_beta"), &[width, heads])?;
            self.require(&matrix("ssm_alpha"), &[width, heads])?;
        } else {
            self.require(&matrix("ssm_ba"), &[width, 2 * heads])?;
        }
        self.require(&matrix("ssm_conv1d"), &[sizes.kernel, sizes.channels()])?;
        self.require(&name("ssm_dt.bias"), &[heads])?;
        self.require(&name("ssm_a"), &[heads])?;
        self.require(&matrix("ssm_norm"), &[sizes.value_size])?;
        self.require(&matrix("ssm_out"), &[values, width])
    }

    pub(super) fn short_convolution(
        &mut self,
        c: &DecoderConfig,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let (width, kernel) = (c.width, c.short_convolution);
        self.norm(&name("attn_norm"), &[width])?;
        self.require(&name("shortconv.conv.weight"), &[kernel, width])?;
        self.require(&name("shortconv.in_proj.weight"), &[width, 3 * width])?;
        self.require(&name("shortconv.out_proj.weight"), &[width, width])
    }
}
