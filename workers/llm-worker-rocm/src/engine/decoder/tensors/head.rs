//! The tensors of the head that predicts further tokens, in the block behind the model's own.

use super::{Check, Result};
use crate::engine::decoder::config::DecoderConfig;
use std::collections::BTreeSet;
use worker::gguf::Gguf;

impl DecoderConfig {
    /// Checks the tensors of the file's first head. Gives whether there is one.
    ///
    /// # Errors
    /// [`ConfigError`](crate::engine::decoder::ConfigError) naming the tensor.
    pub fn check_head(&self, gguf: &Gguf) -> Result<bool> {
        let (block, width, vocab) = (self.blocks, self.width, self.vocab_size);
        let name = |part: &str| format!("blk.{block}.{part}");
        let join = name("nextn.eh_proj");
        if gguf.tensor(&format!("{join}.weight")).is_none() {
            return Ok(false);
        }
        let mut check = Check {
            gguf,
            seen: BTreeSet::new(),
        };
        check.linear(&join, 2 * width, width)?;
        for norm in ["nextn.enorm", "nextn.hnorm"] {
            check.norm(&name(norm), &[width])?;
        }
        check.allow(&name("nextn.shared_head_norm.weight"), &[width])?;
        for matrix in ["nextn.embed_tokens", "nextn.shared_head_head"] {
            check.allow(&name(&format!("{matrix}.weight")), &[width, vocab])?;
        }
        check.block(self, block)?;
        Ok(true)
    }
}
