//! Chat messages to prompt text, by the template that the model brings or the user names.
//!
//! Messages and tools are JSON values in OpenAI's form. Templates differ in what they take: content as text or as
//! parts, arguments of calls as objects or as text, a system message or none. [`ChatTemplate::new`] finds that out by
//! rendering small chats, and [`ChatTemplate::render`] puts messages into the form that the template takes.

mod builtin;
mod functions;
mod messages;

pub use builtin::BUILTIN_NAMES;

use messages::Form;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{json, Map, Value as Json};
use worker::{Error, Result};

/// Steps that a template may take: thousands of times what real ones need, a second at most.
const TEMPLATE_FUEL: u64 = 10_000_000;
/// Longest template file that is read; the longest in use has 20 kB.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;
/// The template's name in error messages.
const NAME: &str = "tokenizer.chat_template";

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

/// A compiled chat template in the dialect of Hugging Face's transformers: Jinja with trimmed blocks, loop controls,
/// Python's string methods, `tojson` as Python writes JSON, `strftime_now` and `raise_exception`.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    form: Form,
    note: Option<String>,
}

/// A message of text only.
pub fn message(role: &str, content: &str) -> Json {
    json!({"role": role, "content": content})
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the spellings of the model's special tokens.
    ///
    /// # Errors
    /// [`Error::Usage`] with the template's line for a syntax error.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let mut environment = Environment::new();
        let broken = |e| Error::Usage(format!("the chat template is broken: {e}"));
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(broken)?,
        );
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        functions::add_to(&mut environment);
        environment
            .add_template_owned(NAME, functions::without_generation_tags(source))
            .map_err(broken)?;
        let mut template = Self {
            environment,
            source: source.to_string(),
            bos: bos.unwrap_or_default().to_string(),
            eos: eos.unwrap_or_default().to_string(),
            form: Form::default(),
            note: None,
        };
        template.form = Form::of(&template);
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

    /// The prompt for a chat. `messages` and `tools` are those of OpenAI's chat completions.
    ///
    /// # Errors
    /// [`Error::Usage`] if a message is malformed or has content other than text, or the template refuses the messages
    /// or fails.
    pub fn render(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        options: &RenderOptions,
    ) -> Result<String> {
        let tools = tools.filter(|tools| !tools.is_empty());
        let messages = self.form.prepare(messages, tools)?;
        self.render_as_is(&messages, tools.filter(|_| self.form.tools), options)
    }

    /// The same with messages that are in the template's form already.
    fn render_as_is(
        &self,
        messages: &[Json],
        tools: Option<&[Json]>,
        options: &RenderOptions,
    ) -> Result<String> {
        let mut context = options.extra.clone();
        if let Some(thinking) = options.enable_thinking {
            // Two names are in use.
            context.insert("enable_thinking".to_string(), thinking.into());
            context.insert("thinking".to_string(), thinking.into());
        }
        for (name, value) in [
            ("messages", json!(messages)),
            ("tools", json!(tools)),
            ("documents", Json::Null),
            (
                "add_generation_prompt",
                options.add_generation_prompt.into(),
            ),
            ("bos_token", self.bos.as_str().into()),
            ("eos_token", self.eos.as_str().into()),
        ] {
            context.insert(name.to_string(), value);
        }
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(minijinja::value::Serde(&context)))
            .map_err(|e| Error::Usage(refusal(&e)))
    }
}

/// What `raise_exception` says is meant for the user; anything else is a fault of the template.
fn refusal(error: &minijinja::Error) -> String {
    match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) if detail.starts_with(functions::RAISED) => {
            format!(
                "the chat template refuses these messages: {}",
                detail[functions::RAISED.len()..].trim_start()
            )
        }
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
    file.take(MAX_TEMPLATE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(io)?;
    if text.len() as u64 > MAX_TEMPLATE_BYTES {
        return Err(Error::Usage(format!(
            "--chat-template {path}: longer than {MAX_TEMPLATE_BYTES} bytes"
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
