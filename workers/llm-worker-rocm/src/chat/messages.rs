//! Messages in the form that a template takes.

use super::{message, ChatTemplate, RenderOptions};
use serde_json::{json, Map, Value as Json};
use worker::{Error, Result};

/// What a template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// Content as text.
    text: bool,
    /// Content as a list of parts.
    parts: bool,
    /// A system message.
    system: bool,
    /// Tools.
    pub(super) tools: bool,
    /// Calls in an assistant's message, and how their arguments are given.
    arguments: Arguments,
    /// The role "developer" (OpenAI's newer name of "system").
    developer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    Object,
    Text,
    /// The template has no calls.
    None,
}

impl Default for Form {
    fn default() -> Self {
        Self {
            text: true,
            parts: false,
            system: true,
            tools: false,
            arguments: Arguments::None,
            developer: false,
        }
    }
}

/// A word that no template contains.
const NEEDLE: &str = "qx7needle";

impl Form {
    /// Finds out by rendering chats of one or two messages and looking for their words.
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let prompt = |messages: Json, tools: Option<&[Json]>| -> String {
            let messages = messages.as_array().cloned().unwrap_or_default();
            let options = RenderOptions::default();
            template
                .render_as_is(&messages, tools, &options)
                .unwrap_or_default()
        };
        let shown = |messages: Json| prompt(messages, None).contains(NEEDLE);
        let mention = |word: &str| template.source().contains(word);

        let text = shown(json!([message("user", NEEDLE)]));
        let in_parts = prompt(
            json!([{"role": "user", "content": [{"type": "text", "text": NEEDLE}]}]),
            None,
        );
        // A template that prints the list itself shows its keys.
        let printed = ["'type'", "\"type\""]
            .iter()
            .any(|key| in_parts.contains(key));
        let parts = in_parts.contains(NEEDLE) && !printed;
        let user = |content: &str| {
            if text || !parts {
                message("user", content)
            } else {
                json!({"role": "user", "content": [{"type": "text", "text": content}]})
            }
        };
        let mut system = user(NEEDLE);
        system["role"] = "system".into();
        let system = shown(json!([system, user("a")]));
        let call = |arguments: Json| {
            let function = json!({"name": "f", "arguments": arguments});
            let calls = json!([{"id": "call00001", "type": "function", "function": function}]);
            let answer =
                json!({"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "b"});
            prompt(
                json!([user("a"), {"role": "assistant", "content": "", "tool_calls": calls}, answer]),
                None,
            )
        };
        let arguments = if !mention("tool_calls") {
            Arguments::None
        } else if call(json!({NEEDLE: 1})).contains(&format!("\"{NEEDLE}\"")) {
            Arguments::Object
        } else if call(json!(format!("{{\"{NEEDLE}\": 1}}"))).contains(&format!("{{\"{NEEDLE}\"")) {
            Arguments::Text
        } else {
            Arguments::None
        };
        let tool = json!({"type": "function", "function": {
            "name": NEEDLE, "description": "d", "parameters": {"type": "object", "properties": {}},
        }});
        let tools = mention("tools") && prompt(json!([user("a")]), Some(&[tool])).contains(NEEDLE);
        Self {
            text: text || !parts,
            parts,
            system,
            tools,
            arguments,
            developer: mention("developer"),
        }
    }

    /// The messages in this form. `tools` are told in the system message if the template has no place for them.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the message and what is wrong with it.
    pub(super) fn prepare(self, messages: &[Json], tools: Option<&[Json]>) -> Result<Vec<Json>> {
        let mut prepared = messages
            .iter()
            .enumerate()
            .map(|(i, message)| {
                self.prepare_one(message)
                    .map_err(|reason| Error::Usage(format!("messages[{i}]: {reason}")))
            })
            .collect::<Result<Vec<_>>>()?;
        if let Some(tools) = tools.filter(|_| !self.tools) {
            let told = tools_in_words(tools);
            match prepared.first_mut().filter(|m| m["role"] == "system") {
                Some(system) => {
                    let text = format!("{}\n\n{told}", text_of(&system["content"]));
                    system["content"] = self.content(text);
                }
                None => {
                    prepared.insert(0, json!({"role": "system", "content": self.content(told)}));
                }
            }
        }
        if !self.system {
            self.merge_system(&mut prepared);
        }
        Ok(prepared)
    }

    fn prepare_one(self, message: &Json) -> std::result::Result<Json, String> {
        let mut message: Map<String, Json> = message
            .as_object()
            .cloned()
            .ok_or("it must be an object with \"role\" and \"content\"")?;
        let role = message
            .get("role")
            .and_then(Json::as_str)
            .ok_or("\"role\" must be a text")?
            .to_string();
        if role == "developer" && !self.developer {
            message.insert("role".to_string(), "system".into());
        }
        let content = match message.get("content") {
            // Messages that only call tools have no content.
            None | Some(Json::Null) => self.content(String::new()),
            Some(Json::String(text)) => self.content(text.clone()),
            Some(Json::Array(parts)) => {
                let texts = parts
                    .iter()
                    .map(part_text)
                    .collect::<std::result::Result<Vec<_>, _>>()?;
                if self.parts {
                    Json::Array(
                        texts
                            .iter()
                            .map(|t| json!({"type": "text", "text": t}))
                            .collect(),
                    )
                } else {
                    Json::String(texts.join("\n"))
                }
            }
            Some(_) => return Err("\"content\" must be a text or a list of parts".to_string()),
        };
        message.insert("content".to_string(), content);
        self.prepare_calls(&mut message)?;
        if role == "tool" && self.arguments == Arguments::None {
            let text = format!(
                "<tool_response>\n{}\n</tool_response>",
                text_of(&message["content"])
            );
            return Ok(json!({"role": "user", "content": self.content(text)}));
        }
        Ok(Json::Object(message))
    }

    /// Arguments come as text; most templates take an object.
    fn prepare_calls(self, message: &mut Map<String, Json>) -> std::result::Result<(), String> {
        let Some(calls) = message.get_mut("tool_calls").filter(|c| !c.is_null()) else {
            message.remove("tool_calls");
            return Ok(());
        };
        let calls = calls
            .as_array_mut()
            .ok_or("\"tool_calls\" must be a list")?;
        for call in calls.iter_mut() {
            let function = call.get_mut("function").and_then(Json::as_object_mut);
            let function = function.ok_or("a tool call has no \"function\"")?;
            if !function.get("name").is_some_and(Json::is_string) {
                return Err("a tool call's function has no \"name\"".to_string());
            }
            let arguments = function.get("arguments").cloned().unwrap_or(json!({}));
            let arguments = match (self.arguments, arguments) {
                (Arguments::Text, Json::String(text)) => Json::String(text),
                (Arguments::Text, other) => Json::String(other.to_string()),
                (_, Json::String(text)) => serde_json::from_str::<Json>(&text)
                    .ok()
                    .filter(Json::is_object)
                    .ok_or("a tool call's \"arguments\" are not a JSON object")?,
                (_, other) => other,
            };
            function.insert("arguments".to_string(), arguments);
        }
        if self.arguments == Arguments::None && !calls.is_empty() {
            let spelled: Vec<String> = calls
                .iter()
                .map(|c| call_in_words(&c["function"]))
                .collect();
            let before = text_of(&message["content"]);
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

    fn content(self, text: String) -> Json {
        if self.text {
            Json::String(text)
        } else {
            json!([{"type": "text", "text": text}])
        }
    }

    /// The system message before the text of the user's first.
    fn merge_system(self, messages: &mut Vec<Json>) {
        if messages.first().is_none_or(|m| m["role"] != "system") {
            return;
        }
        let system = text_of(&messages.remove(0)["content"]);
        match messages.first_mut().filter(|m| m["role"] == "user") {
            Some(user) => {
                let text = format!("{system}\n\n{}", text_of(&user["content"]));
                user["content"] = self.content(text);
            }
            None => messages.insert(0, json!({"role": "user", "content": self.content(system)})),
        }
    }
}

/// The text of a content part.
fn part_text(part: &Json) -> std::result::Result<String, String> {
    let kind = part["type"].as_str().unwrap_or("text");
    match (kind, part["text"].as_str().or(part.as_str())) {
        ("text", Some(text)) => Ok(text.to_string()),
        ("text", None) => Err("a text part has no \"text\"".to_string()),
        (other, _) => Err(format!(
            "content of type {other:?} is not supported, only \"text\" is"
        )),
    }
}

fn text_of(content: &Json) -> String {
    match content {
        Json::String(text) => text.clone(),
        Json::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|p| p["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// Tools for a model whose template has no place for them, in the form that Hermes made common.
fn tools_in_words(tools: &[Json]) -> String {
    let list: Vec<String> = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool).to_string())
        .collect();
    format!(
        "These functions can be called; each line is the JSON description of one:\n<tools>\n{}\n</tools>\n\
         To call a function, answer with its name and arguments as JSON:\n\
         <tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{…}}}}\n</tool_call>",
        list.join("\n")
    )
}

fn call_in_words(function: &Json) -> String {
    let call = json!({"name": function["name"], "arguments": function["arguments"]});
    format!("<tool_call>\n{call}\n</tool_call>")
}
