//! What answers of several kinds have in common on the wire.

use crate::completion::{Finish, StopReason, TextToken, Timings, Usage};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::generation::{End, SamplingFields};
use chrono::Utc;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;
use worker::http::sse::{self, Frame};

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
                "candle-rocm-{}-{}",
                env!("CARGO_PKG_VERSION"),
                app.frame.identity.device.name
            ),
            seed: 0,
            include_usage: fields.include_usage(),
            return_tokens: fields.return_tokens.unwrap_or(false),
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

    /// A chunk with a choice, the last of the choice with its end.
    pub fn chunk(&self, choice: Value, end: Option<&End>) -> Frame {
        let mut chunk = self.with(json!([choice]));
        if self.include_usage {
            chunk.insert("usage".to_string(), Value::Null);
        }
        if let Some(end) = end {
            chunk.insert("timings".to_string(), timings_json(&end.finish));
            chunk.insert("seed".to_string(), json!(self.seed));
        }
        sse::data(&chunk)
    }

    /// The chunk with what all choices used, if that was asked for.
    pub fn usage_chunk(&self, usage: &Usage) -> Option<Frame> {
        self.include_usage.then(|| {
            let mut chunk = self.with(json!([]));
            chunk.insert("usage".to_string(), usage_json(usage));
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

/// Times of a request, in the form of llama.cpp's server.
pub fn timings_json(finish: &Finish) -> Value {
    let Finish {
        usage,
        timings: Timings {
            queued,
            prefill,
            decode,
        },
        drafts,
        ..
    } = finish;
    let ms = |time: &Duration| time.as_secs_f64() * 1e3;
    let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let each = |time: &Duration, count: usize| match count {
        0 => 0.0,
        count => ms(time) / count as f64,
    };
    let mut timings = json!({
        "queue_ms": ms(queued),
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": ms(prefill),
        "prompt_per_token_ms": each(prefill, computed),
        "prompt_per_second": finish.timings.prefill_per_second(usage),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": ms(decode),
        "predicted_per_token_ms": each(decode, usage.completion_tokens.saturating_sub(1)),
        "predicted_per_second": finish.timings.decode_per_second(usage),
    });
    if drafts.drafted > 0 {
        timings["draft_n"] = json!(drafts.drafted);
        timings["draft_n_accepted"] = json!(drafts.accepted);
    }
    timings
}

#[cfg(test)]
mod tests {
    use super::*;
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
