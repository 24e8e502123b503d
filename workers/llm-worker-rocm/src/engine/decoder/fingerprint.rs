//! What tells a model from others: its configuration, and parts of all tensors that were taken.

use super::config::DecoderConfig;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Bytes of a tensor's beginning, middle and end that tell it from others.
const SAMPLE: usize = 4096;

/// What tells tensors from others, by their names: the same in whatever order they come, and of whatever decoders of one
/// model.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Notes(BTreeMap<String, [u8; 32]>);

impl Notes {
    /// Takes a tensor.
    pub(super) fn note(&mut self, name: &str, bytes: &[u8]) {
        let mut digest = Sha256::new();
        digest.update(bytes.len().to_le_bytes());
        let middle = bytes.len() / 2;
        for start in [0, middle, bytes.len().saturating_sub(SAMPLE)] {
            digest.update(&bytes[start..(start + SAMPLE).min(bytes.len())]);
        }
        self.0.insert(name.to_string(), digest.finalize().into());
    }

    /// Takes the tensors of another decoder of the model, which has that share of each.
    pub(crate) fn merge(&mut self, other: &Self, shard: usize) {
        let named = other.0.iter().map(|(name, digest)| match shard {
            0 => (name.clone(), *digest),
            _ => (format!("{name}, share {shard}"), *digest),
        });
        self.0.extend(named);
    }

    /// Identifies the model.
    pub(crate) fn fingerprint(&self, config: &DecoderConfig) -> [u8; 32] {
        let mut digest = Sha256::new();
        for (name, own) in &self.0 {
            digest.update(name);
            digest.update(own);
        }
        digest.update(format!("{config:?}"));
        digest.finalize().into()
    }
}
