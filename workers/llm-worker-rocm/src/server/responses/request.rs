//! The fields of a request, as those of a chat.

use super::items;
use crate::server::generation::{ChatFields, SamplingFields};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use worker::http::{json, ApiError};

/// The fields of a response, besides those of sampling that it has in common with chats: `model`, `stream`,
/// `temperature`, `top_p`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ResponseFields {
    /// What is asked: a text, or items: messages, calls with their outputs, thoughts.
    #[serde(default, deserialize_with = "json::value")]
    pub input: Option<Value>,
    /// What the model is told before, for this response only.
    pub instructions: Option<String>,
    /// The response that this one goes on from.
    pub previous_response_id: Option<String>,
    /// Whether the response is kept for others to go on from; absent is so.
    pub store: Option<bool>,
    /// Most tokens of the answer.
    pub max_output_tokens: Option<i64>,
    /// Functions that the model may call.
    #[serde(default, deserialize_with = "json::optional_values")]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or the function to call.
    #[serde(default, deserialize_with = "json::value")]
    pub tool_choice: Option<Value>,
    /// Whether one answer may have several calls.
    pub parallel_tool_calls: Option<bool>,
    /// `{"effort": …}`: `none` and `minimal` keep a model that can do both from thinking, others make it think.
    #[serde(default, deserialize_with = "json::value")]
    pub reasoning: Option<Value>,
    /// `{"format": {"type": "text" | "json_object" | "json_schema", …}}`: the answer's form.
    #[serde(default, deserialize_with = "json::value")]
    pub text: Option<Value>,
    /// Notes of the client's, given back.
    #[serde(default, deserialize_with = "json::value")]
    pub metadata: Option<Value>,
    /// Not possible here: an answer is waited for.
    pub background: Option<bool>,
    /// Not possible here: chats that the server keeps are named by `previous_response_id`.
    #[serde(default, deserialize_with = "json::value")]
    pub conversation: Option<Value>,
}

impl ResponseFields {
    /// How to choose tokens.
    ///
    /// # Errors
    /// 400 for what is not possible here.
    pub(super) fn sampling(&self, fields: SamplingFields) -> Result<SamplingFields, ApiError> {
        if self.background == Some(true) {
            let reason = "background: responses are not computed in the background; use stream";
            return Err(ApiError::field("background", reason));
        }
        if self.conversation.as_ref().is_some_and(|c| !c.is_null()) {
            let reason = "conversation: there are none here; use previous_response_id, or send all of it as input";
            return Err(ApiError::field("conversation", reason));
        }
        let format = self.text.as_ref().map(|text| text["format"].clone());
        Ok(SamplingFields {
            n: None,
            max_tokens: self.max_output_tokens.or(fields.max_tokens),
            response_format: format.filter(|f| !f.is_null()).or(fields.response_format),
            ..fields
        })
    }

    /// What the input adds to the chat.
    ///
    /// # Errors
    /// 400 that names the item at fault.
    pub(super) fn messages(&self) -> Result<Vec<Value>, ApiError> {
        match &self.input {
            Some(input) => {
                items::messages(input).map_err(|reason| ApiError::field("input", reason))
            }
            None => Ok(Vec::new()),
        }
    }

    /// The chat of these messages.
    ///
    /// # Errors
    /// 400 for tools that there are not.
    pub(super) fn chat(&self, mut messages: Vec<Value>) -> Result<ChatFields, ApiError> {
        if messages.is_empty() {
            return Err(ApiError::field("input", "input must not be empty"));
        }
        if let Some(instructions) = &self.instructions {
            messages.insert(0, json!({"role": "system", "content": instructions}));
        }
        let tools = self.tools.as_ref().map(|tools| {
            let tools = tools.iter().enumerate();
            let tools = tools.map(|(index, tool)| {
                let refused =
                    |reason| ApiError::field("tools", format!("tools[{index}]: {reason}"));
                function(tool).map_err(refused)
            });
            tools.collect::<Result<Vec<_>, _>>()
        });
        let effort = self.reasoning.as_ref().and_then(|r| r["effort"].as_str());
        Ok(ChatFields {
            messages,
            tools: tools.transpose()?,
            // A function is named beside its type here.
            tool_choice: self
                .tool_choice
                .clone()
                .map(|choice| match choice["name"].as_str() {
                    Some(name) => json!({"type": "function", "function": {"name": name}}),
                    None => choice,
                }),
            parallel_tool_calls: self.parallel_tool_calls,
            enable_thinking: effort.map(|effort| !matches!(effort, "none" | "minimal")),
            reasoning_effort: effort.map(str::to_string),
            continue_final_message: Some(Value::Bool(false)),
            ..ChatFields::default()
        })
    }
}

/// A tool in the form of chats.
fn function(tool: &Value) -> Result<Value, String> {
    if tool["type"] != "function" {
        return Err(format!(
            "tools of type {} run on OpenAI's servers; here are only functions, which the client runs",
            tool["type"]
        ));
    }
    if tool["function"].is_object() {
        return Ok(tool.clone());
    }
    let mut function = tool.clone();
    if let Some(map) = function.as_object_mut() {
        map.remove("type");
    }
    Ok(json!({"type": "function", "function": function}))
}
