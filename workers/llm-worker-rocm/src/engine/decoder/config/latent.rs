//! Latent vectors in place of keys and values.

use super::keys::{ConfigError, Keys, Result};
use super::{Rope, Scaling, MAX_BLOCKS, MAX_HEAD_DIM};
use crate::engine::decoder::traits::{DecoderTraits, Latent};
use worker::gguf::{Array, Value};

/// The largest rank in use is 2048.
const MAX_RANK: u32 = 1 << 16;

/// Sizes of multi-head latent attention.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine::decoder) struct LatentConfig {
    /// Elements of the vector that makes queries, where they are not made of the input.
    pub query_rank: Option<usize>,
    /// Elements of the latent vector, which makes the keys and values of all heads.
    pub rank: usize,
    /// Elements of a query that turn; the key's are the same for all heads.
    pub turning: usize,
    /// Elements of a query and a key that do not.
    pub plain: usize,
    /// Elements of a value.
    pub value: usize,
    /// What chooses the keys that attention looks at.
    pub indexer: Option<IndexerConfig>,
}

/// Sizes of an indexer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine::decoder) struct IndexerConfig {
    pub heads: usize,
    pub size: usize,
    /// Keys that are chosen at most.
    pub most: usize,
    /// Its rotary embedding turns neighbours, not halves.
    pub interleaved: bool,
    /// Whether a block has an indexer of its own, and not the choice of the block before; empty if all have.
    pub own: Vec<bool>,
}

impl IndexerConfig {
    pub(in crate::engine::decoder) fn is_in(&self, block: usize) -> bool {
        self.own.get(block).copied().unwrap_or(true)
    }
}

impl LatentConfig {
    /// Elements that are stored for a token.
    pub(in crate::engine::decoder) fn stored(&self) -> usize {
        self.turning + self.rank
    }

    /// Elements of a head's query and key.
    pub(in crate::engine::decoder) fn head(&self) -> usize {
        self.turning + self.plain
    }

    /// The factor of scores. YaRN scales all of a query and a key where the file has a multiplier, and then not only
    /// what turns.
    pub(super) fn score_scale(&self, keys: &Keys, rope: &mut Rope) -> Result<f32> {
        let scale = 1.0 / (self.head() as f32).sqrt();
        let multiplier = keys.positive("rope.scaling.yarn_log_multiplier", true)?;
        match (&rope.scaling, multiplier) {
            (Scaling::Yarn(yarn), Some(multiplier)) => {
                let length = yarn.factor.ln();
                rope.magnitude /= 1.0 + 0.1 * length;
                Ok(scale * (1.0 + multiplier * length).powi(2))
            }
            _ => Ok(scale),
        }
    }
}

/// Reads them, if the architecture has them.
pub(super) fn latent(keys: &Keys, traits: &DecoderTraits) -> Result<Option<LatentConfig>> {
    if traits.latent == Latent::None {
        return Ok(None);
    }
    let rank = keys.require_count("attention.kv_lora_rank", MAX_RANK)?;
    let turning = keys.require_count("rope.dimension_count", MAX_HEAD_DIM)?;
    // Older files have the sizes of heads where newer ones have those of what is stored.
    let of_heads = |newer: &str, older: &str| match keys.count(newer, MAX_HEAD_DIM)? {
        Some(size) => Ok(size),
        None => keys.require_count(older, MAX_HEAD_DIM),
    };
    let head = of_heads("attention.key_length_mla", "attention.key_length")?;
    if turning >= head || turning % 2 != 0 {
        return Err(keys.bad(
            "rope.dimension_count",
            turning,
            format!("an even number below the {head} elements of a head is needed"),
        ));
    }
    let stored = turning + rank;
    if stored > MAX_HEAD_DIM as usize {
        return Err(keys.bad(
            "attention.kv_lora_rank",
            rank,
            format!("at most {MAX_HEAD_DIM} elements are stored for a token"),
        ));
    }
    let of_queries = "attention.q_lora_rank";
    let query_rank = match keys.count(of_queries, MAX_RANK)? {
        // An indexer works on the vector that makes queries.
        None if traits.latent != Latent::Plain => Some(keys.require_count(of_queries, MAX_RANK)?),
        rank => rank,
    };
    Ok(Some(LatentConfig {
        query_rank,
        rank,
        turning,
        plain: head - turning,
        value: of_heads("attention.value_length_mla", "attention.value_length")?,
        indexer: indexer(keys, traits, turning)?,
    }))
}

fn indexer(keys: &Keys, traits: &DecoderTraits, turning: usize) -> Result<Option<IndexerConfig>> {
    let Latent::Indexed { interleaved } = traits.latent else {
        return Ok(None);
    };
    let size = keys.require_count("attention.indexer.key_length", MAX_HEAD_DIM)?;
    if size < turning {
        return Err(keys.bad(
            "attention.indexer.key_length",
            size,
            format!("{turning} of its elements cannot turn"),
        ));
    }
    let key = "attention.indexer.types";
    let own = match keys.gguf.get(&keys.full(key)) {
        None => Vec::new(),
        Some(Value::Array(Array::Bool(own))) if own.len() <= MAX_BLOCKS as usize => own.clone(),
        Some(_) => {
            return Err(ConfigError::Unsupported(format!(
                "metadata {} that is no list of booleans",
                keys.full(key)
            )))
        }
    };
    if own.first() == Some(&false) {
        return Err(keys.bad(key, false, "the first block has no choice to take over"));
    }
    Ok(Some(IndexerConfig {
        heads: keys.require_count("attention.indexer.head_count", u32::MAX)?,
        size,
        most: keys.require_count("attention.indexer.top_k", u32::MAX)?,
        interleaved,
        own,
    }))
}
