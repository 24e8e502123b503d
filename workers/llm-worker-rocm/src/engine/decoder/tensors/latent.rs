//! Tensors of latent attention.

use super::{Check, Result};
use crate::engine::decoder::config::{DecoderConfig, LatentConfig};

impl Check<'_> {
    pub(super) fn latent(
        &mut self,
        c: &DecoderConfig,
        shape: &LatentConfig,
        block: usize,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let (width, heads, rank) = (c.width, c.heads, shape.rank);
        let queries = heads * shape.head();
        self.norm(&name("attn_norm"), &[width])?;
        match shape.query_rank {
            None => self.linear(&name("attn_q"), width, queries)?,
            Some(rank) => {
                self.linear(&name("attn_q_a"), width, rank)?;
                self.norm(&name("attn_q_a_norm"), &[rank])?;
                self.linear(&name("attn_q_b"), rank, queries)?;
            }
        }
        self.linear(&name("attn_kv_a_mqa"), width, shape.stored())?;
        self.norm(&name("attn_kv_a_norm"), &[rank])?;
        let both = heads * (shape.plain + shape.value);
        if !self.allow(&name("attn_kv_b.weight"), &[rank, both])? {
            self.require(&name("attn_k_b.weight"), &[shape.plain, rank, heads])?;
            self.require(&name("attn_v_b.weight"), &[rank, shape.value, heads])?;
        }
        self.linear(&name("attn_output"), heads * shape.value, width)?;
        let Some(indexer) = &shape.indexer else {
            return Ok(());
        };
        if indexer.is_in(block) {
            let name = |part: &str| name(&format!("indexer.{part}"));
            let query_rank = shape.query_rank.unwrap_or(width);
            self.linear(&name("attn_q_b"), query_rank, indexer.heads * indexer.size)?;
            self.linear(&name("attn_k"), width, indexer.size)?;
            self.norm(&name("k_norm"), &[indexer.size])?;
            self.linear(&name("proj"), width, indexer.heads)?;
        }
        Ok(())
    }
}
