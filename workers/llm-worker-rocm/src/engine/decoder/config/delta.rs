//! Sizes of the gated delta rule and of short convolutions.

use super::keys::{Keys, Result};
use crate::engine::decoder::mixers::MAX_KERNEL;
use crate::engine::decoder::traits::{DecoderTraits, Recurrence};

/// The device's kernels have keys of so many elements at most.
const MAX_KEY: u32 = 256;
/// The widest has 64 heads.
const MAX_HEADS: u32 = 4096;

/// Sizes of a gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::decoder) struct DeltaSizes {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_size: usize,
    pub value_size: usize,
    /// Rows that the convolution before it sees.
    pub kernel: usize,
}

impl DeltaSizes {
    /// Elements of all keys of a row, and of all values.
    pub(in crate::engine::decoder) fn keys(&self) -> usize {
        self.key_heads * self.key_size
    }

    /// See [`DeltaSizes::keys`].
    pub(in crate::engine::decoder) fn values(&self) -> usize {
        self.value_heads * self.value_size
    }

    /// What the convolution has: queries, keys and values.
    pub(in crate::engine::decoder) fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// Reads the sizes of an architecture that has the rule.
pub(super) fn delta(keys: &Keys, traits: &DecoderTraits) -> Result<Option<DeltaSizes>> {
    if traits.recurrence != Recurrence::Delta {
        return Ok(None);
    }
    let key_heads = keys.require_count("ssm.group_count", MAX_HEADS)?;
    let value_heads = keys.require_count("ssm.time_step_rank", MAX_HEADS)?;
    let inner = keys.require_count("ssm.inner_size", u32::MAX)?;
    if !value_heads.is_multiple_of(key_heads) || !inner.is_multiple_of(value_heads) {
        return Err(keys.bad(
            "ssm.time_step_rank",
            value_heads,
            format!("{key_heads} heads of keys and {inner} elements cannot be shared evenly"),
        ));
    }
    Ok(Some(DeltaSizes {
        key_heads,
        value_heads,
        key_size: keys.require_count("ssm.state_size", MAX_KEY)?,
        value_size: inner / value_heads,
        kernel: kernel(keys, "ssm.conv_kernel")?,
    }))
}

/// Reads the rows that a short convolution sees, of an architecture that has such.
pub(super) fn short_convolution(keys: &Keys, traits: &DecoderTraits) -> Result<usize> {
    match traits.recurrence {
        Recurrence::ShortConvolution => kernel(keys, "shortconv.l_cache"),
        _ => Ok(0),
    }
}

fn kernel(keys: &Keys, key: &str) -> Result<usize> {
    match keys.require_count(key, MAX_KERNEL as u32)? {
        1 => Err(keys.bad(key, 1, "at least 2 is needed")),
        kernel => Ok(kernel),
    }
}
