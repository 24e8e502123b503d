//! Tensors of the gated delta rule and of short convolutions.

use super::{Check, Result};
use crate::engine::decoder::config::DecoderConfig;

impl Check<'_> {
    pub(super) fn delta(&mut self, c: &DecoderConfig, name: &dyn Fn(&str) -> String) -> Result<()> {
        self.norm(&name("attn_norm"), &[c.width])?;
        let Some(sizes) = c.delta else { return Ok(()) };
        let (width, heads, values) = (c.width, sizes.value_heads, sizes.values());
        if self.gguf.tensor(&name("ssm_in.weight")).is_some() {
            // As the first files of Qwen3-Next have it: all of a head of keys behind each other.
            self.matrix(&name("ssm_in"), &[width, sizes.channels() + values])?;
        } else {
            self.matrix(&name("attn_qkv"), &[width, sizes.channels()])?;
            self.matrix(&name("attn_gate"), &[width, values])?;
        }
        if c.traits.tiled_heads {
            self.matrix(&name("ssm_beta"), &[width, heads])?;
            self.matrix(&name("ssm_alpha"), &[width, heads])?;
        } else {
            self.matrix(&name("ssm_ba"), &[width, 2 * heads])?;
        }
        self.require(
            &name("ssm_conv1d.weight"),
            &[sizes.kernel, sizes.channels()],
        )?;
        self.require(&name("ssm_dt.bias"), &[heads])?;
        self.require(&name("ssm_a"), &[heads])?;
        self.require(&name("ssm_norm.weight"), &[sizes.value_size])?;
        self.matrix(&name("ssm_out"), &[values, width])
    }

    pub(super) fn short_convolution(
        &mut self,
        c: &DecoderConfig,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let (width, kernel) = (c.width, c.short_convolution);
        self.norm(&name("attn_norm"), &[width])?;
        self.require(&name("shortconv.conv.weight"), &[kernel, width])?;
        self.matrix(&name("shortconv.in_proj"), &[width, 3 * width])?;
        self.matrix(&name("shortconv.out_proj"), &[width, width])
    }
}
