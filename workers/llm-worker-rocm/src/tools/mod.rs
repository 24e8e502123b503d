//! Tool calls and reasoning in a model's answer.
//!
//! Families write calls in their own ways. [`OutputFormat::of`] tells from the chat template which one a model uses,
//! [`OutputParser`] takes the answer apart while it arrives, and [`OutputFormat::call_grammar`] is a grammar that
//! leaves nothing but a call.

mod call;
mod forced;
mod format;
mod parser;
mod xml;

pub use format::{OutputFormat, ReasoningTags, ToolFormat};
pub use parser::{Delta, OutputParser, ParserOptions};

use serde_json::Value as Json;
use worker::{Error, Result};

/// Which tools the model may or must call: OpenAI's `tool_choice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No calls.
    None,
    /// At least one call.
    Required,
    /// A call of this function.
    Named(String),
}

impl ToolChoice {
    /// Reads `tool_choice`; absent or null is [`ToolChoice::Auto`].
    ///
    /// # Errors
    /// [`Error::Usage`] for anything that is not a tool choice.
    pub fn from_json(json: Option<&Json>) -> Result<Self> {
        let named = |json: &Json| {
            let name = json["function"]["name"].as_str().or(json["name"].as_str());
            name.map(|name| Self::Named(name.to_string()))
        };
        let choice = match json {
            None | Some(Json::Null) => Some(Self::Auto),
            Some(Json::String(text)) => match text.as_str() {
                "auto" => Some(Self::Auto),
                "none" => Some(Self::None),
                "required" | "any" => Some(Self::Required),
                _ => None,
            },
            Some(object) => named(object),
        };
        choice.ok_or_else(|| {
            Error::Usage(
                "tool_choice must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}"
                    .to_string(),
            )
        })
    }
}

/// A tool as a request describes it, checked.
#[derive(Debug, Clone, PartialEq)]
struct Tool {
    name: String,
    /// JSON schema of the arguments.
    parameters: Json,
}

impl Tool {
    /// Reads OpenAI's `{"type": "function", "function": {"name", "parameters"}}`, or the inner object alone.
    fn from_json(json: &Json) -> Result<Self> {
        let function = json.get("function").unwrap_or(json);
        let name = function["name"].as_str().unwrap_or_default();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > 128 || !name.chars().all(allowed) {
            return Err(Error::Usage(format!(
                "a tool's name is 1 to 128 letters, digits, '_', '-' or '.'; {} is not",
                function["name"]
            )));
        }
        let parameters = match &function["parameters"] {
            Json::Null => {
                serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false})
            }
            object @ Json::Object(_) => object.clone(),
            other => {
                return Err(Error::Usage(format!(
                    "the parameters of tool {name} must be a JSON schema, they are {other}"
                )))
            }
        };
        Ok(Self {
            name: name.to_string(),
            parameters,
        })
    }

    fn all_from_json(tools: &[Json]) -> Result<Vec<Self>> {
        tools.iter().map(Self::from_json).collect()
    }
}

/// Nine letters and digits: what every family's template takes as a call's id.
fn new_call_id() -> String {
    worker::ids::letters_and_digits(9)
}

#[cfg(test)]
mod tests;
