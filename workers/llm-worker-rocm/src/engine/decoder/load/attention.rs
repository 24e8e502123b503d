//! Attention's matrices.

use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::mixers::Attention;
use crate::engine::decoder::norm::Norm;
use crate::engine::decoder::projections::{Heads, Projections};
use crate::engine::decoder::shares::NormsOfAll;
use crate::engine::decoder::traits::NormKind;
use candle_core::{DType, Tensor};
use worker::{Error, Result};

impl Loader<'_> {
    pub(super) fn attention(&self, block: usize) -> Result<Attention> {
        let c = &*self.config.of_block(block);
        let name = |part: &str| format!("blk.{block}.{part}");
        let heads = Heads {
            count: c.heads,
            kv_count: c.kv_heads,
            size: c.head_dim,
            v_size: c.v_head_dim,
        };
        let ones = |size: usize| self.plain_norm(NormKind::Rms, size, c.epsilon);
        let of_heads = self.weights_of_heads(&name, heads)?;
        let qk_norm = |part: &str| -> Result<Option<Norm>> {
            if c.plain_qk_norms(block) || c.traits.qk_norms_behind {
                return Ok(Some(ones(c.head_dim)?));
            }
            if c.traits.norms_of_heads {
                let there = of_heads.is_some();
                let norm = || self.plain_norm(NormKind::Layer, c.head_dim, c.epsilon);
                return there.then(norm).transpose();
            }
            self.has(&format!("{}.weight", name(part)))
                .then(|| self.norm_of(NormKind::Rms, &name(part), c.epsilon))
                .transpose()
        };
        let source = c.source_of_keys(block);
        let value_norm = c
            .traits
            .value_norms
            .then(|| ones(c.v_head_dim))
            .transpose()?;
        let kind = c.layer(block);
        let (projections, gate) = match source {
            Some(_) => {
                let query = self.linear(&name("attn_q"), heads.count * heads.size, c.width)?;
                (Projections::Query(query), None)
            }
            None if c.traits.gated_attention => self.gated_projections(&name, heads)?,
            None => (self.projections(&name, heads)?, None),
        };
        Ok(Attention {
            projections,
            gate,
            value_norm,
            // Among the blocks that are loaded.
            source: source.map(|block| block - self.part.blocks.start),
            output: self.linear(&name("attn_output"), c.width, c.heads * c.v_head_dim)?,
            query_norm: qk_norm("attn_q_norm")?,
            key_norm: qk_norm("attn_k_norm")?,
            norms_of_all: NormsOfAll::of_block(self.shard, block),
            weights_of_heads: of_heads,
            norms_behind: self.norms_behind(&name)?,
            clamp: self.clamp(c.clamp)?,
            tempered: c.traits.tempered || kind.rotary.is_none(),
            heads,
            scale: c.score_scale,
            softcap: c.score_cap,
            left: kind.window.map(|window| window - 1),
            chunk: c.chunk(block),
            sinks: c
                .traits
                .sinks
                .then(|| self.vector(&name("attn_sinks.weight"), DType::F32))
                .transpose()?,
            rotary: kind.rotary,
        })
    }

    /// The weights of norms that each head has of its own, of queries and of keys.
    fn weights_of_heads(
        &self,
        name: &dyn Fn(&str) -> String,
        heads: Heads,
    ) -> Result<Option<[Tensor; 2]>> {
        let parts = ["attn_q_norm", "attn_k_norm"].map(|part| name(&format!("{part}.weight")));
        if !self.config.traits.norms_of_heads || !parts.iter().all(|part| self.has(part)) {
            return Ok(None);
        }
        let weights = |part: &str, count: usize| -> Result<Tensor> {
            self.vector(part, self.activations)?
                .reshape((count, heads.size))
                .map_err(Error::candle("loading the model"))
        };
        let [query, key] = &parts;
        Ok(Some([
            weights(query, heads.count)?,
            weights(key, heads.kv_count)?,
        ]))
    }

    /// The least and the largest element of queries, keys and values, where there are bounds.
    fn clamp(&self, clamp: Option<f32>) -> Result<Option<[Tensor; 2]>> {
        let Some(clamp) = clamp else { return Ok(None) };
        let bound = |bound: f32| {
            let bound = Tensor::new(&[bound], self.device)?;
            bound.to_dtype(self.activations)
        };
        let bounds = bound(-clamp).and_then(|least| Ok([least, bound(clamp)?]));
        Ok(Some(bounds.map_err(Error::candle("loading the model"))?))
    }

    /// The product of both norms' weights, where norms come behind the turn.
    fn norms_behind(&self, name: &dyn Fn(&str) -> String) -> Result<Option<Tensor>> {
        if !self.config.traits.qk_norms_behind {
            return Ok(None);
        }
        let weight = |part: &str| self.vector(&name(&format!("{part}.weight")), self.activations);
        let weights = (weight("attn_q_norm")? * weight("attn_k_norm")?)
            .map_err(Error::candle("loading the model"))?;
        Ok(Some(weights))
    }

    /// Three matrices, and what gates the heads: the rows behind each head's of queries.
    fn gated_projections(
        &self,
        name: &dyn Fn(&str) -> String,
        heads: Heads,
    ) -> Result<(Projections, Option<Linear>)> {
        let width = self.config.width;
        let rows = |first: usize| -> Vec<usize> {
            let starts = (0..heads.count).map(|head| 2 * head * heads.size + first);
            starts.flat_map(|start| start..start + heads.size).collect()
        };
        let parts = [rows(0), rows(heads.size)];
        let [query, gate] = self.picked(&name("attn_q"), &parts, width)?;
        let projections = Projections::Apart {
            query,
            key: self.linear(&name("attn_k"), heads.kv_count * heads.size, width)?,
            value: self.linear(&name("attn_v"), heads.kv_count * heads.v_size, width)?,
        };
        Ok((projections, Some(gate)))
    }

    /// One matrix where the file has one, or three that can be joined.
    fn projections(&self, name: &dyn Fn(&str) -> String, heads: Heads) -> Result<Projections> {
        let sizes = [
            heads.count * heads.size,
            heads.kv_count * heads.size,
            heads.kv_count * heads.v_size,
        ];
        let width = self.config.width;
        let of_one_size = heads.size == heads.v_size;
        let all = name("attn_qkv");
        let parts = ["attn_q", "attn_k", "attn_v"].map(name);
        if self.config.traits.keys_as_values && !self.has(&format!("{}.weight", parts[2])) {
            return Ok(Projections::Tied {
                query: self.linear(&parts[0], sizes[0], width)?,
                key: self.linear(&parts[1], sizes[1], width)?,
            });
        }
        let [query, key, value] = if self.has(&format!("{all}.weight")) {
            if of_one_size {
                let total = sizes.iter().sum();
                return Ok(Projections::Together(self.linear(&all, total, width)?));
            }
            self.split(&all, sizes, width)?
        } else {
            // Joined they would be a copy.
            let in_place = self.is_in_place(&format!("{}.weight", parts[0]));
            if of_one_size && !in_place && self.are_alike(&parts)? {
                let joined = self.joined(&parts, sizes, width)?;
                return Ok(Projections::Together(joined));
            }
            let [q, k, v] = &parts;
            [
                self.linear(q, sizes[0], width)?,
                self.linear(k, sizes[1], width)?,
                self.linear(v, sizes[2], width)?,
            ]
        };
        Ok(Projections::Apart { query, key, value })
    }
}
