//! A request in the engine, and its course as metrics.

use super::prepare::Prepared;
use crate::completion::{Completion, Output};
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

    /// The next thing that happens; `None` after the end.
    pub async fn next(&mut self) -> Option<Output> {
        let output = self.completion.next().await?;
        let metrics = &self.app.metrics;
        match &output {
            Output::Started => metrics.started(self.completion.timings().queued),
            Output::Delta(_) => {
                let now = Instant::now();
                match self.last_token.replace(now) {
                    None => metrics.first_token(now - self.arrived),
                    Some(last) => metrics.next_token(now - last),
                }
            }
            Output::Finished(_) | Output::Failed(_) => metrics.finished(self.arrived.elapsed()),
        }
        Some(output)
    }
}
