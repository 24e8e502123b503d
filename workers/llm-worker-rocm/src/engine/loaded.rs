//! A model that is loaded.

use super::forward::Forward;
use crate::media::Processor;
use crate::tokenizer::Tokenizer;
use std::sync::Arc;
use worker::{Error, Result};

/// Loads a model again, with the one that guesses for it.
pub type Reload = Box<dyn Fn() -> Result<LoadedModel> + Send>;

/// A model on its device, ready for [`Engine::start`](super::Engine::start).
pub struct LoadedModel {
    /// The file's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The forward pass.
    pub forward: Box<dyn Forward>,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
    /// What makes pictures and prompts with them, or why the model takes none.
    pub pictures: std::result::Result<Arc<Processor>, String>,
    /// A smaller model that guesses for it, for [`DraftSource::Model`](super::api::DraftSource).
    pub draft: Option<Box<dyn Forward>>,
}

impl LoadedModel {
    /// The model with a smaller one that guesses for it.
    ///
    /// # Errors
    /// [`Error::Usage`] if the other one has another vocabulary, of which a few tokens more or less do not count, or is
    /// of a family whose tokens cannot be taken back.
    pub fn with_draft(mut self, draft: Self) -> Result<Self> {
        let own = |model: &Self| model.forward.vocab_size().min(model.tokenizer.vocab_size());
        let common = own(&self).min(own(&draft)) as u32;
        let (a, b) = (&self.tokenizer, &draft.tokenizer);
        let differs = |token: &u32| {
            a.token_bytes(*token) != b.token_bytes(*token)
                || a.control_text(*token) != b.control_text(*token)
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let other = (0..common).find(differs);
        if let Some(token) = other {
            return Err(Error::Usage(format!(
                "the draft model has another vocabulary: token {token} is {:?} to it and {:?} to the model; take one of the same family",
                text(b.token_bytes(token)),
                text(a.token_bytes(token))
            )));
        }
        if !draft.forward.can_take_back() {
            return Err(Error::Usage(
                "wrong guesses of the draft model cannot be taken back; take one of another family"
                    .to_string(),
            ));
        }
        self.draft = Some(draft.forward);
        Ok(self)
    }
}
