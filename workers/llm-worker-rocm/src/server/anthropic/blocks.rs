//! Content blocks of Anthropic's messages as OpenAI's parts, calls and results, which chat templates take.

use serde_json::{json, Map, Value};

/// A message as one or more of OpenAI's: results of tools are messages of their own there.
///
/// # Errors
/// A text that names what is wrong or not supported.
pub(super) fn messages(message: &Value) -> Result<Vec<Value>, String> {
    let content = &message["content"];
    let blocks: Vec<Value> = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks.clone(),
        _ => return Err("content must be a text or a list of blocks".to_string()),
    };
    match message["role"].as_str() {
        Some("user") => user(&blocks),
        Some("assistant") => Ok(vec![assistant(&blocks)?]),
        Some("system") => Ok(vec![json!({"role": "system", "content": text(content)?})]),
        _ => Err("role must be \"user\" or \"assistant\"".to_string()),
    }
}

/// The text of a system prompt or a result: a text, or blocks of text.
///
/// # Errors
/// A text that names another block.
pub(super) fn text(content: &Value) -> Result<String, String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts = blocks.iter().map(|block| match kind(block) {
                "text" => block["text"]
                    .as_str()
                    .ok_or("a block of text has no text".to_string()),
                other => Err(format!("a block of type {other:?} has no place here")),
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        _ => Err("a text or a list of blocks is expected".to_string()),
    }
}

fn kind(block: &Value) -> &str {
    block["type"].as_str().unwrap_or_default()
}

fn user(blocks: &[Value]) -> Result<Vec<Value>, String> {
    let mut messages = Vec::new();
    let mut parts: Vec<Value> = Vec::new();
    let end = |parts: &mut Vec<Value>, messages: &mut Vec<Value>| {
        if !parts.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(parts)}));
        }
    };
    for block in blocks {
        if kind(block) != "tool_result" {
            parts.push(part(block)?);
            continue;
        }
        end(&mut parts, &mut messages);
        let id = block["tool_use_id"].as_str();
        let id = id.ok_or("a tool_result needs its tool_use_id")?;
        // Pictures among the results are shown by the user, as OpenAI's tools answer in text only.
        let (pictures, texts): (Vec<Value>, Vec<Value>) = match &block["content"] {
            Value::Array(blocks) => blocks.iter().cloned().partition(|b| kind(b) == "image"),
            Value::Null => (Vec::new(), Vec::new()),
            other => (
                Vec::new(),
                vec![json!({"type": "text", "text": text(other)?})],
            ),
        };
        let mut said = text(&Value::Array(texts))?;
        if block["is_error"] == true {
            said = format!("Error: {said}");
        }
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": said}));
        for picture in &pictures {
            parts.push(part(picture)?);
        }
    }
    end(&mut parts, &mut messages);
    match messages.is_empty() {
        true => Err("content must not be empty".to_string()),
        false => Ok(messages),
    }
}

/// A block of a user's message as a part.
fn part(block: &Value) -> Result<Value, String> {
    let source = &block["source"];
    match kind(block) {
        "text" => Ok(json!({"type": "text", "text": text(&json!([block]))?})),
        "image" => {
            let address = match source["type"].as_str() {
                Some("base64") => {
                    let named = |name: &str| {
                        let value = source[name].as_str();
                        value.ok_or_else(|| format!("a picture's source needs {name}"))
                    };
                    format!("data:{};base64,{}", named("media_type")?, named("data")?)
                }
                Some("url") => source["url"]
                    .as_str()
                    .ok_or("a source needs its url")?
                    .to_string(),
                _ => return Err("a picture's source is of type \"base64\" or \"url\"".to_string()),
            };
            Ok(json!({"type": "image_url", "image_url": {"url": address}}))
        }
        "document" => match source["type"].as_str() {
            Some("text") => {
                Ok(json!({"type": "text", "text": source["data"].as_str().unwrap_or_default()}))
            }
            _ => {
                Err("documents are taken as plain text only: a source of type \"text\"".to_string())
            }
        },
        other => Err(format!("blocks of type {other:?} are not taken")),
    }
}

fn assistant(blocks: &[Value]) -> Result<Value, String> {
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match kind(block) {
            "text" => {
                said += block["text"]
                    .as_str()
                    .ok_or("a block of text has no text")?
            }
            "thinking" => thought += block["thinking"].as_str().unwrap_or_default(),
            // Nobody can read them.
            "redacted_thinking" => {}
            "tool_use" => {
                let named = |name: &str| {
                    let value = block[name].as_str();
                    value.ok_or_else(|| format!("a tool_use needs its {name}"))
                };
                let input = match &block["input"] {
                    Value::Null => json!({}),
                    input => input.clone(),
                };
                calls.push(json!({
                    "id": named("id")?,
                    "type": "function",
                    "function": {"name": named("name")?, "arguments": input.to_string()},
                }));
            }
            other => return Err(format!("blocks of type {other:?} are not taken")),
        }
    }
    let mut message = Map::new();
    message.insert("role".to_string(), json!("assistant"));
    if calls.is_empty() || !said.is_empty() {
        message.insert("content".to_string(), json!(said));
    }
    if !thought.is_empty() {
        message.insert("reasoning_content".to_string(), json!(thought));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_string(), json!(calls));
    }
    Ok(Value::Object(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_parts_calls_and_results() {
        let asked = json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "20"}, {"type": "image", "source": {"type": "url", "url": "u"}}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": true},
            {"type": "text", "text": "And?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
        ]});
        let picture = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        assert_eq!(
            messages(&asked).unwrap(),
            [
                json!({"role": "tool", "tool_call_id": "t1", "content": "20"}),
                json!({"role": "user", "content": [picture("u")]}),
                json!({"role": "tool", "tool_call_id": "t2", "content": "Error: no"}),
                json!({"role": "user", "content": [{"type": "text", "text": "And?"}, picture("data:image/png;base64,AA")]}),
            ]
        );
        let answered = json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
        ]});
        let call = json!({"id": "t1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Rome\"}"}});
        assert_eq!(
            messages(&answered).unwrap(),
            [
                json!({"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call]})
            ]
        );
        for (wrong, word) in [
            (json!({"role": "user", "content": []}), "empty"),
            (json!({"role": "user", "content": 5}), "content"),
            (json!({"role": "robot", "content": "x"}), "role"),
            (
                json!({"role": "user", "content": [{"type": "search_result"}]}),
                "search_result",
            ),
            (
                json!({"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}),
                "plain text",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result"}]}),
                "tool_use_id",
            ),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}),
                "name",
            ),
        ] {
            let error = messages(&wrong).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
