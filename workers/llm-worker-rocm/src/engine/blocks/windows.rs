//! Blocks of layers with a window.

use super::BlockPool;
use crate::engine::places::Places;

impl BlockPool {
    /// Whether such layers have blocks of their own.
    pub(in crate::engine) fn has_windows(&self) -> bool {
        self.windows.total() > 0
    }

    /// These blocks.
    pub(in crate::engine) fn windows(&self) -> &Places {
        &self.windows
    }

    /// The first block that such a layer sees from behind so many tokens.
    pub(in crate::engine) fn first_seen(&self, tokens: usize) -> usize {
        tokens.saturating_sub(self.left) / self.block_size
    }

    /// Takes a block, one of the least recently used prefix if none is free.
    pub(in crate::engine) fn take_window(&mut self) -> Option<u32> {
        let (window, block) = self.windows.take()?;
        if let Some(block) = block {
            self.blocks[block as usize].window = None;
        }
        Some(window)
    }

    /// Keeps a held block with the known block of the same tokens, unless that has one.
    pub(in crate::engine) fn keep_window(&mut self, block: u32, window: u32) {
        let kept = &mut self.blocks[block as usize].window;
        if kept.is_none() {
            *kept = Some(window);
            self.windows.attach(window, block);
        }
    }

    /// Ends one hold of a block.
    pub(in crate::engine) fn give_back_window(&mut self, window: u32) {
        self.windows.give_back(window);
    }
}
