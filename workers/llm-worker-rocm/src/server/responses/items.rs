//! Items of an input as messages of a chat.

use serde_json::{json, Map, Value};

/// The messages of an input: a text, or items, of which thoughts, text and calls of one turn are one message.
///
/// # Errors
/// A text that names the item and what is wrong with it.
pub(super) fn messages(input: &Value) -> Result<Vec<Value>, String> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) => items,
        _ => return Err("input must be a text or a list of items".to_string()),
    };
    let mut messages: Vec<Value> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        add(item, &mut messages).map_err(|reason| format!("input[{index}]: {reason}"))?;
    }
    Ok(messages)
}

/// The assistant's message that is going on, or a new one.
fn answer(messages: &mut Vec<Value>) -> Result<&mut Map<String, Value>, String> {
    let goes_on = messages
        .last()
        .is_some_and(|last| last["role"] == "assistant");
    if !goes_on {
        messages.push(json!({"role": "assistant"}));
    }
    let last = messages.last_mut().and_then(Value::as_object_mut);
    last.ok_or_else(|| "there is no message to go on with".to_string())
}

fn add(item: &Value, messages: &mut Vec<Value>) -> Result<(), String> {
    let named = |name: &str| {
        let value = item[name].as_str();
        value.ok_or_else(|| format!("{name} is missing"))
    };
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let role = named("role")?;
            if role == "assistant" {
                let said = text(&item["content"])?;
                let last = answer(messages)?;
                // Two answers behind each other are two messages.
                if last.contains_key("content") || last.contains_key("tool_calls") {
                    messages.push(json!({"role": "assistant", "content": said}));
                } else {
                    last.insert("content".to_string(), json!(said));
                }
                return Ok(());
            }
            let content = match &item["content"] {
                Value::Array(parts) => {
                    let parts = parts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
                    json!(parts)
                }
                other => json!(text(other)?),
            };
            messages.push(json!({"role": role, "content": content}));
        }
        "reasoning" => {
            let parts = [&item["content"], &item["summary"]];
            let texts = parts.iter().find_map(|parts| {
                let texts = parts
                    .as_array()?
                    .iter()
                    .filter_map(|part| part["text"].as_str());
                let texts: Vec<&str> = texts.collect();
                (!texts.is_empty()).then(|| texts.join("\n"))
            });
            if let Some(thought) = texts {
                messages.push(json!({"role": "assistant", "reasoning_content": thought}));
            }
        }
        "function_call" => {
            let call = json!({
                "id": named("call_id")?,
                "type": "function",
                "function": {"name": named("name")?, "arguments": named("arguments")?},
            });
            let calls = answer(messages)?
                .entry("tool_calls")
                .or_insert_with(|| json!([]));
            calls
                .as_array_mut()
                .into_iter()
                .for_each(|calls| calls.push(call.clone()));
        }
        "function_call_output" => {
            let said = text(&item["output"])?;
            messages
                .push(json!({"role": "tool", "tool_call_id": named("call_id")?, "content": said}));
        }
        other => return Err(format!("items of type {other:?} are not taken")),
    }
    Ok(())
}

fn text(content: &Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part["type"].as_str() {
                Some("input_text" | "output_text" | "text") => {
                    Ok(part["text"].as_str().unwrap_or_default())
                }
                Some("refusal") => Ok(part["refusal"].as_str().unwrap_or_default()),
                other => Err(format!("a part of type {other:?} has no place here")),
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.concat())
        }
        _ => Err("content must be a text or a list of parts".to_string()),
    }
}

/// A part as chats have it.
fn part(part: &Value) -> Result<Value, String> {
    match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") => {
            let text = part["text"].as_str();
            Ok(json!({"type": "text", "text": text.ok_or("a part of text has no text")?}))
        }
        // The names of chats are those of these parts.
        Some("input_image" | "input_audio") => Ok(part.clone()),
        other => Err(format!("parts of type {other:?} are not taken")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let input = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "Warm?"}, {"type": "input_image", "image_url": "u"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "20"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
            {"role": "assistant", "content": "Yes."},
        ]);
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        assert_eq!(
            messages(&input).unwrap(),
            [
                json!({"role": "user", "content": [{"type": "text", "text": "Warm?"}, {"type": "input_image", "image_url": "u"}]}),
                json!({"role": "assistant", "reasoning_content": "Hm.", "content": "I look.", "tool_calls": [call("c1", "weather"), call("c2", "clock")]}),
                json!({"role": "tool", "tool_call_id": "c1", "content": "20"}),
                json!({"role": "tool", "tool_call_id": "c2", "content": "noon"}),
                json!({"role": "assistant", "content": "Yes."}),
            ]
        );
        assert_eq!(
            messages(&json!("hi")).unwrap(),
            [json!({"role": "user", "content": "hi"})]
        );
        for (wrong, word) in [
            (json!(5), "list of items"),
            (json!([{"content": "x"}]), "input[0]: role"),
            (json!([{"type": "computer_call"}]), "computer_call"),
            (json!([{"type": "function_call", "name": "x"}]), "call_id"),
            (
                json!([{"role": "user", "content": [{"type": "input_file"}]}]),
                "input_file",
            ),
        ] {
            let error = messages(&wrong).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
