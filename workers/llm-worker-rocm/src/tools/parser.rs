//! An answer taken apart while it arrives.
//!
//! What comes out depends on the text only, not on the pieces in which it came: whatever could still become a mark is
//! held back until it is certain.

mod calls;
mod text;

use super::format::OutputFormat;
use super::forms::CallForm;
use super::read::Reader;
use super::Tool;
use serde_json::Value as Json;
use worker::Result;

/// More of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text for the user.
    Content(String),
    /// The model's thinking.
    Reasoning(String),
    /// A call, or more of one.
    ToolCall {
        /// Counts the answer's calls from 0.
        index: usize,
        /// Names the call in the answer to it; the same in all its deltas.
        id: String,
        /// The function; in the call's first delta only.
        name: Option<String>,
        /// More of the arguments, JSON once all deltas are joined.
        arguments: String,
    },
}

/// What to look for in an answer.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// The request's tools; without any, text that looks like a call is text.
    pub tools: Vec<Json>,
    /// Whether reasoning is told apart from content.
    pub reasoning: bool,
    /// Whether the prompt ended inside of reasoning ([`OutputFormat::opens_reasoning`]).
    pub in_reasoning: bool,
    /// Whether the prompt ended with what begins a call ([`OutputFormat::opens_call`]).
    pub in_call: bool,
}

/// Takes an answer apart.
#[derive(Debug, Clone)]
pub struct OutputParser {
    format: OutputFormat,
    /// The model's form and its relatives.
    forms: Vec<&'static CallForm>,
    /// Marks that are no text, spelled out.
    silent: Vec<String>,
    tools: Vec<Tool>,
    reasoning: bool,
    state: State,
    /// Text not yet understood.
    buffer: String,
    /// White space held back until it is known what follows it.
    blank: String,
    /// Whether anything but white space was given out.
    spoken: bool,
    /// Whether white space that comes next separates parts and is not content.
    after_part: bool,
    calls: usize,
    /// The calls' ids so far.
    ids: Vec<String>,
}

#[derive(Debug, Clone)]
enum State {
    Content,
    Reasoning,
    /// After what opens all calls, or between two of them.
    Between(Box<Open>),
    /// In a call.
    Call(Box<Open>),
    /// After a call's last character, before the mark that closes it.
    Closing(Box<Open>),
    /// In a call that is not understood any more.
    Skipping(Box<Open>),
}

/// Calls that are being read.
#[derive(Debug, Clone)]
struct Open {
    form: &'static CallForm,
    /// Whether a mark around all calls was opened.
    section: bool,
    reader: Reader,
    /// The id of the call that is read, once its name is known.
    id: Option<String>,
    /// What was read and told nothing yet, to be told as content if this turns out not to be a call.
    raw: String,
    /// What opened these calls; empty if nothing marks them.
    mark: &'static str,
}

impl OutputParser {
    /// A parser at the start of an answer.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for a malformed tool.
    pub fn new(format: OutputFormat, options: ParserOptions) -> Result<Self> {
        let reasoning = options.reasoning && format.reasoning.is_some();
        let tools = Tool::all_from_json(&options.tools)?;
        let relatives = format.calls.relatives.iter();
        let relatives = relatives.filter_map(|name| CallForm::named(name));
        let mut silent: Vec<String> = Vec::new();
        for mark in format.calls.silent {
            if mark.contains("{tool}") {
                let names = tools.iter().map(|tool| tool.name.as_str());
                let marks = names
                    .chain(["user"])
                    .map(|name| mark.replace("{tool}", name));
                silent.extend(marks);
            } else {
                silent.push((*mark).to_string());
            }
        }
        let begun = options.in_call && !tools.is_empty();
        Ok(Self {
            format,
            forms: [format.calls].into_iter().chain(relatives).collect(),
            silent,
            tools,
            reasoning,
            state: if reasoning && options.in_reasoning {
                State::Reasoning
            } else {
                State::Content
            },
            buffer: if begun {
                format.calls.call.open.to_string()
            } else {
                String::new()
            },
            blank: String::new(),
            spoken: false,
            after_part: false,
            calls: 0,
            ids: Vec::new(),
        })
    }

    /// The same for calls in the model's own form only.
    pub(super) fn strict(mut self) -> Self {
        self.forms.truncate(1);
        self
    }

    /// How many calls the answer has so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes more text and gives what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.buffer.push_str(text);
        let mut deltas = Vec::new();
        while self.step(&mut deltas) {}
        deltas
    }

    /// Does one thing with the buffer; whether there may be more to do.
    fn step(&mut self, deltas: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Content => self.content(false, deltas),
            State::Reasoning => self.reason(deltas),
            State::Between(_) => self.between(deltas),
            State::Call(_) => self.call(deltas),
            State::Closing(_) => self.closing(),
            State::Skipping(_) => self.skip(),
        }
    }

    /// Ends the answer. `complete` says that the model ended it; else it was cut, and what may have become a mark is
    /// none of its text.
    pub fn finish(&mut self, complete: bool) -> Vec<Delta> {
        let mut deltas = Vec::new();
        // What could have become a longer mark is the shorter one.
        while complete && matches!(self.state, State::Content) && self.content(true, &mut deltas) {
            while self.step(&mut deltas) {}
        }
        let rest = std::mem::take(&mut self.buffer);
        let blank = std::mem::take(&mut self.blank);
        match std::mem::replace(&mut self.state, State::Content) {
            State::Content => {
                // A single character after other text is more likely to be text.
                let is_mark = !complete && (rest.len() > 1 || self.calls > 0 || !self.spoken);
                let text = if is_mark {
                    String::new()
                } else {
                    blank + &rest
                };
                if !(self.after_part && text.trim().is_empty()) {
                    push_text(&mut deltas, Delta::Content, text);
                }
            }
            State::Reasoning => {
                let rest = if !complete && rest.len() > 1 {
                    ""
                } else {
                    &rest
                };
                let text = format!("{blank}{rest}");
                push_text(&mut deltas, Delta::Reasoning, text.trim_end().to_string());
            }
            State::Between(open) => {
                if complete && !open.raw.is_empty() {
                    push_text(&mut deltas, Delta::Content, open.raw + &rest);
                }
            }
            State::Call(open) => self.end_call(*open, &rest, complete, &mut deltas),
            State::Closing(_) | State::Skipping(_) => {}
        }
        deltas
    }
}

/// How far an answer has come, for what is to be allowed next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// In text or reasoning.
    Text,
    /// What came last may become a mark.
    Mark,
    /// In calls.
    Calls,
}

impl OutputParser {
    pub(super) fn phase(&self) -> Phase {
        match &self.state {
            _ if self.calls > 0 => Phase::Calls,
            State::Content if self.buffer.trim().is_empty() => Phase::Text,
            State::Content => Phase::Mark,
            State::Reasoning => Phase::Text,
            State::Between(open) | State::Call(open) => {
                let certain = !open.form.known_only || open.id.is_some() || open.reader.is_naming();
                if certain {
                    Phase::Calls
                } else {
                    Phase::Mark
                }
            }
            State::Closing(_) | State::Skipping(_) => Phase::Calls,
        }
    }

    /// Whether what came last may become a mark that means calls and nothing else.
    pub(super) fn holds_mark(&self) -> bool {
        let form = self.format.calls;
        matches!(self.state, State::Content) && !form.known_only && form.silent.is_empty()
    }

    /// The mark that opened the calls that are read.
    pub(super) fn opening(&self) -> Option<&'static str> {
        match &self.state {
            State::Between(open)
            | State::Call(open)
            | State::Closing(open)
            | State::Skipping(open) => Some(open.mark),
            State::Content | State::Reasoning => None,
        }
    }

    /// Whether what comes next is reasoning, as far as the text tells.
    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning)
    }

    /// Whether the answer has said nothing yet.
    pub(super) fn is_silent(&self) -> bool {
        !self.spoken
    }
}

fn push_text(deltas: &mut Vec<Delta>, kind: fn(String) -> Delta, text: String) {
    if !text.is_empty() {
        deltas.push(kind(text));
    }
}
