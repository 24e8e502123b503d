//! What answers of several kinds have in common on the wire.

use crate::completion::{Finish, StopReason, TextToken, Timings, Usage};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::tokenizer::Tokenizer;
use chrono::Utc;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;
use worker::http::sse::{self, Frames};

/// What stands at the head of every answer and chunk.
#[derive(Debug, Clone)]
pub struct Head {
    id: String,
    object: &'static str,
    created: i64,
    model: String,
    fingerprint: String,
}

impl Head {
    /// The head of a new answer; its id begins with `prefix`.
    pub fn new(app: &App, prefix: &str, object: &'static str) -> Self {
        Self {
            id: format!("{prefix}-{}", Uuid::new_v4().simple()),
            object,
            created: Utc::now().timestamp(),
            model: app.options.model.clone(),
            fingerprint: format!(
                "candle-rocm-{}-{}",
                env!("CARGO_PKG_VERSION"),
                app.options.device.name
            ),
        }
    }

    /// An answer or chunk with these choices.
    pub fn with(&self, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        let entries = [
            ("id", json!(self.id)),
            ("object", json!(self.object)),
            ("created", json!(self.created)),
            ("model", json!(self.model)),
            ("system_fingerprint", json!(self.fingerprint)),
            ("choices", choices),
        ];
        map.extend(entries.map(|(name, value)| (name.to_string(), value)));
        map
    }
}

/// The whole of an answer. The timings are those of `first`, the first of its choices.
pub fn whole(
    head: &Head,
    choices: Value,
    usage: &Usage,
    first: Option<&Finish>,
    seed: u64,
) -> Value {
    let timings = first.map(|finish| timings(&finish.usage, &finish.timings));
    let mut body = head.with(choices);
    body.insert("usage".to_string(), self::usage(usage));
    body.insert("timings".to_string(), json!(timings));
    body.insert("seed".to_string(), json!(seed));
    Value::Object(body)
}

/// Where the chunks of a stream go, and what all of them say.
pub struct Chunks {
    pub model: Arc<TextModel>,
    pub head: Head,
    pub seed: u64,
    pub include_usage: bool,
    pub return_tokens: bool,
    pub frames: Frames,
}

impl Chunks {
    /// Sends a piece of a choice, its last with `finish`.
    pub async fn send(&self, choice: Value, finish: Option<&Finish>) {
        let mut chunk = self.head.with(json!([choice]));
        if self.include_usage {
            chunk.insert("usage".to_string(), Value::Null);
        }
        if let Some(finish) = finish {
            let timings = timings(&finish.usage, &finish.timings);
            chunk.insert("timings".to_string(), timings);
            chunk.insert("seed".to_string(), json!(self.seed));
        }
        self.frames.send(sse::data(&chunk)).await;
    }

    /// Sends what all choices used, if that was asked for.
    pub async fn send_usage(&self, usage: &Usage) {
        if self.include_usage {
            let mut chunk = self.head.with(json!([]));
            chunk.insert("usage".to_string(), self::usage(usage));
            self.frames.send(sse::data(&chunk)).await;
        }
    }
}

/// OpenAI's two words for why an answer ended without a call.
pub fn finish_reason(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::End | StopReason::StopString(_) => "stop",
        StopReason::Length | StopReason::Context => "length",
    }
}

/// Tokens of a request, in OpenAI's form.
pub fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

/// Tokens of all answers to one prompt: the prompt counts once, and as cached where it was for the first answer.
pub fn sum<'a>(usages: impl IntoIterator<Item = &'a Usage>) -> Usage {
    usages
        .into_iter()
        .copied()
        .reduce(|sum, usage| Usage {
            completion_tokens: sum.completion_tokens + usage.completion_tokens,
            ..sum
        })
        .unwrap_or_default()
}

/// Times of a request, in the form of llama.cpp's server.
pub fn timings(usage: &Usage, timings: &Timings) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let each = |time: Duration, count: usize| match count {
        0 => 0.0,
        count => ms(time) / count as f64,
    };
    json!({
        "queue_ms": ms(timings.queued),
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": ms(timings.prefill),
        "prompt_per_token_ms": each(timings.prefill, computed),
        "prompt_per_second": timings.prefill_per_second(usage),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": ms(timings.decode),
        "predicted_per_token_ms": each(timings.decode, usage.completion_tokens.saturating_sub(1)),
        "predicted_per_second": timings.decode_per_second(usage),
    })
}

/// A token as text; half characters show as U+FFFD, control tokens by their names.
pub fn token_text(tokenizer: &Tokenizer, token: u32) -> String {
    match tokenizer.control_text(token) {
        Some(name) => name.to_string(),
        None => String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned(),
    }
}

/// Probabilities of a piece's tokens in the form of chats; the token that ends an answer is no part of it.
pub fn chat_logprobs(tokenizer: &Tokenizer, tokens: &[TextToken]) -> Vec<Value> {
    let entry = |token: u32, logprob: f32| {
        let mut map = Map::new();
        map.insert("token".to_string(), json!(token_text(tokenizer, token)));
        map.insert("logprob".to_string(), json!(finite(logprob)));
        // A control token is no text.
        let bytes = match tokenizer.control_text(token) {
            Some(_) => Value::Null,
            None => json!(tokenizer.token_bytes(token)),
        };
        map.insert("bytes".to_string(), bytes);
        map
    };
    tokens
        .iter()
        .filter(|token| !tokenizer.is_end(token.id))
        .filter_map(|token| {
            let mut map = entry(token.id, token.logprob?);
            let top = token.top.iter().map(|&(id, logprob)| entry(id, logprob));
            map.insert("top_logprobs".to_string(), top.map(Value::Object).collect());
            Some(Value::Object(map))
        })
        .collect()
}

/// JSON has no infinity; OpenAI writes this for what is as good as impossible.
pub fn finite(logprob: f32) -> f32 {
    const IMPOSSIBLE: f32 = -9999.0;
    logprob.max(IMPOSSIBLE)
}
