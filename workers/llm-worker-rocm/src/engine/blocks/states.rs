//! Slots of recurrent state.

use super::BlockPool;
use crate::engine::places::Places;

impl BlockPool {
    /// Whether sequences have such states.
    pub(in crate::engine) fn is_recurrent(&self) -> bool {
        self.states.total() > 0
    }

    /// Its slots.
    pub(in crate::engine) fn states(&self) -> &Places {
        &self.states
    }

    /// Tokens between the checkpoints of a long prompt, if states are kept at all.
    pub(in crate::engine) fn state_distance(&self) -> Option<usize> {
        (self.keep && self.is_recurrent()).then_some(self.state_distance)
    }

    /// Takes a slot, the least recently used checkpoint if none is free.
    pub(in crate::engine) fn take_state(&mut self) -> Option<u32> {
        let (slot, block) = self.states.take()?;
        if let Some(block) = block {
            self.blocks[block as usize].state = None;
        }
        Some(slot)
    }

    /// Whether the only holder of a slot may write to it: it is no checkpoint.
    pub(in crate::engine) fn may_write_state(&self, slot: u32) -> bool {
        !self.states.is_shared(slot) && self.states.block(slot).is_none()
    }

    /// Gives up a checkpoint for its only holder. Gives whether that was possible.
    pub(in crate::engine) fn take_over_state(&mut self, slot: u32) -> bool {
        let possible = !self.states.is_shared(slot);
        if possible {
            self.drop_checkpoint(slot);
        }
        possible
    }

    /// Makes a held slot the checkpoint behind a known block. Gives whether it became that: there may be one already.
    pub(in crate::engine) fn keep_state(&mut self, block: u32, slot: u32) -> bool {
        let state = &mut self.blocks[block as usize].state;
        let first = state.is_none();
        if first {
            *state = Some(slot);
            self.states.attach(slot, block);
        }
        first
    }

    /// Ends one hold of a slot. Gives the time of this use.
    pub(in crate::engine) fn give_back_state(&mut self, slot: u32) -> u64 {
        self.states.give_back(slot)
    }

    /// Gives up a checkpoint that nobody has used since.
    pub(in crate::engine) fn drop_state(&mut self, slot: u32, since: u64) {
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
