//! The tensors that a model has to have, those that it may have, and their shapes.

use super::config::{ConfigError, DecoderConfig};
use std::collections::BTreeSet;
use worker::gguf::Gguf;

type Result<T> = std::result::Result<T, ConfigError>;

/// What divides the rotary frequencies, one number for each pair of elements.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// The same for sequences beyond the context of training, and up to it.
pub(super) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";
/// See [`ROPE_FACTORS_LONG`].
pub(super) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";

impl DecoderConfig {
    /// Checks that the file has the tensors of the shape, and none that would be ignored.
    ///
    /// # Errors
    /// [`ConfigError`] naming the tensor.
    pub fn check_tensors(&self, gguf: &Gguf) -> Result<()> {
        check(self, gguf)
    }
}

fn check(config: &DecoderConfig, gguf: &Gguf) -> Result<()> {
    let mut check = Check {
        gguf,
        seen: BTreeSet::new(),
    };
    let c = config;
    let (width, vocab) = (c.width, c.vocab_size);
    check.require("token_embd.weight", &[width, vocab])?;
    check.norm("output_norm", &[width])?;
    check.allow("output.weight", &[width, vocab])?;
    check.allow("output.bias", &[vocab])?;
    for factors in [ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT] {
        check.allow(factors, &[c.rope.dims / 2])?;
    }
    for block in 0..c.blocks {
        check.attention(c, &|part| format!("blk.{block}.{part}"))?;
        check.feed_forward(c, block, &|part| format!("blk.{block}.{part}"))?;
    }
    let ignored = gguf.tensors().find(|(name, _)| !check.seen.contains(*name));
    match ignored {
        Some((name, _)) => Err(ConfigError::Unsupported(format!(
            "tensor {name} of architecture {}",
            c.architecture
        ))),
        None => Ok(()),
    }
}

struct Check<'a> {
    gguf: &'a Gguf,
    seen: BTreeSet<String>,
}

impl Check<'_> {
    fn require(&mut self, name: &str, dims: &[usize]) -> Result<()> {
        let dims: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        self.gguf.require_tensor(name, &dims)?;
        self.seen.insert(name.to_string());
        Ok(())
    }

    /// Gives whether it is there.
    fn allow(&mut self, name: &str, dims: &[usize]) -> Result<bool> {
        let there = self.gguf.tensor(name).is_some();
        if there {
            self.require(name, dims)?;
        }
        Ok(there)
    }

    fn norm(&mut self, name: &str, dims: &[usize]) -> Result<()> {
        self.require(&format!("{name}.weight"), dims)?;
        self.allow(&format!("{name}.bias"), dims)?;
        Ok(())
    }

    /// A matrix from `inputs` to `outputs` with an optional bias.
    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<()> {
        self.require(&format!("{name}.weight"), &[inputs, outputs])?;
        self.allow(&format!("{name}.bias"), &[outputs])?;
        Ok(())
    }

    fn attention(&mut self, c: &DecoderConfig, name: &dyn Fn(&str) -> String) -> Result<()> {
        let width = c.width;
        let queries = c.heads * c.head_dim;
        let (keys, values) = (c.kv_heads * c.head_dim, c.kv_heads * c.v_head_dim);
        if c.traits.pre_norms {
            self.norm(&name("attn_norm"), &[width])?;
        }
        if c.parallel && self.allow(&name("attn_norm_2.weight"), &[width])? {
            self.allow(&name("attn_norm_2.bias"), &[width])?;
        }
        if self.gguf.tensor(&name("attn_qkv.weight")).is_some() {
            self.linear(&name("attn_qkv"), width, queries + keys + values)?;
        } else {
            self.linear(&name("attn_q"), width, queries)?;
            self.linear(&name("attn_k"), width, keys)?;
            self.linear(&name("attn_v"), width, values)?;
        }
        self.linear(&name("attn_output"), c.heads * c.v_head_dim, width)?;
        if c.traits.qk_norms {
            for (part, all) in [("attn_q_norm", queries), ("attn_k_norm", keys)] {
                let part = name(&format!("{part}.weight"));
                // Of each head, or of all together.
                let dims = self.gguf.tensor(&part).map(|t| t.dims.clone());
                let size = if dims == Some(vec![all as u64]) {
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

    fn feed_forward(
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
        } else if c.traits.pre_norms {
            self.norm(&name("ffn_norm"), &[width])?;
        }
        let Some(experts) = c.experts(block) else {
            let packed = self.gguf.tensor(&name("ffn_gate.weight")).is_none()
                && self
                    .gguf
                    .tensor(&name("ffn_up.weight"))
                    .is_some_and(|t| t.dims == [width as u64, 2 * hidden as u64]);
            if packed {
                self.linear(&name("ffn_up"), width, 2 * hidden)?;
            } else {
                if self.allow(&name("ffn_gate.weight"), &[width, hidden])? {
                    self.allow(&name("ffn_gate.bias"), &[hidden])?;
                }
                self.linear(&name("ffn_up"), width, hidden)?;
            }
            return self.linear(&name("ffn_down"), hidden, width);
        };
        self.require(&name("ffn_gate_inp.weight"), &[width, experts.count])?;
        for part in ["ffn_gate_exps.weight", "ffn_up_exps.weight"] {
            self.require(&name(part), &[width, experts.hidden, experts.count])?;
        }
        let down = [experts.hidden, width, experts.count];
        self.require(&name("ffn_down_exps.weight"), &down)?;
        let up = self.gguf.tensor(&name("ffn_up_shexp.weight"));
        if let Some(&[_, hidden]) = up.map(|t| &t.dims[..]) {
            let hidden = hidden as usize;
            self.allow(&name("ffn_gate_inp_shexp.weight"), &[width])?;
            self.require(&name("ffn_gate_shexp.weight"), &[width, hidden])?;
            self.require(&name("ffn_up_shexp.weight"), &[width, hidden])?;
            self.require(&name("ffn_down_shexp.weight"), &[hidden, width])?;
        }
        Ok(())
    }
}
