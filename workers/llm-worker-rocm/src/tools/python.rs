//! Python's literals, which some families write in place of JSON.

use serde_json::{Map, Number, Value as Json};

/// Deepest nesting that is read, as of JSON.
pub(super) const MAX_DEPTH: usize = 100;

/// The value of a whole text, as JSON or as Python's literal.
pub(super) fn value_of(text: &str) -> Option<Json> {
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    let mut reader = Literal {
        rest: text,
        depth: 0,
    };
    let value = reader.value()?;
    reader.rest.trim().is_empty().then_some(value)
}

struct Literal<'a> {
    rest: &'a str,
    depth: usize,
}

/// A reader of values that lie within each other.
pub(super) trait Nested<'a> {
    /// What is not read yet, and how deep it lies.
    fn place(&mut self) -> (&mut &'a str, &mut usize);

    /// Items between commas, the last of which may be followed by one.
    fn items(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        let (rest, depth) = self.place();
        *depth += 1;
        if *depth > MAX_DEPTH {
            return None;
        }
        *rest = &rest[1..];
        loop {
            let (rest, depth) = self.place();
            *rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix(close) {
                *rest = after;
                *depth -= 1;
                return Some(());
            }
            item(self)?;
            let (rest, _) = self.place();
            *rest = rest.trim_start();
            match rest.strip_prefix(',') {
                Some(after) => *rest = after,
                None if rest.starts_with(close) => {}
                None => return None,
            }
        }
    }
}

impl<'a> Nested<'a> for Literal<'a> {
    fn place(&mut self) -> (&mut &'a str, &mut usize) {
        (&mut self.rest, &mut self.depth)
    }
}

impl Literal<'_> {
    fn value(&mut self) -> Option<Json> {
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '"' | '\'' => self.text().map(Json::String),
            '[' => self.list(']'),
            '(' => self.list(')'),
            '{' => self.object(),
            c if c.is_ascii_digit() || "+-.".contains(c) => self.number(),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Option<Json> {
        let end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let (word, rest) = self
            .rest
            .split_at(self.rest.find(end).unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "True" | "true" => Some(Json::Bool(true)),
            "False" | "false" => Some(Json::Bool(false)),
            "None" | "null" => Some(Json::Null),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Json> {
        let part = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        let (text, rest) = self
            .rest
            .split_at(self.rest.find(|c| !part(c)).unwrap_or(self.rest.len()));
        self.rest = rest;
        let text = text.trim_start_matches('+').replace('_', "");
        if let Ok(number) = serde_json::from_str::<Number>(&text) {
            return Some(Json::Number(number));
        }
        Number::from_f64(text.parse().ok()?).map(Json::Number)
    }

    fn list(&mut self, close: char) -> Option<Json> {
        let mut values = Vec::new();
        self.items(close, |reader| {
            values.push(reader.value()?);
            Some(())
        })?;
        Some(Json::Array(values))
    }

    fn object(&mut self) -> Option<Json> {
        let mut object = Map::new();
        self.items('}', |reader| {
            let key = match reader.value()? {
                Json::String(key) => key,
                other => other.to_string(),
            };
            reader.rest = reader.rest.trim_start().strip_prefix(':')?;
            object.insert(key, reader.value()?);
            Some(())
        })?;
        Some(Json::Object(object))
    }

    fn text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let triple = ["\"\"\"", "'''"]
            .into_iter()
            .find(|q| self.rest.starts_with(*q));
        let close = triple.map_or_else(|| quote.to_string(), str::to_string);
        self.rest = &self.rest[close.len()..];
        let mut text = String::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix(close.as_str()) {
                self.rest = rest;
                return Some(text);
            }
            let c = self.next()?;
            if c == '\\' {
                self.escape(&mut text)?;
            } else {
                text.push(c);
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        Some(c)
    }

    fn escape(&mut self, text: &mut String) -> Option<()> {
        let c = match self.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            '0' => '\0',
            '\n' => return Some(()),
            'x' => self.code(2)?,
            'u' => self.code(4)?,
            'U' => self.code(8)?,
            c @ ('\\' | '\'' | '"' | '/') => c,
            // Python leaves unknown escapes as they are.
            other => {
                text.push('\\');
                other
            }
        };
        text.push(c);
        Some(())
    }

    /// A character by its number; two halves of a UTF-16 pair, as JSON has them, are one.
    fn code(&mut self, digits: usize) -> Option<char> {
        let number = self.hex(digits)?;
        if !(0xD800..0xDC00).contains(&number) {
            return Some(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let before = self.rest;
        if let Some(rest) = self.rest.strip_prefix("\\u") {
            self.rest = rest;
            let low = self.hex(4)?;
            if (0xDC00..0xE000).contains(&low) {
                return char::from_u32(0x10000 + ((number - 0xD800) << 10) + (low - 0xDC00));
            }
        }
        self.rest = before;
        Some(char::REPLACEMENT_CHARACTER)
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text = self.rest.get(..digits)?;
        self.rest = &self.rest[digits..];
        text.chars().all(|c| c.is_ascii_hexdigit()).then_some(())?;
        u32::from_str_radix(text, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals() {
        for (text, value) in [
            ("'a\\'b\"\\n\\u00e9\\x41'", json!("a'b\"\né\u{41}")),
            ("\"\\ud83e\\udd80\"", json!("🦀")),
            ("'''a\n'b'''", json!("a\n'b")),
            (
                "{'k': [1, 2.5, True, None], \"j\": {},}",
                json!({"k": [1, 2.5, true, null], "j": {}}),
            ),
            ("(1, 'a')", json!([1, "a"])),
            ("-1_000", json!(-1000)),
            (".5", json!(0.5)),
            ("false", json!(false)),
        ] {
            assert_eq!(value_of(text), Some(value), "{text}");
        }
        for text in [
            "",
            "'a",
            "[1 2]",
            "{1}",
            "name",
            "'a' 'b'",
            "[",
            "\\",
            "inf",
            "'\\ud800\\",
        ] {
            assert_eq!(value_of(text), None, "{text}");
        }
        assert_eq!(value_of(&"[".repeat(10_000)), None);
    }
}
