//! A paged cache of keys and values, written with the rotary embedding fused and read in place.
//!
//! A [`PagedCache`] is one layer's blocks of keys and values; sequences own blocks by number, and a [`PagedBatch`]
//! says, for one forward pass, which blocks and how many new tokens each sequence has. New tokens of all sequences lie
//! behind each other, as in [`crate::flash_attn_varlen`]. On a ROCm device each call is one or two launches; on the
//! CPU, threads share the heads and rows, with memory for a few rows each. Every row is computed alike whatever else is
//! in the batch on the CPU, bit for bit.
//!
//! ```
//! use candle::{Device, Tensor};
//! use candle_rocm_flash_attn::paged::{Attend, CacheDType, CacheShape, PagedBatch, PagedCache, PagedSequence};
//!
//! # fn main() -> candle::Result<()> {
//! let device = Device::Cpu;
//! let shape = CacheShape { blocks: 8, block_size: 16, kv_heads: 2, head_size: 64, v_head_size: 64 };
//! let mut cache = PagedCache::new(shape, CacheDType::F16, &device)?;
//! // A prompt of 20 tokens in blocks 5 and 1.
//! let batch = PagedBatch::new(&[PagedSequence { blocks: &[5, 1], keys: 20, rows: 20 }], 16, &device)?;
//! let q = Tensor::randn(0f32, 1., (20, 4, 64), &device)?;
//! let kv = Tensor::randn(0f32, 1., (20, 2, 64), &device)?;
//! cache.write(None, &kv, &kv, &batch, None)?;
//! let out = cache.attend(&q, &batch, &Attend::new(1. / 8.))?;
//! assert_eq!(out.dims(), [20, 4, 64]);
//! # Ok(())
//! # }
//! ```

mod attend;
mod batch;
mod cpu;
mod format;
mod latent;
mod packed;
mod rocm;
mod simd;

pub use attend::Attend;
pub use batch::DecodeShape;
pub use batch::{PagedBatch, PagedSequence};
pub use candle::rocm_backend::candle_rocm::ops::quantized::QuantizedActivations;
pub use format::{CacheDType, CacheFormat};
pub use latent::NO_KEY;

use candle::{bail, DType, Device, Result, Tensor};

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Number of blocks.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a key.
    pub head_size: usize,
    /// Elements of a value.
    pub v_head_size: usize,
}

/// A rotary embedding: the first `2 * pairs` elements of a head turn by the angle of the token's position.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Cosines, f32 `(positions, pairs)` without gaps.
    pub cos: Tensor,
    /// Sines, as the cosines.
    pub sin: Tensor,
    /// Pairs are `(2i, 2i + 1)` instead of `(i, i + pairs)`.
    pub interleaved: bool,
}

/// Elements of a head come in so many, where they are quantized.
const VECTOR: usize = 8;

/// One layer's keys and values.
pub struct PagedCache {
    shape: CacheShape,
    store: Store,
}

enum Store {
    Cpu(cpu::Store),
    Rocm(Box<rocm::Store>),
}

impl PagedCache {
    /// Reserves the blocks; what they hold before the first write is undefined and never read.
    ///
    /// # Errors
    /// For a device other than the CPU and ROCm, for head sizes that the format does not take, on ROCm for f32 beside
    /// another type, and if there is no memory.
    pub fn new(shape: CacheShape, format: impl Into<CacheFormat>, device: &Device) -> Result<Self> {
        let format = format.into();
        let sizes = [shape.head_size, shape.v_head_size];
        let is_quantized = format.keys.is_quantized() || format.values.is_quantized();
        if is_quantized && sizes.iter().any(|s| s % VECTOR != 0) {
            bail!("a cache of {:?} and {:?} takes heads of a multiple of {VECTOR} elements, not {sizes:?}; use f16", format.keys, format.values)
        }
        if shape.block_size == 0 || shape.kv_heads == 0 || sizes.contains(&0) {
            bail!("a cache of {shape:?} holds nothing")
        }
        let store = match device {
            Device::Cpu => Store::Cpu(cpu::Store::new(&shape, format, true)),
            Device::Rocm(device) => {
                Store::Rocm(Box::new(rocm::Store::new(&shape, format, device)?))
            }
            device => bail!("there is no paged cache on {:?}", device.location()),
        };
        Ok(Self { shape, store })
    }

    /// Its sizes.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Bytes of a block's keys and values.
    pub fn block_bytes(&self) -> usize {
        match &self.store {
            Store::Cpu(store) => store.block_bytes(&self.shape),
            Store::Rocm(store) => store.block_bytes(),
        }
    }

    /// Appends a block's keys and values as they lie in memory.
    ///
    /// # Errors
    /// If there is no such block, or the device fails.
    pub fn read_block(&self, block: usize, out: &mut Vec<u8>) -> Result<()> {
        self.check_block(block)?;
        match &self.store {
            Store::Cpu(store) => store.read_block(&self.shape, block, out),
            Store::Rocm(store) => store.read_block(block, out)?,
        }
        Ok(())
    }

    /// Overwrites a block with what [`PagedCache::read_block`] gave of a cache of the same format on the same kind of
    /// device.
    ///
    /// # Errors
    /// If there is no such block, for another number of bytes, or if the device fails.
    pub fn write_block(&mut self, block: usize, bytes: &[u8]) -> Result<()> {
        self.check_block(block)?;
        if bytes.len() != self.block_bytes() {
            bail!(
                "{} bytes for a block of {}",
                bytes.len(),
                self.block_bytes()
            )
        }
        match &mut self.store {
            Store::Cpu(store) => store.write_block(&self.shape, block, bytes),
            Store::Rocm(store) => store.write_block(block, bytes)?,
        }
        Ok(())
    }

    fn check_block(&self, block: usize) -> Result<()> {
        if block >= self.shape.blocks {
            bail!("block {block} lies outside of {:?}", self.shape)
        }
        Ok(())
    }

    /// Turns queries and keys by their positions and writes keys and values to their blocks. What a [`CacheFormat`] turns
    /// besides is no business of who calls this: [`PagedCache::attend`] takes queries as this gives them. `q` is
    /// `(tokens, heads, head_size)`, `k` `(tokens, kv_heads, head_size)`, `v` `(tokens, kv_heads, v_head_size)`, f32,
    /// f16 or bf16 with a dense last dimension. Gives the turned queries, if there are queries.
    ///
    /// # Errors
    /// For shapes that fit neither the cache nor the batch, positions beyond the rotary tables, and dtypes other than
    /// those.
    pub fn write(
        &mut self,
        q: Option<&Tensor>,
        k: &Tensor,
        v: &Tensor,
        batch: &PagedBatch,
        rotary: Option<&Rotary>,
    ) -> Result<Option<Tensor>> {
        if !self.has_values() {
            bail!("the values of this cache are in its keys; use write_latent")
        }
        self.write_parts(q, k, Some(v), batch, rotary)
    }

    fn has_values(&self) -> bool {
        match &self.store {
            Store::Cpu(store) => store.has_values(),
            Store::Rocm(store) => store.has_values(),
        }
    }

    fn write_parts(
        &mut self,
        q: Option<&Tensor>,
        k: &Tensor,
        v: Option<&Tensor>,
        batch: &PagedBatch,
        rotary: Option<&Rotary>,
    ) -> Result<Option<Tensor>> {
        let CacheShape {
            kv_heads,
            head_size,
            v_head_size,
            ..
        } = self.shape;
        let tokens = batch.tokens();
        without_graph(&[q.unwrap_or(k), k, v.unwrap_or(k)])?;
        let fits = k.dims() == [tokens, kv_heads, head_size]
            && v.is_none_or(|v| v.dims() == [tokens, kv_heads, v_head_size])
            && q.is_none_or(
                |q| matches!(*q.dims(), [n, _, size] if n == tokens && size == head_size),
            );
        if !fits || batch.block_size() != self.shape.block_size {
            bail!(
                "q {:?}, k {:?} and v {:?} of {tokens} tokens do not fit a cache of {:?}",
                q.map(Tensor::dims),
                k.dims(),
                v.map(Tensor::dims),
                self.shape
            )
        }
        if batch.last_block().is_some_and(|b| b >= self.shape.blocks) {
            bail!("a block of the batch lies outside of {:?}", self.shape)
        }
        if let Some(rotary) = rotary {
            let (positions, pairs) = rotary.cos.dims2()?;
            if batch.positions() > positions || 2 * pairs > head_size {
                bail!(
                    "rotary tables {:?} for {} positions of heads of {head_size}",
                    rotary.cos.dims(),
                    batch.positions()
                )
            }
        }
        match &mut self.store {
            Store::Cpu(store) => store.write(&self.shape, q, k, v, batch, rotary),
            Store::Rocm(store) => store.write(&self.shape, q, k, v, batch, rotary),
        }
    }

    /// Turns queries by their positions, as [`PagedCache::write`] does, and writes nothing: for layers that look at what
    /// another has written.
    ///
    /// # Errors
    /// Those of [`PagedCache::write`].
    pub fn turn(&self, q: &Tensor, batch: &PagedBatch, rotary: &Rotary) -> Result<Tensor> {
        without_graph(&[q])?;
        let (tokens, heads, size) = q.dims3()?;
        let (positions, pairs) = rotary.cos.dims2()?;
        let fits = tokens == batch.tokens()
            && size == self.shape.head_size
            && heads >= self.shape.kv_heads
            && size >= self.shape.v_head_size
            && batch.positions() <= positions
            && 2 * pairs <= size;
        if !fits {
            bail!(
                "queries {:?} of {} tokens and rotary tables {:?} do not fit a cache of {:?}",
                q.dims(),
                batch.tokens(),
                rotary.cos.dims(),
                self.shape
            )
        }
        match &self.store {
            Store::Cpu(store) => store.turn(&self.shape, q, batch, rotary),
            Store::Rocm(store) => store.turn(&self.shape, q, batch, rotary),
        }
    }

    /// Causal attention of `q`, `(tokens, heads, head_size)` at the batch's new positions, to the keys up to each, as
    /// far as `scores` lets rows see them. Gives `(tokens, heads, v_head_size)` in the dtype of `q`. On GPUs with
    /// matrix instructions, many queries of f32 are rounded to the dtype of a 16-bit cache, and what is given with
    /// them.
    ///
    /// # Errors
    /// For shapes that do not fit the cache and the batch, and chunks of no positions.
    pub fn attend(&self, q: &Tensor, batch: &PagedBatch, scores: &Attend) -> Result<Tensor> {
        self.check_queries(q, batch, scores)?;
        match &self.store {
            Store::Cpu(store) => store.attend(&self.shape, q, batch, scores),
            Store::Rocm(store) if store.suits_latent(&self.shape, scores) => {
                store.attend_latent(&self.shape, q, batch, scores.scale, None)
            }
            Store::Rocm(store) => Ok(store.attend(&self.shape, q, batch, scores, false)?.0),
        }
    }

    /// As [`PagedCache::attend`], and the result in 8 bits as well, of vectors of all heads: one launch less where a
    /// quantized matrix is next.
    ///
    /// # Errors
    /// Those of [`PagedCache::attend`]; for a cache that is not on a ROCm device, and vectors of no multiple of 32
    /// elements.
    pub fn attend_quantized(
        &self,
        q: &Tensor,
        batch: &PagedBatch,
        scores: &Attend,
    ) -> Result<(Tensor, QuantizedActivations)> {
        self.check_queries(q, batch, scores)?;
        let Store::Rocm(store) = &self.store else {
            bail!("only a ROCm device gives attention in 8 bits; use attend")
        };
        match store.attend(&self.shape, q, batch, scores, true)? {
            (out, Some(quantized)) => Ok((out, quantized)),
            _ => bail!("attention did not give the 8 bits that it was asked for"),
        }
    }

    fn check_queries(&self, q: &Tensor, batch: &PagedBatch, scores: &Attend) -> Result<()> {
        let (tokens, heads, size) = q.dims3()?;
        without_graph(&[q])?;
        scores.check(heads)?;
        let fits = tokens == batch.tokens()
            && size == self.shape.head_size
            && heads % self.shape.kv_heads == 0
            && batch.block_size() == self.shape.block_size;
        if !fits || !matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            bail!(
                "queries {:?} of {:?} do not fit {} tokens and a cache of {:?}",
                q.dims(),
                q.dtype(),
                batch.tokens(),
                self.shape
            )
        }
        Ok(())
    }
}

/// A cache is for inference: what is computed with it has no gradients.
fn without_graph(tensors: &[&Tensor]) -> Result<()> {
    if tensors.iter().any(|t| t.track_op()) {
        bail!("a paged cache has no gradients: detach queries, keys and values")
    }
    Ok(())
}
