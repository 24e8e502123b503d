//! `POST /v1/chat/completions`

use super::logprobs;
use super::reply::{Reply, Shape};
use super::wire::Wire;
use crate::completion::{PromptProgress, TextToken, Took};
use crate::server::app::App;
use crate::server::error::blocking;
pub use crate::server::generation::ChatFields;
use crate::server::generation::{Answer, Call, ChatParser, End, Message, SamplingFields, Writer};
use crate::tools::Delta;
use axum::extract::State;
use axum::response::Response;
use axum::Json;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use worker::http::sse::Frame;
use worker::http::{ApiError, Both, Caller, JsonBody};

pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, ChatFields>>,
) -> Result<Response, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let of_prompt = model.clone();
    let prepare = move || Ok((vec![fields.prompt(&of_prompt, &sampling)?], sampling));
    let (prompts, sampling) = blocking(prepare).await?;
    let reply = Reply::submit(&app, model, sampling, prompts, caller);
    reply.await?.respond().await
}

/// `POST /v1/chat/completions/input_tokens`
pub async fn input_tokens(
    State(app): State<Arc<App>>,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, ChatFields>>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let (prompt, _) = blocking(move || fields.prompt(&model, &sampling)).await?;
    Ok(Json(json!({
        "object": "response.input_tokens",
        "input_tokens": prompt.tokens.len(),
    })))
}

impl Shape for ChatParser {
    const ID_PREFIX: &'static str = "chatcmpl";
    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";

    fn choice(wire: &Wire, index: usize, answer: &Answer<Self>) -> Value {
        let message = ("message", message_json(&answer.whole));
        let logprobs = logprobs::of_chat(&wire.model, &answer.tokens);
        wire.choice(index, message, logprobs, &answer.tokens, Some(&answer.end))
    }

    fn describe(wire: &Wire, answer: &Answer<Self>, body: &mut Value) {
        if !answer.prompt.is_empty() {
            let tokenizer = &wire.model.tokenizer;
            body["prompt_logprobs"] = logprobs::of_prompt(tokenizer, &answer.prompt, usize::MAX);
        }
    }

    fn writer(wire: &Wire, index: usize) -> impl Writer<Self> {
        ChunkWriter {
            wire,
            index,
            took: None,
        }
    }
}

/// Writes the chunks of an answer.
struct ChunkWriter<'a> {
    wire: &'a Wire,
    index: usize,
    /// What the answer took so far, if that is to be told.
    took: Option<Took>,
}

impl ChunkWriter<'_> {
    fn chunk(&self, delta: Value, tokens: &[TextToken], end: Option<&End>) -> Vec<Frame> {
        let logprobs = logprobs::of_chat(&self.wire.model, tokens);
        let choice = (self.wire).choice(self.index, ("delta", delta), logprobs, tokens, end);
        vec![match end {
            Some(end) => self.wire.last(self.index, choice, end),
            None => self.wire.part(choice, self.took.as_ref()),
        }]
    }
}

impl Writer<ChatParser> for ChunkWriter<'_> {
    fn start(&mut self) -> Vec<Frame> {
        self.chunk(json!({"role": "assistant", "content": null}), &[], None)
    }

    fn progress(&mut self, progress: &PromptProgress) -> Vec<Frame> {
        let delta = ("delta", json!({}));
        let choice = (self.wire).choice(self.index, delta, Value::Null, &[], None);
        vec![self.wire.progress(choice, progress)]
    }

    fn took(&mut self, took: &Took) {
        self.took = Some(*took);
    }

    fn part(&mut self, part: Delta, tokens: &[TextToken]) -> Vec<Frame> {
        self.chunk(delta_json(part), tokens, None)
    }

    fn end(&mut self, end: &End, tokens: &[TextToken]) -> Vec<Frame> {
        self.chunk(json!({}), tokens, Some(end))
    }
}

fn delta_json(delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({"content": text}),
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::ToolCall {
            index,
            id,
            name: Some(name),
            arguments,
        } => json!({"tool_calls": [{
            "index": index,
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }]}),
        Delta::ToolCall {
            index, arguments, ..
        } => json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}),
    }
}

fn message_json(answer: &Message) -> Value {
    let mut message = Map::new();
    message.insert("role".to_string(), json!("assistant"));
    let content = match answer.calls.is_empty() || !answer.content.is_empty() {
        true => json!(answer.content),
        false => Value::Null,
    };
    message.insert("content".to_string(), content);
    if !answer.reasoning.is_empty() {
        message.insert("reasoning_content".to_string(), json!(answer.reasoning));
    }
    if !answer.calls.is_empty() {
        let call = |call: &Call| {
            json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        };
        let calls = answer.calls.iter().map(call).collect();
        message.insert("tool_calls".to_string(), calls);
    }
    Value::Object(message)
}
