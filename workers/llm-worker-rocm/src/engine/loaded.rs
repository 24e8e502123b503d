//! A model that is loaded.

use super::forward::Forward;
use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// A model on its device, ready for [`Engine::start`](super::Engine::start).
pub struct LoadedModel {
    /// The file's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The forward pass.
    pub forward: Box<dyn Forward>,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
}
