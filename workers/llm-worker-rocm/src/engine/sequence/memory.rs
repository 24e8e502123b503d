//! What a sequence holds of the pool: blocks of keys and values, also of layers with a window, and slots of recurrent
//! state.

use super::Sequence;
use crate::engine::blocks::BlockPool;
use crate::engine::forward::StepState;

/// Slots of recurrent state.
#[derive(Default)]
pub(super) struct States {
    /// The state behind the computed tokens; none at the beginning.
    current: Option<u32>,
    /// Where the next step leaves the states behind its last rows.
    after: Vec<u32>,
    /// A checkpoint that is of use only until there is a later one, and when it was last used.
    fleeting: Option<(u32, u64)>,
}

impl Sequence {
    /// Takes what is known already. All but the last token may be, and nothing behind which a probability is to be told.
    pub(in crate::engine) fn take_known(&mut self, pool: &mut BlockPool) {
        let told = self.telling.as_ref().map(|telling| telling.done);
        let most = match self.afresh {
            true => 0,
            false => told.unwrap_or(usize::MAX).min(self.tokens.len() - 1),
        };
        let known = pool.take_known(self.root, &self.named(0..most));
        self.computed = known.blocks.len() * pool.block_size();
        self.remembered = known.blocks.len();
        self.prefix = known.prefix;
        self.windows_start = known.blocks.len() - known.windows.len();
        self.windows = known.windows.into();
        self.blocks = known.blocks;
        self.states.current = known.state;
    }

    /// Gives everything back, to be computed anew.
    pub(in crate::engine) fn give_back(&mut self, pool: &mut BlockPool) {
        // As with the others, the last first.
        while let Some(window) = self.windows.pop_back() {
            pool.give_back_window(window);
        }
        self.windows_start = 0;
        pool.give_back(std::mem::take(&mut self.blocks));
        self.give_back_slots(pool);
        if let Some(slot) = self.states.current.take() {
            pool.give_back_state(slot);
        }
        self.states.fleeting = None;
        self.computed = 0;
        self.remembered = 0;
        self.prefix = self.root;
    }

    /// Gives everything back and takes what is known.
    pub(in crate::engine) fn start_over(&mut self, pool: &mut BlockPool) {
        self.give_back(pool);
        self.take_known(pool);
    }

    /// Blocks of both kinds that it would have to take for all of its tokens.
    pub(in crate::engine) fn missing(&self, pool: &BlockPool) -> [usize; 2] {
        let len = self.tokens.len();
        let all = len.div_ceil(pool.block_size());
        let windows = match pool.has_windows() {
            true => all - pool.first_seen(len),
            false => 0,
        };
        [
            all.saturating_sub(self.blocks.len()),
            windows.saturating_sub(self.windows.len()),
        ]
    }

    /// Takes blocks for so many more tokens. Gives whether there were enough; if not, it has those that there were.
    pub(in crate::engine) fn take_blocks(&mut self, pool: &mut BlockPool, rows: usize) -> bool {
        let needed = (self.computed + rows).div_ceil(pool.block_size());
        while self.blocks.len() < needed {
            match pool.take() {
                Some(block) => self.blocks.push(block),
                None => return false,
            }
        }
        while pool.has_windows() && self.windows_start + self.windows.len() < needed {
            match pool.take_window() {
                Some(window) => self.windows.push_back(window),
                None => return false,
            }
        }
        true
    }

    /// The block table of layers with a window. In place of blocks that it does not have any more, which nothing that is
    /// used is read from, stand those of the first that it has.
    pub(in crate::engine) fn window_blocks(&self) -> Vec<u32> {
        let Some(first) = self.windows.front() else {
            return Vec::new();
        };
        let gone = std::iter::repeat_n(first, self.windows_start);
        gone.chain(&self.windows).copied().collect()
    }

    /// Up to where its next step may go: the first place for a checkpoint behind what is computed. Those are the last
    /// full block that a sequence with the same tokens could start with, and each so many tokens before.
    pub(in crate::engine) fn next_stop(&self, pool: &BlockPool) -> usize {
        let len = self.tokens.len();
        let Some(distance) = pool.state_distance() else {
            return len;
        };
        let last = (len - 1) / pool.block_size() * pool.block_size();
        let regular = (self.computed / distance + 1) * distance;
        let stops = [regular, last, len].into_iter();
        let next = stops.filter(|stop| (self.computed + 1..=len).contains(stop));
        next.min().unwrap_or(len)
    }

    /// Takes slots for the states behind the last `kept` rows of its next step: 1, or more where some of the rows may be
    /// taken back. Gives whether there were so many.
    pub(in crate::engine) fn take_slots(&mut self, pool: &mut BlockPool, kept: usize) -> bool {
        if !pool.is_recurrent() {
            return true;
        }
        let current = self.states.current;
        let after = &mut self.states.after;
        // The state is written in place, unless others may go on from it.
        after.extend(current.filter(|slot| pool.may_write_state(*slot)));
        while after.len() < kept {
            if let Some(slot) = pool.take_state() {
                after.push(slot);
            } else if let Some(slot) = current.filter(|slot| pool.take_over_state(*slot)) {
                if after.contains(&slot) {
                    break;
                }
                after.push(slot);
            } else {
                break;
            }
        }
        let enough = after.len() >= kept;
        if !enough {
            self.give_back_slots(pool);
        }
        enough
    }

    /// Gives back blocks that no computed token lies in.
    pub(in crate::engine) fn give_back_surplus(&mut self, pool: &mut BlockPool) {
        let used = self.computed.div_ceil(pool.block_size());
        if used < self.blocks.len() {
            pool.give_back(self.blocks.split_off(used));
        }
        while self.windows_start + self.windows.len() > used {
            let Some(window) = self.windows.pop_back() else {
                break;
            };
            pool.give_back_window(window);
        }
    }

    /// Gives back what [`Self::take_slots`] took.
    fn give_back_slots(&mut self, pool: &mut BlockPool) {
        let current = self.states.current;
        let after = self.states.after.drain(..);
        after
            .filter(|slot| Some(*slot) != current)
            .for_each(|slot| {
                pool.give_back_state(slot);
            });
    }

    /// Its state in the next step, after [`Self::take_slots`].
    pub(in crate::engine) fn step_state(&self) -> Option<StepState> {
        let after = self.states.after.clone();
        (!after.is_empty()).then_some(StepState {
            from: self.states.current,
            after,
        })
    }

    /// Takes a step into account that has computed `rows` tokens, of which the first `kept` stay: the others are taken
    /// back, as if they had not been computed. What stays is among the sequence's tokens by now. Full blocks become known
    /// to the pool, and checkpoints where their states were kept.
    ///
    /// If the step has not kept the state behind what stays, the sequence starts over from what is known.
    pub(in crate::engine) fn advance(&mut self, pool: &mut BlockPool, rows: usize, kept: usize) {
        let end = self.computed + rows;
        self.computed += kept;
        let after = std::mem::take(&mut self.states.after);
        // The number of tokens that each of the states is behind.
        let behind: Vec<(usize, u32)> = (end + 1 - after.len()..=end).zip(after).collect();
        let old = self.states.current.take();
        let at = |tokens| behind.iter().find(|(t, _)| *t == tokens).map(|(_, s)| *s);
        self.states.current = at(self.computed);
        if let Some(slot) = old.filter(|old| behind.iter().all(|(_, slot)| slot != old)) {
            let time = pool.give_back_state(slot);
            if let Some(fleeting) = self.states.fleeting.as_mut().filter(|f| f.0 == slot) {
                fleeting.1 = time;
            }
        }
        let size = pool.block_size();
        while (self.remembered + 1) * size <= self.computed {
            let start = self.remembered * size;
            let tokens = self.named(start..start + size);
            let block = self.blocks[self.remembered];
            let (prefix, block) = pool.remember(self.prefix, block, &tokens);
            let window = self.windows.get(self.remembered - self.windows_start);
            if let Some((block, window)) = block.zip(window) {
                pool.keep_window(block, *window);
            }
            self.prefix = prefix;
            self.remembered += 1;
            if let Some((block, slot)) = block.zip(at(start + size)) {
                self.keep_state(pool, block, slot);
            }
        }
        while self.windows_start < pool.first_seen(self.computed) {
            let Some(window) = self.windows.pop_front() else {
                break;
            };
            pool.give_back_window(window);
            self.windows_start += 1;
        }
        for (_, slot) in &behind {
            if Some(*slot) != self.states.current {
                let time = pool.give_back_state(*slot);
                if let Some(fleeting) = self.states.fleeting.as_mut().filter(|f| f.0 == *slot) {
                    fleeting.1 = time;
                }
            }
        }
        if pool.is_recurrent() && self.states.current.is_none() {
            self.start_over(pool);
        }
    }

    /// Makes a slot the checkpoint behind its last remembered block.
    fn keep_state(&mut self, pool: &mut BlockPool, block: u32, slot: u32) {
        if !pool.keep_state(block, slot) {
            return;
        }
        let tokens = self.remembered * pool.block_size();
        let regular = pool
            .state_distance()
            .is_some_and(|d| tokens.is_multiple_of(d));
        if regular
            || tokens == self.prompt.saturating_sub(1) / pool.block_size() * pool.block_size()
        {
            return;
        }
        if let Some((slot, since)) = self.states.fleeting.replace((slot, 0)) {
            pool.drop_state(slot, since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::api::{Request, SamplingOptions, Ticket};
    use crate::engine::handle::Waiting;
    use crate::engine::media::MediaStore;
    use std::time::Instant;

    fn sequence(prompt: &[u32]) -> Sequence {
        let waiting = Waiting {
            id: 1,
            request: Request::new(prompt.to_vec(), SamplingOptions::greedy()),
            events: Ticket::new(1).1,
            arrived: Instant::now(),
            breakers: std::sync::Arc::default(),
        };
        Sequence::new(waiting, &mut MediaStore::new())
    }

    #[test]
    fn what_is_told_of_a_prompt_bounds_its_steps() {
        let mut sequence = sequence(&[5; 20]);
        assert_eq!(sequence.telling_at_most(3, 20), 20);
        sequence.telling = Some(crate::engine::sequence::Telling { top: 0, done: 0 });
        assert_eq!(sequence.told_by(8), 0..8);
        assert_eq!(sequence.telling_at_most(3, 8), 3);
        assert_eq!(sequence.telling_at_most(0, 8), 0);
        // The last token has none behind it.
        assert_eq!(sequence.told_by(20), 0..19);
        assert_eq!(sequence.telling_at_most(19, 20), 20);
        // It lost its blocks: what was told is computed at once, and not told again.
        sequence.tell(vec![]);
        sequence.telling.as_mut().unwrap().done = 6;
        assert_eq!(sequence.told_by(8), 6..8);
        assert_eq!(sequence.telling_at_most(1, 8), 7);
        assert_eq!(sequence.told_by(5).len(), 0);
        assert_eq!(sequence.telling_at_most(0, 5), 5);
        let mut pool = BlockPool::new(8, 4, true);
        sequence.computed = 4;
        assert!(sequence.take_blocks(&mut pool, 16));
        sequence.advance(&mut pool, 16, 16);
        sequence.start_over(&mut pool);
        assert_eq!(
            sequence.computed, 4,
            "as far as it was told, in whole blocks"
        );
    }

    /// What a model remembers: the state in a slot is all tokens that it has seen.
    struct Model {
        slots: Vec<Vec<u32>>,
        random: u32,
    }

    impl Model {
        fn random(&mut self, below: usize) -> usize {
            self.random = self
                .random
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223);
            (self.random >> 16) as usize % below
        }

        /// Computes `rows` behind what is computed, as far as its tokens go: drafts behind them.
        fn step(&mut self, sequence: &Sequence, drafts: &[u32], rows: usize) {
            let StepState { from, after } = sequence.step_state().unwrap();
            let mut state = from.map_or(Vec::new(), |slot| self.slots[slot as usize].clone());
            assert_eq!(state, sequence.tokens[..sequence.computed]);
            let tokens = sequence.tokens.iter().chain(drafts);
            for (row, token) in tokens.skip(sequence.computed).take(rows).enumerate() {
                state.push(*token);
                if let Some(i) = (row + after.len()).checked_sub(rows) {
                    self.slots[after[i] as usize] = state.clone();
                }
            }
        }
    }

    /// Drafts of random lengths of which random parts are accepted: states and known prefixes never have seen a token
    /// that was taken back.
    #[test]
    fn rows_that_are_taken_back_leave_nothing_behind() {
        let mut pool = BlockPool::new(64, 4, true).with_states(12, 16);
        let mut model = Model {
            slots: vec![Vec::new(); 12],
            random: 1,
        };
        let mut shared = 0;
        for round in 0..60 {
            let prompt: Vec<u32> = (0..1 + model.random(40) as u32)
                .map(|i| i + round % 2)
                .collect();
            let mut sequence = sequence(&prompt);
            sequence.take_known(&mut pool);
            let mut cached = sequence.computed;
            while sequence.tokens.len() < 60 {
                let reading = sequence.pending() > 1;
                let drafts: Vec<u32> = match reading {
                    true => Vec::new(),
                    false => (0..model.random(5))
                        .map(|_| model.random(3) as u32)
                        .collect(),
                };
                let rows = sequence.next_stop(&pool) - sequence.computed + drafts.len();
                while sequence.blocks.len() * 4 < sequence.computed + rows {
                    sequence.blocks.push(pool.take().unwrap());
                }
                assert!(sequence.take_slots(&mut pool, 1 + drafts.len()));
                model.step(&sequence, &drafts, rows);
                let accepted = model.random(drafts.len() + 1);
                sequence.tokens.extend(&drafts[..accepted]);
                sequence.advance(&mut pool, rows, rows - drafts.len() + accepted);
                if sequence.pending() == 0 {
                    sequence.tokens.push(model.random(3) as u32);
                }
                if model.random(20) == 0 {
                    sequence.start_over(&mut pool);
                    cached = cached.max(sequence.computed);
                }
            }
            shared += usize::from(cached > 0);
            sequence.give_back(&mut pool);
            assert_eq!((pool.held(), pool.states().held()), (0, 0));
        }
        assert!(
            shared >= 20,
            "{shared} of 60 sequences began with what others left"
        );
    }

    #[test]
    fn without_the_state_behind_what_stays_a_sequence_starts_over() {
        let mut pool = BlockPool::new(4, 4, true).with_states(3, 4);
        let mut sequence = sequence(&[1, 2, 3, 4, 5]);
        sequence.blocks = vec![pool.take().unwrap(), pool.take().unwrap()];
        assert!(sequence.take_slots(&mut pool, 1));
        sequence.advance(&mut pool, 4, 4);
        assert!(sequence.take_slots(&mut pool, 1));
        sequence.tokens.push(6);
        sequence.advance(&mut pool, 3, 2);
        assert_eq!((sequence.computed, sequence.blocks.len()), (4, 1));
    }
}
