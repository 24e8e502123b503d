//! Slots: what a client sees of the sequences that run at once.

use std::path::PathBuf;

/// What to do with a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotAction {
    /// Write what is known of its tokens to a file.
    Save(PathBuf),
    /// Make what a file has known again.
    Restore(PathBuf),
    /// Forget what is known of its tokens.
    Erase,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotDone {
    /// Tokens that were saved, restored or forgotten.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What a slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotStatus {
    /// Its number.
    pub id: usize,
    /// The request that it has now, by its ticket's number.
    pub request: Option<u64>,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Tokens of that request, or of the last one.
    pub tokens: usize,
    /// Tokens of that request's prompt.
    pub prompt: usize,
    /// Tokens of that request that are computed.
    pub computed: usize,
    /// Tokens that it has generated.
    pub generated: usize,
}
