//! Calls of earlier turns, as clients send them.

use super::form::{Arguments, Form};
use super::messages::text_of;
use serde_json::{json, Map, Value as Json};

/// Ids of calls and of the messages that answer them, for those that a client leaves out.
#[derive(Debug, Default)]
pub(super) struct Ids {
    given: usize,
    /// Calls without an answer so far.
    open: Vec<Json>,
}

impl Ids {
    /// An id of nine letters and digits, which is what the strictest templates ask for.
    fn next(&mut self) -> Json {
        self.given += 1;
        format!("call{:05}", self.given).into()
    }

    /// Notes the ids of a message's calls, and gives those that have none one.
    fn note_calls(&mut self, calls: &mut [Json]) {
        self.open.clear();
        for call in calls {
            if !call["id"].is_string() {
                call["id"] = self.next();
            }
            self.open.push(call["id"].clone());
        }
    }

    /// Gives an answer without id that of the first call without answer.
    pub(super) fn note_answer(&mut self, message: &mut Map<String, Json>) {
        let id = message.get("tool_call_id").filter(|id| id.is_string());
        match id {
            Some(id) => self.open.retain(|open| open != id),
            None if self.open.is_empty() => {}
            None => {
                message.insert("tool_call_id".to_string(), self.open.remove(0));
            }
        }
    }
}

/// Arguments as an object. Clients send JSON text, an object, or for no arguments nothing, null or a blank text.
fn arguments_of(function: &Map<String, Json>) -> Result<Json, String> {
    let wrong = || "a tool call's \"arguments\" are not a JSON object".to_string();
    match function.get("arguments") {
        None | Some(Json::Null) => Ok(json!({})),
        Some(Json::String(text)) if text.trim().is_empty() => Ok(json!({})),
        Some(Json::String(text)) => match serde_json::from_str(text) {
            Ok(Json::Null) => Ok(json!({})),
            // Some models' calls are a text within a text.
            Ok(Json::String(inner)) => serde_json::from_str(&inner)
                .ok()
                .filter(Json::is_object)
                .ok_or_else(wrong),
            Ok(object @ Json::Object(_)) => Ok(object),
            _ => Err(wrong()),
        },
        Some(object @ Json::Object(_)) => Ok(object.clone()),
        Some(_) => Err(wrong()),
    }
}

impl Form {
    /// Puts a message's calls into the template's form; into words where the template has none.
    pub(super) fn prepare_calls(
        self,
        message: &mut Map<String, Json>,
        ids: &mut Ids,
    ) -> Result<(), String> {
        let Some(calls) = message.get_mut("tool_calls").filter(|c| !c.is_null()) else {
            message.remove("tool_calls");
            return Ok(());
        };
        let calls = calls
            .as_array_mut()
            .ok_or("\"tool_calls\" must be a list")?;
        if calls.is_empty() {
            // Templates take the key for calls.
            message.remove("tool_calls");
            return Ok(());
        }
        for call in calls.iter_mut() {
            let function = call.get_mut("function").and_then(Json::as_object_mut);
            let function = function.ok_or("a tool call has no \"function\"")?;
            if !function.get("name").is_some_and(Json::is_string) {
                return Err("a tool call's function has no \"name\"".to_string());
            }
            let arguments = arguments_of(function)?;
            let arguments = match (self.arguments, function.get("arguments")) {
                // The client's own spelling, where it is one.
                (Arguments::Text, Some(Json::String(text)))
                    if !arguments.as_object().is_none_or(Map::is_empty) =>
                {
                    text.as_str().into()
                }
                (Arguments::Text, _) => arguments.to_string().into(),
                _ => arguments,
            };
            function.insert("arguments".to_string(), arguments);
        }
        ids.note_calls(calls);
        if self.arguments == Arguments::None {
            let spelled: Vec<String> = calls
                .iter()
                .map(|c| call_in_words(&c["function"]))
                .collect();
            let before = text_of(message.get("content").unwrap_or(&Json::Null));
            let text = [before]
                .into_iter()
                .filter(|t| !t.is_empty())
                .chain(spelled);
            let text = text.collect::<Vec<_>>().join("\n");
            message.insert("content".to_string(), self.content(text));
            message.remove("tool_calls");
        }
        Ok(())
    }
}

fn call_in_words(function: &Json) -> String {
    let call = json!({"name": function["name"], "arguments": function["arguments"]});
    format!("<tool_call>\n{call}\n</tool_call>")
}
