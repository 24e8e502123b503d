//! What becomes of the blocks that the cache keeps for equal beginnings, for whoever wants to know which prompts would
//! find theirs.

/// What became of such blocks. Each holds the keys and values of [`block_size`](BlockEvent::Stored::block_size) tokens
/// behind all tokens before them, and is known by a hash of all of these: equal hashes mean equal tokens from the start
/// on, also in another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockEvent {
    /// Blocks became known, each behind the one before.
    Stored {
        /// Their hashes; none is 0.
        hashes: Vec<u64>,
        /// The block before the first one; `None` at the beginning of a prompt.
        parent: Option<u64>,
        /// Their tokens.
        tokens: Vec<u32>,
        /// Tokens of a block.
        block_size: usize,
    },
    /// Blocks are forgotten.
    Removed {
        /// Their hashes.
        hashes: Vec<u64>,
    },
    /// All blocks are forgotten.
    Cleared,
}

/// Hears of blocks from the engine's thread.
pub trait BlockListener: Send {
    /// Takes what became of blocks since the last call. The engine waits for it, so it must not.
    fn tell(&mut self, events: Vec<BlockEvent>);
}
