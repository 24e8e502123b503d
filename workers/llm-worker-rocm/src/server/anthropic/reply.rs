//! Answers as Anthropic's messages.

use crate::completion::{StopReason, TextToken, Usage};
use crate::server::generation::{Answer, ChatParser, End, Writer};
use crate::tools::Delta;
use serde_json::{json, Value};
use uuid::Uuid;
use worker::http::sse::{named, Frame};

/// Writes an answer: whole, or event by event.
#[derive(Clone)]
pub(super) struct MessageWriter {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// Blocks that have begun.
    blocks: usize,
    /// What the last of them is, while it goes on.
    open: Option<Block>,
}

/// What a block is.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    Text,
    Thinking,
    /// A call, by its number.
    Call(usize),
}

impl MessageWriter {
    /// For an answer to a prompt of so many tokens.
    pub(super) fn new(model: &str, prompt_tokens: usize) -> Self {
        Self {
            id: format!("msg_{}", Uuid::new_v4().simple()),
            model: model.to_string(),
            prompt_tokens,
            blocks: 0,
            open: None,
        }
    }

    /// A whole answer.
    pub(super) fn whole(&self, answer: &Answer<ChatParser>) -> Value {
        let message = &answer.whole;
        let mut content = Vec::new();
        if !message.reasoning.is_empty() {
            let thought = &message.reasoning;
            content.push(json!({"type": "thinking", "thinking": thought, "signature": ""}));
        }
        if !message.content.is_empty() || message.calls.is_empty() {
            content.push(json!({"type": "text", "text": message.content}));
        }
        content.extend(message.calls.iter().map(|call| {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
        }));
        let (reason, sequence) = stop(&answer.end);
        self.message(content, reason, sequence, usage(&answer.end.finish.usage))
    }

    fn message(&self, content: Vec<Value>, reason: Value, sequence: Value, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        })
    }

    /// Ends the block that goes on, if one does.
    fn close(&mut self) -> Vec<Frame> {
        let Some(block) = self.open.take() else {
            return Vec::new();
        };
        let mut events = Vec::new();
        if block == Block::Thinking {
            events.push(self.delta(json!({"type": "signature_delta", "signature": ""})));
        }
        let stop = json!({"type": "content_block_stop", "index": self.blocks - 1});
        events.push(named("content_block_stop", &stop));
        events
    }

    /// Goes on with a block of a kind, or begins it.
    fn within(&mut self, block: Block, begin: impl FnOnce() -> Value) -> Vec<Frame> {
        if self.open == Some(block) {
            return Vec::new();
        }
        let mut events = self.close();
        self.open = Some(block);
        let start =
            json!({"type": "content_block_start", "index": self.blocks, "content_block": begin()});
        self.blocks += 1;
        events.push(named("content_block_start", &start));
        events
    }

    fn delta(&self, delta: Value) -> Frame {
        let index = self.blocks.saturating_sub(1);
        named(
            "content_block_delta",
            &json!({"type": "content_block_delta", "index": index, "delta": delta}),
        )
    }
}

impl Writer<ChatParser> for MessageWriter {
    fn start(&mut self) -> Vec<Frame> {
        let begun = json!({"input_tokens": self.prompt_tokens, "output_tokens": 0});
        let message = self.message(Vec::new(), Value::Null, Value::Null, begun);
        vec![named(
            "message_start",
            &json!({"type": "message_start", "message": message}),
        )]
    }

    fn part(&mut self, part: Delta, _: &[TextToken]) -> Vec<Frame> {
        let (mut events, delta) = match part {
            Delta::Content(text) => (
                self.within(Block::Text, || json!({"type": "text", "text": ""})),
                json!({"type": "text_delta", "text": text}),
            ),
            Delta::Reasoning(text) => (
                self.within(
                    Block::Thinking,
                    || json!({"type": "thinking", "thinking": "", "signature": ""}),
                ),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
            Delta::ToolCall {
                index,
                id,
                name,
                arguments,
            } => (
                self.within(
                    Block::Call(index),
                    || json!({"type": "tool_use", "id": id, "name": name.unwrap_or_default(), "input": {}}),
                ),
                json!({"type": "input_json_delta", "partial_json": arguments}),
            ),
        };
        events.push(self.delta(delta));
        events
    }

    fn end(&mut self, end: &End, _: &[TextToken]) -> Vec<Frame> {
        let mut events = self.close();
        let (reason, sequence) = stop(end);
        let delta = json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(&end.finish.usage),
        });
        events.push(named("message_delta", &delta));
        events.push(named("message_stop", &json!({"type": "message_stop"})));
        events
    }
}

/// Why an answer ended, and the text that ended it.
fn stop(end: &End) -> (Value, Value) {
    match &end.finish.reason {
        StopReason::Length => (json!("max_tokens"), Value::Null),
        StopReason::Context => (json!("model_context_window_exceeded"), Value::Null),
        StopReason::End | StopReason::StopString(_) if end.has_calls => {
            (json!("tool_use"), Value::Null)
        }
        StopReason::StopString(text) => (json!("stop_sequence"), json!(text)),
        StopReason::End => (json!("end_turn"), Value::Null),
    }
}

/// Tokens: of the prompt, those that were computed for it, as Anthropic counts.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}
