//! The tensors that a model has to have, those that it may have, and their shapes.

mod attention;
mod delta;
mod feed_forward;
mod gemma;
mod head;
mod latent;
mod state_space;

use super::config::{ConfigError, DecoderConfig, MixerKind};
use super::traits::Recurrence;
use std::collections::BTreeSet;
use worker::gguf::{Format, Gguf};

type Result<T> = std::result::Result<T, ConfigError>;

/// The embeddings of positions.
pub(super) const POSITIONS: &str = "position_embd.weight";

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
    if !c.traits.plain_norms {
        check.norm(c.output_norm(gguf), &[width])?;
    }
    if c.traits.learned_positions {
        check.require(POSITIONS, &[width, c.context_length])?;
    }
    if c.traits.recurrence == Recurrence::Rwkv7 {
        check.norm("token_embd_norm", &[width])?;
    }
    check.allow_matrix("output", &[width, c.output_rows])?;
    check.allow("output.bias", &[c.output_rows])?;
    // The rows of a reranker's two answers; models that answer in words leave it alone.
    check.allow("cls.output.weight", &[width, 2])?;
    for factors in [ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT] {
        check.allow(factors, &[c.rope.dims / 2])?;
    }
    if let Some(streams) = c.streams() {
        for name in ["altup_proj.weight", "altup_unembd_proj.weight"] {
            check.require(name, &[width, width, streams.count - 1])?;
        }
    }
    if c.per_block() > 0 {
        let all = c.blocks * c.per_block();
        const TABLE: &str = "per_layer_token_embd.weight";
        // The last tokens, of pictures and sounds, may have none.
        let rows = match gguf.tensor(TABLE).map(|t| &t.dims[..]) {
            Some(&[_, rows]) => vocab.min(rows as usize),
            _ => vocab,
        };
        check.require(TABLE, &[all, rows])?;
        check.require("per_layer_model_proj.weight", &[width, all])?;
        check.norm("per_layer_proj_norm", &[c.per_block()])?;
    }
    for block in 0..c.blocks {
        check.block(c, block)?;
        let name = |part: &str| format!("blk.{block}.{part}");
        check.gemma(&c.of_block(block), block, &name)?;
    }
    for block in c.blocks..c.blocks + c.predicting {
        check.leave_alone(&format!("blk.{block}."));
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

impl DecoderConfig {
    /// The last norm: files of LFM2 from before September 2025 have it by another name.
    pub(super) fn output_norm(&self, gguf: &Gguf) -> &'static str {
        let convolves = self.traits.recurrence == Recurrence::ShortConvolution;
        match convolves && gguf.tensor("output_norm.weight").is_none() {
            true => "token_embd_norm",
            false => "output_norm",
        }
    }

    /// The norm before the feed-forward part, by its name in a block: in files of some families the one that others
    /// have behind attention.
    pub(super) fn ffn_norm(&self, gguf: &Gguf, name: &dyn Fn(&str) -> String) -> &'static str {
        let has = |part: &str| gguf.tensor(&name(&format!("{part}.weight"))).is_some();
        match has("post_attention_norm") && !has("ffn_norm") && !self.traits.post_norms {
            true => "post_attention_norm",
            false => "ffn_norm",
        }
    }
}

struct Check<'a> {
    gguf: &'a Gguf,
    seen: BTreeSet<String>,
}

impl Check<'_> {
    /// What a block mixes tokens with, and its feed-forward part.
    fn block(&mut self, c: &DecoderConfig, block: usize) -> Result<()> {
        let name = |part: &str| format!("blk.{block}.{part}");
        let own = &*c.of_block(block);
        match c.mixer(block) {
            MixerKind::Attention => match &c.latent {
                Some(shape) => self.latent(own, shape, block, &name)?,
                None => self.attention(own, block, &name)?,
            },
            MixerKind::Recurrent => self.recurrent(own, &name)?,
            MixerKind::Both => {
                self.attention(own, block, &name)?;
                self.recurrent(own, &name)?;
            }
            MixerKind::FeedForward => {
                self.norm(&name("attn_norm"), &[c.width])?;
                self.feed_forward(own, block, &name)?;
            }
        }
        if c.has_feed_forward() {
            self.feed_forward(own, block, &name)?;
        }
        Ok(())
    }

    pub(super) fn require(&mut self, name: &str, dims: &[usize]) -> Result<()> {
        let dims: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        self.gguf.require_tensor(name, &dims)?;
        self.seen.insert(name.to_string());
        Ok(())
    }

    /// Takes all tensors of a prefix, whatever they are.
    fn leave_alone(&mut self, prefix: &str) {
        let names = self.gguf.tensors().map(|(name, _)| name);
        let those = names.filter(|name| name.starts_with(prefix));
        self.seen.extend(those.map(str::to_string));
    }

    /// Gives whether it is there.
    pub(super) fn allow(&mut self, name: &str, dims: &[usize]) -> Result<bool> {
        let there = self.gguf.tensor(name).is_some();
        if there {
            self.require(name, dims)?;
        }
        Ok(there)
    }

    pub(super) fn norm(&mut self, name: &str, dims: &[usize]) -> Result<()> {
        self.require(&format!("{name}.weight"), dims)?;
        self.allow(&format!("{name}.bias"), dims)?;
        Ok(())
    }

    /// A matrix from `inputs` to `outputs`, or several stacked ones, `[inputs, outputs, count]`.
    pub(super) fn matrix(&mut self, name: &str, dims: &[usize]) -> Result<()> {
        self.require(&format!("{name}.weight"), dims)?;
        self.extras(name, dims)
    }

    /// The same that need not be there. Gives whether it is.
    pub(super) fn allow_matrix(&mut self, name: &str, dims: &[usize]) -> Result<bool> {
        let there = self.allow(&format!("{name}.weight"), dims)?;
        if there {
            self.extras(name, dims)?;
        }
        Ok(there)
    }

    /// What may be beside a matrix of this shape.
    fn extras(&mut self, name: &str, dims: &[usize]) -> Result<()> {
        let count = dims.get(2).copied().unwrap_or(1);
        self.allow(&format!("{name}.scale"), &[count])?;
        // Of 4-bit activations; ours have scales of their own.
        self.allow(&format!("{name}.input_scale"), &[count])?;
        let order = format!("{name}.order");
        let (Some(found), [inputs, _]) = (self.gguf.tensor(&order), dims) else {
            return Ok(());
        };
        // Integers are in no format that is computed with.
        if found.dims != [*inputs as u64] || found.format != Format::I32 {
            return Err(ConfigError::Unsupported(format!(
                "tensor {order} of {:?} {} beside a matrix of {inputs} inputs, each of which needs an I32,",
                found.dims,
                found.format.name()
            )));
        }
        self.seen.insert(order);
        Ok(())
    }

    /// A matrix from `inputs` to `outputs` with an optional bias.
    pub(super) fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<()> {
        self.matrix(name, &[inputs, outputs])?;
        self.allow(&format!("{name}.bias"), &[outputs])?;
        Ok(())
    }
}
