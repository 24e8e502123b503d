//! Sizes that blocks differ in.

use super::keys::{Keys, Result};
use super::{Base, DecoderConfig, MAX_HEAD_DIM};
use crate::engine::decoder::traits::{BlockParts, DecoderTraits};
use std::borrow::Cow;
use worker::gguf::{Array, Value};

/// Most streams in use are 4.
const MAX_STREAMS: u32 = 64;

/// Streams that blocks work on one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::decoder) struct StreamConfig {
    pub count: usize,
    pub active: usize,
}

/// What a file says of blocks one by one, and of those with a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sizes {
    /// Heads of keys and values, and the width of the feed-forward part.
    pub kv_heads: Option<Vec<usize>>,
    pub hidden: Option<Vec<usize>>,
    /// Elements of a head in blocks with rotary tables of their own, and how many of them turn.
    pub local_head: Option<usize>,
    pub local_dims: Option<usize>,
    pub local_base: Option<f32>,
    /// Blocks at the end that look at the keys and values of earlier ones.
    pub sharing: usize,
    /// Elements of what each block is given of a token besides the stream, 0 if nothing is.
    pub per_block: usize,
    /// Deviations above the mean up to which gates are closed.
    pub sparsity: Option<Vec<f32>>,
    /// Several streams in place of one.
    pub streams: Option<StreamConfig>,
}

/// Reads them, of so many blocks.
pub(super) fn sizes(keys: &Keys, traits: &DecoderTraits, blocks: usize) -> Result<Sizes> {
    // Elsewhere lists tell what blocks have.
    let of_blocks = |key| match traits.parts {
        BlockParts::Attention => list(keys, key, blocks),
        _ => Ok(None),
    };
    let local_head = keys.count("attention.key_length_swa", MAX_HEAD_DIM)?;
    if let (Some(head), Some(values)) = (
        local_head,
        keys.count("attention.value_length_swa", MAX_HEAD_DIM)?,
    ) {
        if head != values {
            return Err(keys.bad(
                "attention.value_length_swa",
                values,
                format!("keys have {head} elements, and these must be as many"),
            ));
        }
    }
    let sharing = keys.u32("attention.shared_kv_layers")?.unwrap_or(0) as usize;
    if sharing >= blocks {
        return Err(keys.bad(
            "attention.shared_kv_layers",
            sharing,
            format!("of {blocks} blocks one at least has keys of its own"),
        ));
    }
    Ok(Sizes {
        kv_heads: of_blocks("attention.head_count_kv")?,
        hidden: of_blocks("feed_forward_length")?,
        local_head,
        local_dims: keys.count("rope.dimension_count_swa", MAX_HEAD_DIM)?,
        local_base: keys.positive("rope.freq_base_swa", false)?,
        sharing,
        per_block: keys.u32("embedding_length_per_layer_input")?.unwrap_or(0) as usize,
        sparsity: keys.numbers("activation_sparsity_scale", blocks)?,
        streams: streams(keys)?,
    })
}

fn streams(keys: &Keys) -> Result<Option<StreamConfig>> {
    let Some(count) = keys
        .count("altup.num_inputs", MAX_STREAMS)?
        .filter(|n| *n > 1)
    else {
        return Ok(None);
    };
    let active = keys.u32("altup.active_idx")?.unwrap_or(0) as usize;
    match active < count {
        true => Ok(Some(StreamConfig { count, active })),
        false => Err(keys.bad(
            "altup.active_idx",
            active,
            format!("there are {count} streams"),
        )),
    }
}

/// A list of whole numbers above 0, one for each block; none where the file has one number for all.
fn list(keys: &Keys, key: &str, blocks: usize) -> Result<Option<Vec<usize>>> {
    let Some(Value::Array(array)) = keys.gguf.get(&keys.full(key)) else {
        return Ok(None);
    };
    let above_zero = |value: i64| usize::try_from(value).ok().filter(|value| *value > 0);
    let values: Option<Vec<usize>> = match array {
        Array::U32(values) => values.iter().map(|v| above_zero((*v).into())).collect(),
        Array::I32(values) => values.iter().map(|v| above_zero((*v).into())).collect(),
        Array::I64(values) => values.iter().map(|v| above_zero(*v)).collect(),
        _ => None,
    };
    match values.filter(|values| values.len() == blocks) {
        Some(values) => Ok(Some(values)),
        None => Err(keys.bad(
            key,
            "a list",
            format!("a whole number above 0 for each of {blocks} blocks is expected"),
        )),
    }
}

impl DecoderConfig {
    /// The same with the sizes of one block.
    pub(in crate::engine::decoder) fn of_block(&self, block: usize) -> Cow<'_, Self> {
        let sizes = &self.sizes;
        let local_head = sizes.local_head.filter(|_| self.is_local(block));
        if sizes.kv_heads.is_none() && sizes.hidden.is_none() && local_head.is_none() {
            return Cow::Borrowed(self);
        }
        let of = |list: &Option<Vec<usize>>, all| {
            let own = list.as_ref().and_then(|list| list.get(block));
            own.copied().unwrap_or(all)
        };
        Cow::Owned(Self {
            kv_heads: of(&sizes.kv_heads, self.kv_heads),
            hidden: of(&sizes.hidden, self.hidden),
            head_dim: local_head.unwrap_or(self.head_dim),
            v_head_dim: local_head.unwrap_or(self.v_head_dim),
            ..self.clone()
        })
    }

    /// Whether a block has rotary tables of its own kind.
    fn is_local(&self, block: usize) -> bool {
        self.layer(block).rotary == Some(Base::Local)
    }

    /// The block whose keys and values a block looks at, if they are not its own: the last one of its kind that has
    /// some.
    pub(in crate::engine::decoder) fn source_of_keys(&self, block: usize) -> Option<usize> {
        let own = self.blocks - self.sizes.sharing.min(self.blocks - 1);
        // Behind the last block are those that predict further tokens.
        if !(own..self.blocks).contains(&block) {
            return None;
        }
        let kind = self.is_local(block);
        (0..own)
            .rev()
            .find(|earlier| self.is_local(*earlier) == kind)
    }

    /// Elements of what each block is given of a token besides the stream, 0 if nothing is.
    pub(in crate::engine::decoder) fn per_block(&self) -> usize {
        self.sizes.per_block
    }

    /// The streams, where there are several.
    pub(in crate::engine::decoder) fn streams(&self) -> Option<StreamConfig> {
        self.sizes.streams
    }

    /// Deviations above the mean up to which a block's gates are closed, if any are.
    pub(in crate::engine::decoder) fn closed_gates(&self, block: usize) -> Option<f32> {
        let deviations = *self.sizes.sparsity.as_ref()?.get(block)?;
        // What all are above closes none.
        deviations.is_finite().then_some(deviations)
    }

    /// Elements of a head that turn in blocks with rotary tables of their own.
    pub(in crate::engine::decoder) fn local_dims(&self) -> usize {
        let all = self.sizes.local_head.unwrap_or(self.head_dim);
        self.sizes.local_dims.unwrap_or(self.rope.dims).min(all)
    }
}
