//! The feed-forward part's tensors.

use super::{Check, Result};
use crate::engine::decoder::config::{DecoderConfig, MixerKind};
use crate::engine::decoder::traits::Activation;

impl Check<'_> {
    pub(super) fn feed_forward(
        &mut self,
        c: &DecoderConfig,
        block: usize,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let (width, hidden) = (c.width, c.hidden);
        if c.traits.post_norms {
            self.norm(&name("post_ffw_norm"), &[width])?;
        }
        if c.parallel && self.gguf.tensor(&name("ffn_norm.weight")).is_none() {
            // It works on what attention works on.
        } else if c.mixer(block) == MixerKind::FeedForward {
            // It has the block's norm.
        } else if c.traits.pre_norms && !c.traits.plain_norms {
            self.norm(&name(c.ffn_norm(self.gguf, name)), &[width])?;
        }
        let Some(experts) = c.experts(block).filter(|_| !c.traits.experts_beside) else {
            let packed = self.gguf.tensor(&name("ffn_gate.weight")).is_none()
                && self
                    .gguf
                    .tensor(&name("ffn_up.weight"))
                    .is_some_and(|t| t.dims == [width as u64, 2 * hidden as u64]);
            if packed {
                self.linear(&name("ffn_up"), width, 2 * hidden)?;
            } else {
                let gated = c.traits.activation != Activation::Xielu;
                if gated && self.allow_matrix(&name("ffn_gate"), &[width, hidden])? {
                    self.allow(&name("ffn_gate.bias"), &[hidden])?;
                }
                self.linear(&name("ffn_up"), width, hidden)?;
            }
            return self.linear(&name("ffn_down"), hidden, width);
        };
        self.linear(&name("ffn_gate_inp"), width, experts.count)?;
        self.allow(&name("exp_probs_b.bias"), &[experts.count])?;
        // Nemotron-H's have no gates, and may work on fewer channels.
        let gated = c.traits.activation != Activation::SquaredRelu;
        let latent = self.gguf.tensor(&name("ffn_latent_down.weight"));
        let narrow = match latent.filter(|_| !gated).map(|t| &t.dims[..]) {
            Some(&[_, narrow]) => {
                let narrow = narrow as usize;
                self.linear(&name("ffn_latent_down"), width, narrow)?;
                self.linear(&name("ffn_latent_up"), narrow, width)?;
                narrow
            }
            _ => width,
        };
        if gated {
            let gates = [narrow, experts.hidden, experts.count];
            self.matrix(&name("ffn_gate_exps"), &gates)?;
        }
        let ups = [narrow, experts.hidden, experts.count];
        self.matrix(&name("ffn_up_exps"), &ups)?;
        let down = [experts.hidden, narrow, experts.count];
        self.matrix(&name("ffn_down_exps"), &down)?;
        if c.traits.clamped_gates.is_some() {
            for part in ["ffn_gate_exps.bias", "ffn_up_exps.bias"] {
                self.require(&name(part), &[experts.hidden, experts.count])?;
            }
            self.require(&name("ffn_down_exps.bias"), &[width, experts.count])?;
            // The experts' gate is for those that have biases.
            return Ok(());
        }
        let up = self.gguf.tensor(&name("ffn_up_shexp.weight"));
        let shared = match up.map(|t| &t.dims[..]) {
            Some(&[_, hidden]) => Some(hidden as usize),
            _ => (experts.shared > 0).then_some(experts.shared * experts.hidden),
        };
        if let Some(hidden) = shared {
            self.allow(&name("ffn_gate_inp_shexp.weight"), &[width])?;
            if gated {
                self.matrix(&name("ffn_gate_shexp"), &[width, hidden])?;
            }
            self.matrix(&name("ffn_up_shexp"), &[width, hidden])?;
            self.matrix(&name("ffn_down_shexp"), &[hidden, width])?;
        }
        Ok(())
    }
}
