//! Tensors of Gemma's later models.

use super::{Check, Result};
use crate::engine::decoder::config::{DecoderConfig, MixtureConfig, StreamConfig};

impl Check<'_> {
    /// What blocks have besides attention and the feed-forward part.
    pub(super) fn gemma(
        &mut self,
        c: &DecoderConfig,
        block: usize,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        if c.per_block() > 0 {
            self.linear(&name("inp_gate"), c.width, c.per_block())?;
            self.linear(&name("proj"), c.per_block(), c.width)?;
            self.norm(&name("post_norm"), &[c.width])?;
        }
        if let Some(StreamConfig { count, .. }) = c.streams() {
            let width = c.width;
            self.norm(&name("altup_router_norm"), &[width])?;
            self.linear(&name("altup_router"), width, count)?;
            self.linear(&name("altup_predict_coef"), count, count * count)?;
            self.linear(&name("altup_correct_coef"), count, count)?;
            self.require(&name("altup_correct_scale.weight"), &[width])?;
            let left = self.gguf.tensor(&name("laurel_l.weight"));
            let rank = match left.map(|t| &t.dims[..]) {
                Some(&[_, rank]) => rank as usize,
                _ => 0,
            };
            self.linear(&name("laurel_l"), width, rank)?;
            self.linear(&name("laurel_r"), rank, width)?;
            self.norm(&name("laurel_post_norm"), &[width])?;
            if c.closed_gates(block).is_some() {
                self.matrix(&name("ffn_gate"), &[width, c.hidden])?;
            }
        }
        if c.traits.stream_scales {
            self.allow(&name("layer_output_scale.weight"), &[1])?;
        }
        let there = self.gguf.tensor(&name("ffn_gate_inp.weight")).is_some();
        match c.experts(block) {
            Some(experts) if c.traits.experts_beside && there => {
                self.experts_beside(c.width, experts, name)
            }
            _ => Ok(()),
        }
    }

    fn experts_beside(
        &mut self,
        width: usize,
        experts: &MixtureConfig,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let MixtureConfig { count, hidden, .. } = *experts;
        self.require(&name("ffn_gate_inp.weight"), &[width, count])?;
        self.require(&name("ffn_gate_inp.scale"), &[width])?;
        for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
            self.norm(&name(norm), &[width])?;
        }
        let both = [width, 2 * hidden, count];
        if !self.allow_matrix(&name("ffn_gate_up_exps"), &both)? {
            for part in ["ffn_gate_exps", "ffn_up_exps"] {
                self.matrix(&name(part), &[width, hidden, count])?;
            }
        }
        self.matrix(&name("ffn_down_exps"), &[hidden, width, count])?;
        self.require(&name("ffn_down_exps.scale"), &[count])
    }
}
