//! The pool of cache blocks, and the prefixes that they hold.
//!
//! A block is free, held by one or more sequences, or kept: nobody holds it, but its keys and values are those of a
//! known prefix, and it is taken for something else only when no free block is left, the longest unused first. Prefixes
//! form a tree: a full block is known by the block before it and by its own tokens, so equal names mean equal tokens
//! from the start on, without hashes that could collide.

use std::collections::{BTreeMap, HashMap};

/// Names a known prefix; never used twice. The empty prefixes are those of [`root`].
pub(super) type Prefix = u64;

/// The empty prefix of a namespace: what is known under one is unknown under the others.
pub(super) const fn root(namespace: u64) -> Prefix {
    // The names of other prefixes count up from 0 and never come here.
    u64::MAX - namespace
}

/// What identifies a full block: the prefix before it and its tokens.
type Key = (Prefix, Box<[u32]>);

/// Blocks by number.
pub(super) struct BlockPool {
    block_size: usize,
    keep: bool,
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Kept blocks by the time of their last use.
    kept: BTreeMap<u64, u32>,
    known: HashMap<Key, (Prefix, u32)>,
    next_prefix: Prefix,
    clock: u64,
}

#[derive(Default)]
struct Block {
    holders: u32,
    /// Under which key it is known.
    key: Option<Key>,
    /// When it was last used, while it is kept.
    kept_since: u64,
}

impl BlockPool {
    /// `keep` is whether prefixes are remembered.
    pub(super) fn new(count: usize, block_size: usize, keep: bool) -> Self {
        Self {
            block_size,
            keep,
            blocks: (0..count).map(|_| Block::default()).collect(),
            free: (0..count as u32).rev().collect(),
            kept: BTreeMap::new(),
            known: HashMap::new(),
            next_prefix: 0,
            clock: 0,
        }
    }

    /// Tokens of a block.
    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(super) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that can be taken.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    /// Of these, the ones that are kept for prefixes.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Blocks that sequences hold.
    pub(super) fn held(&self) -> usize {
        self.total() - self.available()
    }

    /// Takes a block, if there is one.
    pub(super) fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.kept.pop_first()?;
                self.forget(block);
                block
            }
        };
        self.blocks[block as usize].holders = 1;
        Some(block)
    }

    /// Takes hold of the known blocks that `tokens` begins with behind the empty prefix `root`, all of it at most. Gives
    /// them with the name of that prefix.
    pub(super) fn take_known(&mut self, root: Prefix, tokens: &[u32]) -> (Vec<u32>, Prefix) {
        let mut prefix = root;
        let mut taken = Vec::new();
        for chunk in tokens.chunks_exact(self.block_size) {
            let Some(&(next, block)) = self.known.get(&(prefix, chunk.into())) else {
                break;
            };
            let held = &mut self.blocks[block as usize];
            if held.holders == 0 {
                self.kept.remove(&held.kept_since);
            }
            held.holders += 1;
            taken.push(block);
            prefix = next;
        }
        (taken, prefix)
    }

    /// Makes a full block known, which its holder has behind `prefix`. Gives the name of the prefix that ends with it.
    pub(super) fn remember(&mut self, prefix: Prefix, block: u32, tokens: &[u32]) -> Prefix {
        if !self.keep {
            return prefix;
        }
        let key: Key = (prefix, tokens.into());
        if let Some((known, _)) = self.known.get(&key) {
            return *known;
        }
        let name = self.next_prefix;
        self.next_prefix += 1;
        self.known.insert(key.clone(), (name, block));
        self.blocks[block as usize].key = Some(key);
        name
    }

    /// Gives back a sequence's blocks, which are in the order of its positions.
    pub(super) fn give_back(&mut self, blocks: Vec<u32>) {
        // The last first: a prefix must outlive what goes on from it, which is of no use without it.
        for block in blocks.into_iter().rev() {
            let held = &mut self.blocks[block as usize];
            held.holders -= 1;
            if held.holders > 0 {
                continue;
            }
            if held.key.is_some() {
                self.clock += 1;
                held.kept_since = self.clock;
                self.kept.insert(self.clock, block);
            } else {
                self.free.push(block);
            }
        }
    }

    fn forget(&mut self, block: u32) {
        if let Some(key) = self.blocks[block as usize].key.take() {
            self.known.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Prefix = root(0);

    fn remember_all(pool: &mut BlockPool, blocks: &[u32], tokens: &[u32]) {
        let mut prefix = ROOT;
        for (block, chunk) in blocks.iter().zip(tokens.chunks_exact(pool.block_size)) {
            prefix = pool.remember(prefix, *block, chunk);
        }
    }

    #[test]
    fn prefixes_are_found_and_shared() {
        let mut pool = BlockPool::new(4, 2, true);
        let tokens = [1, 2, 3, 4, 5];
        let blocks: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        remember_all(&mut pool, &blocks, &tokens);
        // While it is held, by another sequence with another end.
        let (shared, _) = pool.take_known(ROOT, &[1, 2, 9, 4]);
        assert_eq!(shared, blocks[..1]);
        pool.give_back(blocks.clone());
        assert_eq!((pool.held(), pool.kept()), (1, 1));
        pool.give_back(shared);
        // And afterwards.
        let (again, _) = pool.take_known(ROOT, &tokens);
        assert_eq!(again, blocks[..2]);
        // The same tokens elsewhere are another prefix.
        assert!(pool.take_known(ROOT, &[3, 4]).0.is_empty());
        pool.give_back(again);
        assert_eq!(pool.available(), 4);
        // Nobody else's.
        assert!(pool.take_known(root(1), &tokens).0.is_empty());
    }

    #[test]
    fn the_longest_unused_goes_first_and_ends_before_prefixes() {
        let mut pool = BlockPool::new(3, 1, true);
        for tokens in [[7, 8], [7, 9]] {
            let (mut blocks, _) = pool.take_known(ROOT, &tokens);
            while blocks.len() < 2 {
                blocks.push(pool.take().unwrap());
            }
            remember_all(&mut pool, &blocks, &tokens);
            pool.give_back(blocks);
        }
        assert_eq!((pool.kept(), pool.held()), (3, 0));
        let one = pool.take().unwrap();
        let found = |pool: &mut BlockPool, tokens: &[u32]| {
            let (blocks, _) = pool.take_known(ROOT, tokens);
            let count = blocks.len();
            pool.give_back(blocks);
            count
        };
        assert_eq!(found(&mut pool, &[7, 8]), 1);
        assert_eq!(found(&mut pool, &[7, 9]), 2);
        pool.give_back(vec![one]);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn nothing_is_kept_if_nothing_is_to_be_kept() {
        let mut pool = BlockPool::new(2, 1, false);
        let blocks = vec![pool.take().unwrap(), pool.take().unwrap()];
        assert_eq!(pool.take(), None);
        remember_all(&mut pool, &blocks, &[1, 2]);
        pool.give_back(blocks);
        assert_eq!((pool.kept(), pool.available()), (0, 2));
    }
}
