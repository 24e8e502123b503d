//! Calls read while they arrive: one reader for each kind of [`Body`].
//!
//! A reader is given the text that it has not taken yet, all of it each time. What it takes depends on that text only,
//! never on how the text came in pieces.

mod braces;
mod elements;
mod json;
mod object;
mod parameters;
mod python;
mod tagged;

use super::forms::{Body, CallForm};
use super::Tool;

pub(super) use braces::key_mark;
use braces::Braces;
use elements::Elements;
use json::JsonCall;
use object::ObjectCall;
use python::PythonCall;
use tagged::Tagged;

/// Longest head of a call, in bytes, and longest key of a parameter.
const MAX_HEAD: usize = 1024;

/// What a call says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// The function, once, before any argument, and the call's id if the model gave one.
    Name { name: String, id: Option<String> },
    /// More of the arguments, JSON once all of it is joined.
    Arguments(String),
}

/// What a reader did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It took so many bytes, and there may be more to do.
    Took(usize),
    /// It needs more text.
    Wait,
    /// It took so many bytes, the last of the call without the mark that closes it.
    Done(usize),
    /// It took so many bytes and this is no call, or none any more.
    Bad(usize),
}

/// Reads one call.
#[derive(Debug, Clone)]
pub(super) enum Reader {
    Object(ObjectCall),
    Json(JsonCall),
    Tagged(Tagged),
    Python(PythonCall),
    Braces(Braces),
    Elements(Elements),
}

impl Reader {
    /// A reader of a call in this form, after what opens it.
    pub(super) fn new(form: &'static CallForm) -> Self {
        match form.body {
            Body::Object { .. } => Self::Object(ObjectCall::default()),
            Body::Json { heads } => Self::Json(JsonCall::new(heads)),
            Body::Tagged(tags) => Self::Tagged(Tagged::new(tags, form.call.close)),
            Body::Python => Self::Python(PythonCall::default()),
            Body::Braces { quote } => Self::Braces(Braces::new(quote)),
            Body::Elements { prefix } => Self::Elements(Elements::new(prefix, form.call.close)),
        }
    }

    /// Takes more of `text`, or waits for more of it.
    pub(super) fn step(&mut self, text: &str, tools: &[Tool], said: &mut Vec<Said>) -> Step {
        match self {
            Self::Object(reader) => reader.step(text, said),
            Self::Json(reader) => reader.step(text, said),
            Self::Tagged(reader) => reader.step(text, tools, said),
            Self::Python(reader) => reader.step(text, said),
            Self::Braces(reader) => reader.step(text, said),
            Self::Elements(reader) => reader.step(text, tools, said),
        }
    }

    /// Ends a call that goes no further: `text` is the rest of it where the model ended there, nothing where what comes
    /// is not understood.
    pub(super) fn finish(&mut self, text: &str, tools: &[Tool], said: &mut Vec<Said>) {
        match self {
            Self::Tagged(reader) => reader.finish(text, tools, said),
            Self::Python(reader) => reader.finish(said),
            Self::Braces(reader) => reader.finish(said),
            Self::Elements(reader) => reader.finish(said),
            // Their arguments are told as they came.
            Self::Object(_) | Self::Json(_) => {}
        }
    }

    /// Whether a JSON object has come so far that it is a call's: its name begins.
    pub(super) fn is_naming(&self) -> bool {
        match self {
            Self::Object(reader) => reader.is_naming(),
            _ => false,
        }
    }
}

/// The name that `text` begins with, and the length of it; `None` if more of it may come.
fn name_at(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !super::is_name_char(c))?;
    Some(&text[..end])
}

/// The name of a call, behind white space, and the bytes that it takes; what to do instead while or where there is none.
fn call_name(text: &str, said: &mut Vec<Said>) -> std::result::Result<(String, usize), Step> {
    let start = text.trim_start();
    let Some(name) = name_at(start) else {
        return Err(match start.len() > MAX_HEAD {
            true => Step::Bad(0),
            false => Step::Wait,
        });
    };
    if name.is_empty() {
        return Err(Step::Bad(0));
    }
    said.push(Said::Name {
        name: name.to_string(),
        id: None,
    });
    Ok((name.to_string(), text.len() - start.len() + name.len()))
}

/// The schema of a function's parameters.
fn parameters_of<'a>(tools: &'a [Tool], name: &str) -> &'a serde_json::Value {
    let tool = tools.iter().find(|tool| tool.name == name);
    tool.map_or(&serde_json::Value::Null, |tool| &tool.parameters)
}
