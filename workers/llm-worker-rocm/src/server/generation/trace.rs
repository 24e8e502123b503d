//! The course of an answer, for the trace of its request.
//!
//! Names are those of OpenTelemetry's conventions for generative models
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>), and for latencies those of vLLM's traces.

use crate::completion::{Output, StopReason, Usage};
use crate::engine::api::{Failure, Request};
use crate::server::error::from_failure;
use std::time::Instant;
use worker::observe::{Part, RequestScope};

/// The course of an answer. It becomes a part of the trace when this is dropped.
pub(super) struct Trace {
    scope: RequestScope,
    model: String,
    max_tokens: Option<usize>,
    temperature: f32,
    top_p: Option<f32>,
    top_k: Option<usize>,
    usage: Usage,
    arrived: Instant,
    /// When it left the queue.
    started: Option<Instant>,
    /// When its first token was chosen.
    first: Option<Instant>,
    /// When its last one was.
    ended: Option<Instant>,
    /// Why it ended; `None` while it goes on.
    outcome: Option<Result<&'static str, Failure>>,
}

impl Trace {
    /// The course of an answer that is about to be asked for; `None` where nobody wants it.
    pub fn wanted(model: &str, request: &Request, arrived: Instant) -> Option<Box<Self>> {
        let scope = RequestScope::current().filter(RequestScope::is_traced)?;
        Some(Box::new(Self {
            scope,
            model: model.to_string(),
            max_tokens: request.max_tokens,
            temperature: request.sampling.temperature,
            top_p: request.sampling.top_p,
            top_k: request.sampling.top_k,
            usage: Usage::default(),
            arrived,
            started: None,
            first: None,
            ended: None,
            outcome: None,
        }))
    }

    /// Takes what happened, and what it took so far.
    pub fn take(&mut self, output: &Output, usage: Usage) {
        self.usage = usage;
        match output {
            Output::Started(_) => self.started = Some(Instant::now()),
            Output::Progress(_) | Output::Prompt(_) => {}
            Output::Delta(delta) => {
                self.first = self.first.or(delta.tokens.first().map(|token| token.at));
            }
            Output::Finished(finish) => {
                self.usage = finish.usage;
                let started = self.arrived + finish.timings.queued;
                let first = started + finish.timings.prefill;
                self.started = Some(started);
                self.first = (finish.usage.completion_tokens > 0).then_some(first);
                self.ended = Some(first + finish.timings.decode);
                self.outcome = Some(Ok(match finish.reason {
                    StopReason::End | StopReason::StopString(_) => "stop",
                    StopReason::Length | StopReason::Context => "length",
                }));
            }
            Output::Failed(failure) => self.outcome = Some(Err(failure.clone())),
        }
    }

    /// What is known of it now as a part of the trace: what goes on lasts until now.
    fn part(&self) -> Part {
        let operation = operation(self.scope.route());
        let count = |count: usize| count as i64;
        let end = self.ended.unwrap_or_else(Instant::now);
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let left_queue = self.started.unwrap_or(end);
        let mut part = Part::new(format!("{operation} {}", self.model), self.arrived, end)
            .with("gen_ai.operation.name", operation)
            .with("gen_ai.provider.name", "candle-rocm")
            .with("gen_ai.request.model", self.model.clone())
            .with("gen_ai.response.model", self.model.clone())
            .with("gen_ai.request.temperature", f64::from(self.temperature))
            .with_some("gen_ai.request.max_tokens", self.max_tokens.map(count))
            .with_some("gen_ai.request.top_p", self.top_p.map(f64::from))
            .with_some("gen_ai.request.top_k", self.top_k.map(count))
            .with("gen_ai.usage.input_tokens", count(self.usage.prompt_tokens))
            .with(
                "gen_ai.usage.cache_read.input_tokens",
                count(self.usage.cached_tokens),
            )
            .with(
                "gen_ai.usage.output_tokens",
                count(self.usage.completion_tokens),
            )
            .with(
                "gen_ai.latency.time_in_queue",
                seconds(self.arrived, left_queue),
            )
            .with("gen_ai.latency.e2e", seconds(self.arrived, end))
            .part(Part::new("queue", self.arrived, left_queue));
        if let Some(started) = self.started {
            let read = self.first.unwrap_or(end);
            part = part
                .with(
                    "gen_ai.latency.time_in_model_prefill",
                    seconds(started, read),
                )
                .with(
                    "gen_ai.latency.time_in_model_inference",
                    seconds(started, end),
                )
                .part(Part::new("prompt", started, read));
        }
        if let Some(first) = self.first {
            part = part
                .with(
                    "gen_ai.latency.time_to_first_token",
                    seconds(self.arrived, first),
                )
                .with("gen_ai.latency.time_in_model_decode", seconds(first, end))
                .event("first token", first)
                .part(Part::new("answer", first, end));
        }
        match &self.outcome {
            Some(Ok(reason)) => part.with_texts("gen_ai.response.finish_reasons", &[reason]),
            Some(Err(failure)) => {
                let error = from_failure(failure);
                part.failed(error.code, error.message)
            }
            None => part.failed("cancelled", "nobody waits for the answer any more"),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.scope.trace(self.part());
    }
}

/// What a route does, in the words of the conventions.
fn operation(route: &str) -> &'static str {
    let is_chat = ["chat", "messages", "responses"].map(|word| route.contains(word));
    match is_chat.contains(&true) {
        true => "chat",
        false => "text_completion",
    }
}

#[cfg(test)]
mod tests {
    use super::operation;

    #[test]
    fn routes_of_chats() {
        for chat in [
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/responses",
            "/api/chat",
        ] {
            assert_eq!(operation(chat), "chat");
        }
        for text in ["/v1/completions", "/api/generate", "/v1/jobs"] {
            assert_eq!(operation(text), "text_completion");
        }
    }
}
