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

mod states;
mod telling;
#[cfg(test)]
mod tests;
mod windows;

use super::places::Places;
use std::collections::{BTreeMap, HashMap};
use telling::Telling;

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
    /// Who is told what becomes of known blocks.
    telling: Option<Telling>,
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
            telling: None,
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
        let mut new = Self::new(self.total(), self.block_size, self.keep)
            .with_states(self.states.total(), self.state_distance)
            .with_windows(self.windows.total(), self.left);
        new.telling = self.telling.take();
        if let Some(telling) = &mut new.telling {
            telling.cleared();
        }
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
                let name = self.next_prefix;
                self.next_prefix += 1;
                if let Some(telling) = &mut self.telling {
                    telling.stored(name, prefix, tokens);
                }
                name
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
            let known = self.known.remove(&key);
            if let (Some(telling), Some((name, _))) = (&mut self.telling, known) {
                telling.removed(name);
            }
        }
        if let Some(slot) = block.state.take() {
            self.states.detach(slot);
        }
        if let Some(window) = block.window.take() {
            self.windows.detach(window);
        }
    }
}
