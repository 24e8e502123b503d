//! Matrices of latent attention.

use crate::engine::decoder::config::LatentConfig;
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::mixers::{Indexer, LatentAttention, Query};
use crate::engine::decoder::per_head::PerHead;
use crate::engine::decoder::traits::NormKind;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::Device;
use std::borrow::Cow;
use worker::Result;

/// That of the norm of an indexer's keys; no file has it.
const INDEXER_EPSILON: f32 = 1e-6;

impl Loader<'_> {
    pub(super) fn latent(&self, block: usize, shape: &LatentConfig) -> Result<LatentAttention> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        let queries = c.heads * shape.head();
        let query = match shape.query_rank {
            None => Query::Whole(self.linear(&name("attn_q"), queries, c.width)?),
            Some(rank) => Query::Low {
                down: self.linear(&name("attn_q_a"), rank, c.width)?,
                norm: self.norm(&name("attn_q_a_norm"))?,
                up: self.linear(&name("attn_q_b"), queries, rank)?,
            },
        };
        let (absorb, expand) = self.absorbed(&name, shape)?;
        Ok(LatentAttention {
            heads: c.heads,
            query,
            down: self.linear(&name("attn_kv_a_mqa"), shape.stored(), c.width)?,
            norm: self.norm(&name("attn_kv_a_norm"))?,
            absorb,
            expand,
            output: self.linear(&name("attn_output"), c.width, c.heads * shape.value)?,
            scale: c.score_scale,
            indexer: self.indexer(block, shape)?,
            shape: shape.clone(),
        })
    }

    /// What makes keys of latent vectors, transposed, and what makes values, for each head.
    fn absorbed(
        &self,
        name: &dyn Fn(&str) -> String,
        shape: &LatentConfig,
    ) -> Result<(PerHead, PerHead)> {
        let heads = self.config.heads;
        let (plain, value, rank) = (shape.plain, shape.value, shape.rank);
        let matrices = |bytes: &[u8], dtype, sizes| {
            PerHead::new(bytes, dtype, sizes, self.device, self.activations)
        };
        let whole = name("attn_kv_b.weight");
        if !self.has(&whole) {
            let keys = self.take(&name("attn_k_b.weight"), |bytes, dtype| {
                matrices(bytes, dtype, (heads, rank, plain))
            })?;
            let values = self.take(&name("attn_v_b.weight"), |bytes, dtype| {
                matrices(bytes, dtype, (heads, value, rank))
            })?;
            return Ok((keys, values));
        }
        // Older files have both in one, a head's keys before its values.
        self.take(&whole, |bytes, dtype| {
            let row = bytes.len() / (heads * (plain + value));
            let mut values = Vec::with_capacity(heads * value * row);
            let mut keys = Vec::with_capacity(heads * plain * rank);
            for head in bytes.chunks_exact((plain + value) * row) {
                let (key, own) = head.split_at(plain * row);
                values.extend_from_slice(own);
                keys.extend(transposed(&floats(key, dtype, (plain, rank))?, rank));
            }
            let keys: Vec<u8> = keys.into_iter().flat_map(f32::to_le_bytes).collect();
            Ok((
                matrices(&keys, GgmlDType::F32, (heads, rank, plain))?,
                matrices(&values, dtype, (heads, value, rank))?,
            ))
        })
    }

    fn indexer(&self, block: usize, shape: &LatentConfig) -> Result<Option<Indexer>> {
        let Some((indexer, rank)) = shape.indexer.as_ref().zip(shape.query_rank) else {
            return Ok(None);
        };
        if !indexer.is_in(block) {
            return Ok(None);
        }
        let name = |part: &str| format!("blk.{block}.indexer.{part}");
        let width = self.config.width;
        Ok(Some(Indexer {
            query: self.linear(&name("attn_q_b"), indexer.heads * indexer.size, rank)?,
            key: self.linear(&name("attn_k"), indexer.size, width)?,
            key_norm: self.norm_of(NormKind::Layer, &name("k_norm"), INDEXER_EPSILON)?,
            weights: self.linear(&name("proj"), indexer.heads, width)?,
            shape: indexer.clone(),
        }))
    }
}

/// Numbers of a matrix in any format.
fn floats(bytes: &[u8], dtype: GgmlDType, shape: (usize, usize)) -> candle_core::Result<Vec<f32>> {
    let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype)?;
    let floats = QTensor::new(storage, shape)?.dequantize(&Device::Cpu)?;
    floats.flatten_all()?.to_vec1()
}

/// The columns of rows of `columns` elements behind each other.
fn transposed(rows: &[f32], columns: usize) -> impl Iterator<Item = f32> + '_ {
    (0..columns).flat_map(move |column| rows[column..].iter().step_by(columns).copied())
}
