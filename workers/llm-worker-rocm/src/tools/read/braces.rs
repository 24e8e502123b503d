//! `NAME{KEY:VALUE, …}` with texts between marks of their own, as Gemma 4 writes.

use super::super::python::Nested;
use super::{name_at, Said, Step, MAX_HEAD};
use serde_json::{Map, Value as Json};

/// Reads a call; the arguments are passed on together.
#[derive(Debug, Clone)]
pub(crate) struct Braces {
    quote: &'static str,
    named: bool,
    /// How far the arguments were looked at.
    at: usize,
    depth: usize,
    in_text: bool,
}

/// How a key is written: as it is where that is certain to be read, else as a text.
pub(crate) fn key_mark(key: &str, quote: &str) -> String {
    let plain = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_alphanumeric() || "_-. $@".contains(c));
    if plain && key.trim() == key {
        key.to_string()
    } else {
        format!("{quote}{key}{quote}")
    }
}

impl Braces {
    pub(super) fn new(quote: &'static str) -> Self {
        Self {
            quote,
            named: false,
            at: 0,
            depth: 0,
            in_text: false,
        }
    }

    pub(super) fn finish(&self, said: &mut Vec<Said>) {
        if self.named {
            said.push(Said::Arguments("{}".to_string()));
        }
    }

    pub(super) fn step(&mut self, text: &str, said: &mut Vec<Said>) -> Step {
        if !self.named {
            let start = text.trim_start();
            let Some(name) = name_at(start) else {
                return if start.len() > MAX_HEAD {
                    Step::Bad(0)
                } else {
                    Step::Wait
                };
            };
            if name.is_empty() || !start[name.len()..].starts_with('{') {
                return Step::Bad(0);
            }
            self.named = true;
            said.push(Said::Name {
                name: name.to_string(),
                id: None,
            });
            return Step::Took(text.len() - start.len() + name.len());
        }
        let Some(end) = self.end(text) else {
            return Step::Wait;
        };
        let mut reader = Values {
            rest: &text[..end],
            quote: self.quote,
            depth: 0,
        };
        match reader.value() {
            Some(value @ Json::Object(_)) => {
                said.push(Said::Arguments(value.to_string()));
                Step::Done(end)
            }
            _ => Step::Bad(0),
        }
    }

    /// Where the outermost brace closes.
    fn end(&mut self, text: &str) -> Option<usize> {
        while let Some(c) = text[self.at..].chars().next() {
            let rest = &text[self.at..];
            if rest.starts_with(self.quote) {
                self.in_text = !self.in_text;
                self.at += self.quote.len();
                continue;
            }
            if self.quote.starts_with(rest) {
                return None;
            }
            self.at += c.len_utf8();
            match c {
                _ if self.in_text => {}
                '{' | '[' => self.depth += 1,
                '}' | ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

struct Values<'a> {
    rest: &'a str,
    quote: &'static str,
    depth: usize,
}

impl<'a> Nested<'a> for Values<'a> {
    fn place(&mut self) -> (&mut &'a str, &mut usize) {
        (&mut self.rest, &mut self.depth)
    }
}

impl Values<'_> {
    fn value(&mut self) -> Option<Json> {
        self.rest = self.rest.trim_start();
        if let Some(text) = self.text() {
            return Some(Json::String(text));
        }
        match self.rest.chars().next()? {
            '{' => {
                let mut object = Map::new();
                self.items('}', |reader| {
                    let key = match reader.text() {
                        Some(key) => {
                            reader.rest = reader.rest.trim_start().strip_prefix(':')?;
                            key
                        }
                        None => {
                            let (key, rest) = reader.rest.split_once(':')?;
                            reader.rest = rest;
                            key.trim().trim_matches('"').to_string()
                        }
                    };
                    let value = reader.value()?;
                    object.entry(key).or_insert(value);
                    Some(())
                })?;
                Some(Json::Object(object))
            }
            '[' => {
                let mut list = Vec::new();
                self.items(']', |reader| {
                    list.push(reader.value()?);
                    Some(())
                })?;
                Some(Json::Array(list))
            }
            _ => {
                let end = self.rest.find([',', '}', ']'])?;
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                let word = word.trim();
                Some(super::super::python::value_of(word).unwrap_or_else(|| Json::from(word)))
            }
        }
    }

    fn text(&mut self) -> Option<String> {
        let (text, rest) = self.rest.strip_prefix(self.quote)?.split_once(self.quote)?;
        self.rest = rest;
        Some(text.to_string())
    }
}
