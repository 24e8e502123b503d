//! Which adapters a request wants.

use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// An adapter of the model, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdapterUse {
    /// Its place among the model's adapters.
    pub adapter: usize,
    /// What its products are multiplied by.
    pub scale: f32,
}

/// Namespaces from here on are those of adapters; callers' own lie below.
const OF_ADAPTERS: u64 = 1 << 62;

/// The namespace of requests of `own` with these adapters: keys and values of others are not theirs. It is a keyed hash
/// of 62 bits, so that nobody can look for two that meet.
pub(in crate::engine) fn namespace(own: u64, adapters: &[AdapterUse]) -> u64 {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    if adapters.is_empty() {
        // Callers' numbers are hashes themselves; 62 bits of them are as good.
        return own & (OF_ADAPTERS - 1);
    }
    let chosen: Vec<(usize, u32)> = (adapters.iter())
        .map(|wish| (wish.adapter, wish.scale.to_bits()))
        .collect();
    let hash = KEYS.get_or_init(RandomState::new).hash_one((own, chosen));
    OF_ADAPTERS | (hash & (OF_ADAPTERS - 1))
}

/// Whether a namespace is one of requests with adapters.
pub(in crate::engine) fn is_of_adapters(namespace: u64) -> bool {
    namespace >= OF_ADAPTERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_has_a_namespace_of_its_own() {
        let wish = |adapter, scale| AdapterUse { adapter, scale };
        assert_eq!(namespace(7, &[]), 7);
        assert!(namespace(u64::MAX - 7, &[]) < OF_ADAPTERS);
        let all = [
            namespace(7, &[wish(0, 1.0)]),
            namespace(8, &[wish(0, 1.0)]),
            namespace(7, &[wish(1, 1.0)]),
            namespace(7, &[wish(0, 0.5)]),
            namespace(7, &[wish(0, 1.0), wish(1, 1.0)]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(*a >= OF_ADAPTERS);
            assert!(all[..i].iter().all(|b| a != b));
        }
        assert_eq!(all[0], namespace(7, &[wish(0, 1.0)]));
    }
}
