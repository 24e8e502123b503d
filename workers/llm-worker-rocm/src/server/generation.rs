//! Requests into the engine, and their course as metrics.

use super::app::App;
use super::backend::TextModel;
use super::error::from_failure;
use crate::completion::{Completion, Output, TextOptions};
use crate::engine::api::{Constraint, Request, SamplingOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::http::ApiError;

/// A request that is checked and ready for the engine.
pub(super) struct Prepared {
    pub prompt: Vec<u32>,
    pub sampling: SamplingOptions,
    pub max_tokens: Option<usize>,
    pub top_logprobs: Option<usize>,
    pub ignore_end: bool,
    pub constraint: Option<Box<dyn Constraint>>,
    pub timeout: Option<Duration>,
    pub text: TextOptions,
}

/// A completion that tells the metrics what happens to it. Dropping it cancels the request.
pub(super) struct Generation {
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
        let prompt_tokens = prepared.prompt.len();
        let request = Request {
            prompt: prepared.prompt,
            max_tokens: prepared.max_tokens,
            sampling: prepared.sampling,
            top_logprobs: prepared.top_logprobs,
            ignore_end: prepared.ignore_end,
            constraint: prepared.constraint,
            deadline: prepared
                .timeout
                .and_then(|timeout| arrived.checked_add(timeout)),
        };
        let ticket = model
            .backend
            .submit(request)
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
