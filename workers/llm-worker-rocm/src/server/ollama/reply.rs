//! Answers in Ollama's form.

use crate::completion::{Finish, StopReason, TextToken};
use crate::server::generation::{Answer, Call, ChatParser, End, Message, Writer};
use crate::tools::Delta;
use chrono::{SecondsFormat, Utc};
use serde_json::{json, Value};
use std::time::Duration;
use worker::http::sse::{self, Frame};

/// Which of the two forms.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// A message.
    Chat,
    /// A text.
    Generate,
}

/// Writes an answer: whole, or line by line.
#[derive(Clone)]
pub(super) struct LineWriter {
    form: Form,
    model: String,
    /// Calls so far: a line has each of them whole.
    calls: Message,
}

impl LineWriter {
    /// For answers of a model.
    pub(super) fn new(form: Form, model: &str) -> Self {
        Self {
            form,
            model: model.to_string(),
            calls: Message::default(),
        }
    }

    /// What is said where nothing is asked: that the model is there.
    pub(super) fn loaded(&self) -> Value {
        let mut line = self.line(&Message::default());
        line["done"] = json!(true);
        line["done_reason"] = json!("load");
        line
    }

    /// A whole answer.
    pub(super) fn whole(&self, answer: &Answer<ChatParser>) -> Value {
        let mut line = self.line(&answer.whole);
        end_with(&mut line, &answer.end.finish);
        line
    }

    fn line(&self, part: &Message) -> Value {
        let mut line = json!({
            "model": self.model,
            "created_at": Utc::now().to_rfc3339_opts(SecondsFormat::Nanos, true),
            "done": false,
        });
        let told = match self.form {
            Form::Chat => {
                line["message"] = json!({"role": "assistant", "content": part.content});
                &mut line["message"]
            }
            Form::Generate => {
                line["response"] = json!(part.content);
                &mut line
            }
        };
        if !part.reasoning.is_empty() {
            told["thinking"] = json!(part.reasoning);
        }
        if !part.calls.is_empty() {
            let call = |call: &Call| {
                let arguments = serde_json::from_str::<Value>(&call.arguments);
                let arguments = arguments.unwrap_or_else(|_| json!({}));
                json!({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
            };
            told["tool_calls"] = part.calls.iter().map(call).collect();
        }
        line
    }
}

impl Writer<ChatParser> for LineWriter {
    fn part(&mut self, part: Delta, _: &[TextToken]) -> Vec<Frame> {
        if matches!(part, Delta::ToolCall { .. }) {
            self.calls.extend([part]);
            return Vec::new();
        }
        let mut message = Message::default();
        message.extend([part]);
        vec![sse::data(&self.line(&message))]
    }

    fn end(&mut self, end: &End, _: &[TextToken]) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !self.calls.calls.is_empty() {
            frames.push(sse::data(&self.line(&self.calls)));
        }
        let mut last = self.line(&Message::default());
        end_with(&mut last, &end.finish);
        frames.push(sse::data(&last));
        frames
    }
}

/// Adds why an answer ended and what it took, in nanoseconds.
fn end_with(line: &mut Value, finish: &Finish) {
    let reason = match finish.reason {
        StopReason::Length | StopReason::Context => "length",
        StopReason::End | StopReason::StopString(_) => "stop",
    };
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let timings = &finish.timings;
    for (name, value) in [
        ("done", json!(true)),
        ("done_reason", json!(reason)),
        ("total_duration", json!(nanoseconds(timings.total()))),
        ("load_duration", json!(nanoseconds(timings.queued))),
        ("prompt_eval_count", json!(finish.usage.prompt_tokens)),
        ("prompt_eval_duration", json!(nanoseconds(timings.prefill))),
        ("eval_count", json!(finish.usage.completion_tokens)),
        ("eval_duration", json!(nanoseconds(timings.decode))),
    ] {
        line[name] = value;
    }
}
