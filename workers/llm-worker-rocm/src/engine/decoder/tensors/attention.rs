//! Attention's tensors.

use super::{Check, Result};
use crate::engine::decoder::config::DecoderConfig;

impl Check<'_> {
    pub(super) fn attention(
        &mut self,
        c: &DecoderConfig,
        block: usize,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let width = c.width;
        let queries = c.heads * c.head_dim;
        let (keys, values) = (c.kv_heads * c.head_dim, c.kv_heads * c.v_head_dim);
        if c.traits.pre_norms && !c.traits.plain_norms {
            self.norm(&name("attn_norm"), &[width])?;
        }
        if c.parallel && self.allow(&name("attn_norm_2.weight"), &[width])? {
            self.allow(&name("attn_norm_2.bias"), &[width])?;
        }
        let shares = c.source_of_keys(block).is_some();
        let tied = c.traits.keys_as_values && self.gguf.tensor(&name("attn_v.weight")).is_none();
        let together = self.gguf.tensor(&name("attn_qkv.weight")).is_some();
        if shares {
            self.linear(&name("attn_q"), width, queries)?;
            // Some files have what is not used.
            self.allow_matrix(&name("attn_k"), &[width, keys])?;
            self.allow_matrix(&name("attn_v"), &[width, values])?;
            self.allow(&name("attn_k_norm.weight"), &[c.head_dim])?;
        } else if tied {
            self.linear(&name("attn_q"), width, queries)?;
            self.linear(&name("attn_k"), width, keys)?;
        } else if together && !c.traits.gated_attention {
            self.linear(&name("attn_qkv"), width, queries + keys + values)?;
        } else {
            let gated = if c.traits.gated_attention { 2 } else { 1 };
            self.linear(&name("attn_q"), width, gated * queries)?;
            self.linear(&name("attn_k"), width, keys)?;
            self.linear(&name("attn_v"), width, values)?;
        }
        self.linear(&name("attn_output"), c.heads * c.v_head_dim, width)?;
        if c.traits.sinks {
            self.require(&name("attn_sinks.weight"), &[c.heads])?;
        }
        let optional =
            c.traits.optional_qk_norms && self.gguf.tensor(&name("attn_q_norm.weight")).is_some();
        if c.traits.norms_of_heads {
            for (part, heads) in [("attn_q_norm", c.heads), ("attn_k_norm", c.kv_heads)] {
                self.allow(&name(&format!("{part}.weight")), &[c.head_dim, heads])?;
            }
        } else if c.traits.qk_norms || optional {
            let both = [("attn_q_norm", queries), ("attn_k_norm", keys)];
            for (part, all) in both.into_iter().take(if shares { 1 } else { 2 }) {
                let part = name(&format!("{part}.weight"));
                // Of each head, or of all together.
                let dims = self.gguf.tensor(&part).map(|t| t.dims.clone());
                let size = if dims == Some(vec![all as u64]) && !c.traits.qk_norms_behind {
                    all
                } else {
                    c.head_dim
                };
                self.require(&part, &[size])?;
            }
        }
        if c.traits.post_norms {
            self.norm(&name("post_attention_norm"), &[width])?;
        }
        Ok(())
    }
}
