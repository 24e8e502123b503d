//! A request in the engine, and its course as metrics, log and trace.

use super::prepare::Prepared;
use super::trace::Trace;
use crate::completion::{Completion, Output, PromptProgress, Took};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::from_failure;
use std::sync::Arc;
use std::time::Instant;
use worker::http::ApiError;
use worker::observe::RequestScope;

/// A completion that tells the metrics what happens to it. Dropping it cancels the request.
pub struct Generation {
    completion: Completion,
    app: Arc<App>,
    arrived: Instant,
    /// When the engine chose the last token that was counted.
    last_token: Option<Instant>,
    /// Tokens that the log knows of.
    noted: usize,
    /// Whether another answer tells the log of the prompt.
    shares_prompt: bool,
    /// Its course, where a trace is wanted.
    trace: Option<Box<Trace>>,
    /// Whether its end was counted.
    ended: bool,
}

impl Generation {
    /// Submits a request.
    ///
    /// # Errors
    /// The engine's refusal.
    pub fn submit(app: &Arc<App>, model: &TextModel, prepared: Prepared) -> Result<Self, ApiError> {
        let arrived = Instant::now();
        let prompt_tokens = prepared.request.prompt.len();
        let name = &app.options.model;
        RequestScope::note(|figures| figures.model = Some(name.clone()));
        let trace = Trace::wanted(name, &prepared.request, arrived);
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
            noted: 0,
            shares_prompt: false,
            trace,
            ended: false,
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

    /// Says that the prompt is that of another answer to the same request.
    pub fn share_prompt(&mut self) {
        self.shares_prompt = true;
    }

    /// The next thing that happens; `None` after the end.
    pub async fn next(&mut self) -> Option<Output> {
        let output = self.completion.next().await?;
        self.note(&output);
        if let Some(trace) = &mut self.trace {
            trace.take(&output, self.completion.usage());
        }
        let metrics = &self.app.metrics;
        match &output {
            Output::Started(_) => metrics.started(self.completion.timings().queued),
            Output::Progress(_) | Output::Prompt(_) => {}
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
            Output::Finished(finish) => {
                self.ended = true;
                metrics.answered(finish);
            }
            Output::Failed(_) => {
                self.ended = true;
                metrics.failed(self.arrived.elapsed());
            }
        }
        Some(output)
    }

    /// Notes for the log of the request that fetches the answer what is known of it.
    fn note(&mut self, output: &Output) {
        let (usage, timings) = (self.completion.usage(), self.completion.timings());
        let more = match output {
            Output::Started(_) | Output::Progress(_) | Output::Prompt(_) | Output::Failed(_) => 0,
            Output::Delta(delta) => delta.tokens.len(),
            Output::Finished(finish) => finish.usage.completion_tokens.saturating_sub(self.noted),
        };
        self.noted += more;
        let first = match output {
            Output::Delta(delta) => delta.tokens.first(),
            _ => None,
        };
        let first = first.map(|token| token.at.saturating_duration_since(self.arrived));
        RequestScope::note(|figures| {
            if matches!(output, Output::Started(_)) {
                figures.queued = figures.queued.max(Some(timings.queued));
                if !self.shares_prompt {
                    figures.add_prompt(usage.prompt_tokens, usage.cached_tokens);
                }
            }
            if let (None, Some(first)) = (figures.first_token, first) {
                figures.first_token = Some(first);
            }
            figures.add_answer(more);
        });
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            self.app.metrics.aborted();
        }
    }
}
