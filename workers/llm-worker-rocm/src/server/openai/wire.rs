//! What answers of several kinds have in common on the wire.

use super::verbose::Verbose;
use crate::completion::{Finish, PromptProgress, StopReason, TextToken, Took, Usage};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::generation::{End, SamplingFields};
use chrono::Utc;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;
use worker::http::sse::{self, Frame};

/// The name of what is told of what the model was given.
pub const VERBOSE: &str = "__verbose";

/// What a reply and all chunks of it say.
pub struct Wire {
    /// The model that answers.
    pub model: Arc<TextModel>,
    id: String,
    object: &'static str,
    created: i64,
    model_name: String,
    fingerprint: String,
    /// The first answer's seed.
    pub seed: u64,
    include_usage: bool,
    return_tokens: bool,
    /// What is told of what the model was given, if it is.
    pub verbose: Option<Verbose>,
}

impl Wire {
    /// A new reply. `kind` is what its id begins with, and the name of its type.
    pub fn new(
        app: &App,
        model: Arc<TextModel>,
        fields: &SamplingFields,
        (id_prefix, object): (&str, &'static str),
    ) -> Self {
        Self {
            model,
            id: format!("{id_prefix}-{}", Uuid::new_v4().simple()),
            object,
            created: Utc::now().timestamp(),
            model_name: app.options.model.clone(),
            fingerprint: format!(
                "b{}-candle-rocm-{}",
                env!("CARGO_PKG_VERSION"),
                app.frame.identity.device.name
            ),
            seed: 0,
            include_usage: fields.include_usage(),
            return_tokens: fields.return_tokens.unwrap_or(false),
            verbose: None,
        }
    }

    /// A choice, or what it goes on with: `content` under its name, the tokens behind it, and why it ended if it did.
    pub fn choice(
        &self,
        index: usize,
        (name, content): (&str, Value),
        logprobs: Value,
        tokens: &[TextToken],
        end: Option<&End>,
    ) -> Value {
        let mut choice = json!({
            "index": index,
            name: content,
            "logprobs": logprobs,
            "finish_reason": end.map(finish_reason),
        });
        if self.return_tokens {
            choice["tokens"] = tokens.iter().map(|token| token.id).collect();
        }
        choice
    }

    /// A whole reply. The timings are those of `first`, the first of its choices.
    pub fn whole(&self, choices: Value, usage: &Usage, first: Option<&Finish>) -> Value {
        let mut body = self.with(choices);
        body.insert("usage".to_string(), usage_json(usage));
        body.insert("timings".to_string(), json!(first.map(timings_json)));
        body.insert("seed".to_string(), json!(self.seed));
        Value::Object(body)
    }

    /// The last chunk of a choice, with its end.
    pub fn last(&self, index: usize, choice: Value, end: &End) -> Frame {
        let mut chunk = self.part_json(choice, Some(&end.finish.took()));
        chunk.insert("seed".to_string(), json!(self.seed));
        if let Some(verbose) = &self.verbose {
            let told = verbose.json(&self.model, index, self.seed, &[]);
            chunk.insert(VERBOSE.to_string(), told);
        }
        sse::data(&chunk)
    }

    /// A chunk in the midst of a choice, with what the answer took so far if that is to be told.
    pub fn part(&self, choice: Value, took: Option<&Took>) -> Frame {
        sse::data(&self.part_json(choice, took))
    }

    fn part_json(&self, choice: Value, took: Option<&Took>) -> Map<String, Value> {
        let mut chunk = self.with(json!([choice]));
        if self.include_usage {
            chunk.insert("usage".to_string(), Value::Null);
        }
        if let Some(took) = took {
            chunk.insert("timings".to_string(), timings_of(took));
        }
        chunk
    }

    /// A chunk that tells how much of the prompt is computed.
    pub fn progress(&self, choice: Value, progress: &PromptProgress) -> Frame {
        let mut chunk = self.part_json(choice, None);
        chunk.insert("prompt_progress".to_string(), progress_json(progress));
        sse::data(&chunk)
    }

    /// The chunk with what all choices used, if that was asked for, and what the first of them took.
    pub fn usage_chunk(&self, usage: &Usage, first: Option<&Took>) -> Option<Frame> {
        self.include_usage.then(|| {
            let mut chunk = self.with(json!([]));
            chunk.insert("usage".to_string(), usage_json(usage));
            if let Some(took) = first {
                chunk.insert("timings".to_string(), timings_of(took));
            }
            sse::data(&chunk)
        })
    }

    fn with(&self, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        let entries = [
            ("id", json!(self.id)),
            ("object", json!(self.object)),
            ("created", json!(self.created)),
            ("model", json!(self.model_name)),
            ("system_fingerprint", json!(self.fingerprint)),
            ("choices", choices),
        ];
        map.extend(entries.map(|(name, value)| (name.to_string(), value)));
        map
    }
}

/// OpenAI's word for why an answer ended.
fn finish_reason(end: &End) -> &'static str {
    match end.finish.reason {
        StopReason::Length | StopReason::Context => "length",
        StopReason::End | StopReason::StopString(_) if end.has_calls => "tool_calls",
        StopReason::End | StopReason::StopString(_) => "stop",
    }
}

/// Tokens of a request, in OpenAI's form.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

/// How much of a prompt is computed, in the form of llama.cpp's server.
pub(in crate::server) fn progress_json(progress: &PromptProgress) -> Value {
    json!({
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.computed,
        "time_ms": milliseconds(progress.elapsed),
    })
}

/// Times of a request, in the form of llama.cpp's server.
pub(in crate::server) fn timings_json(finish: &Finish) -> Value {
    timings_of(&finish.took())
}

/// The same of a request that may go on.
pub(in crate::server) fn timings_of(took: &Took) -> Value {
    let Took {
        usage,
        timings: times,
        drafts,
    } = took;
    let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let each = |time: Duration, count: usize| match count {
        0 => 0.0,
        count => milliseconds(time) / count as f64,
    };
    let mut timings = json!({
        "queue_ms": milliseconds(times.queued),
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": milliseconds(times.prefill),
        "prompt_per_token_ms": each(times.prefill, computed),
        "prompt_per_second": times.prefill_per_second(usage),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": milliseconds(times.decode),
        "predicted_per_token_ms": each(times.decode, usage.completion_tokens.saturating_sub(1)),
        "predicted_per_second": times.decode_per_second(usage),
    });
    if drafts.drafted > 0 {
        timings["draft_n"] = json!(drafts.drafted);
        timings["draft_n_accepted"] = json!(drafts.accepted);
    }
    timings
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::Timings;
    use crate::engine::api::DraftCount;

    #[test]
    fn timings_tell_of_guesses_where_there_were_any() {
        let timings = |drafted: usize, accepted: usize| {
            timings_json(&Finish {
                reason: StopReason::End,
                slot: None,
                truncated: false,
                usage: Usage::default(),
                timings: Timings::default(),
                drafts: DraftCount { drafted, accepted },
            })
        };
        let guessed = timings(9, 4);
        assert_eq!(
            (&guessed["draft_n"], &guessed["draft_n_accepted"]),
            (&json!(9), &json!(4))
        );
        assert!(timings(0, 0).get("draft_n").is_none());
    }
}
