//! The pool of cache blocks, and the prefixes that they hold.
//!
//! A block is free, held by one or more sequences, or kept: nobody holds it, but its keys and values are those of a
//! known prefix, and it is taken for something else only when no free block is left, the longest unused first. Prefixes
//! form a tree: a full block is known by the block before it and by its own tokens, so equal names mean equal tokens
//! from the start on, without hashes that could collide.
//!
//! A recurrent model cannot go on behind a prefix without the state there. Such states lie in slots, and a slot that is
//! attached to a known block is a checkpoint: known prefixes are of use up to the last block that has one. It goes with
//! its block.
//!
//! Layers with a sliding window have blocks of their own, of which a sequence keeps those that its window reaches. They
//! are attached to the known blocks of the same tokens, and a prefix is of use where the window before its end is still
//! there.

use super::places::Places;
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
    /// Slots of recurrent state; none if the model has no such state.
    states: Places,
    state_distance: usize,
    /// Blocks of layers with a window; none if they have the same blocks as the others.
    windows: Places,
    /// Keys before its own that a token sees in these layers.
    left: usize,
}

#[derive(Default)]
struct Block {
    holders: u32,
    /// Under which key it is known.
    key: Option<Key>,
    /// The slot that has the state behind it.
    state: Option<u32>,
    /// The block of the same tokens in layers with a window.
    window: Option<u32>,
    /// When it was last used, while it is kept.
    kept_since: u64,
}

/// What is known of a prefix, held for a sequence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub blocks: Vec<u32>,
    /// Its name.
    pub prefix: Prefix,
    /// The checkpoint behind it, of recurrent models.
    pub state: Option<u32>,
    /// The last blocks of layers with a window.
    pub windows: Vec<u32>,
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
            states: Places::new(0),
            state_distance: 0,
            windows: Places::new(0),
            left: 0,
        }
    }

    /// Adds slots of recurrent state. Long prompts have a checkpoint every `distance` tokens, rounded up to whole blocks.
    pub(super) fn with_states(mut self, slots: usize, distance: usize) -> Self {
        self.states = Places::new(slots);
        self.state_distance = distance.next_multiple_of(self.block_size);
        self
    }

    /// Adds blocks of layers with a window, which see `left` keys before a token's own. None are added if these layers
    /// have the same blocks as the others.
    pub(super) fn with_windows(mut self, blocks: usize, left: usize) -> Self {
        self.windows = Places::new(blocks);
        self.left = left;
        self
    }

    /// Forgets everything; nobody holds anything.
    pub(super) fn clear(&mut self) {
        let new = Self::new(self.total(), self.block_size, self.keep)
            .with_states(self.states.total(), self.state_distance)
            .with_windows(self.windows.total(), self.left);
        *self = new;
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

    /// Takes hold of the known blocks that `tokens` begins with behind the empty prefix `root`, all of it at most: as
    /// many as a sequence can go on from.
    pub(super) fn take_known(&mut self, root: Prefix, tokens: &[u32]) -> Known {
        let mut path = vec![(root, None)];
        for chunk in tokens.chunks_exact(self.block_size) {
            let key = (path[path.len() - 1].0, chunk.into());
            let Some(&(next, block)) = self.known.get(&key) else {
                break;
            };
            path.push((next, Some(block)));
        }
        while !self.is_usable(&path) {
            path.pop();
        }
        let (prefix, last) = path[path.len() - 1];
        let blocks: Vec<u32> = path.into_iter().filter_map(|(_, block)| block).collect();
        let seen = &blocks[self.first_seen(blocks.len() * self.block_size)..];
        let windows = seen.iter().filter_map(|b| self.blocks[*b as usize].window);
        let windows: Vec<u32> = windows.collect();
        windows.iter().for_each(|window| self.windows.hold(*window));
        for block in &blocks {
            let held = &mut self.blocks[*block as usize];
            if held.holders == 0 {
                self.kept.remove(&held.kept_since);
            }
            held.holders += 1;
        }
        let state = last.and_then(|block| self.blocks[block as usize].state);
        if let Some(slot) = state {
            self.states.hold(slot);
        }
        Known {
            blocks,
            prefix,
            state,
            windows,
        }
    }

    /// Whether a sequence can go on from a path of known blocks behind the empty prefix.
    fn is_usable(&self, path: &[(Prefix, Option<u32>)]) -> bool {
        let at = |block: Option<u32>| block.map(|block| &self.blocks[block as usize]);
        let end = at(path[path.len() - 1].1);
        if self.is_recurrent() && end.is_some_and(|block| block.state.is_none()) {
            return false;
        }
        let blocks = path[1..].iter().filter_map(|(_, block)| at(*block));
        let mut seen = blocks.skip(self.first_seen((path.len() - 1) * self.block_size));
        !self.has_windows() || seen.all(|block| block.window.is_some())
    }

    /// Makes a full block known, which its holder has behind `prefix`. Gives the name of the prefix that ends with it,
    /// and the block that it is known by: an earlier one, if that is in use.
    pub(super) fn remember(
        &mut self,
        prefix: Prefix,
        block: u32,
        tokens: &[u32],
    ) -> (Prefix, Option<u32>) {
        if !self.keep {
            return (prefix, None);
        }
        let key: Key = (prefix, tokens.into());
        let earlier = self.known.get(&key).copied();
        let name = match earlier {
            Some((name, known)) if known == block || self.blocks[known as usize].holders > 0 => {
                return (name, Some(known));
            }
            Some((name, known)) => {
                self.replace(known, block);
                name
            }
            None => {
                self.next_prefix += 1;
                self.next_prefix - 1
            }
        };
        self.known.insert(key.clone(), (name, block));
        self.blocks[block as usize].key = Some(key);
        (name, Some(block))
    }

    /// Frees a kept block; another one has the same.
    fn replace(&mut self, known: u32, by: u32) {
        let old = std::mem::take(&mut self.blocks[known as usize]);
        self.kept.remove(&old.kept_since);
        self.free.push(known);
        let new = &mut self.blocks[by as usize];
        (new.state, new.window) = (old.state, old.window);
        if let Some(slot) = old.state {
            self.states.attach(slot, by);
        }
        if let Some(window) = old.window {
            self.windows.attach(window, by);
        }
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

    /// Whether prefixes are remembered.
    pub(super) fn keeps(&self) -> bool {
        self.keep
    }

    /// Blocks of windows that belong to a known prefix of so many blocks.
    pub(super) fn known_windows(&self, blocks: usize) -> usize {
        match self.has_windows() {
            true => blocks - self.first_seen(blocks * self.block_size),
            false => 0,
        }
    }

    /// Takes hold of as many blocks of windows again before those of a known prefix, as far as they are there, so that
    /// also a somewhat shorter prefix is of use.
    pub(super) fn take_earlier_windows(&mut self, known: &mut Known) {
        let first = known.blocks.len() - known.windows.len();
        let earlier = known.blocks[..first].iter().rev().take(known.windows.len());
        let earlier = earlier.map_while(|block| self.blocks[*block as usize].window);
        let earlier: Vec<u32> = earlier.collect();
        earlier.iter().for_each(|window| self.windows.hold(*window));
        known.windows.splice(..0, earlier.into_iter().rev());
    }

    /// Takes so many of everything, if there are so many.
    pub(super) fn take_places(
        &mut self,
        blocks: usize,
        windows: usize,
        states: usize,
    ) -> Option<Known> {
        let there = blocks <= self.available()
            && windows <= self.windows.available()
            && states <= self.states.available();
        there.then(|| Known {
            prefix: root(0),
            windows: (0..windows).filter_map(|_| self.take_window()).collect(),
            state: (0..states).filter_map(|_| self.take_state()).last(),
            blocks: (0..blocks).filter_map(|_| self.take()).collect(),
        })
    }

    /// Makes the prefix known that was written to places behind the empty prefix `root`: whole blocks of `tokens`.
    pub(super) fn remember_all(&mut self, root: Prefix, places: &Known, tokens: &[u32]) {
        let first_window = places.blocks.len() - places.windows.len();
        let mut prefix = root;
        let chunks = tokens.chunks_exact(self.block_size);
        for (i, (block, chunk)) in places.blocks.iter().zip(chunks).enumerate() {
            let (next, known) = self.remember(prefix, *block, chunk);
            prefix = next;
            let Some(known) = known else {
                return;
            };
            if let Some(window) = i
                .checked_sub(first_window)
                .and_then(|i| places.windows.get(i))
            {
                self.keep_window(known, *window);
            }
            if let Some(slot) = places.state.filter(|_| i + 1 == places.blocks.len()) {
                self.keep_state(known, slot);
            }
        }
    }

    /// Gives back what [`Self::take_known`] or [`Self::take_places`] took.
    pub(super) fn give_back_known(&mut self, known: Known) {
        for window in known.windows.into_iter().rev() {
            self.give_back_window(window);
        }
        self.give_back(known.blocks);
        if let Some(slot) = known.state {
            self.give_back_state(slot);
        }
    }

    /// Forgets the known blocks that `tokens` begins with and that nobody holds. Gives how many tokens that were.
    pub(super) fn forget_known(&mut self, root: Prefix, tokens: &[u32]) -> usize {
        let mut prefix = root;
        let mut blocks = Vec::new();
        for chunk in tokens.chunks_exact(self.block_size) {
            let Some(&(next, block)) = self.known.get(&(prefix, chunk.into())) else {
                break;
            };
            blocks.push(block);
            prefix = next;
        }
        blocks.retain(|block| self.blocks[*block as usize].holders == 0);
        for block in blocks.iter().rev() {
            self.kept.remove(&self.blocks[*block as usize].kept_since);
            self.forget(*block);
            self.free.push(*block);
        }
        blocks.len() * self.block_size
    }

    fn forget(&mut self, block: u32) {
        let block = &mut self.blocks[block as usize];
        if let Some(key) = block.key.take() {
            self.known.remove(&key);
        }
        if let Some(slot) = block.state.take() {
            self.states.detach(slot);
        }
        if let Some(window) = block.window.take() {
            self.windows.detach(window);
        }
    }
}

/// Blocks of layers with a window.
impl BlockPool {
    /// Whether such layers have blocks of their own.
    pub(super) fn has_windows(&self) -> bool {
        self.windows.total() > 0
    }

    /// These blocks.
    pub(super) fn windows(&self) -> &Places {
        &self.windows
    }

    /// The first block that such a layer sees from behind so many tokens.
    pub(super) fn first_seen(&self, tokens: usize) -> usize {
        tokens.saturating_sub(self.left) / self.block_size
    }

    /// Takes a block, one of the least recently used prefix if none is free.
    pub(super) fn take_window(&mut self) -> Option<u32> {
        let (window, block) = self.windows.take()?;
        if let Some(block) = block {
            self.blocks[block as usize].window = None;
        }
        Some(window)
    }

    /// Keeps a held block with the known block of the same tokens, unless that has one.
    pub(super) fn keep_window(&mut self, block: u32, window: u32) {
        let kept = &mut self.blocks[block as usize].window;
        if kept.is_none() {
            *kept = Some(window);
            self.windows.attach(window, block);
        }
    }

    /// Ends one hold of a block.
    pub(super) fn give_back_window(&mut self, window: u32) {
        self.windows.give_back(window);
    }
}

/// Slots of recurrent state.
impl BlockPool {
    /// Whether sequences have such states.
    pub(super) fn is_recurrent(&self) -> bool {
        self.states.total() > 0
    }

    /// Its slots.
    pub(super) fn states(&self) -> &Places {
        &self.states
    }

    /// Tokens between the checkpoints of a long prompt, if states are kept at all.
    pub(super) fn state_distance(&self) -> Option<usize> {
        (self.keep && self.is_recurrent()).then_some(self.state_distance)
    }

    /// Takes a slot, the least recently used checkpoint if none is free.
    pub(super) fn take_state(&mut self) -> Option<u32> {
        let (slot, block) = self.states.take()?;
        if let Some(block) = block {
            self.blocks[block as usize].state = None;
        }
        Some(slot)
    }

    /// Whether the only holder of a slot may write to it: it is no checkpoint.
    pub(super) fn may_write_state(&self, slot: u32) -> bool {
        !self.states.is_shared(slot) && self.states.block(slot).is_none()
    }

    /// Gives up a checkpoint for its only holder. Gives whether that was possible.
    pub(super) fn take_over_state(&mut self, slot: u32) -> bool {
        let possible = !self.states.is_shared(slot);
        if possible {
            self.drop_checkpoint(slot);
        }
        possible
    }

    /// Makes a held slot the checkpoint behind a known block. Gives whether it became that: there may be one already.
    pub(super) fn keep_state(&mut self, block: u32, slot: u32) -> bool {
        let state = &mut self.blocks[block as usize].state;
        let first = state.is_none();
        if first {
            *state = Some(slot);
            self.states.attach(slot, block);
        }
        first
    }

    /// Ends one hold of a slot. Gives the time of this use.
    pub(super) fn give_back_state(&mut self, slot: u32) -> u64 {
        self.states.give_back(slot)
    }

    /// Gives up a checkpoint that nobody has used since.
    pub(super) fn drop_state(&mut self, slot: u32, since: u64) {
        if self.states.is_unused_since(slot, since) {
            self.drop_checkpoint(slot);
        }
    }

    fn drop_checkpoint(&mut self, slot: u32) {
        if let Some(block) = self.states.block(slot) {
            self.blocks[block as usize].state = None;
            self.states.detach(slot);
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
            prefix = pool.remember(prefix, *block, chunk).0;
        }
    }

    fn found(pool: &mut BlockPool, tokens: &[u32]) -> usize {
        let known = pool.take_known(ROOT, tokens);
        let count = known.blocks.len();
        pool.give_back(known.blocks);
        if let Some(slot) = known.state {
            pool.give_back_state(slot);
        }
        count
    }

    #[test]
    fn prefixes_are_found_and_shared() {
        let mut pool = BlockPool::new(4, 2, true);
        let tokens = [1, 2, 3, 4, 5];
        let blocks: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        remember_all(&mut pool, &blocks, &tokens);
        // While it is held, by another sequence with another end.
        let shared = pool.take_known(ROOT, &[1, 2, 9, 4]).blocks;
        assert_eq!(shared, blocks[..1]);
        pool.give_back(blocks.clone());
        assert_eq!((pool.held(), pool.kept()), (1, 1));
        pool.give_back(shared);
        // And afterwards.
        let again = pool.take_known(ROOT, &tokens).blocks;
        assert_eq!(again, blocks[..2]);
        // The same tokens elsewhere are another prefix.
        assert!(pool.take_known(ROOT, &[3, 4]).blocks.is_empty());
        pool.give_back(again);
        assert_eq!(pool.available(), 4);
        // Nobody else's.
        assert!(pool.take_known(root(1), &tokens).blocks.is_empty());
    }

    #[test]
    fn the_longest_unused_goes_first_and_ends_before_prefixes() {
        let mut pool = BlockPool::new(3, 1, true);
        for tokens in [[7, 8], [7, 9]] {
            let mut blocks = pool.take_known(ROOT, &tokens).blocks;
            while blocks.len() < 2 {
                blocks.push(pool.take().unwrap());
            }
            remember_all(&mut pool, &blocks, &tokens);
            pool.give_back(blocks);
        }
        assert_eq!((pool.kept(), pool.held()), (3, 0));
        let one = pool.take().unwrap();
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

    /// A pool that knows `[1, 2, 3]` in blocks of one token, with slots of states.
    fn recurrent(slots: usize) -> (BlockPool, Vec<u32>) {
        let mut pool = BlockPool::new(4, 1, true).with_states(slots, 1);
        let blocks: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        remember_all(&mut pool, &blocks, &[1, 2, 3]);
        (pool, blocks)
    }

    #[test]
    fn prefixes_of_recurrent_models_end_at_checkpoints() {
        let (mut pool, blocks) = recurrent(2);
        let tokens = [1, 2, 3];
        assert_eq!(found(&mut pool, &tokens), 0);
        let slot = pool.take_state().unwrap();
        assert!(pool.may_write_state(slot));
        assert!(pool.keep_state(blocks[1], slot));
        assert!(!pool.may_write_state(slot));
        pool.give_back_state(slot);
        assert_eq!(found(&mut pool, &tokens), 2);
        assert_eq!(found(&mut pool, &tokens[..1]), 0);
        // A second one for the same block is of no use.
        let other = pool.take_state().unwrap();
        assert!(!pool.keep_state(blocks[1], other));
        pool.give_back_state(other);
        // Whoever goes on from it keeps it from being taken.
        let known = pool.take_known(ROOT, &tokens);
        assert_eq!(known.state, Some(slot));
        assert_eq!(pool.take_state(), Some(other));
        assert_eq!(pool.take_state(), None);
        pool.give_back_state(slot);
        pool.give_back(known.blocks);
        assert_eq!(pool.take_state(), Some(slot));
        assert_eq!(found(&mut pool, &tokens), 0);
    }

    #[test]
    fn checkpoints_go_with_their_blocks_and_when_they_are_given_up() {
        let (mut pool, blocks) = recurrent(2);
        let keep = |pool: &mut BlockPool, block: u32| {
            let slot = pool.take_state().unwrap();
            assert!(pool.keep_state(block, slot));
            (slot, pool.give_back_state(slot))
        };
        let (slot, since) = keep(&mut pool, blocks[2]);
        pool.drop_state(slot, since - 1);
        assert_eq!(found(&mut pool, &[1, 2, 3]), 3);
        // It was used since.
        pool.drop_state(slot, since);
        assert_eq!(found(&mut pool, &[1, 2, 3]), 3);
        let (slot, since) = keep(&mut pool, blocks[0]);
        pool.drop_state(slot, since);
        pool.give_back(blocks.clone());
        assert_eq!((pool.states.kept(), pool.states.held()), (1, 0));
        // The last block goes first, behind the free one.
        assert_eq!((pool.take(), pool.take()), (Some(3), Some(blocks[2])));
        assert_eq!(pool.states.kept(), 0);
        assert_eq!(found(&mut pool, &[1, 2, 3]), 0);
    }

    #[test]
    fn a_block_that_is_computed_anew_takes_the_place_of_the_one_that_was_kept() {
        let (mut pool, blocks) = recurrent(1);
        let slot = pool.take_state().unwrap();
        pool.keep_state(blocks[0], slot);
        pool.give_back_state(slot);
        pool.give_back(blocks.clone());
        let anew = pool.take().unwrap();
        remember_all(&mut pool, &[anew], &[1]);
        let known = pool.take_known(ROOT, &[1, 2, 3]);
        assert_eq!((known.blocks, known.state), (vec![anew], Some(slot)));
        assert_eq!((pool.held(), pool.available()), (1, 3));
    }

    #[test]
    fn a_prefix_is_of_use_where_the_window_before_its_end_is_known() {
        // A token sees 3 keys before its own, in blocks of 2.
        let mut pool = BlockPool::new(8, 2, true).with_windows(5, 3);
        let tokens: Vec<u32> = (0..8).collect();
        let mut prefix = ROOT;
        let mut windows = Vec::new();
        for chunk in tokens.chunks_exact(2) {
            let (block, window) = (pool.take().unwrap(), pool.take_window().unwrap());
            prefix = pool.remember(prefix, block, chunk).0;
            pool.keep_window(block, window);
            windows.push(window);
        }
        assert_eq!([0, 2, 4, 6, 8].map(|n| pool.first_seen(n)), [0, 0, 0, 1, 2]);
        // The first two are behind a window.
        windows[..2].iter().for_each(|w| pool.give_back_window(*w));
        assert_eq!((pool.windows.kept(), pool.windows.held()), (2, 2));
        let known = pool.take_known(ROOT, &tokens);
        assert_eq!((known.blocks.len(), &known.windows[..]), (4, &windows[2..]));
        // With the second one gone, three blocks are not enough of a prefix, nor are two.
        assert!(pool.take_window().is_some());
        assert_eq!(pool.take_window(), Some(windows[0]));
        assert_eq!(pool.take_window(), Some(windows[1]));
        assert_eq!(pool.take_window(), None);
        assert_eq!(pool.take_known(ROOT, &tokens[..7]).blocks.len(), 0);
        assert_eq!(pool.take_known(ROOT, &tokens).blocks.len(), 4);
    }
}
