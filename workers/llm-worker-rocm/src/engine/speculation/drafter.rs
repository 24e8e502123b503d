//! The border to what guesses.

use crate::engine::api::SamplingOptions;
use crate::engine::blocks::{BlockPool, Prefix};
use crate::engine::forward::{Forward, Step};
use candle_core::Result;

/// A sequence whose next tokens are to be guessed.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Ask<'a> {
    pub id: u64,
    /// The empty prefix of its namespace.
    pub root: Prefix,
    /// Its tokens so far.
    pub tokens: &'a [u32],
    /// How many of them were generated.
    pub generated: usize,
    /// How the next ones will be chosen.
    pub sampling: &'a SamplingOptions,
    /// Its blocks, and tokens whose keys and values they have.
    pub blocks: &'a [u32],
    pub computed: usize,
    /// Most guesses that are of use; none while a prompt is read.
    pub most: usize,
    /// Whether its tokens are all that decides: no pictures, and no adapters.
    pub is_plain: bool,
    /// Whether all but its last token are computed.
    pub is_read: bool,
}

/// Guesses what comes next. Wrong guesses cost time and nothing else.
pub(in crate::engine) trait Drafter: Send {
    /// Whether guesses take so little time that they are made for every step, checked or not.
    fn is_free(&self) -> bool;

    /// Whether it follows every step, those that read prompts, too.
    fn reads_steps(&self) -> bool {
        false
    }

    /// A step was computed.
    fn computed(&mut self, step: &Step) {
        let _ = step;
    }

    /// Guesses for each of the sequences, at most as many as it asks for, all of them tokens of the model behind
    /// `forward`.
    ///
    /// # Errors
    /// If the device fails.
    fn guess(&mut self, forward: &mut dyn Forward, asks: &[Ask]) -> Result<Vec<Vec<u32>>>;

    /// A sequence has ended.
    fn forget(&mut self, id: u64);

    /// The memory of a model of its own, if there is one.
    fn memory(&mut self) -> Option<Memory<'_>> {
        None
    }

    /// Gives up what it has of sequences, and the weights and memory of a model of its own.
    fn sleep(&mut self) {}

    /// Takes its model again, if it has one of its own.
    ///
    /// # Errors
    /// If there is none, or no room for its memory.
    fn wake_up(&mut self, model: Option<Box<dyn Forward>>) -> Result<()> {
        let _ = model;
        Ok(())
    }
}

/// A model, and the pool of the places in its memory.
pub(in crate::engine) struct Memory<'a> {
    pub forward: &'a mut dyn Forward,
    pub pool: &'a mut BlockPool,
}
