//! Answers as responses.

use super::request::ResponseFields;
use super::store::Kept;
use crate::completion::{PromptProgress, StopReason, TextToken, Took, Usage};
use crate::server::app::App;
use crate::server::generation::{Answer, ChatParser, End, Message, Writer};
use crate::server::openai::wire::{progress_json, timings_of};
use crate::tools::Delta;
use serde_json::{json, Map, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use uuid::Uuid;
use worker::http::sse::{named, Frame};
use worker::http::{ApiError, Caller};

/// Writes a response: whole, or event by event.
#[derive(Clone)]
pub(super) struct ResponseWriter {
    app: Arc<App>,
    caller: Caller,
    /// The chat up to the answer; none if the response is not to be kept.
    chat: Option<Vec<Value>>,
    id: String,
    /// What all versions of the response say.
    common: Map<String, Value>,
    /// Items that are complete.
    output: Vec<Value>,
    /// The one that goes on.
    open: Option<Open>,
    /// The answer so far.
    message: Message,
    /// Events so far, of all clones.
    events: Arc<AtomicUsize>,
    /// What the answer took so far, if that is to be told.
    took: Option<Took>,
}

/// An item in the making.
#[derive(Clone)]
struct Open {
    id: String,
    kind: Kind,
    text: String,
}

/// What an item is.
#[derive(Clone, PartialEq)]
enum Kind {
    Message,
    Reasoning,
    /// A call, by its number: with what names it, and the function.
    Call(usize, String, String),
}

fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

impl Open {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::Call(..) => "fc",
        };
        Self {
            id: new_id(prefix),
            kind,
            text: String::new(),
        }
    }

    /// Its only part, complete.
    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
            _ => {
                json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
            }
        }
    }

    /// The item.
    fn item(&self, is_complete: bool) -> Value {
        let status = if is_complete {
            "completed"
        } else {
            "in_progress"
        };
        let parts = if is_complete {
            vec![self.part()]
        } else {
            Vec::new()
        };
        match &self.kind {
            Kind::Message => json!({
                "id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts,
            }),
            Kind::Reasoning => json!({
                "id": self.id, "type": "reasoning", "status": status, "summary": [], "content": parts,
            }),
            Kind::Call(_, call, name) => json!({
                "id": self.id, "type": "function_call", "status": status, "call_id": call, "name": name,
                "arguments": self.text,
            }),
        }
    }
}

impl ResponseWriter {
    /// For an answer behind a chat.
    pub(super) fn new(
        app: &Arc<App>,
        caller: Caller,
        fields: &ResponseFields,
        chat: Vec<Value>,
    ) -> Self {
        let store = fields.store.unwrap_or(true);
        let text = fields
            .text
            .clone()
            .unwrap_or_else(|| json!({"format": {"type": "text"}}));
        let common = json!({
            "object": "response",
            "created_at": worker::time::unix(),
            "model": app.options.model,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata.clone().unwrap_or_else(|| json!({})),
            "parallel_tool_calls": fields.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": fields.previous_response_id,
            "reasoning": fields.reasoning.clone().unwrap_or_else(|| json!({"effort": null, "summary": null})),
            "store": store,
            "text": text,
            "tool_choice": fields.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            "tools": fields.tools.clone().unwrap_or_default(),
            "truncation": "disabled",
        });
        Self {
            app: app.clone(),
            caller,
            chat: store.then_some(chat),
            id: new_id("resp"),
            common: match common {
                Value::Object(map) => map,
                _ => Map::new(),
            },
            output: Vec::new(),
            open: None,
            message: Message::default(),
            events: Arc::default(),
            took: None,
        }
    }

    /// A whole answer.
    pub(super) fn whole(mut self, answer: &Answer<ChatParser>) -> Value {
        let message = &answer.whole;
        let mut add = |kind: Kind, text: &str| {
            let mut open = Open::new(kind);
            open.text = text.to_string();
            self.output.push(open.item(true));
        };
        if !message.reasoning.is_empty() {
            add(Kind::Reasoning, &message.reasoning);
        }
        if !message.content.is_empty() || message.calls.is_empty() {
            add(Kind::Message, &message.content);
        }
        for (index, call) in message.calls.iter().enumerate() {
            add(
                Kind::Call(index, call.id.clone(), call.name.clone()),
                &call.arguments,
            );
        }
        self.message = answer.whole.clone();
        self.ended(&answer.end)
    }

    /// The response that is complete, which is kept if it is to be.
    fn ended(&mut self, end: &End) -> Value {
        let reason = match end.finish.reason {
            StopReason::Length | StopReason::Context => Some("max_output_tokens"),
            StopReason::End | StopReason::StopString(_) => None,
        };
        let status = if reason.is_some() {
            "incomplete"
        } else {
            "completed"
        };
        let details = reason.map(|reason| json!({"reason": reason}));
        let response = self.response(
            status,
            json!(details),
            Value::Null,
            self.usage(&end.finish.usage),
        );
        if let Some(mut messages) = self.chat.take() {
            messages.push(said(&self.message));
            let kept = Kept {
                response: response.clone(),
                messages,
            };
            self.app.responses.keep(self.caller, &self.id, kept);
        }
        response
    }

    fn response(&self, status: &str, incomplete: Value, error: Value, usage: Value) -> Value {
        let mut response = self.common.clone();
        let entries = [
            ("id", json!(self.id)),
            ("status", json!(status)),
            ("incomplete_details", incomplete),
            ("error", error),
            ("output", json!(self.output)),
            ("usage", usage),
        ];
        response.extend(entries.map(|(name, value)| (name.to_string(), value)));
        Value::Object(response)
    }

    /// Tokens; of thoughts, as many as they are when read again.
    fn usage(&self, usage: &Usage) -> Value {
        let model = self.app.text().ok();
        let thoughts = model.and_then(|model| {
            let tokens = model.tokenizer.encode(&self.message.reasoning, false);
            Some(tokens.ok()?.len())
        });
        json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": thoughts},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        })
    }

    /// The last event of a stream that failed.
    pub(super) fn failed(&self, error: &ApiError) -> Frame {
        let told = json!({"code": error.code, "message": error.message});
        let response = self.response("failed", Value::Null, told, Value::Null);
        self.event("response.failed", json!({"response": response}))
    }

    fn event(&self, kind: &str, fields: Value) -> Frame {
        let number = self.events.fetch_add(1, Ordering::Relaxed);
        let mut event = json!({"type": kind, "sequence_number": number});
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        named(kind, &event)
    }

    /// Ends the item that goes on, if one does.
    fn close(&mut self) -> Vec<Frame> {
        let Some(open) = self.open.take() else {
            return Vec::new();
        };
        let place =
            json!({"item_id": open.id, "output_index": self.output.len(), "content_index": 0});
        let with = |name: &str, value: Value| {
            let mut fields = place.clone();
            fields[name] = value;
            fields
        };
        let mut events = match &open.kind {
            Kind::Call(_, _, name) => {
                let mut fields =
                    json!({"item_id": open.id, "output_index": self.output.len(), "name": name});
                fields["arguments"] = json!(open.text);
                vec![self.event("response.function_call_arguments.done", fields)]
            }
            kind => {
                let name = match kind {
                    Kind::Reasoning => "response.reasoning_text.done",
                    _ => "response.output_text.done",
                };
                let mut done = with("text", json!(open.text));
                if *kind == Kind::Message {
                    done["logprobs"] = json!([]);
                }
                vec![
                    self.event(name, done),
                    self.event("response.content_part.done", with("part", open.part())),
                ]
            }
        };
        let item = open.item(true);
        let fields = json!({"output_index": self.output.len(), "item": item});
        events.push(self.event("response.output_item.done", fields));
        self.output.push(item);
        events
    }

    /// Goes on with an item of a kind, or begins it.
    fn within(&mut self, kind: Kind) -> Vec<Frame> {
        let same = |open: &Open| match (&open.kind, &kind) {
            (Kind::Call(a, ..), Kind::Call(b, ..)) => a == b,
            (a, b) => a == b,
        };
        if self.open.as_ref().is_some_and(same) {
            return Vec::new();
        }
        let mut events = self.close();
        let open = Open::new(kind);
        let fields = json!({"output_index": self.output.len(), "item": open.item(false)});
        events.push(self.event("response.output_item.added", fields));
        if !matches!(open.kind, Kind::Call(..)) {
            let fields = json!({
                "item_id": open.id, "output_index": self.output.len(), "content_index": 0, "part": open.part(),
            });
            events.push(self.event("response.content_part.added", fields));
        }
        self.open = Some(open);
        events
    }
}

impl Writer<ChatParser> for ResponseWriter {
    fn start(&mut self) -> Vec<Frame> {
        let begun = self.response("in_progress", Value::Null, Value::Null, Value::Null);
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({"response": begun})))
            .into()
    }

    fn progress(&mut self, progress: &PromptProgress) -> Vec<Frame> {
        let begun = self.response("in_progress", Value::Null, Value::Null, Value::Null);
        let told = json!({"response": begun, "prompt_progress": progress_json(progress)});
        vec![self.event("response.in_progress", told)]
    }

    fn took(&mut self, took: &Took) {
        self.took = Some(*took);
    }

    fn part(&mut self, part: Delta, _: &[TextToken]) -> Vec<Frame> {
        self.message.extend([part.clone()]);
        let (kind, name, text) = match part {
            Delta::Content(text) => (Kind::Message, "response.output_text.delta", text),
            Delta::Reasoning(text) => (Kind::Reasoning, "response.reasoning_text.delta", text),
            Delta::ToolCall {
                index,
                id,
                name,
                arguments,
            } => (
                Kind::Call(index, id, name.unwrap_or_default()),
                "response.function_call_arguments.delta",
                arguments,
            ),
        };
        let is_text = kind == Kind::Message;
        let is_call = matches!(kind, Kind::Call(..));
        let mut events = self.within(kind);
        let Some(open) = &mut self.open else {
            return events;
        };
        open.text += &text;
        let mut fields =
            json!({"item_id": open.id, "output_index": self.output.len(), "delta": text});
        if !is_call {
            fields["content_index"] = json!(0);
        }
        if is_text {
            fields["logprobs"] = json!([]);
        }
        if let Some(took) = &self.took {
            fields["timings"] = timings_of(took);
        }
        events.push(self.event(name, fields));
        events
    }

    fn end(&mut self, end: &End, _: &[TextToken]) -> Vec<Frame> {
        let mut events = self.close();
        let response = self.ended(end);
        let kind = match response["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        let timings = timings_of(&end.finish.took());
        events.push(self.event(kind, json!({"response": response, "timings": timings})));
        events
    }
}

/// The answer as a message of the chat.
fn said(message: &Message) -> Value {
    let mut said = json!({"role": "assistant", "content": message.content});
    if !message.reasoning.is_empty() {
        said["reasoning_content"] = json!(message.reasoning);
    }
    if !message.calls.is_empty() {
        let calls = message.calls.iter().map(|call| {
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        });
        said["tool_calls"] = calls.collect();
    }
    said
}
