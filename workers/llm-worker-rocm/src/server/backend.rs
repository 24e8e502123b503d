//! The engine as the server sees it, and a text model around it.

use crate::chat::ChatTemplate;
use crate::embedding::EmbeddingModel;
use crate::engine::api::{Event, Failure, Request, SamplingOptions, Status, Ticket};
use crate::engine::Engine;
use crate::grammar::Grammars;
use crate::tokenizer::Tokenizer;
use crate::tools::OutputFormat;
use std::sync::Arc;
use std::time::Duration;
use worker::http::ApiError;
use worker::serve::{self, Figure, Served};
use worker::Error;

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
    /// Most requests that are computed at once.
    pub parallel: usize,
    grammars: Result<Grammars, String>,
}

impl TextModel {
    /// Puts a model together; set [`Self::parallel`] if the engine has a limit.
    pub fn new(
        backend: Arc<dyn Backend>,
        tokenizer: Arc<Tokenizer>,
        template: ChatTemplate,
    ) -> Self {
        Self {
            backend,
            format: OutputFormat::of(&template),
            parallel: usize::MAX,
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

impl Served for Loaded {
    /// One forward pass.
    fn warm_up(&self) -> worker::Result<()> {
        let Some(text) = &self.text else {
            return Ok(());
        };
        let failed =
            |reason: String| Error::Runtime(format!("the first forward pass failed: {reason}"));
        let mut request = Request::new(vec![0], SamplingOptions::greedy());
        request.max_tokens = Some(1);
        let mut ticket = text
            .backend
            .submit(request)
            .map_err(|e| failed(e.to_string()))?;
        loop {
            match ticket.events.blocking_recv() {
                Some(Event::Finished(_)) => return Ok(()),
                Some(Event::Failed(failure)) => return Err(failed(failure.to_string())),
                Some(_) => {}
                None => return Err(failed("the engine ended".to_string())),
            }
        }
    }

    fn status(&self) -> serve::Status {
        let Some(text) = &self.text else {
            return serve::Status::default();
        };
        let status = text.backend.status();
        serve::Status {
            busy: status.waiting > 0 || status.running >= text.parallel,
            lost: status.lost,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let text = self.text.as_ref();
        text.map_or_else(Vec::new, |text| {
            super::metrics::figures(&text.backend.status())
        })
    }

    fn stop(&self, grace: Duration) {
        if let Some(text) = &self.text {
            text.backend.stop(grace);
        }
    }
}
