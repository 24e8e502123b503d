//! Tells of known blocks: [`BlockEvent`].
//!
//! Blocks with pictures or sounds in them, those of adapters, and all behind them are left out: their tokens do not tell
//! what they hold.

use super::{root, BlockPool, Prefix};
use crate::engine::api::{is_of_adapters, BlockEvent, BlockListener};
use sha2::{Digest, Sha256};
use std::collections::hash_map::Entry;
use std::collections::HashMap;

/// Who is told, and what of.
pub(super) struct Telling {
    listener: Box<dyn BlockListener>,
    block_size: usize,
    /// Tokens from here on are names of pictures.
    vocab_size: u32,
    /// Hashes of the known prefixes that were told.
    hashes: HashMap<Prefix, u64>,
    /// How many of these have a hash: what goes on from a forgotten prefix stays known by a name that nothing leads to,
    /// and may become known once more.
    counts: HashMap<u64, usize>,
    events: Vec<BlockEvent>,
}

impl Telling {
    fn new(listener: Box<dyn BlockListener>, block_size: usize, vocab_size: u32) -> Self {
        Self {
            listener,
            block_size,
            vocab_size,
            hashes: HashMap::new(),
            counts: HashMap::new(),
            // Whoever listens may know blocks of an earlier process.
            events: vec![BlockEvent::Cleared],
        }
    }

    /// A block became known by a name, behind `prefix`.
    pub(super) fn stored(&mut self, name: Prefix, prefix: Prefix, tokens: &[u32]) {
        let parent = self.hashes.get(&prefix).copied();
        // An empty prefix is named by its namespace.
        let namespace = root(prefix);
        let is_first = prefix >= root(NAMESPACES) && !is_of_adapters(namespace);
        let is_text = tokens.iter().all(|token| *token < self.vocab_size);
        if !is_text || (parent.is_none() && !is_first) {
            return;
        }
        let hash = hash_of(parent, namespace, tokens);
        self.hashes.insert(name, hash);
        let count = self.counts.entry(hash).or_default();
        *count += 1;
        if *count > 1 {
            return;
        }
        match self.events.last_mut() {
            Some(BlockEvent::Stored {
                hashes,
                tokens: before,
                ..
            }) if parent.is_some() && hashes.last().copied() == parent => {
                hashes.push(hash);
                before.extend(tokens);
            }
            _ => self.events.push(BlockEvent::Stored {
                hashes: vec![hash],
                parent,
                tokens: tokens.to_vec(),
                block_size: self.block_size,
            }),
        }
    }

    /// The block of a name is forgotten.
    pub(super) fn removed(&mut self, name: Prefix) {
        let Some(hash) = self.hashes.remove(&name) else {
            return;
        };
        if let Entry::Occupied(mut count) = self.counts.entry(hash) {
            *count.get_mut() -= 1;
            if *count.get() > 0 {
                return;
            }
            count.remove();
        }
        match self.events.last_mut() {
            Some(BlockEvent::Removed { hashes }) => hashes.push(hash),
            _ => self.events.push(BlockEvent::Removed { hashes: vec![hash] }),
        }
    }

    /// All blocks are forgotten.
    pub(super) fn cleared(&mut self) {
        self.hashes.clear();
        self.counts.clear();
        // What happened to them before is of no use any more.
        self.events = vec![BlockEvent::Cleared];
    }
}

/// Namespaces are fewer than this: the names of empty prefixes count down from the largest number, those of others up
/// from 0.
const NAMESPACES: u64 = 1 << 63;

/// A prefix's hash, from the hash of the prefix before its last block and that block's tokens. Never 0, which some take
/// for none.
fn hash_of(parent: Option<u64>, namespace: u64, tokens: &[u32]) -> u64 {
    let mut hash = Sha256::new();
    match parent {
        Some(parent) => hash.update([&[1][..], &parent.to_le_bytes()].concat()),
        None => hash.update([&[0][..], &namespace.to_le_bytes()].concat()),
    }
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    let bytes = hash.finalize();
    let first = bytes.iter().take(8);
    first
        .fold(0, |hash, byte| (hash << 8) | u64::from(*byte))
        .max(1)
}

impl BlockPool {
    /// Tells `listener` of known blocks from now on; tokens below `vocab_size` are text.
    pub(in crate::engine) fn tell(&mut self, listener: Box<dyn BlockListener>, vocab_size: u32) {
        self.telling = Some(Telling::new(listener, self.block_size, vocab_size));
    }

    /// Tells what there is to tell.
    pub(in crate::engine) fn tell_now(&mut self) {
        if let Some(telling) = self.telling.as_mut().filter(|told| !told.events.is_empty()) {
            let events = std::mem::take(&mut telling.events);
            telling.listener.tell(events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Ear(Arc<Mutex<Vec<BlockEvent>>>);

    impl BlockListener for Ear {
        fn tell(&mut self, events: Vec<BlockEvent>) {
            self.0.lock().unwrap().extend(events);
        }
    }

    impl Ear {
        /// What it has heard since it was asked last.
        fn heard(&self, pool: &mut BlockPool) -> Vec<BlockEvent> {
            pool.tell_now();
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    const VOCABULARY: u32 = 1000;

    /// A pool of blocks of four tokens, and who hears of them.
    fn pool(blocks: usize) -> (BlockPool, Ear) {
        let ear = Ear::default();
        let mut pool = BlockPool::new(blocks, 4, true);
        pool.tell(Box::new(ear.clone()), VOCABULARY);
        assert_eq!(ear.heard(&mut pool), [BlockEvent::Cleared]);
        (pool, ear)
    }

    /// Computes a prompt of whole blocks and gives its blocks back.
    fn compute(pool: &mut BlockPool, namespace: u64, tokens: &[u32]) {
        let known = pool.take_known(root(namespace), tokens);
        let (mut prefix, mut blocks) = (known.prefix, known.blocks);
        for chunk in tokens.chunks_exact(4).skip(blocks.len()) {
            let block = pool.take().unwrap();
            blocks.push(block);
            prefix = pool.remember(prefix, block, chunk).0;
        }
        pool.give_back(blocks);
    }

    fn stored(events: &[BlockEvent]) -> Vec<(Vec<u64>, Option<u64>, Vec<u32>)> {
        let parts = events.iter().map(|event| match event {
            BlockEvent::Stored {
                hashes,
                parent,
                tokens,
                block_size: 4,
            } => (hashes.clone(), *parent, tokens.clone()),
            other => panic!("{other:?}"),
        });
        parts.collect()
    }

    #[test]
    fn blocks_are_told_with_what_is_before_them() {
        let (mut pool, ear) = pool(16);
        compute(&mut pool, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let first = stored(&ear.heard(&mut pool));
        let [(hashes, None, tokens)] = &first[..] else {
            panic!("{first:?}");
        };
        assert_eq!(tokens, &[1, 2, 3, 4, 5, 6, 7, 8]);
        // What is known is not told again; what goes on from it names it.
        compute(&mut pool, 0, &[1, 2, 3, 4, 9, 9, 9, 9]);
        let branch = stored(&ear.heard(&mut pool));
        assert_eq!(branch[0].1, Some(hashes[0]));
        assert_eq!(branch[0].2, [9, 9, 9, 9]);
        // Equal tokens behind others are other blocks.
        compute(&mut pool, 0, &[5, 6, 7, 8]);
        let alone = stored(&ear.heard(&mut pool));
        assert_ne!(alone[0].0[0], hashes[1]);
        // Another process gives the same hashes, another caller others.
        let (mut other, hears) = self::pool(16);
        compute(&mut other, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(stored(&hears.heard(&mut other)), first);
        compute(&mut other, 1, &[1, 2, 3, 4]);
        assert_ne!(stored(&hears.heard(&mut other))[0].0[0], hashes[0]);
    }

    #[test]
    fn what_is_forgotten_is_told() {
        let (mut pool, ear) = pool(2);
        compute(&mut pool, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let hashes = stored(&ear.heard(&mut pool))[0].0.clone();
        compute(&mut pool, 0, &[9, 9, 9, 9]);
        let events = ear.heard(&mut pool);
        // The end goes first: a beginning is of use without it.
        let removed = vec![hashes[1]];
        assert_eq!(events[0], BlockEvent::Removed { hashes: removed });
        stored(&events[1..]);
        pool.clear();
        assert_eq!(ear.heard(&mut pool), [BlockEvent::Cleared]);
        compute(&mut pool, 0, &[1, 2, 3, 4]);
        assert_eq!(stored(&ear.heard(&mut pool))[0].0[0], hashes[0]);
    }

    #[test]
    fn what_is_known_by_two_names_is_told_once() {
        let (mut pool, ear) = pool(8);
        let telling = pool.telling.as_mut().unwrap();
        telling.stored(1, root(0), &[1, 2, 3, 4]);
        telling.stored(2, 1, &[5, 6, 7, 8]);
        telling.removed(1);
        // The same beginning again, while what went on from it is still there.
        telling.stored(3, root(0), &[1, 2, 3, 4]);
        telling.stored(4, 3, &[5, 6, 7, 8]);
        let events = ear.heard(&mut pool);
        assert_eq!(events.len(), 3, "{events:?}");
        let telling = pool.telling.as_mut().unwrap();
        telling.removed(2);
        assert_eq!(ear.heard(&mut pool), []);
        pool.telling.as_mut().unwrap().removed(4);
        assert_eq!(ear.heard(&mut pool).len(), 1);
    }

    #[test]
    fn pictures_and_adapters_are_left_out() {
        let (mut pool, ear) = pool(16);
        let picture = u32::MAX - 3;
        compute(&mut pool, 0, &[1, 2, 3, picture, 5, 6, 7, 8]);
        assert_eq!(ear.heard(&mut pool), []);
        compute(&mut pool, 0, &[1, 2, 3, 4, 5, 6, 7, picture, 9, 9, 9, 9]);
        assert_eq!(stored(&ear.heard(&mut pool))[0].2, [1, 2, 3, 4]);
        compute(&mut pool, (1 << 62) | 5, &[1, 2, 3, 4]);
        assert_eq!(ear.heard(&mut pool), []);
    }
}
