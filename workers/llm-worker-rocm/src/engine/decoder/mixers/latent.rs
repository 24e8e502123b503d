//! Multi-head latent attention: "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model",
//! 2024, 2.1.
//!
//! A token leaves one latent vector behind, and what turns of its key, the same for all heads. The matrices that would
//! make each head's keys and values of it are absorbed: the first into the query, the second into what comes of
//! attention, so that all heads look at the latent vectors themselves, which are the values, too.

use super::Pass;
use crate::engine::decoder::config::{Base, IndexerConfig, LatentConfig};
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::LayerMemory;
use crate::engine::decoder::norm::Norm;
use crate::engine::decoder::per_head::PerHead;
use candle_core::{bail, DType, Result, Tensor};
use candle_rocm_flash_attn::paged::{Attend, CacheShape, Rotary};

/// Attention of all heads to the latent vectors.
pub(in crate::engine::decoder) struct LatentAttention {
    pub shape: LatentConfig,
    pub heads: usize,
    pub query: Query,
    /// From the input to the latent vector and what turns of the key.
    pub down: Linear,
    /// Of the latent vector.
    pub norm: Norm,
    /// What makes keys of latent vectors, from a head's query to what latent vectors are multiplied with.
    pub absorb: PerHead,
    /// What makes values of latent vectors.
    pub expand: PerHead,
    pub output: Linear,
    pub scale: f32,
    /// Where it chooses keys, and this block does.
    pub indexer: Option<Indexer>,
}

/// What makes queries.
pub(in crate::engine::decoder) enum Query {
    Whole(Linear),
    /// By a vector of fewer elements.
    Low {
        down: Linear,
        norm: Norm,
        up: Linear,
    },
}

/// Ranks keys for attention ("DeepSeek-V3.2-Exp", 2025, 2.1).
pub(in crate::engine::decoder) struct Indexer {
    pub shape: IndexerConfig,
    /// From the vector that makes queries.
    pub query: Linear,
    pub key: Linear,
    pub key_norm: Norm,
    /// From the input to a weight for each head.
    pub weights: Linear,
}

/// A part of the last dimension without gaps.
fn part(x: &Tensor, start: usize, count: usize) -> Result<Tensor> {
    x.narrow(candle_core::D::Minus1, start, count)?.contiguous()
}

impl LatentAttention {
    /// The shape of its cache of latent vectors.
    pub(super) fn cache_shape(&self, blocks: usize, block_size: usize) -> CacheShape {
        CacheShape {
            blocks,
            block_size,
            kv_heads: 1,
            head_size: self.shape.stored(),
            v_head_size: self.shape.rank,
        }
    }

    /// That of the keys of its indexer beside one of latent vectors.
    pub(super) fn index_shape(&self, latent: CacheShape) -> Option<CacheShape> {
        self.indexer.as_ref().map(|indexer| CacheShape {
            head_size: indexer.shape.size,
            v_head_size: indexer.shape.size,
            ..latent
        })
    }

    /// Whether all that it does first multiplies 8-bit activations on a GPU.
    pub(super) fn takes_quantized(&self) -> bool {
        let first = match &self.query {
            Query::Whole(whole) => whole,
            Query::Low { down, .. } => down,
        };
        first.takes_quantized() && self.down.takes_quantized()
    }

    /// `(tokens, width)` to the same; `memory` is the block's own.
    pub(super) fn forward(
        &self,
        x: &Input,
        memory: &mut LayerMemory,
        pass: &Pass,
    ) -> Result<Tensor> {
        let s = &self.shape;
        let tokens = x.floats.dim(0)?;
        let (low, query, down) = match &self.query {
            Query::Whole(whole) => {
                let [query, down] = Linear::forward_each([whole, &self.down], x)?;
                (None, query, down)
            }
            Query::Low { down, norm, up } => {
                let [low, down] = Linear::forward_each([down, &self.down], x)?;
                let low = Input::from(norm.forward(&low)?);
                let query = up.forward(&low)?;
                (Some(low), query, down)
            }
        };
        let query = query.reshape((tokens, self.heads, s.head()))?;
        let absorbed = self.absorb.forward(&part(&query, 0, s.plain)?)?;
        let turning = part(&query, s.plain, s.turning)?;
        let query = Tensor::cat(&[turning, absorbed], 2)?.contiguous()?;
        let latent = self.norm.forward(&part(&down, 0, s.rank)?)?;
        let turning = part(&down, s.rank, s.turning)?;
        let key = Tensor::cat(&[turning, latent], 1)?.contiguous()?;
        let key = key.reshape((tokens, 1, s.stored()))?;
        let rotary = pass.rotary(Some(Base::Global));

        let cache = memory.cache()?;
        let query = match cache.write_latent(Some(&query), &key, pass.batch, rotary)? {
            Some(query) => query,
            None => query,
        };
        if let (Some(indexer), Some(low)) = (&self.indexer, &low) {
            *pass.chosen.borrow_mut() = indexer.choose(x, low, memory, pass, rotary)?;
        }
        let cache = memory.cache()?;
        let attended = match &*pass.chosen.borrow() {
            Some(chosen) => cache.attend_chosen(&query, pass.batch, self.scale, chosen)?,
            None => cache.attend(&query, pass.batch, &Attend::new(self.scale))?,
        };
        let values = self.expand.forward(&attended)?;
        let values = values.reshape((tokens, self.heads * s.value))?;
        self.output.forward(&values.into())
    }
}

impl Indexer {
    /// Writes the keys that it ranks, and gives the chosen ones, unless no sequence has more than may be chosen.
    fn choose(
        &self,
        x: &Input,
        low: &Input,
        memory: &mut LayerMemory,
        pass: &Pass,
        rotary: Option<&Rotary>,
    ) -> Result<Option<Tensor>> {
        let s = &self.shape;
        let Some(cache) = &mut memory.index else {
            bail!("the cache of an indexer's keys is not reserved")
        };
        let [key, weights] = Linear::forward_each([&self.key, &self.weights], x)?;
        let tokens = key.dim(0)?;
        let key = self.key_norm.forward(&key)?.reshape((tokens, 1, s.size))?;
        let query = self.query.forward(low)?;
        let query = query.reshape((tokens, s.heads, s.size))?;
        let rotary = rotary.map(|rotary| Rotary {
            interleaved: s.interleaved,
            ..rotary.clone()
        });
        let turned = cache.write_latent(Some(&query), &key, pass.batch, rotary.as_ref())?;
        if pass.batch.positions() <= s.most {
            return Ok(None);
        }
        // Both roots of the paper's code: of heads and of their size.
        let scale = 1.0 / ((s.heads * s.size) as f64).sqrt();
        let weights = (weights.to_dtype(DType::F32)? * scale)?;
        let query = turned.unwrap_or(query);
        Ok(Some(cache.choose(&query, &weights, pass.batch, s.most)?))
    }
}
