//! The tensors of the heads that predict further tokens, in the blocks behind the model's own.

use super::{Check, Result};
use crate::engine::decoder::config::{ConfigError, DecoderConfig};
use std::collections::BTreeSet;
use worker::gguf::Gguf;

impl DecoderConfig {
    /// Checks the tensors of the file's heads. Gives how many there are.
    ///
    /// # Errors
    /// [`ConfigError`](crate::engine::decoder::ConfigError) naming the tensor.
    pub fn check_heads(&self, gguf: &Gguf) -> Result<usize> {
        let joins = |block: &usize| {
            let name = format!("blk.{block}.nextn.eh_proj.weight");
            gguf.tensor(&name).is_some()
        };
        let blocks = self.blocks..self.blocks + self.predicting;
        let heads = blocks.take_while(joins);
        heads
            .map(|block| self.check_head(gguf, block))
            .try_fold(0, |count, checked| checked.map(|()| count + 1))
    }

    fn check_head(&self, gguf: &Gguf, block: usize) -> Result<()> {
        let (width, vocab) = (self.width, self.vocab_size);
        let name = |part: &str| format!("blk.{block}.{part}");
        let mut check = Check {
            gguf,
            seen: BTreeSet::new(),
        };
        check.linear(&name("nextn.eh_proj"), 2 * width, width)?;
        for norm in ["nextn.enorm", "nextn.hnorm"] {
            check.norm(&name(norm), &[width])?;
        }
        check.allow(&name(self.head_norm(gguf, block)), &[width])?;
        check.allow(&name("nextn.embed_tokens.weight"), &[width, vocab])?;
        check.allow_matrix(&name("nextn.shared_head_head"), &[width, self.output_rows])?;
        check.block(self, block)?;
        let mut names = gguf.tensors().map(|(name, _)| name);
        match names.find(|n| n.starts_with(&name("")) && !check.seen.contains(*n)) {
            Some(ignored) => Err(ConfigError::Unsupported(format!(
                "tensor {ignored} of a head of architecture {}",
                self.architecture
            ))),
            None => Ok(()),
        }
    }

    /// The norm before a head's output matrix, by its name in the head's block: the heads of Ling 2 have it as one of
    /// the block's.
    pub(in crate::engine::decoder) fn head_norm(&self, gguf: &Gguf, block: usize) -> &'static str {
        let of_block = format!("blk.{block}.layer_output_norm.weight");
        match gguf.tensor(&of_block) {
            Some(_) => "layer_output_norm.weight",
            None => "nextn.shared_head_norm.weight",
        }
    }
}
