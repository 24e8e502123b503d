//! The engine as the server sees it, and a text model around it.

use crate::chat::ChatTemplate;
use crate::embedding::EmbeddingModel;
use crate::engine::api::{Failure, Request, Status, Ticket};
use crate::engine::Engine;
use crate::grammar::Grammars;
use crate::tokenizer::Tokenizer;
use crate::tools::OutputFormat;
use std::sync::Arc;
use std::time::Duration;
use worker::http::ApiError;

/// What generates tokens.
pub trait Backend: Send + Sync {
    /// Puts a request into the queue.
    ///
    /// # Errors
    /// What is wrong with the request, or why nothing is taken now.
    fn submit(&self, request: Request) -> Result<Ticket, Failure>;

    /// The moment's figures.
    fn status(&self) -> Status;

    /// Longest sequence in tokens, prompt and answer together.
    fn context(&self) -> usize;

    /// Takes nothing new, gives running requests `grace` to finish, and returns when all have ended.
    fn stop(&self, grace: Duration);
}

impl Backend for Engine {
    fn submit(&self, request: Request) -> Result<Ticket, Failure> {
        Self::submit(self, request)
    }

    fn status(&self) -> Status {
        Self::status(self)
    }

    fn context(&self) -> usize {
        Self::context(self)
    }

    fn stop(&self, grace: Duration) {
        Self::stop(self, grace);
    }
}

/// A model that answers in text.
pub struct TextModel {
    /// Its engine.
    pub backend: Arc<dyn Backend>,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Its notation of calls and reasoning.
    pub format: OutputFormat,
    grammars: Result<Grammars, String>,
}

impl TextModel {
    /// Puts a model together.
    pub fn new(
        backend: Arc<dyn Backend>,
        tokenizer: Arc<Tokenizer>,
        template: ChatTemplate,
    ) -> Self {
        Self {
            backend,
            format: OutputFormat::of(&template),
            grammars: Grammars::new(&tokenizer).map_err(|e| e.to_string()),
            tokenizer,
            template,
        }
    }

    /// What compiles grammars.
    ///
    /// # Errors
    /// 400 for a model whose vocabulary does not suit them.
    pub fn grammars(&self) -> Result<&Grammars, ApiError> {
        self.grammars
            .as_ref()
            .map_err(|e| ApiError::invalid(format!("this model takes no grammars: {e}")))
    }
}

/// What a server serves.
#[derive(Clone, Default)]
pub struct Loaded {
    /// For completions.
    pub text: Option<Arc<TextModel>>,
    /// For embeddings.
    pub embedding: Option<Arc<EmbeddingModel>>,
}
