//! One call as a JSON object, read while it arrives.

use serde_json::Value as Json;
use std::ops::Range;

/// Reads `{"name": …, "arguments": {…}}` (or `"parameters"`) chunk by chunk, so that arguments can be passed on before
/// they are complete.
#[derive(Debug, Clone, Default)]
pub(super) struct CallReader {
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
    arguments: Option<Range<usize>>,
    /// Start of arguments that are still coming.
    arguments_start: Option<usize>,
    passed: usize,
    end: Option<usize>,
}

impl CallReader {
    /// Takes more text; what follows the object is given back.
    pub(super) fn push(&mut self, text: &str) -> Option<String> {
        self.text.push_str(text);
        while self.end.is_none() && self.scanned < self.text.len() {
            let at = self.scanned;
            let byte = self.text.as_bytes()[at];
            self.scanned += 1;
            if self.in_string {
                self.scan_string(byte, at);
            } else {
                self.scan(byte, at);
            }
        }
        let rest = self.text.split_off(self.end?);
        Some(rest)
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
                        self.key = serde_json::from_str(&self.text[self.string_start..=at]).ok();
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
            if byte == b'{' && matches!(key, Some("arguments" | "parameters")) {
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
            "name" if self.name.is_none() => self.name = string(),
            "id" if self.id.is_none() => self.id = string(),
            "arguments" | "parameters" if self.arguments.is_none() => {
                self.arguments = Some(start..end);
            }
            _ => {}
        }
        self.value_start = None;
        self.key = None;
    }

    /// The function's name, once it is there.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The call's id, if the model gave one.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether the object is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    /// All text so far.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The part of the arguments that was not taken before. An object is passed on as it comes; anything else once it
    /// is complete.
    pub(super) fn take_arguments(&mut self) -> String {
        let known = match (&self.arguments, self.arguments_start) {
            (Some(range), Some(_)) => range.clone(),
            (None, Some(start)) => start..self.scanned.max(start),
            (Some(range), None) => {
                // Some models write the object as a text.
                let value = &self.text[range.clone()];
                let text =
                    serde_json::from_str::<String>(value).unwrap_or_else(|_| value.to_string());
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

/// A value for an argument given as bare text: by its schema a text, else JSON where it is JSON.
pub(super) fn typed_value(text: &str, schema: &Json) -> Json {
    let is_text = match &schema["type"] {
        Json::String(kind) => kind == "string",
        Json::Array(kinds) => kinds.contains(&Json::from("string")),
        _ => false,
    };
    let parsed = if is_text {
        None
    } else {
        serde_json::from_str(text.trim()).ok()
    };
    parsed.unwrap_or_else(|| Json::String(text.to_string()))
}
