//! Messages in the form that a template takes.

use super::calls::Ids;
use super::form::{Arguments, Form};
use crate::media::{PICTURE_MARK, SOUND_MARK, VIDEO_MARK};
use serde_json::{json, Map, Value as Json};
use worker::{Error, Result};

/// Names of a message's reasoning: the first is OpenAI's servers', which most templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Types of parts that are pictures: OpenAI's two, and that of templates.
pub(crate) const PICTURES: [&str; 3] = ["image_url", "input_image", "image"];

/// Those that are sounds: OpenAI's, vLLM's, and that of templates.
pub(crate) const SOUNDS: [&str; 3] = ["input_audio", "audio_url", "audio"];

/// Types of parts that are videos.
pub(crate) const VIDEOS: [&str; 3] = ["video_url", "input_video", "video"];

/// The role of results in words until those of one turn are one message of the user.
const ANSWERS: &str = "answers in words";

impl Form {
    /// The messages in this form. `tools` are told in the system message if the template has no place for them.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the message and what is wrong with it.
    pub(super) fn prepare(self, messages: &[Json], tools: Option<&[Json]>) -> Result<Vec<Json>> {
        let mut ids = Ids::default();
        let mut prepared = messages
            .iter()
            .enumerate()
            .map(|(i, message)| {
                self.prepare_one(message, &mut ids)
                    .map_err(|reason| Error::Usage(format!("messages[{i}]: {reason}")))
            })
            .collect::<Result<Vec<_>>>()?;
        self.join_answers(&mut prepared);
        if !self.systems || !self.system {
            self.join_systems(&mut prepared);
        }
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

    fn prepare_one(self, message: &Json, ids: &mut Ids) -> std::result::Result<Json, String> {
        let mut message: Map<String, Json> = message
            .as_object()
            .cloned()
            .ok_or("it must be an object with \"role\" and \"content\"")?;
        // Clients send null for what they leave out; templates would print it.
        message.retain(|_, value| !value.is_null());
        let role = message
            .get("role")
            .and_then(Json::as_str)
            .ok_or("\"role\" must be a text")?
            .to_string();
        if role == "developer" && !self.developer {
            message.insert("role".to_string(), "system".into());
        }
        let takes_parts = match role.as_str() {
            "system" | "developer" => self.parts.system,
            "assistant" => self.parts.assistant,
            "tool" => self.parts.tool,
            _ => self.parts.user,
        };
        let calls = message.get("tool_calls").and_then(Json::as_array);
        let calls = calls.is_some_and(|calls| !calls.is_empty());
        let content = match message.get("content") {
            // Messages that only call tools have no content.
            None if calls && self.no_content => None,
            None => Some(self.content(String::new())),
            Some(Json::String(text)) => Some(self.content(text.clone())),
            Some(Json::Array(parts)) => {
                let texts = parts
                    .iter()
                    .map(Part::of)
                    .collect::<std::result::Result<Vec<_>, _>>()?;
                let is_user = role == "user";
                let shown = Shown {
                    pictures: self.pictures && is_user,
                    videos: self.videos && is_user,
                    sounds: self.sounds && is_user,
                };
                Some(match takes_parts {
                    true => texts.iter().map(|part| part.json(shown)).collect(),
                    false => self.content(joined(&texts)),
                })
            }
            Some(_) => return Err("\"content\" must be a text or a list of parts".to_string()),
        };
        if let Some(content) = content {
            message.insert("content".to_string(), content);
        }
        let reasoning = REASONING
            .iter()
            .find_map(|name| message.get(*name).cloned());
        if let Some(reasoning) = reasoning {
            message.insert(REASONING[0].to_string(), reasoning.clone());
            message.entry(REASONING[1]).or_insert(reasoning);
        }
        self.prepare_calls(&mut message, ids)?;
        if role == "tool" {
            ids.note_answer(&mut message);
            if self.arguments == Arguments::None {
                let text = format!(
                    "<tool_response>\n{}\n</tool_response>",
                    text_of(&message["content"])
                );
                return Ok(json!({"role": ANSWERS, "content": self.content(text)}));
            }
        }
        Ok(Json::Object(message))
    }

    pub(super) fn content(self, text: String) -> Json {
        if self.text {
            Json::String(text)
        } else {
            json!([{"type": "text", "text": text}])
        }
    }

    /// Results in words, those beside each other as one message of the user: turns alternate in many templates.
    fn join_answers(self, messages: &mut Vec<Json>) {
        messages.dedup_by(|after, before| {
            let both = after["role"] == ANSWERS && before["role"] == ANSWERS;
            if both {
                let text = format!(
                    "{}\n{}",
                    text_of(&before["content"]),
                    text_of(&after["content"])
                );
                before["content"] = self.content(text);
            }
            both
        });
        for message in messages.iter_mut().filter(|m| m["role"] == ANSWERS) {
            message["role"] = "user".into();
        }
    }

    /// The system messages at the beginning as one.
    fn join_systems(self, messages: &mut Vec<Json>) {
        let count = messages
            .iter()
            .take_while(|m| m["role"] == "system")
            .count();
        if count > 1 {
            let texts: Vec<String> = messages
                .drain(1..count)
                .map(|m| text_of(&m["content"]))
                .collect();
            let text = format!(
                "{}\n\n{}",
                text_of(&messages[0]["content"]),
                texts.join("\n\n")
            );
            messages[0]["content"] = self.content(text);
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

/// What a template leaves places for itself.
#[derive(Clone, Copy)]
struct Shown {
    pictures: bool,
    videos: bool,
    sounds: bool,
}

/// A content part.
enum Part {
    Text(String),
    Picture,
    Sound,
    Video,
}

impl Part {
    fn of(part: &Json) -> std::result::Result<Self, String> {
        let kind = part["type"].as_str().unwrap_or("text");
        match (kind, part["text"].as_str().or(part.as_str())) {
            ("text", Some(text)) => Ok(Self::Text(text.to_string())),
            ("text", None) => Err("a text part has no \"text\"".to_string()),
            (kind, _) if PICTURES.contains(&kind) => Ok(Self::Picture),
            (kind, _) if SOUNDS.contains(&kind) => Ok(Self::Sound),
            (kind, _) if VIDEOS.contains(&kind) => Ok(Self::Video),
            (other, _) => Err(format!(
                "content of type {other:?} is not supported, only \"text\", \"image_url\", \"video_url\" and \"input_audio\" are"
            )),
        }
    }

    /// The part for a template that takes parts, and some of the others among them.
    fn json(&self, shown: Shown) -> Json {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Picture if shown.pictures => json!({"type": "image"}),
            Self::Picture => json!({"type": "text", "text": PICTURE_MARK}),
            Self::Sound if shown.sounds => json!({"type": "audio"}),
            Self::Sound => json!({"type": "text", "text": SOUND_MARK}),
            Self::Video if shown.videos => json!({"type": "video"}),
            Self::Video => json!({"type": "text", "text": VIDEO_MARK}),
        }
    }
}

/// Parts as one text: a line for each, but that pictures, videos and sounds stand before what follows them.
fn joined(parts: &[Part]) -> String {
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        match part {
            Part::Text(part) => {
                text.push_str(part);
                if index + 1 < parts.len() {
                    text.push('\n');
                }
            }
            Part::Picture => text.push_str(PICTURE_MARK),
            Part::Sound => text.push_str(SOUND_MARK),
            Part::Video => text.push_str(VIDEO_MARK),
        }
    }
    text
}

pub(super) fn text_of(content: &Json) -> String {
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
