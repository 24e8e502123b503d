//! The fields of a request, as those of a chat.

use super::blocks;
use crate::server::generation::{ChatFields, SamplingFields, Texts};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use worker::http::{json, ApiError};

/// The fields of a message to be answered, besides those of sampling that it has in common with OpenAI's chats: `model`,
/// `max_tokens`, `stream`, `temperature`, `top_p`, `top_k`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct MessageFields {
    /// The chat so far: a text or blocks for each message.
    #[serde(deserialize_with = "json::values")]
    pub messages: Vec<Value>,
    /// What the model is told before: a text, or blocks of text.
    #[serde(default, deserialize_with = "json::value")]
    pub system: Option<Value>,
    /// Texts that end the answer and are not part of it.
    pub stop_sequences: Option<Vec<String>>,
    /// Functions that the model may call: `name`, `description`, `input_schema`.
    #[serde(default, deserialize_with = "json::optional_values")]
    pub tools: Option<Vec<Value>>,
    /// `{"type": "auto" | "any" | "tool" | "none"}`, with the `name` of a tool, and `disable_parallel_tool_use`.
    #[serde(default, deserialize_with = "json::value")]
    pub tool_choice: Option<Value>,
    /// `{"type": "enabled" | "adaptive" | "disabled"}`: whether a model that can do both thinks before it answers; absent
    /// is disabled. Thoughts end after `budget_tokens`.
    #[serde(default, deserialize_with = "json::value")]
    pub thinking: Option<Value>,
    /// `{"format": {"type": "json_schema", "schema": …}}`: the answer's form.
    #[serde(default, deserialize_with = "json::value")]
    pub output_config: Option<Value>,
    /// The older name of `output_config.format`.
    #[serde(default, deserialize_with = "json::value")]
    pub output_format: Option<Value>,
}

fn wrong(field: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::field(field, format!("{field}: {reason}"))
}

impl MessageFields {
    /// How to choose tokens: what the fields have in common with OpenAI's, and what has another name there.
    ///
    /// # Errors
    /// 400 for a form of answers that there is not.
    pub(super) fn sampling(&self, fields: SamplingFields) -> Result<SamplingFields, ApiError> {
        let config = self.output_config.as_ref().map(|config| &config["format"]);
        let format = config
            .or(self.output_format.as_ref())
            .filter(|f| !f.is_null());
        let json_schema = match format {
            None => None,
            Some(format) if format["type"] == "json_schema" && !format["schema"].is_null() => {
                Some(format["schema"].clone())
            }
            Some(_) => {
                let reason = "a format is {\"type\": \"json_schema\", \"schema\": …}";
                return Err(wrong("output_config", reason));
            }
        };
        Ok(SamplingFields {
            n: None,
            stop: self.stop_sequences.clone().map(Texts::Many).or(fields.stop),
            json_schema: json_schema.or(fields.json_schema),
            ..fields
        })
    }

    /// The chat.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub(super) fn into_chat(self) -> Result<ChatFields, ApiError> {
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            let text = blocks::text(system).map_err(|reason| wrong("system", reason))?;
            if !text.is_empty() {
                messages.push(json!({"role": "system", "content": text}));
            }
        }
        if self.messages.is_empty() {
            return Err(wrong("messages", "there must be at least one"));
        }
        for (index, message) in self.messages.iter().enumerate() {
            let own = blocks::messages(message);
            messages.extend(own.map_err(|reason| wrong(&format!("messages[{index}]"), reason))?);
        }
        let choice = self.tool_choice.unwrap_or_default();
        let tools = self.tools.map(|tools| {
            let tools = tools.iter().enumerate();
            let tools = tools.map(|(index, tool)| {
                function(tool).map_err(|reason| wrong(&format!("tools[{index}]"), reason))
            });
            tools.collect::<Result<Vec<_>, _>>()
        });
        let thinking = self.thinking.unwrap_or_default();
        Ok(ChatFields {
            messages,
            tools: tools.transpose()?,
            tool_choice: match choice["type"].as_str() {
                None if choice.is_null() => None,
                Some("auto") => Some(json!("auto")),
                Some("any") => Some(json!("required")),
                Some("none") => Some(json!("none")),
                Some("tool") => {
                    let name = choice["name"].as_str();
                    let name =
                        name.ok_or_else(|| wrong("tool_choice", "the tool's name is missing"))?;
                    Some(json!({"type": "function", "function": {"name": name}}))
                }
                _ => {
                    let reason = "the type is \"auto\", \"any\", \"tool\" or \"none\"";
                    return Err(wrong("tool_choice", reason));
                }
            },
            parallel_tool_calls: choice["disable_parallel_tool_use"]
                .as_bool()
                .map(|off| !off),
            enable_thinking: Some(match thinking["type"].as_str() {
                None if thinking.is_null() => false,
                Some("enabled" | "adaptive") => true,
                Some("disabled") => false,
                _ => {
                    let reason = "the type is \"enabled\", \"adaptive\" or \"disabled\"";
                    return Err(wrong("thinking", reason));
                }
            }),
            reasoning_budget_tokens: match &thinking["budget_tokens"] {
                Value::Null => None,
                budget => Some(
                    budget
                        .as_i64()
                        .filter(|&budget| budget >= 0)
                        .ok_or_else(|| wrong("thinking", "budget_tokens is a number of tokens"))?,
                ),
            },
            ..ChatFields::default()
        })
    }
}

/// A tool in OpenAI's form.
fn function(tool: &Value) -> Result<Value, String> {
    match tool["type"].as_str() {
        None | Some("custom") => {}
        Some(other) => {
            return Err(format!(
                "tools of type {other:?} run on Anthropic's servers; here are only tools that the client runs"
            ))
        }
    }
    let name = tool["name"].as_str().ok_or("the name is missing")?;
    let mut function = json!({"name": name, "parameters": tool["input_schema"]});
    for field in ["description", "strict"] {
        if !tool[field].is_null() {
            function[field] = tool[field].clone();
        }
    }
    Ok(json!({"type": "function", "function": function}))
}
