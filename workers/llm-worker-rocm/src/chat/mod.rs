//! Chat messages to prompt text, by the template that the model brings or the user names.
//!
//! Messages and tools are JSON values in OpenAI's form. Templates differ in what they take: content as text or as
//! parts, arguments of calls as objects or as text, a system message or none. [`ChatTemplate::new`] finds that out by
//! rendering small chats, and [`ChatTemplate::render`] puts messages into the form that the template takes.

mod builtin;
mod calls;
mod form;
mod messages;
mod pictures;
mod sounds;
mod videos;

pub use crate::jinja::Rendered;
pub use builtin::BUILTIN_NAMES;
pub use pictures::picture_addresses;
pub use sounds::sound_addresses;
pub use videos::video_parts;

use crate::jinja::{Error as JinjaError, ErrorKind, Template, Variable, FUEL};
use form::Form;
use serde_json::{json, Map, Value as Json};
use worker::{Error, Result};

/// Longest template that is compiled; the longest in use has 30 kB.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// What a rendering depends on besides messages and tools.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// Whether the prompt ends where the assistant is to speak.
    pub add_generation_prompt: bool,
    /// For models that can think aloud first: whether they do. `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables for the template (`chat_template_kwargs`).
    pub extra: Map<String, Json>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            enable_thinking: None,
            extra: Map::new(),
        }
    }
}

/// A compiled chat template: [Jinja](crate::jinja) in the dialect of Hugging Face's transformers.
#[derive(Debug)]
pub struct ChatTemplate {
    compiled: Template,
    source: String,
    bos: String,
    eos: String,
    form: Form,
    note: Option<String>,
}

/// A part of a message that is a picture.
pub fn picture_part(address: &str) -> Json {
    json!({"type": "image_url", "image_url": {"url": address}})
}

/// A part of a message that is a sound.
pub fn sound_part(address: &str) -> Json {
    json!({"type": "audio_url", "audio_url": {"url": address}})
}

/// A part of a message that is a video: the addresses of its frames, or of one file that has them all.
pub fn video_part(addresses: &[String]) -> Json {
    json!({"type": "video", "video": addresses})
}

/// A user's message with pictures, videos and sounds before its text.
pub fn message_with_parts(mut parts: Vec<Json>, text: &str) -> Json {
    parts.push(json!({"type": "text", "text": text}));
    json!({"role": "user", "content": parts})
}

/// A message of text only.
pub fn message(role: &str, content: &str) -> Json {
    json!({"role": role, "content": content})
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the spellings of the model's special tokens.
    ///
    /// # Errors
    /// [`Error::Usage`] with the template's line for a syntax error, or for a template beyond the limits of length and
    /// depth.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let broken = |reason| Error::Usage(format!("the chat template is broken: {reason}"));
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(broken(format!(
                "it is longer than {MAX_TEMPLATE_BYTES} bytes"
            )));
        }
        let mut template = Self {
            compiled: Template::new(source).map_err(|e| broken(e.to_string()))?,
            source: source.to_string(),
            bos: bos.unwrap_or_default().to_string(),
            eos: eos.unwrap_or_default().to_string(),
            form: Form::default(),
            note: None,
        };
        template.form = Form::of(&template)?;
        Ok(template)
    }

    /// The template for a model: the one that `argument` names (a file, or one of [`BUILTIN_NAMES`]), else the model's
    /// own (`embedded`), else ChatML, with a [note](Self::note) about it.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is neither, or a broken template; [`Error::Io`] for a file that cannot be read.
    pub fn choose(
        argument: Option<&str>,
        embedded: Option<&str>,
        bos: Option<&str>,
        eos: Option<&str>,
    ) -> Result<Self> {
        if let Some(argument) = argument {
            return match builtin::source(argument) {
                Some(source) => Self::new(source, bos, eos),
                None => Self::new(&read_template(argument)?, bos, eos),
            };
        }
        if let Some(source) = embedded {
            return Self::new(source, bos, eos);
        }
        let mut template = Self::new(builtin::CHATML, bos, eos)?;
        template.note = Some(
            "the model brings no chat template; ChatML is used, which it may not have been trained with (--chat-template takes another)"
                .to_string(),
        );
        Ok(template)
    }

    /// What the user should know about the choice.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template itself says how tools are told to the model. Where it does not, [`Self::render`] adds a
    /// description in the form of Hermes to the system message.
    pub fn describes_tools(&self) -> bool {
        self.form.tools
    }

    /// The prompt for a chat, and which parts of it messages and tools have brought
    /// ([`Tokenizer::encode_rendered`](crate::tokenizer::Tokenizer::encode_rendered) keeps control tokens that are
    /// spelled there text). `messages` and `tools` are those of OpenAI's chat completions.
    ///
    /// # Errors
    /// [`Error::Usage`] if a message is malformed or has content other than text, pictures, videos and sounds, or the
    /// template refuses the messages
    /// or fails.
    pub fn render(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        options: &RenderOptions,
    ) -> Result<Rendered> {
        let tools = tools.filter(|tools| !tools.is_empty());
        let messages = self.form.prepare(messages, tools)?;
        let none = self.form.empty_tools.then_some(&[][..]);
        let tools = tools.filter(|_| self.form.tools).or(none);
        self.render_as_is(messages, tools, options, FUEL)
            .map_err(|e| Error::Usage(refusal(&e)))
    }

    /// The same with messages that are in the template's form already, and an amount of fuel.
    fn render_as_is(
        &self,
        messages: Vec<Json>,
        tools: Option<&[Json]>,
        options: &RenderOptions,
        fuel: usize,
    ) -> std::result::Result<Rendered, JinjaError> {
        let messages = Json::Array(messages);
        let tools = json!(tools);
        let flag = |value: bool| Json::from(value);
        let (generation, thinking) = (options.add_generation_prompt, options.enable_thinking);
        let (generation, thinking) = (flag(generation), thinking.map(flag));
        let (bos, eos) = (json!(self.bos), json!(self.eos));
        let variable = |name, value, input| Variable { name, value, input };
        let mut variables: Vec<Variable> = options
            .extra
            .iter()
            .map(|(name, value)| variable(name, value, true))
            .collect();
        if let Some(thinking) = &thinking {
            // Two names are in use.
            variables.push(variable("enable_thinking", thinking, false));
            variables.push(variable("thinking", thinking, false));
        }
        variables.extend([
            variable("messages", &messages, true),
            variable("tools", &tools, true),
            variable("documents", &Json::Null, false),
            variable("add_generation_prompt", &generation, false),
            variable("bos_token", &bos, false),
            variable("eos_token", &eos, false),
        ]);
        self.compiled.render_within(&variables, fuel)
    }
}

/// What `raise_exception` says is meant for the user; anything else is a fault of the template.
fn refusal(error: &JinjaError) -> String {
    match error.kind {
        ErrorKind::Raised => format!(
            "the chat template refuses these messages: {}",
            error.message
        ),
        _ => format!("the chat template failed: {error}"),
    }
}

fn read_template(path: &str) -> Result<String> {
    use std::io::Read;
    let io = |source| Error::Io {
        path: path.into(),
        source,
    };
    let file = worker::file::open(path.as_ref()).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::Usage(format!(
            "--chat-template {path}: there is no such file, and the built-in ones are {}",
            BUILTIN_NAMES.join(", ")
        )),
        _ => io(source),
    })?;
    let mut text = String::new();
    file.take(MAX_TEMPLATE_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .map_err(io)?;
    if text.len() > MAX_TEMPLATE_BYTES {
        return Err(Error::Usage(format!(
            "--chat-template {path}: longer than {MAX_TEMPLATE_BYTES} bytes"
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
