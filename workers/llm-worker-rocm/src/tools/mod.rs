//! Tool calls and reasoning in a model's answer.
//!
//! Families write calls in their own ways, each a row of [`FORMS`]. [`OutputFormat::of`] tells from the chat template
//! which one a model uses, [`OutputParser`] takes the answer apart while it arrives,
//! [`OutputFormat::forced_grammar`] is a grammar that leaves nothing but calls, [`OfferedCalls`] holds calls that the
//! model makes of itself to their schemas, and [`CallForm::write`] writes calls as the family does.

mod format;
mod forms;
mod grammar;
mod offered;
mod parser;
mod python;
mod read;
mod schema;
mod thoughts;
mod write;

pub use format::{OutputFormat, ReasoningTags};
pub use forms::{CallForm, FORMS};
pub use grammar::{CallRules, OfferedGrammars};
pub use offered::OfferedCalls;
pub use parser::{Delta, OutputParser, ParserOptions};
pub use thoughts::{ThoughtLimit, Thoughts};

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
    /// JSON schema of the arguments, which are an object.
    parameters: Json,
    /// Whether calls must follow the schema, whatever it says.
    strict: bool,
}

impl Tool {
    /// Reads OpenAI's `{"type": "function", "function": {"name", "parameters"}}`, or the inner object alone.
    fn from_json(json: &Json) -> Result<Self> {
        let function = json.get("function").unwrap_or(json);
        let name = function["name"].as_str().unwrap_or_default();
        if name.is_empty() || name.len() > 128 || !name.chars().all(is_name_char) {
            return Err(Error::Usage(format!(
                "a tool's name is 1 to 128 letters, digits, '_', '-' or '.'; {} is not",
                function["name"]
            )));
        }
        let parameters = match &function["parameters"] {
            Json::Null => {
                serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false})
            }
            Json::Object(schema) => Json::Object(schema.clone()),
            other => {
                return Err(Error::Usage(format!(
                    "the parameters of tool {name} must be a JSON schema, they are {other}"
                )))
            }
        };
        Ok(Self {
            name: name.to_string(),
            parameters: arguments_schema(parameters),
            strict: function["strict"].as_bool().unwrap_or(false),
        })
    }

    fn all_from_json(tools: &[Json]) -> Result<Vec<Self>> {
        tools.iter().map(Self::from_json).collect()
    }
}

/// The schema of arguments: they are an object, and where properties are named and nothing is said of others, there
/// are no others, in objects within them neither.
fn arguments_schema(mut schema: Json) -> Json {
    if let Some(object) = schema.as_object_mut() {
        object.entry("type").or_insert_with(|| "object".into());
    }
    // Where schemas are put together, none of the parts names all properties.
    if !schema.to_string().contains("\"allOf\"") {
        close(&mut schema);
    }
    schema
}

/// Leaves no room for properties that are not named, but in schemas that are one of several parts.
fn close(schema: &mut Json) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    let parts = ["anyOf", "oneOf", "$ref", "if"];
    let in_parts = parts.iter().any(|key| object.contains_key(*key));
    if object.contains_key("properties") && !in_parts {
        object
            .entry("additionalProperties")
            .or_insert(Json::Bool(false));
    }
    for (key, value) in object.iter_mut() {
        match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Json::Object(schemas)) => {
                schemas.values_mut().for_each(close);
            }
            ("items", schema @ Json::Object(_)) => close(schema),
            ("anyOf" | "oneOf" | "prefixItems", Json::Array(schemas)) => {
                schemas.iter_mut().for_each(close);
            }
            _ => {}
        }
    }
}

/// Whether a function's name may have the character.
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

/// Nine letters and digits: what every family's template takes as a call's id.
fn new_call_id() -> String {
    worker::ids::letters_and_digits(9)
}

#[cfg(test)]
mod tests;
