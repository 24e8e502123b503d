//! A request in the engine, and its course as metrics.

use super::prepare::Prepared;
use crate::completion::{Completion, Output, PromptProgress, Took};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::from_failure;
use std::sync::Arc;
use std::time::Instant;
use worker::http::ApiError;

/// A completion that tells the metrics what happens to it. Dropping it cancels the request.
pub struct Generation {
    completion: Completion,
    app: Arc<App>,
    arrived: Instant,
    /// When the engine chose the last token that was counted.
    last_token: Option<Instant>,
}

impl Generation {
    /// Submits a request.
    ///
    /// # Errors
    /// The engine's refusal.
    pub fn submit(app: &Arc<App>, model: &TextModel, prepared: Prepared) -> Result<Self, ApiError> {
        let arrived = Instant::now();
        let prompt_tokens = prepared.request.prompt.len();
        let ticket = model
            .backend
            .submit(prepared.request)
            .map_err(|e| from_failure(&e))?;
        let tokenizer = model.tokenizer.clone();
        Ok(Self {
            completion: Completion::new(ticket, tokenizer, prompt_tokens, prepared.text),
            app: app.clone(),
            arrived,
            last_token: None,
        })
    }

    /// What it took so far.
    pub fn took(&self) -> Took {
        self.completion.took()
    }

    /// How much of its prompt is computed.
    pub fn progress(&self) -> PromptProgress {
        self.completion.progress()
    }

    /// The next thing that happens; `None` after the end.
    pub async fn next(&mut self) -> Option<Output> {
        let output = self.completion.next().await?;
        let metrics = &self.app.metrics;
        match &output {
            Output::Started(_) => metrics.started(self.completion.timings().queued),
            Output::Progress(_) => {}
            Output::Delta(delta) => {
                // By the engine's clock: a slow client or a text that waits takes nothing from the engine's speed.
                for token in &delta.tokens {
                    match self.last_token.replace(token.at) {
                        None => {
                            metrics.first_token(token.at.saturating_duration_since(self.arrived))
                        }
                        Some(last) => metrics.next_token(token.at - last),
                    }
                }
            }
            Output::Finished(finish) => metrics.finished(finish.timings.total()),
            Output::Failed(_) => metrics.finished(self.arrived.elapsed()),
        }
        Some(output)
    }
}
