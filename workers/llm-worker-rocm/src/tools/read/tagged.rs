//! Parameters one by one between marks.

use super::super::forms::{eat, follow, starts_piece, Attribute, Follow, Tags};
use super::super::schema::{parameters, typed_value};
use super::super::{python, Tool};
use super::parameters::Arguments;
use super::{call_name, parameters_of, Said, Step, MAX_HEAD};
use serde_json::Value as Json;

/// Reads a call of [`Tags`]; each parameter is passed on once its value is complete.
#[derive(Debug, Clone)]
pub(crate) struct Tagged {
    tags: Tags,
    close: &'static str,
    name: Option<String>,
    arguments: Arguments,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Name,
    AfterName,
    Parameters,
    Value {
        key: String,
        kind: Option<String>,
        /// Bytes in which the value's end was looked for.
        searched: usize,
    },
}

impl Tagged {
    pub(super) fn new(tags: Tags, close: &'static str) -> Self {
        Self {
            tags,
            close,
            name: None,
            arguments: Arguments::default(),
            state: State::Name,
        }
    }

    pub(super) fn step(&mut self, text: &str, tools: &[Tool], said: &mut Vec<Said>) -> Step {
        match &mut self.state {
            State::Name => self.name(text, said),
            State::AfterName => match eat(text, self.tags.after_name) {
                Some(end) => {
                    self.state = State::Parameters;
                    Step::Took(end)
                }
                None => Step::Wait,
            },
            State::Parameters => self.parameter(text, said),
            State::Value { searched, .. } => {
                let mark = self.tags.value_close.trim();
                let from = searched.saturating_sub(mark.len());
                let from = worker::text::beginning(text, from).len();
                match text[from..].find(mark) {
                    Some(at) => {
                        let end = from + at;
                        self.value(&text[..end], tools, said);
                        Step::Took(end + mark.len())
                    }
                    None => {
                        *searched = text.len();
                        Step::Wait
                    }
                }
            }
        }
    }

    fn name(&mut self, text: &str, said: &mut Vec<Said>) -> Step {
        match call_name(text, said) {
            Ok((name, taken)) => {
                self.name = Some(name);
                self.state = State::AfterName;
                Step::Took(taken)
            }
            Err(step) => step,
        }
    }

    fn parameter(&mut self, text: &str, said: &mut Vec<Said>) -> Step {
        let start = text.trim_start();
        let blank = text.len() - start.len();
        if start.is_empty() {
            return Step::Wait;
        }
        let open = follow(start, self.tags.key_open);
        let close = starts_piece(start, self.close);
        match (open, close) {
            (Follow::Done(head), _) => match self.key(&start[head..]) {
                Some(Ok((end, key, kind))) => {
                    self.state = State::Value {
                        key,
                        kind,
                        searched: 0,
                    };
                    Step::Took(blank + head + end)
                }
                Some(Err(())) => Step::Bad(0),
                None => Step::Wait,
            },
            (_, Some(true)) => {
                self.arguments.end(said);
                Step::Done(blank)
            }
            (Follow::More, _) | (_, None) => Step::Wait,
            // Words between parameters mean nothing.
            (Follow::No, Some(false)) => {
                let first = start.chars().next().map_or(0, char::len_utf8);
                Step::Took(blank + first)
            }
        }
    }

    /// A key up to its value: the bytes of both marks and of what is between them, the key, and the type that is told.
    #[allow(clippy::type_complexity)]
    fn key(&self, text: &str) -> Option<Result<(usize, String, Option<String>), ()>> {
        let Some(end) = text.find(self.tags.key_end).filter(|at| *at <= MAX_HEAD) else {
            return (text.len() > MAX_HEAD).then_some(Err(()));
        };
        let key = text[..end].trim().to_string();
        let mut at = end + self.tags.key_end.len();
        let attribute = match self.tags.attribute {
            Attribute::None => None,
            Attribute::IsString => Some(" string=\""),
            Attribute::Type => Some(" type=\""),
        };
        let mut kind = None;
        if let Some(attribute) = attribute {
            match follow(&text[at..], attribute) {
                Follow::More => return None,
                Follow::No => {}
                Follow::Done(head) => {
                    let rest = &text[at + head..];
                    let Some(end) = rest.find('"').filter(|at| *at <= MAX_HEAD) else {
                        return (rest.len() > MAX_HEAD).then_some(Err(()));
                    };
                    kind = Some(rest[..end].to_string());
                    at += head + end + 1;
                }
            }
        }
        match follow(&text[at..], self.tags.value_open) {
            Follow::More => None,
            Follow::No => Some(Err(())),
            Follow::Done(head) => Some(Ok((at + head, key, kind))),
        }
    }

    fn value(&mut self, text: &str, tools: &[Tool], said: &mut Vec<Said>) {
        let State::Value { key, kind, .. } = std::mem::replace(&mut self.state, State::Parameters)
        else {
            return;
        };
        // White space that belongs to the marks is theirs once; all other is the value's.
        let inner = self.tags.value_open.trim_end_matches(['\n', '\0']);
        let before = self.tags.value_open[inner.len()..].replace('\0', "");
        let inner = self.tags.value_close.trim_start();
        let after = &self.tags.value_close[..self.tags.value_close.len() - inner.len()];
        let text = text.strip_prefix(&before).unwrap_or(text);
        let text = text.strip_suffix(after).unwrap_or(text);
        let root = parameters_of(tools, self.name.as_deref().unwrap_or_default());
        let value = match kind.as_deref() {
            Some("true" | "string") => Json::from(text),
            told => {
                let list = parameters(root).unwrap_or_default();
                let own = list.iter().find(|p| p.key == key).map(|p| &p.schema);
                let json = told.and_then(|_| python::value_of(text.trim()));
                json.unwrap_or_else(|| typed_value(text, own.unwrap_or(&Json::Null), root))
            }
        };
        self.arguments.add(&key, &value, said);
    }

    /// The last value may lack its end where the model stopped.
    pub(super) fn finish(&mut self, text: &str, tools: &[Tool], said: &mut Vec<Said>) {
        match self.state {
            State::Name => return,
            State::Value { .. } => self.value(text, tools, said),
            State::AfterName | State::Parameters => {}
        }
        self.arguments.end(said);
    }
}
