//! Grouped-query attention over a paged cache.

use super::Pass;
use crate::engine::decoder::config::Base;
use crate::engine::decoder::input::{Input, Quantized};
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::LayerMemory;
use crate::engine::decoder::norm::Norm;
use crate::engine::decoder::projections::{normed, Heads, Projections};
use crate::engine::decoder::rocm;
use crate::engine::decoder::shares::NormsOfAll;
use candle_core::{Result, Tensor};
use candle_nn::ops;
use candle_rocm_flash_attn::paged::{Attend, CacheShape, PagedBatch, PagedCache};

/// Grouped-query attention over a paged cache.
pub(in crate::engine::decoder) struct Attention {
    pub projections: Projections,
    /// What attention gives is multiplied by the sigmoid of.
    pub gate: Option<Linear>,
    pub output: Linear,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    pub value_norm: Option<Norm>,
    /// What makes norms of all heads, where GPUs share these.
    pub norms_of_all: Option<NormsOfAll>,
    /// Weights of norms that each head has of its own, `(heads, size)` of queries and of keys, behind norms without any.
    pub weights_of_heads: Option<[Tensor; 2]>,
    /// The least and the largest element of queries, keys and values.
    pub clamp: Option<[Tensor; 2]>,
    /// Queries have the temperature of their position, if the model has temperatures.
    pub tempered: bool,
    /// The block whose keys and values it looks at, if they are not its own.
    pub source: Option<usize>,
    /// Weights of norms behind the turn, of queries times keys. What a norm divides by does not change when elements
    /// turn, so that `query_norm` and `key_norm` do that before; and it is all one for scores which of the two factors
    /// has the weights.
    pub norms_behind: Option<Tensor>,
    pub heads: Heads,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// Keys before its own that a row sees.
    pub left: Option<usize>,
    /// Positions of a chunk, before whose first a row sees nothing.
    pub chunk: Option<usize>,
    /// f32, a score of each head without a key.
    pub sinks: Option<Tensor>,
    pub rotary: Option<Base>,
}

impl Attention {
    /// `(tokens, width)` to the same; `memory` is the block's own.
    pub(super) fn forward(
        &self,
        x: &Input,
        memory: &mut LayerMemory,
        pass: &Pass,
    ) -> Result<Tensor> {
        let cache = memory.cache()?;
        let batch = pass.batch(self.left);
        let rotary = pass.rotary(self.rotary);
        if self.source.is_some() {
            let query = normed(self.projections.query(x, self.heads)?, &self.query_norm)?;
            let query = match rotary {
                Some(rotary) => cache.turn(&query, batch, rotary)?,
                None => query,
            };
            return self.finish(&query, cache, pass);
        }
        let [query, key, value] = self.projected(x)?;
        let norms = [&self.query_norm, &self.key_norm];
        let [query, key] = match &self.norms_of_all {
            Some(of_all) => of_all.forward([query, key], norms)?,
            None => [normed(query, norms[0])?, normed(key, norms[1])?],
        };
        let (query, key) = match &self.weights_of_heads {
            Some([of_query, of_key]) => {
                (query.broadcast_mul(of_query)?, key.broadcast_mul(of_key)?)
            }
            None => (query, key),
        };
        let value = normed(value, &self.value_norm)?;
        let query = match &pass.temperatures {
            Some(factors) if self.tempered => query.broadcast_mul(factors)?,
            _ => query,
        };
        let turned = pass.media.turned.as_ref().or(pass.uneven.as_ref());
        let turned = turned.filter(|_| self.rotary.is_some());
        let query = match (turned, rotary) {
            (Some(turned), _) => {
                cache.write(None, &turned.turn(&key)?, &value, batch, None)?;
                turned.turn(&query)?
            }
            (None, Some(_)) => cache
                .write(Some(&query), &key, &value, batch, rotary)?
                .unwrap_or(query),
            (None, None) => {
                cache.write(None, &key, &value, batch, None)?;
                query
            }
        };
        let query = match &self.norms_behind {
            Some(weights) => query.broadcast_mul(weights)?,
            None => query,
        };
        if let Some(gate) = &self.gate {
            let shape = (query.dim(0)?, self.heads.count * self.heads.v_size);
            let attended = match pass.media.ahead(self.left).is_empty() {
                true => cache.attend(&query, pass.batch(self.left), &self.scores())?,
                false => self.attend_ahead(&query, cache, pass)?,
            };
            let open = ops::sigmoid(&gate.forward(x)?)?;
            let gated = (attended.reshape(shape)? * open)?;
            return self.output.forward(&gated.into());
        }
        self.finish(&query, cache, pass)
    }

    /// Queries, keys and values, within bounds if there are some.
    fn projected(&self, x: &Input) -> Result<[Tensor; 3]> {
        let all = self.projections.forward(x, self.heads)?;
        let Some([least, largest]) = &self.clamp else {
            return Ok(all);
        };
        let [query, key, value] =
            all.map(|part| part.broadcast_maximum(least)?.broadcast_minimum(largest));
        Ok([query?, key?, value?])
    }

    /// Attention to what is cached, and the matrix behind it.
    fn finish(&self, query: &Tensor, cache: &PagedCache, pass: &Pass) -> Result<Tensor> {
        if pass.media.ahead(self.left).is_empty() {
            let mixed = self.attend(query, cache, pass.batch(self.left))?;
            return self.output.forward(&mixed);
        }
        let shape = (query.dim(0)?, self.heads.count * self.heads.v_size);
        let mixed = self.attend_ahead(query, cache, pass)?;
        self.output.forward(&mixed.reshape(shape)?.into())
    }

    /// The shape of its cache.
    pub(in crate::engine::decoder) fn cache_shape(
        &self,
        blocks: usize,
        block_size: usize,
    ) -> CacheShape {
        CacheShape {
            blocks,
            block_size,
            kv_heads: self.heads.kv_count,
            head_size: self.heads.size,
            v_head_size: self.heads.v_size,
        }
    }

    /// Attention of which some rows see beyond themselves: each of these as a sequence of its own that ends where it
    /// sees to.
    fn attend_ahead(&self, query: &Tensor, cache: &PagedCache, pass: &Pass) -> Result<Tensor> {
        let attend = |query: &Tensor, batch: &PagedBatch, left: Option<usize>| {
            let scores = Attend {
                left,
                ..self.scores()
            };
            cache.attend(query, batch, &scores)
        };
        let all = attend(query, pass.batch(self.left), self.left)?;
        let mut parts = Vec::new();
        let mut done = 0;
        for ahead in pass.media.ahead(self.left) {
            if ahead.row > done {
                parts.push(all.narrow(0, done, ahead.row - done)?);
            }
            done = ahead.row + ahead.rows;
            let batches = ahead.batches(self.left);
            let rows = query.narrow(0, ahead.row, ahead.rows)?.contiguous()?;
            match self.left.filter(|left| left + 1 < ahead.keys) {
                None => parts.push(attend(&rows, &batches.together, None)?),
                // Each begins elsewhere.
                Some(left) => {
                    for row in 0..ahead.rows {
                        let left = left + ahead.rows - 1 - row;
                        let row = rows.narrow(0, row, 1)?;
                        parts.push(attend(&row, &batches.alone, Some(left))?);
                    }
                }
            }
        }
        if done < all.dim(0)? {
            parts.push(all.narrow(0, done, all.dim(0)? - done)?);
        }
        Tensor::cat(&parts, 0)
    }

    fn scores(&self) -> Attend<'_> {
        Attend {
            scale: self.scale,
            left: self.left,
            chunk: self.chunk,
            softcap: self.softcap,
            sinks: self.sinks.as_ref(),
        }
    }

    /// `(tokens, heads, size)` to `(tokens, width)`; in 8 bits as well, where that is for the matrix behind and the
    /// device has it in one.
    fn attend(&self, query: &Tensor, cache: &PagedCache, batch: &PagedBatch) -> Result<Input> {
        let shape = (query.dim(0)?, self.heads.count * self.heads.v_size);
        let scores = self.scores();
        if self.output.takes_quantized() && rocm::gains_by_quantized(query, shape) {
            let (floats, quantized) = cache.attend_quantized(query, batch, &scores)?;
            return Ok(Input {
                floats: floats.reshape(shape)?,
                quantized: Some(Quantized::Integers(quantized)),
            });
        }
        let attended = cache.attend(query, batch, &scores)?;
        Ok(attended.reshape(shape)?.into())
    }
}
