//! An answer taken apart while it arrives.

use super::call::{typed_value, CallReader};
use super::format::{OutputFormat, ToolFormat};
use super::{new_call_id, xml, Tool};
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
}

/// Takes an answer apart.
#[derive(Clone)]
pub struct OutputParser {
    format: OutputFormat,
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
}

#[derive(Clone)]
enum State {
    Content,
    Reasoning,
    /// A JSON call is read.
    Call(Box<OpenCall>),
    /// Between the calls of a list, or before the first.
    List,
    /// `NAME[ARGS]` or DeepSeek's header, up to the arguments.
    Header,
    /// An XML-like call, read whole.
    Block,
}

#[derive(Clone)]
struct OpenCall {
    reader: CallReader,
    /// The name, where it stands outside of the JSON: then the object is the arguments.
    named: Option<String>,
    id: Option<String>,
    started: bool,
    /// What came before, to be told as content if this turns out not to be a call.
    before: String,
}

impl OpenCall {
    fn new(before: &str) -> Box<Self> {
        Box::new(Self {
            reader: CallReader::default(),
            named: None,
            id: None,
            started: false,
            before: before.to_string(),
        })
    }
}

impl OutputParser {
    /// A parser at the start of an answer.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for a malformed tool.
    pub fn new(format: OutputFormat, options: ParserOptions) -> Result<Self> {
        let reasoning = options.reasoning && format.reasoning.is_some();
        Ok(Self {
            format,
            tools: Tool::all_from_json(&options.tools)?,
            reasoning,
            state: if reasoning && options.in_reasoning {
                State::Reasoning
            } else {
                State::Content
            },
            buffer: String::new(),
            blank: String::new(),
            spoken: false,
            after_part: false,
            calls: 0,
        })
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

    /// Ends the answer.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let rest = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, State::Content) {
            State::Content if self.after_part && self.is_end_of_part(rest.trim()) => {}
            State::Content => {
                let text = std::mem::take(&mut self.blank) + &rest;
                push_text(&mut deltas, Delta::Content, text);
            }
            State::Reasoning => {
                let text = std::mem::take(&mut self.blank) + &rest;
                push_text(&mut deltas, Delta::Reasoning, text.trim_end().to_string());
            }
            State::Call(call) => self.abandon(*call, &rest, &mut deltas),
            State::Block => {
                if !self.take_block(&rest, &mut deltas) {
                    let marker = self.format.call_markers()[0];
                    push_text(&mut deltas, Delta::Content, format!("{marker}{rest}"));
                }
            }
            State::List => {}
            State::Header => {
                let marker = self.format.call_markers()[0];
                push_text(&mut deltas, Delta::Content, format!("{marker}{rest}"));
            }
        }
        self.blank.clear();
        deltas
    }

    /// Does one thing with the buffer; whether there may be more to do.
    fn step(&mut self, deltas: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Content => self.content(deltas),
            State::Reasoning => self.reason(deltas),
            State::Call(_) => self.call(deltas),
            State::List => self.list(),
            State::Header => self.header(),
            State::Block => self.block(deltas),
        }
    }

    /// Whether the text is nothing, or a prefix of what closes a call.
    fn is_end_of_part(&self, text: &str) -> bool {
        text.is_empty()
            || (self.calls > 0
                && self
                    .format
                    .call_ends()
                    .iter()
                    .any(|end| end.starts_with(text)))
    }

    fn content(&mut self, deltas: &mut Vec<Delta>) -> bool {
        if self.after_part && self.calls > 0 {
            let start = self.buffer.trim_start();
            let end = self
                .format
                .call_ends()
                .iter()
                .find(|end| start.starts_with(**end));
            if let Some(end) = end {
                self.buffer = start[end.len()..].to_string();
                return true;
            }
            if self.is_end_of_part(start) {
                return false;
            }
        }
        // Llama's calls have no mark: the answer is the object.
        if self.format.tools == ToolFormat::Llama3 && !self.tools.is_empty() && !self.spoken {
            let start = self.buffer.trim_start();
            if start.is_empty() {
                return false;
            }
            if start.starts_with('{') {
                self.state = State::Call(OpenCall::new(""));
                return true;
            }
        }
        let mut marks: Vec<&'static str> = Vec::new();
        if !self.tools.is_empty() {
            marks.extend(self.format.call_markers());
        }
        // Reasoning comes first or not at all.
        let lead = self.buffer.trim_start();
        let first = self.reasoning && !self.spoken && self.calls == 0;
        let open = self
            .format
            .reasoning
            .filter(|tags| first && (lead.starts_with(tags.open) || tags.open.starts_with(lead)));
        marks.extend(open.map(|tags| tags.open));
        let found = marks
            .iter()
            .filter_map(|mark| Some((self.buffer.find(mark)?, *mark)))
            .min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len())));
        let Some((at, mark)) = found else {
            let keep = longest_tail(&self.buffer, &marks);
            let text: String = self.buffer.drain(..self.buffer.len() - keep).collect();
            self.say(&text, deltas);
            return false;
        };
        let before: String = self.buffer.drain(..at).collect();
        self.buffer.drain(..mark.len());
        self.say(&before, deltas);
        // White space before a part belongs to it.
        self.blank.clear();
        self.state = if open.is_some_and(|tags| tags.open == mark) {
            State::Reasoning
        } else {
            match self.format.tools {
                ToolFormat::Hermes | ToolFormat::Llama3 => State::Call(OpenCall::new(mark)),
                ToolFormat::QwenXml => State::Block,
                ToolFormat::List => State::List,
                ToolFormat::Mistral { .. } | ToolFormat::DeepSeek { .. } => State::Header,
            }
        };
        true
    }

    /// Gives out content, white space at its end held back.
    fn say(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        let text = std::mem::take(&mut self.blank) + text;
        let text = if self.after_part {
            text.trim_start()
        } else {
            &text
        };
        // Without anything that could follow, nothing needs to be held back.
        let body = if self.tools.is_empty() && (self.spoken || !self.reasoning) {
            text
        } else {
            text.trim_end()
        };
        self.blank = text[body.len()..].to_string();
        if !body.is_empty() {
            self.spoken = true;
            self.after_part = false;
            push_text(deltas, Delta::Content, body.to_string());
        }
    }

    fn reason(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let Some(tags) = self.format.reasoning else {
            self.state = State::Content;
            return true;
        };
        let (end, closed) = match self.buffer.find(tags.close) {
            Some(at) => (at, true),
            None => (
                self.buffer.len() - longest_tail(&self.buffer, &[tags.close]),
                false,
            ),
        };
        let text = std::mem::take(&mut self.blank) + &self.buffer[..end];
        self.buffer
            .drain(..end + if closed { tags.close.len() } else { 0 });
        let text = if self.spoken {
            &text
        } else {
            text.trim_start()
        };
        let body = text.trim_end();
        self.spoken |= !body.is_empty();
        push_text(deltas, Delta::Reasoning, body.to_string());
        if closed {
            self.spoken = false;
            self.reasoning = false;
            self.after_part = true;
            self.state = State::Content;
        } else {
            self.blank = text[body.len()..].to_string();
        }
        closed
    }

    fn call(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let State::Call(call) = &mut self.state else {
            return false;
        };
        let text = std::mem::take(&mut self.buffer);
        let rest = call.reader.push(&text);
        let name = match &call.named {
            Some(name) => Some(name.clone()),
            None => call.reader.name().map(str::to_string),
        };
        // Where nothing marks a call, only a known function's name makes it one.
        let marked = !call.before.is_empty();
        let name = name.filter(|name| marked || self.tools.iter().any(|t| t.name == *name));
        if let Some(name) = name {
            let index = self.calls;
            let id = call
                .id
                .get_or_insert_with(|| call.reader.id().map_or_else(new_call_id, str::to_string))
                .clone();
            if !call.started {
                call.started = true;
                deltas.push(Delta::ToolCall {
                    index,
                    id: id.clone(),
                    name: Some(name),
                    arguments: String::new(),
                });
            }
            let arguments = match &call.named {
                Some(_) => text[..text.len() - rest.as_ref().map_or(0, String::len)].to_string(),
                None => call.reader.take_arguments(),
            };
            if !arguments.is_empty() {
                deltas.push(Delta::ToolCall {
                    index,
                    id,
                    name: None,
                    arguments,
                });
            }
        }
        let Some(rest) = rest else {
            return false;
        };
        self.buffer = rest;
        let State::Call(call) = std::mem::replace(&mut self.state, State::Content) else {
            return false;
        };
        if !call.started {
            let rest = std::mem::take(&mut self.buffer);
            self.abandon(*call, "", deltas);
            self.buffer = rest;
            self.spoken = true;
            return true;
        }
        self.calls += 1;
        self.after_part = true;
        self.state = match self.format.tools {
            ToolFormat::List => State::List,
            ToolFormat::Mistral { .. } if call.named.is_none() => State::List,
            _ => State::Content,
        };
        true
    }

    fn list(&mut self) -> bool {
        let start = self
            .buffer
            .trim_start_matches([' ', '\n', '\r', '\t', ',', '[']);
        if start.is_empty() {
            return false;
        }
        let start = start.to_string();
        match start.strip_prefix(']') {
            Some(rest) => {
                self.buffer = rest.to_string();
                self.state = State::Content;
            }
            None => {
                self.buffer = start;
                self.state = State::Call(OpenCall::new(self.format.call_markers()[0]));
            }
        }
        true
    }

    /// The function's name before its arguments.
    fn header(&mut self) -> bool {
        let trimmed = self.buffer.trim_start();
        if trimmed.is_empty() {
            return false;
        }
        if trimmed.starts_with('[')
            && !"[ARGS]".starts_with(trimmed)
            && !trimmed.starts_with("[ARGS]")
        {
            self.state = State::List;
            return true;
        }
        let Some(brace) = self.buffer.find('{') else {
            return false;
        };
        let header: String = self.buffer.drain(..brace).collect();
        let (name, id) = name_in_header(&header);
        let mut call = OpenCall::new(self.format.call_markers()[0]);
        call.before.push_str(&header);
        call.named = Some(name);
        call.id = id;
        self.state = State::Call(call);
        true
    }

    fn block(&mut self, deltas: &mut Vec<Delta>) -> bool {
        const CLOSE: &str = "</tool_call>";
        let Some(at) = self.buffer.find(CLOSE) else {
            return false;
        };
        let block: String = self.buffer.drain(..at).collect();
        self.buffer.drain(..CLOSE.len());
        if self.take_block(&block, deltas) {
            self.after_part = true;
        } else {
            let marker = self.format.call_markers()[0];
            push_text(deltas, Delta::Content, format!("{marker}{block}{CLOSE}"));
        }
        self.state = State::Content;
        true
    }

    /// A whole XML-like call; whether it is one.
    fn take_block(&mut self, block: &str, deltas: &mut Vec<Delta>) -> bool {
        let Some((name, parameters)) = xml::read_call(block) else {
            return false;
        };
        let schema = self
            .tools
            .iter()
            .find(|t| t.name == name)
            .map(|t| &t.parameters);
        let arguments: serde_json::Map<String, Json> = parameters
            .into_iter()
            .map(|(key, text)| {
                let schema = schema.map_or(&Json::Null, |s| &s["properties"][&key]);
                let value = typed_value(&text, schema);
                (key, value)
            })
            .collect();
        deltas.push(Delta::ToolCall {
            index: self.calls,
            id: new_call_id(),
            name: Some(name),
            arguments: Json::Object(arguments).to_string(),
        });
        self.calls += 1;
        true
    }

    /// Ends a call that is incomplete. What was told of it stays; if nothing was, it is content.
    fn abandon(&mut self, call: OpenCall, rest: &str, deltas: &mut Vec<Delta>) {
        if call.started {
            self.calls += 1;
        } else {
            let text = format!("{}{}{rest}", call.before, call.reader.text());
            push_text(deltas, Delta::Content, text);
        }
    }
}

/// Name and id before the arguments: `NAME[CALL_ID]ID[ARGS]`, `function<｜tool▁sep｜>NAME` with a fence, or
/// `NAME<｜tool▁sep｜>`.
fn name_in_header(header: &str) -> (String, Option<String>) {
    if let Some((kind, rest)) = header.split_once("<｜tool▁sep｜>") {
        let kind = kind
            .rsplit("<｜tool▁call▁begin｜>")
            .next()
            .unwrap_or(kind)
            .trim();
        let after = rest.split("```").next().unwrap_or(rest).trim();
        let name = if kind == "function" { after } else { kind };
        return (name.to_string(), None);
    }
    let header = header.split("[ARGS]").next().unwrap_or(header);
    match header.split_once("[CALL_ID]") {
        Some((name, id)) => (name.trim().to_string(), Some(id.trim().to_string())),
        None => (header.trim().to_string(), None),
    }
}

fn push_text(deltas: &mut Vec<Delta>, kind: fn(String) -> Delta, text: String) {
    if !text.is_empty() {
        deltas.push(kind(text));
    }
}

/// Length of the longest end of `text` that begins one of the marks.
fn longest_tail(text: &str, marks: &[&str]) -> usize {
    let most = marks
        .iter()
        .map(|m| m.len())
        .max()
        .unwrap_or(0)
        .saturating_sub(1);
    (1..=most.min(text.len()))
        .rev()
        .filter(|&n| text.is_char_boundary(text.len() - n))
        .find(|&n| {
            marks
                .iter()
                .any(|mark| mark.starts_with(&text[text.len() - n..]))
        })
        .unwrap_or(0)
}
