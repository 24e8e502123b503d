//! What blocks are given besides the stream.

use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::per_block::{PerBlock, PerBlockInput};
use candle_core::Tensor;
use worker::{Error, Result};

impl Loader<'_> {
    pub(super) fn per_block(&self) -> Result<Option<PerBlock>> {
        let c = self.config;
        let size = c.per_block();
        if size == 0 {
            return Ok(None);
        }
        let all = c.blocks * size;
        let projection = self.matrix("per_layer_model_proj.weight", all, c.width)?;
        const TABLE: &str = "per_layer_token_embd.weight";
        let tokens = self.info(TABLE)?.0.dims[1] as usize;
        Ok(Some(PerBlock {
            table: self.matrix(TABLE, tokens, all)?,
            tokens: (tokens < c.vocab_size)
                .then(|| Tensor::new(&[tokens as u32], self.device))
                .transpose()
                .map_err(Error::candle("loading the model"))?,
            projection: Linear::new(projection, None),
            norm: self.norm("per_layer_proj_norm")?,
            blocks: c.blocks,
            size,
        }))
    }

    pub(super) fn per_block_input(&self, block: usize) -> Result<Option<PerBlockInput>> {
        let c = self.config;
        let size = c.per_block();
        if size == 0 {
            return Ok(None);
        }
        let name = |part: &str| format!("blk.{block}.{part}");
        Ok(Some(PerBlockInput {
            gate: self.linear(&name("inp_gate"), size, c.width)?,
            projection: self.linear(&name("proj"), c.width, size)?,
            norm: self.norm(&name("post_norm"))?,
            activation: c.activation(),
        }))
    }

    /// The factor of the stream behind a block, if there is one.
    pub(super) fn stream_scale(&self, block: usize) -> Result<Option<Tensor>> {
        let name = format!("blk.{block}.layer_output_scale.weight");
        let there = self.config.traits.stream_scales && self.has(&name);
        there
            .then(|| self.vector(&name, self.activations))
            .transpose()
    }
}
