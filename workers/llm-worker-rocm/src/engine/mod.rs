//! The engine: one thread that runs one model for many requests at once. [`api`] is its border.

pub mod api;
mod handle;
mod llama;
mod sampler;

pub use llama::{LlamaConfig, LlamaEngine};
pub use sampler::{Sampler, SamplingOptions};

use candle_core::{Device, Tensor};
use worker::Result;

/// A causal language model with its key-value cache for one sequence.
pub trait Engine: Send {
    /// Runs `tokens` at positions `position..position + tokens.len()` and returns the logits after the last one:
    /// shape `(vocabulary,)`, on the engine's device.
    ///
    /// The cache must hold exactly the positions before `position`; position 0 starts a new sequence.
    ///
    /// # Errors
    /// [`worker::Error::Candle`] if the device fails.
    fn forward(&mut self, tokens: &[u32], position: usize) -> Result<Tensor>;

    /// The same with the logits after every token: shape `(tokens, vocabulary)`.
    ///
    /// # Errors
    /// Those of [`Engine::forward`].
    fn forward_all(&mut self, tokens: &[u32], position: usize) -> Result<Tensor>;

    /// Longest sequence in tokens, prompt and answer together.
    fn context_length(&self) -> usize;

    /// Number of tokens that have an embedding.
    fn vocab_size(&self) -> usize;

    /// Where the weights are.
    fn device(&self) -> &Device;
}
