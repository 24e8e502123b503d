//! A decoder for the llama-like families: one loop, told by metadata in GGUF's terms what a model has and how.
//!
//! Weights stay in the file's formats; activations are f32, or halves on a GPU where the weights are. `traits` has what only the name of the architecture
//! tells, `config` what the metadata say, `tensors` which tensors there have to be.

mod block;
mod config;
mod decode;
mod experts;
mod float;
mod input;
mod linear;
mod load;
mod loader;
mod norm;
mod projections;
mod rocm;
mod rotary;
mod tensors;
mod traits;

pub use config::{ConfigError, DecoderConfig};
pub use traits::{
    Activation, DecoderTraits, EmbeddingScale, Layers, LogitScale, NormKind, Routing,
};

use super::api::KvDType;
use super::forward::{CacheOptions, Forward, Step};
use super::forward::{Decoded, SampleParams};
use block::Block;
use candle_core::{DType, Device, Result, Tensor};
use candle_rocm_flash_attn::paged::{CacheDType, CacheShape, PagedBatch, PagedCache};
use config::Base;
use input::Input;
use linear::{Linear, Weight};
use norm::{Norm, Residual};
use rotary::Tables;
use worker::gguf::Gguf;

/// A model on a device.
pub struct Decoder {
    config: DecoderConfig,
    embedding: Weight,
    blocks: Vec<Block>,
    norm: Norm,
    output: Linear,
    /// The file's rotary tables, and those of blocks with a base of their own.
    tables: Tables,
    local_tables: Tables,
    /// One for each block.
    caches: Vec<PagedCache>,
    block_size: usize,
    activations: DType,
    device: Device,
    decoding: decode::Decoding,
}

impl DecoderConfig {
    /// Checks that the file has the tensors of the shape, and none that would be ignored.
    ///
    /// # Errors
    /// [`ConfigError`] naming the tensor.
    pub fn check_tensors(&self, gguf: &Gguf) -> std::result::Result<(), ConfigError> {
        tensors::check(self, gguf)
    }
}

impl From<KvDType> for CacheDType {
    fn from(dtype: KvDType) -> Self {
        match dtype {
            KvDType::F32 => Self::F32,
            KvDType::F16 => Self::F16,
            KvDType::Bf16 => Self::BF16,
            KvDType::Q8_0 => Self::Q8_0,
        }
    }
}

impl Decoder {
    fn cache_shape(&self, blocks: usize, block_size: usize) -> CacheShape {
        CacheShape {
            blocks,
            block_size,
            kv_heads: self.config.kv_heads,
            head_size: self.config.head_dim,
            v_head_size: self.config.v_head_dim,
        }
    }

    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        self.config.width
    }

    /// Computes new tokens and writes their keys and values, as [`Forward::forward`] does. Gives what the output matrix would be applied to: the rows
    /// that are asked for behind the last norm, `(outputs, width)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn hidden(&mut self, step: &Step) -> Result<Tensor> {
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
    fn run(&mut self, ids: &Tensor, batch: &PagedBatch) -> Result<Residual> {
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
    fn logits(&self, hidden: &Input) -> Result<Tensor> {
        let mut logits = self.output.forward(hidden)?.to_dtype(DType::F32)?;
        if let Some(scale) = self.config.logit_scale {
            logits = (logits * scale)?;
        }
        if let Some(cap) = self.config.logit_cap {
            logits = ((logits / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        Ok(logits)
    }
}

impl Forward for Decoder {
    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn context_length(&self) -> usize {
        self.config.context_length
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn kv_dtype(&self) -> KvDType {
        match self.activations {
            _ if self.device.is_cpu() => KvDType::F32,
            DType::BF16 => KvDType::Bf16,
            _ => KvDType::F16,
        }
    }

    fn kv_token_bytes(&self, dtype: KvDType) -> usize {
        self.blocks.len() * self.cache_shape(1, 1).bytes(dtype.into())
    }

    fn reserve(&mut self, cache: &CacheOptions) -> Result<()> {
        self.decoding.clear();
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

    fn forward(&mut self, step: &Step) -> Result<Tensor> {
        let hidden = self.hidden(step)?;
        if step.outputs.is_empty() {
            return Tensor::zeros((0, self.config.vocab_size), DType::F32, &self.device);
        }
        self.logits(&hidden.into())
    }

    fn decode(&mut self, step: &Step, samples: Option<&[SampleParams]>) -> Result<Decoded> {
        if !self.device.is_rocm() {
            return Ok(Decoded {
                output: super::forward::DecodeOutput::Logits(self.forward(step)?),
                graph: false,
            });
        }
        let mut decoding = std::mem::take(&mut self.decoding);
        let decoded = decoding.step(self, step, samples);
        self.decoding = decoding;
        decoded
    }

    fn set_graphs(&mut self, on: bool) {
        self.decoding.set_graphs(on);
    }
}
