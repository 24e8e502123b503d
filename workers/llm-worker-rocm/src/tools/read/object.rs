//! One call as a JSON object with the name and the arguments.

use super::{Said, Step};
use std::ops::Range;

/// Keys of a function's name.
const NAMES: [&str; 2] = ["name", "tool_name"];
/// Keys of its arguments.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Keys that a call may begin with besides.
const OTHERS: [&str; 4] = ["id", "type", "tool_call_id", "index"];

/// Reads `{"name": …, "arguments": {…}}` so that arguments can be passed on before they are complete.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectCall {
    text: String,
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    string_start: usize,
    key: Option<String>,
    value_start: Option<usize>,
    after_colon: bool,
    name: Option<String>,
    id: Option<String>,
    id_before_name: Option<String>,
    arguments: Option<Range<usize>>,
    /// Start of arguments that are still coming.
    arguments_start: Option<usize>,
    passed: usize,
    end: Option<usize>,
    named: bool,
    /// Whether its first key is none of a call's.
    hopeless: bool,
    keyed: bool,
}

impl ObjectCall {
    pub(super) fn step(&mut self, text: &str, said: &mut Vec<Said>) -> Step {
        if self.text.is_empty() {
            let start = text.trim_start();
            match start.chars().next() {
                None => return Step::Wait,
                Some('{') => {}
                Some(_) => return Step::Bad(0),
            }
            if start.len() < text.len() {
                return Step::Took(text.len() - start.len());
            }
        }
        if text.is_empty() {
            return Step::Wait;
        }
        let known = self.text.len();
        self.text.push_str(text);
        while self.end.is_none() && !self.hopeless && self.scanned < self.text.len() {
            let at = self.scanned;
            let byte = self.text.as_bytes()[at];
            self.scanned += 1;
            if self.in_string {
                self.scan_string(byte, at);
            } else {
                self.scan(byte, at);
            }
        }
        if self.hopeless {
            return Step::Bad(self.scanned - known);
        }
        if let Some(end) = self.end {
            self.text.truncate(end);
        }
        if let (Some(name), false) = (&self.name, self.named) {
            self.named = true;
            said.push(Said::Name {
                name: name.clone(),
                id: self.id_before_name.clone(),
            });
        }
        if self.named {
            let arguments = self.take_arguments();
            if !arguments.is_empty() {
                said.push(Said::Arguments(arguments));
            }
        }
        match self.end {
            Some(end) if !self.named => Step::Bad(end - known),
            Some(end) => Step::Done(end - known),
            None => Step::Took(text.len()),
        }
    }

    /// Whether the value of its name's key has begun.
    pub(super) fn is_naming(&self) -> bool {
        let key = self.key.as_deref();
        self.named
            || self.after_colon
                && self.value_start.is_some()
                && key.is_some_and(|k| NAMES.contains(&k))
    }

    fn scan_string(&mut self, byte: u8, at: usize) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => {
                self.in_string = false;
                if self.depth == 1 {
                    if self.after_colon {
                        self.value_ends(at + 1);
                    } else {
                        let key: Option<String> =
                            serde_json::from_str(&self.text[self.string_start..=at]).ok();
                        let is_known = key.as_deref().is_some_and(|key| {
                            NAMES.contains(&key)
                                || ARGUMENTS.contains(&key)
                                || OTHERS.contains(&key)
                        });
                        self.hopeless |= !self.keyed && !is_known;
                        self.keyed = true;
                        self.key = key;
                    }
                }
            }
            _ => {}
        }
    }

    fn scan(&mut self, byte: u8, at: usize) {
        let begins_value = self.depth == 1 && self.after_colon && self.value_start.is_none();
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => return,
            b':' if self.depth == 1 && !self.after_colon => {
                self.after_colon = true;
                return;
            }
            b',' if self.depth == 1 => {
                self.value_ends(at);
                self.after_colon = false;
                self.key = None;
                self.value_start = None;
                return;
            }
            _ => {}
        }
        if begins_value && !matches!(byte, b'}' | b']') {
            self.value_start = Some(at);
            let key = self.key.as_deref();
            if byte == b'{' && matches!(key, Some(key) if ARGUMENTS.contains(&key)) {
                self.arguments_start = Some(at);
            }
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.string_start = at;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                match self.depth {
                    1 => self.value_ends(at + 1),
                    0 => {
                        self.value_ends(at);
                        self.end = Some(at + 1);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn value_ends(&mut self, end: usize) {
        let (Some(start), Some(key)) = (self.value_start, &self.key) else {
            return;
        };
        let value = &self.text[start..end];
        let string = || serde_json::from_str::<String>(value).ok();
        match key.as_str() {
            key if NAMES.contains(&key) && self.name.is_none() => {
                self.name = string();
                // What comes after the name would be known only if all came at once.
                self.id_before_name.clone_from(&self.id);
            }
            "id" if self.id.is_none() => self.id = string(),
            key if ARGUMENTS.contains(&key) && self.arguments.is_none() => {
                self.arguments = Some(start..end);
            }
            _ => {}
        }
        self.value_start = None;
        self.key = None;
    }

    fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    /// The part of the arguments that was not taken before. An object is passed on as it comes; anything else once it
    /// is complete.
    fn take_arguments(&mut self) -> String {
        let known = match (&self.arguments, self.arguments_start) {
            (Some(range), Some(_)) => range.clone(),
            (None, Some(start)) => start..self.scanned.max(start),
            (Some(range), None) => {
                // Some models write the object as a text.
                let value = &self.text[range.clone()];
                let text =
                    serde_json::from_str::<String>(value).unwrap_or_else(|_| value.to_string());
                let text = match text.trim() {
                    "" | "null" => "{}".to_string(),
                    _ => text,
                };
                let fresh = self.passed == 0;
                self.passed = self.passed.max(1);
                return if fresh { text } else { String::new() };
            }
            (None, None) => {
                let fresh = self.is_complete() && self.passed == 0;
                self.passed = self.passed.max(usize::from(fresh));
                return if fresh { "{}" } else { "" }.to_string();
            }
        };
        let from = known.start + self.passed;
        let to = known.end.max(from);
        self.passed = to - known.start;
        self.text[from..to].to_string()
    }
}
