//! What a draft model has read of a sequence: tokens, blocks of keys and values, and recurrent states behind those of its
//! last tokens that may be taken back.

use super::drafter::Ask;
use crate::engine::blocks::{BlockPool, Prefix};
use crate::engine::forward::StepState;

/// See the module.
pub(super) struct Text {
    /// Tokens whose keys and values are in the cache.
    pub tokens: Vec<u32>,
    pub blocks: Vec<u32>,
    /// The name of the prefix that the first `remembered` blocks make.
    prefix: Prefix,
    remembered: usize,
    /// Of a recurrent model: slots with the states behind so many tokens, ascending. The last one is behind all.
    states: Vec<(usize, u32)>,
}

impl Text {
    /// What is known of tokens.
    pub(super) fn known(pool: &mut BlockPool, root: Prefix, tokens: &[u32]) -> Self {
        let known = pool.take_known(root, tokens);
        let count = known.blocks.len() * pool.block_size();
        Self {
            tokens: tokens[..count].to_vec(),
            remembered: known.blocks.len(),
            blocks: known.blocks,
            prefix: known.prefix,
            states: known.state.map(|slot| (count, slot)).into_iter().collect(),
        }
    }

    /// Takes back what is not the beginning of `before`. Gives whether it can go on from there: not if that was another
    /// text, or its state is gone.
    pub(super) fn go_back(&mut self, pool: &mut BlockPool, before: &[u32]) -> bool {
        let pairs = self.tokens.iter().zip(before);
        let common = pairs.take_while(|(a, b)| a == b).count();
        self.tokens.truncate(common);
        if pool.is_recurrent() {
            while let Some((_, slot)) = self.states.pop_if(|(tokens, _)| *tokens > common) {
                pool.give_back_state(slot);
            }
            // Nothing before the last one is gone back to any more.
            let last = self.states.len().saturating_sub(1);
            for (_, slot) in self.states.drain(..last) {
                pool.give_back_state(slot);
            }
            self.tokens.truncate(self.states.last().map_or(0, |s| s.0));
        }
        self.tokens.len() >= self.remembered * pool.block_size()
    }

    /// Takes the blocks for so many tokens; gives whether there were so many.
    pub(super) fn take_blocks(&mut self, pool: &mut BlockPool, tokens: usize) -> bool {
        let needed = tokens.div_ceil(pool.block_size());
        while self.blocks.len() < needed {
            match pool.take() {
                Some(block) => self.blocks.push(block),
                None => return false,
            }
        }
        true
    }

    /// Up to which of so many tokens a step may go: the first place for a checkpoint behind what was read. Those are the
    /// last full block before the last token, and each so many tokens before.
    pub(super) fn next_stop(&self, pool: &BlockPool, len: usize) -> usize {
        let Some(distance) = pool.state_distance() else {
            return len;
        };
        let read = self.tokens.len();
        let last = (len - 1) / pool.block_size() * pool.block_size();
        let regular = (read / distance + 1) * distance;
        let stops = [regular, last, len].into_iter();
        let next = stops.filter(|stop| (read + 1..=len).contains(stop));
        next.min().unwrap_or(len)
    }

    /// Takes a slot for the state behind a step, in place if it is not to be gone back behind the step. Gives where the
    /// step finds and leaves states, or none if there is no slot; nothing of that for models without states.
    pub(super) fn take_state(
        &self,
        pool: &mut BlockPool,
        in_place: bool,
    ) -> Option<Option<StepState>> {
        if !pool.is_recurrent() {
            return Some(None);
        }
        let from = self.states.last().map(|(_, slot)| *slot);
        let own = from.filter(|slot| in_place && pool.may_write_state(*slot));
        let after = own.or_else(|| pool.take_state())?;
        Some(Some(StepState {
            from,
            after: vec![after],
        }))
    }

    /// Takes a step into account that has read these tokens and left its state there, as [`Self::take_state`] said.
    pub(super) fn read(
        &mut self,
        pool: &mut BlockPool,
        part: &[u32],
        state: Option<&StepState>,
        in_place: bool,
    ) {
        self.tokens.extend_from_slice(part);
        for after in state.iter().flat_map(|state| &state.after) {
            if in_place {
                // One that others may go on from stays as it was, but is of no use here any more.
                let before = self.states.pop().filter(|(_, slot)| slot != after);
                if let Some((_, slot)) = before {
                    pool.give_back_state(slot);
                }
            }
            self.states.push((self.tokens.len(), *after));
        }
    }

    /// Takes full blocks of what will not be taken back into the pool's memory, with the state behind the last one if
    /// that is at hand.
    pub(super) fn remember(&mut self, pool: &mut BlockPool, ask: &Ask) {
        let size = pool.block_size();
        let sure = self.tokens.len().min(ask.tokens.len() - 1);
        while (self.remembered + 1) * size <= sure {
            let start = self.remembered * size;
            let tokens = &self.tokens[start..start + size];
            let block = self.blocks[self.remembered];
            let (prefix, known) = pool.remember(self.prefix, block, tokens);
            self.prefix = prefix;
            self.remembered += 1;
            let at_hand = self.states.iter().find(|s| s.0 == start + size);
            if let Some((known, (_, slot))) = known.zip(at_hand) {
                pool.keep_state(known, *slot);
            }
        }
    }

    /// Gives everything back.
    pub(super) fn give_back(self, pool: &mut BlockPool) {
        pool.give_back(self.blocks);
        for (_, slot) in self.states {
            pool.give_back_state(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::api::SamplingOptions;
    use crate::engine::blocks::root;

    fn ask<'a>(tokens: &'a [u32], sampling: &'a SamplingOptions) -> Ask<'a> {
        Ask {
            id: 1,
            root: root(0),
            tokens,
            generated: 0,
            sampling,
            blocks: &[],
            computed: 0,
            most: 3,
            is_plain: true,
            is_read: true,
        }
    }

    /// A state is all tokens that it has seen.
    fn step(
        text: &mut Text,
        pool: &mut BlockPool,
        slots: &mut [Vec<u32>],
        part: &[u32],
        in_place: bool,
    ) {
        assert!(text.take_blocks(pool, text.tokens.len() + part.len()));
        let state = text.take_state(pool, in_place).unwrap().unwrap();
        let before = state
            .from
            .map_or(Vec::new(), |slot| slots[slot as usize].clone());
        assert_eq!(before, text.tokens);
        slots[state.after[0] as usize] = [&before[..], part].concat();
        text.read(pool, part, Some(&state), in_place);
    }

    #[test]
    fn wrong_guesses_are_taken_back_with_their_states() {
        let sampling = SamplingOptions::greedy();
        let mut pool = BlockPool::new(16, 4, true).with_states(6, 8);
        let mut slots = vec![Vec::new(); 6];
        let prompt: Vec<u32> = (0..11).collect();
        let mut text = Text::known(&mut pool, root(0), &prompt[..10]);
        assert_eq!(text.next_stop(&pool, 11), 8);
        step(&mut text, &mut pool, &mut slots, &prompt[..8], true);
        text.remember(&mut pool, &ask(&prompt, &sampling));
        step(&mut text, &mut pool, &mut slots, &prompt[8..], true);
        for guess in [20, 21] {
            step(&mut text, &mut pool, &mut slots, &[guess], false);
        }
        // The first one was right.
        let mut tokens = prompt.clone();
        tokens.extend([20, 30]);
        assert!(text.go_back(&mut pool, &tokens[..12]));
        assert_eq!((text.tokens.len(), pool.states().held()), (12, 1));
        step(&mut text, &mut pool, &mut slots, &[30], true);
        assert_eq!(pool.states().held(), 1);
        // Others begin with the checkpoint, and what went on from it left it as it was.
        let other = Text::known(&mut pool, root(0), &tokens);
        assert_eq!((other.tokens.len(), other.states.len()), (8, 1));
        assert_eq!(slots[other.states[0].1 as usize], prompt[..8]);
        other.give_back(&mut pool);
        // Another text.
        assert!(!text.go_back(&mut pool, &[0, 1, 2, 3, 4]));
        text.give_back(&mut pool);
        assert_eq!((pool.held(), pool.states().held()), (0, 0));
    }

    #[test]
    fn without_a_slot_there_is_no_step() {
        let mut pool = BlockPool::new(16, 4, true).with_states(1, 8);
        let mut slots = vec![Vec::new(); 1];
        let mut text = Text::known(&mut pool, root(0), &[1, 2, 3]);
        step(&mut text, &mut pool, &mut slots, &[1, 2], true);
        assert!(text.take_state(&mut pool, false).is_none());
        assert!(text.take_state(&mut pool, true).is_some());
        text.give_back(&mut pool);
    }
}
