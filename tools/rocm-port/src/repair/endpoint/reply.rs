//! Replies as they come: one JSON document, or a stream of events.

use super::{AskError, Reply};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use ureq::http::Response;
use ureq::Body;

/// The longest message that is read, in bytes; a repair needs a few thousand.
const MAX_TEXT: usize = 256 << 10;
/// The longest body, with its JSON and thoughts.
const MAX_BODY: u64 = 16 << 20;

/// The reply in a response of status 200.
pub(super) fn read(response: &mut Response<Body>) -> Result<Reply, AskError> {
    let streamed = response
        .headers()
        .get("content-type")
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.starts_with("text/event-stream"));
    let reader = response.body_mut().as_reader().take(MAX_BODY);
    match streamed {
        true => read_stream(reader),
        false => read_whole(reader),
    }
}

fn broken(error: impl std::fmt::Display) -> AskError {
    AskError::Broken(format!("the answer broke off: {error}"))
}

fn too_long() -> AskError {
    AskError::Broken(format!("the answer is longer than {} KiB", MAX_TEXT >> 10))
}

fn read_whole(mut reader: impl Read) -> Result<Reply, AskError> {
    let mut text = Vec::new();
    reader.read_to_end(&mut text).map_err(broken)?;
    let value: Value = serde_json::from_slice(&text)
        .map_err(|e| AskError::Broken(format!("the answer is no JSON: {e}")))?;
    let mut reply = Reply::default();
    let choice = value.pointer("/choices/0");
    let content = choice
        .and_then(|c| c.pointer("/message/content"))
        .and_then(Value::as_str);
    let Some(content) = content else {
        return Err(AskError::Broken(format!(
            "the answer has no message{}",
            said_by(&String::from_utf8_lossy(&text))
        )));
    };
    if content.len() > MAX_TEXT {
        return Err(too_long());
    }
    reply.text = content.to_string();
    reply.finish = choice
        .and_then(|c| c.get("finish_reason"))
        .and_then(Value::as_str)
        .map(str::to_string);
    count(&mut reply, &value);
    finish(reply, 0)
}

/// Server-sent events, each a piece of the message.
fn read_stream(reader: impl Read) -> Result<Reply, AskError> {
    let mut reader = BufReader::new(reader);
    let mut reply = Reply::default();
    let mut thoughts = 0;
    let mut line = Vec::new();
    let mut done = false;
    while !done {
        line.clear();
        let read = reader
            .by_ref()
            .take(MAX_TEXT as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(broken)?;
        if read == 0 {
            break;
        }
        if read > MAX_TEXT {
            return Err(too_long());
        }
        let text = String::from_utf8_lossy(&line);
        let Some(data) = text.trim_end().strip_prefix("data:") else {
            continue;
        };
        let data = data.trim_start();
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let value: Value = serde_json::from_str(data)
            .map_err(|e| AskError::Broken(format!("an event of the answer is no JSON: {e}")))?;
        if let Some(error) = value.get("error").filter(|e| !e.is_null()) {
            return Err(AskError::Broken(format!(
                "the endpoint gave up{}",
                said_by(&error.to_string())
            )));
        }
        let choice = value.pointer("/choices/0");
        let part = |key| choice.and_then(|c| c.pointer(key)).and_then(Value::as_str);
        reply.text.push_str(part("/delta/content").unwrap_or(""));
        thoughts += part("/delta/reasoning_content")
            .or(part("/delta/reasoning"))
            .map_or(0, str::len);
        if reply.text.len() > MAX_TEXT || thoughts > 4 * MAX_TEXT {
            return Err(too_long());
        }
        if let Some(reason) = part("/finish_reason") {
            reply.finish = Some(reason.to_string());
        }
        count(&mut reply, &value);
    }
    if !done && reply.finish.is_none() {
        return Err(AskError::Broken(
            "the answer broke off: the stream ended too early".into(),
        ));
    }
    finish(reply, thoughts)
}

fn count(reply: &mut Reply, value: &Value) {
    let number = |key| value.pointer(key).and_then(Value::as_u64);
    if let Some(tokens) = number("/usage/prompt_tokens") {
        reply.prompt_tokens = tokens;
    }
    if let Some(tokens) = number("/usage/completion_tokens") {
        reply.answer_tokens = tokens;
    }
}

fn finish(mut reply: Reply, thoughts: usize) -> Result<Reply, AskError> {
    if reply.answer_tokens == 0 {
        reply.estimated = true;
        reply.answer_tokens = (reply.text.len() + thoughts) as u64 / 4 + 1;
    }
    match reply.text.trim().is_empty() {
        true if reply.finish.as_deref() == Some("length") => Err(AskError::Broken(
            "the answer was cut off before it began: raise --max-tokens".into(),
        )),
        true => Err(AskError::Broken("the answer is empty".into())),
        false => Ok(reply),
    }
}

/// The message of an error's JSON, or its beginning.
pub(super) fn said_by(text: &str) -> String {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let message = value.as_ref().and_then(|v| {
        v.pointer("/error/message")
            .or(v.pointer("/message"))
            .or(v.get("error"))
            .and_then(Value::as_str)
    });
    let said: String = message
        .unwrap_or(text)
        .trim()
        .chars()
        .filter(|c| !c.is_control())
        .take(300)
        .collect();
    match said.is_empty() {
        true => said,
        false => format!(": {said}"),
    }
}
