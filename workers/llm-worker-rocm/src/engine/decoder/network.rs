//! The weights of a model on a device, its cache, and a pass of rows through both.

use super::block::Block;
use super::config::{Base, DecoderConfig};
use super::input::Input;
use super::linear::{Linear, Weight};
use super::norm::{Norm, Residual};
use super::rotary::Tables;
use crate::engine::forward::{CacheOptions, Step};
use candle_core::{DType, Device, Result, Tensor};
use candle_rocm_flash_attn::paged::{CacheShape, PagedBatch, PagedCache};

/// A model's weights on a device, and its cache.
pub(super) struct Network {
    pub config: DecoderConfig,
    pub embedding: Weight,
    pub blocks: Vec<Block>,
    pub norm: Norm,
    pub output: Linear,
    /// The file's rotary tables, and those of blocks with a base of their own.
    pub tables: Tables,
    pub local_tables: Tables,
    /// One for each block.
    pub caches: Vec<PagedCache>,
    pub block_size: usize,
    pub activations: DType,
    pub device: Device,
}

impl Network {
    pub(super) fn cache_shape(&self, blocks: usize, block_size: usize) -> CacheShape {
        CacheShape {
            blocks,
            block_size,
            kv_heads: self.config.kv_heads,
            head_size: self.config.head_dim,
            v_head_size: self.config.v_head_dim,
        }
    }

    /// Computes new tokens and writes their keys and values, as
    /// [`Forward::forward`](crate::engine::forward::Forward::forward) does. Gives what the output matrix would be
    /// applied to: the rows that are asked for behind the last norm, `(outputs, width)`.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn hidden(&mut self, step: &Step) -> Result<Tensor> {
        let sequences = step.paged();
        let batch = PagedBatch::new(&sequences, self.block_size, &self.device)?;
        let ids = Tensor::new(step.tokens.as_slice(), &self.device)?;
        let stream = self.run(&ids, &batch)?.sum()?;
        let wanted = match step.outputs.len() {
            0 => return Tensor::zeros((0, self.config.width), self.activations, &self.device),
            all if all == step.tokens.len() => stream,
            _ => {
                let rows = Tensor::new(step.outputs.as_slice(), &self.device)?;
                stream.index_select(&rows, 0)?
            }
        };
        self.norm.forward(&wanted)
    }

    /// The residual stream behind the last block.
    pub(super) fn run(&mut self, ids: &Tensor, batch: &PagedBatch) -> Result<Residual> {
        let mut x = self.embedding.rows(ids, self.activations)?;
        if let Some(scale) = self.config.embedding_scale {
            x = (x * scale)?;
        }
        let mut stream = Residual::new(x);
        for (block, cache) in self.blocks.iter().zip(&mut self.caches) {
            let rotary = match block.attention.rotary {
                Some(Base::Global) => Some(self.tables.rows(batch.positions())?),
                Some(Base::Local) => Some(self.local_tables.rows(batch.positions())?),
                None => None,
            };
            block.forward(&mut stream, cache, batch, rotary)?;
        }
        Ok(stream)
    }

    /// Logits of rows behind the last norm.
    pub(super) fn logits(&self, hidden: &Input) -> Result<Tensor> {
        let mut logits = self.output.forward(hidden)?.to_dtype(DType::F32)?;
        if let Some(scale) = self.config.logit_scale {
            logits = (logits * scale)?;
        }
        if let Some(cap) = self.config.logit_cap {
            logits = ((logits / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        Ok(logits)
    }

    /// Reserves the cache, in place of one reserved before.
    pub(super) fn reserve(&mut self, cache: &CacheOptions) -> Result<()> {
        self.caches = Vec::new();
        let shape = self.cache_shape(cache.blocks, cache.block_size);
        self.caches = self
            .blocks
            .iter()
            .map(|_| PagedCache::new(shape, cache.dtype.into(), &self.device))
            .collect::<Result<_>>()?;
        self.block_size = cache.block_size;
        Ok(())
    }
}
