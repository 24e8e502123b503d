//! `NAME(KEY=VALUE, …)` with Python's literals.

use super::super::python::value_of;
use super::parameters::Arguments;
use super::{name_at, Said, Step, MAX_HEAD};

/// Reads a call; each argument is passed on once its value is complete.
#[derive(Debug, Clone, Default)]
pub(crate) struct PythonCall {
    named: bool,
    arguments: Arguments,
    /// How far the argument that comes was looked at.
    scan: Scan,
}

#[derive(Debug, Clone, Default)]
struct Scan {
    at: usize,
    depth: usize,
    quote: Option<u8>,
    escaped: bool,
}

impl Scan {
    /// Where the argument ends, at a comma or bracket outside of all others.
    fn end(&mut self, text: &str) -> Option<usize> {
        let bytes = text.as_bytes();
        while self.at < bytes.len() {
            let byte = bytes[self.at];
            match (self.quote, byte) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), b'\\') => self.escaped = true,
                (Some(quote), byte) if byte == quote => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => self.quote = Some(byte),
                (None, b',' | b')') if self.depth == 0 => return Some(self.at),
                (None, b'(' | b'[' | b'{') => self.depth += 1,
                (None, b')' | b']' | b'}') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
        }
        None
    }
}

impl PythonCall {
    pub(super) fn finish(&self, said: &mut Vec<Said>) {
        if self.named {
            self.arguments.end(said);
        }
    }

    pub(super) fn step(&mut self, text: &str, said: &mut Vec<Said>) -> Step {
        if !self.named {
            return self.name(text, said);
        }
        let Some(end) = self.scan.end(text) else {
            return Step::Wait;
        };
        self.scan = Scan::default();
        let last = text.as_bytes()[end] == b')';
        let argument = text[..end].trim();
        if !argument.is_empty() {
            let read = argument
                .split_once('=')
                .and_then(|(key, value)| Some((key.trim(), value_of(value.trim())?)));
            let Some((key, value)) = read else {
                return Step::Bad(0);
            };
            self.arguments.add(key, &value, said);
        }
        if last {
            self.arguments.end(said);
            Step::Done(end + 1)
        } else {
            Step::Took(end + 1)
        }
    }

    fn name(&mut self, text: &str, said: &mut Vec<Said>) -> Step {
        let start = text.trim_start();
        let Some(name) = name_at(start) else {
            return if start.len() > MAX_HEAD {
                Step::Bad(0)
            } else {
                Step::Wait
            };
        };
        let rest = start[name.len()..].trim_start();
        match rest.chars().next() {
            _ if name.is_empty() => Step::Bad(0),
            None => Step::Wait,
            Some('(') => {
                self.named = true;
                said.push(Said::Name {
                    name: name.to_string(),
                    id: None,
                });
                Step::Took(text.len() - rest.len() + 1)
            }
            Some(_) => Step::Bad(0),
        }
    }
}
