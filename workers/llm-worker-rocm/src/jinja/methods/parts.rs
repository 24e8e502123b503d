//! Methods that take texts apart or look for parts of them.

use super::super::error::{Error, Result};
use super::super::interpreter::{Args, Interpreter};
use super::super::lexer::is_space;
use super::super::text::Text;
use super::super::value::Value;

/// The characters after which Python's `splitlines` breaks.
fn is_line_break(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

impl<'t> Interpreter<'t> {
    /// The separator, if there is one, and how often to split.
    fn split_arguments(&mut self, name: &str, args: Args) -> Result<(Option<Text>, usize)> {
        let [separator, most] = args.bind(name, ["sep", "maxsplit"])?;
        let most = self.integer_argument(most, name, -1)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let separator = match separator {
            None | Some(Value::None) => return Ok((None, most)),
            separator => self.text_argument(separator, name)?,
        };
        match separator.is_empty() {
            true => Err(Error::runtime("empty separator")),
            false => Ok((Some(separator), most)),
        }
    }

    fn parts(&mut self, text: &Text, parts: Vec<&str>) -> Result<Value> {
        self.spend(parts.len() * 64)?;
        let parts = parts
            .into_iter()
            .map(|part| Value::Str(text.part(part)))
            .collect();
        self.list(parts)
    }

    pub(super) fn split(&mut self, text: &Text, args: Args) -> Result<Value> {
        let (separator, most) = self.split_arguments("split", args)?;
        let whole = text.as_str();
        let parts = match separator {
            Some(separator) => whole
                .splitn(most.saturating_add(1), separator.as_str())
                .collect(),
            None => {
                let mut parts = Vec::new();
                let mut rest = whole.trim_start_matches(is_space);
                while !rest.is_empty() {
                    if parts.len() == most {
                        parts.push(rest.trim_end_matches(is_space));
                        break;
                    }
                    let end = rest.find(is_space).unwrap_or(rest.len());
                    parts.push(&rest[..end]);
                    rest = rest[end..].trim_start_matches(is_space);
                }
                parts
            }
        };
        self.parts(text, parts)
    }

    pub(super) fn split_from_right(&mut self, text: &Text, args: Args) -> Result<Value> {
        let (separator, most) = self.split_arguments("rsplit", args)?;
        let whole = text.as_str();
        let mut parts: Vec<&str> = match separator {
            Some(separator) => whole
                .rsplitn(most.saturating_add(1), separator.as_str())
                .collect(),
            None => {
                let mut parts = Vec::new();
                let mut rest = whole.trim_end_matches(is_space);
                while !rest.is_empty() {
                    if parts.len() == most {
                        parts.push(rest.trim_start_matches(is_space));
                        break;
                    }
                    let before = rest.trim_end_matches(|c| !is_space(c));
                    parts.push(&rest[before.len()..]);
                    rest = before.trim_end_matches(is_space);
                }
                parts
            }
        };
        parts.reverse();
        self.parts(text, parts)
    }

    pub(super) fn split_lines(&mut self, text: &Text, args: Args) -> Result<Value> {
        let [keep] = args.bind("splitlines", ["keepends"])?;
        let keep = keep.is_some_and(|value| self.heap.truth(&value));
        let mut lines = Vec::new();
        let mut rest = text.as_str();
        while let Some(end) = rest.find(is_line_break) {
            let width = rest[end..].chars().next().map_or(1, char::len_utf8);
            let width = if rest[end..].starts_with("\r\n") {
                2
            } else {
                width
            };
            lines.push(&rest[..if keep { end + width } else { end }]);
            rest = &rest[end + width..];
        }
        if !rest.is_empty() {
            lines.push(rest);
        }
        self.parts(text, lines)
    }

    pub(super) fn partition(&mut self, text: &Text, name: &str, args: Args) -> Result<Value> {
        let [separator] = args.positional_only(name)?;
        let separator = self.text_argument(separator, name)?;
        if separator.is_empty() {
            return Err(Error::runtime("empty separator"));
        }
        let whole = text.as_str();
        let found = match name {
            "partition" => whole.find(separator.as_str()),
            _ => whole.rfind(separator.as_str()),
        };
        let cuts = match found {
            Some(at) => (at, at + separator.len()),
            None if name == "partition" => (text.len(), text.len()),
            None => (0, 0),
        };
        let parts = [0..cuts.0, cuts.0..cuts.1, cuts.1..text.len()];
        self.tuple(parts.map(|range| Value::Str(text.slice(range))).to_vec())
    }

    /// The part of a text between two places counted in characters, with the number of characters before it.
    fn window<'w>(
        &self,
        whole: &'w str,
        start: Option<Value>,
        stop: Option<Value>,
    ) -> Result<Option<(&'w str, usize)>> {
        let bound = |value: Option<Value>| match value {
            None | Some(Value::None) => Ok(None),
            value => self.integer_argument(value, "a text's", 0).map(Some),
        };
        let (start, stop) = (bound(start)?, bound(stop)?);
        if start.is_none() && stop.is_none() {
            return Ok(Some((whole, 0)));
        }
        let length = whole.chars().count() as i128;
        let place = |value: i128| {
            if value < 0 {
                (value + length).max(0)
            } else {
                value
            }
        };
        let (start, stop) = (
            place(start.unwrap_or(0)),
            place(stop.unwrap_or(length)).min(length),
        );
        if start > stop {
            return Ok(None);
        }
        let byte = |at: i128| {
            whole
                .char_indices()
                .nth(at as usize)
                .map_or(whole.len(), |(i, _)| i)
        };
        Ok(Some((&whole[byte(start)..byte(stop)], start as usize)))
    }

    pub(super) fn search(&mut self, text: &Text, name: &str, args: Args) -> Result<Value> {
        let [part, start, stop] = args.positional_only(name)?;
        let part = self.text_argument(part, name)?;
        let part = part.as_str();
        let window = self.window(text.as_str(), start, stop)?;
        if name == "count" {
            let count = window.map_or(0, |(window, _)| match part.is_empty() {
                true => window.chars().count() + 1,
                false => window.matches(part).count(),
            });
            return Ok(Value::int(count));
        }
        let found = window.and_then(|(window, before)| {
            let at = match name {
                "find" | "index" => window.find(part),
                _ => window.rfind(part),
            };
            at.map(|at| before + window[..at].chars().count())
        });
        match (found, name) {
            (Some(at), _) => Ok(Value::int(at)),
            (None, "find" | "rfind") => Ok(Value::Int(-1)),
            (None, _) => Err(Error::runtime("substring not found")),
        }
    }

    pub(super) fn begins_or_ends(&mut self, text: &Text, name: &str, args: Args) -> Result<Value> {
        let [parts, start, stop] = args.positional_only(name)?;
        let parts = match parts {
            Some(Value::Object(_)) => self.iterate(&parts.unwrap_or(Value::None))?,
            part => vec![Value::Str(self.text_argument(part, name)?)],
        };
        let window = self.window(text.as_str(), start, stop)?;
        for part in parts {
            let part = self.text_argument(Some(part), name)?;
            let fits = window.is_some_and(|(window, _)| match name {
                "startswith" => window.starts_with(part.as_str()),
                _ => window.ends_with(part.as_str()),
            });
            if fits {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }
}
