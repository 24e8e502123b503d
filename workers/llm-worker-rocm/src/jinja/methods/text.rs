//! Methods of texts.

use super::super::error::{Error, Result};
use super::super::interpreter::{Args, Interpreter};
use super::super::lexer::is_space;
use super::super::number::decimal_digit;
use super::super::repr::is_printable;
use super::super::text::{Text, TextBuilder};
use super::super::value::Value;

pub(super) const METHODS: [&str; 45] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// First letters in upper case, others in lower case.
fn title_case(text: &Text) -> Text {
    let mut out = TextBuilder::default();
    let mut within = false;
    for (piece, marked) in text.pieces() {
        let mut changed = String::with_capacity(piece.len());
        for c in piece.chars() {
            match within {
                true => changed.extend(c.to_lowercase()),
                false => changed.extend(c.to_uppercase()),
            }
            within = c.is_alphabetic();
        }
        out.push_as(&changed, marked);
    }
    out.build()
}

/// The first character in upper case, others in lower case.
pub(in super::super) fn capitalize(text: &Text) -> Text {
    let first = text.as_str().chars().next().map_or(0, char::len_utf8);
    let mut out = TextBuilder::default();
    out.push(&text.slice(0..first).map(str::to_uppercase));
    out.push(&text.slice(first..text.len()).map(str::to_lowercase));
    out.build()
}

/// The text between `left` and `right` fill characters.
fn padded(text: &Text, fill: char, left: usize, right: usize) -> Text {
    let mut out = TextBuilder::default();
    out.push_str(&fill.to_string().repeat(left));
    out.push(text);
    out.push_str(&fill.to_string().repeat(right));
    out.build()
}

/// The text in the middle of `width` characters, as Python places it.
pub(in super::super) fn centered(text: &Text, width: usize, fill: char) -> Text {
    let length = text.as_str().chars().count();
    let margin = width.saturating_sub(length);
    let left = margin / 2 + (margin & width & 1);
    padded(text, fill, left, margin - left)
}

impl<'t> Interpreter<'t> {
    pub(super) fn text_method(
        &mut self,
        text: &Text,
        name: &'static str,
        args: Args,
    ) -> Result<Value> {
        self.spend(text.len() + 16)?;
        let whole = text.as_str();
        let plain = |args: Args| args.positional_only::<0>(name);
        let change = |changed: Text| Ok(Value::Str(changed));
        match name {
            "upper" => plain(args).and_then(|_| change(text.map(str::to_uppercase))),
            "lower" => plain(args).and_then(|_| change(text.map(str::to_lowercase))),
            "casefold" => plain(args).and_then(|_| {
                change(text.map(|piece| piece.to_lowercase().replace('ß', "ss").replace('ς', "σ")))
            }),
            "swapcase" => plain(args).and_then(|_| change(text.map(swap_case))),
            "title" => plain(args).and_then(|_| change(title_case(text))),
            "capitalize" => plain(args).and_then(|_| change(capitalize(text))),
            "strip" | "lstrip" | "rstrip" => self.strip(text, name, args),
            "split" => self.split(text, args),
            "rsplit" => self.split_from_right(text, args),
            "splitlines" => self.split_lines(text, args),
            "partition" | "rpartition" => self.partition(text, name, args),
            "find" | "rfind" | "index" | "rindex" | "count" => self.search(text, name, args),
            "startswith" | "endswith" => self.begins_or_ends(text, name, args),
            "removeprefix" | "removesuffix" => {
                let [part] = args.positional_only(name)?;
                let part = self.text_argument(part, name)?;
                let rest = match name {
                    "removeprefix" => whole.strip_prefix(part.as_str()),
                    _ => whole.strip_suffix(part.as_str()),
                };
                change(rest.map_or_else(|| text.clone(), |rest| text.part(rest)))
            }
            "replace" => {
                let [from, to, count] = args.bind(name, ["old", "new", "count"])?;
                let from = self.text_argument(from, name)?;
                let to = self.text_argument(to, name)?;
                let count = self.integer_argument(count, name, -1)?;
                change(self.replaced(text, &from, &to, count)?)
            }
            "join" => {
                let [items] = args.positional_only(name)?;
                let items = items.ok_or_else(|| Error::runtime("join() needs an argument"))?;
                let mut out = TextBuilder::default();
                for (i, item) in self.iterate(&items)?.iter().enumerate() {
                    let Value::Str(item) = item else {
                        let kind = self.heap.type_name(item);
                        return Err(Error::runtime(format!(
                            "sequence item {i}: expected str instance, {kind} found"
                        )));
                    };
                    self.spend(item.len() + text.len())?;
                    if i > 0 {
                        out.push(text);
                    }
                    out.push(item);
                }
                change(out.build())
            }
            "center" | "ljust" | "rjust" | "zfill" => self.pad(text, name, args),
            "expandtabs" => {
                let [size] = args.bind(name, ["tabsize"])?;
                let size = self.integer_argument(size, name, 8)?.clamp(0, 1 << 20) as usize;
                self.spend(whole.matches('\t').count().saturating_mul(size))?;
                change(expand_tabs(text, size))
            }
            // Bytes are only of use as something to measure or to decode, which text serves as well.
            "encode" => change(text.clone()),
            "format" => self.format(text, args),
            "format_map" => {
                let [mapping] = args.positional_only(name)?;
                let dict = mapping.as_ref().and_then(|m| self.heap.dict(m)).cloned();
                let dict = dict.ok_or_else(|| Error::runtime("format_map() needs a mapping"))?;
                let named = dict.into_values().filter_map(|(key, value)| match key {
                    Value::Str(key) => Some((key.as_str().to_string(), value)),
                    _ => None,
                });
                let named = named.collect();
                self.format(
                    text,
                    Args {
                        positional: Vec::new(),
                        named,
                    },
                )
            }
            _ => plain(args).map(|_| Value::Bool(has_property(whole, name))),
        }
    }

    pub(super) fn text_argument(&self, value: Option<Value>, method: &str) -> Result<Text> {
        match value {
            Some(Value::Str(text)) => Ok(text),
            Some(Value::Undefined(reason)) => Err(Error::runtime(reason.to_string())),
            Some(other) => {
                let kind = self.heap.type_name(&other);
                Err(Error::runtime(format!(
                    "{method}() argument must be str, not {kind}"
                )))
            }
            None => Err(Error::runtime(format!("{method}() needs an argument"))),
        }
    }

    pub(super) fn integer_argument(
        &self,
        value: Option<Value>,
        method: &str,
        default: i128,
    ) -> Result<i128> {
        match value {
            None => Ok(default),
            Some(value) => value.as_index().ok_or_else(|| {
                let kind = self.heap.type_name(&value);
                Error::runtime(format!(
                    "{method}(): '{kind}' object cannot be interpreted as an integer"
                ))
            }),
        }
    }

    fn strip(&mut self, text: &Text, name: &str, args: Args) -> Result<Value> {
        let [chars] = args.positional_only(name)?;
        let chars = match chars {
            None | Some(Value::None) => None,
            chars => Some(self.text_argument(chars, name)?),
        };
        self.spend(
            text.len()
                .saturating_mul(chars.as_ref().map_or(1, Text::len).min(64)),
        )?;
        let drop = |c: char| match &chars {
            Some(chars) => chars.as_str().contains(c),
            None => is_space(c),
        };
        let whole = text.as_str();
        Ok(Value::Str(text.part(match name {
            "lstrip" => whole.trim_start_matches(drop),
            "rstrip" => whole.trim_end_matches(drop),
            _ => whole.trim_matches(drop),
        })))
    }

    /// The text with the first `count` places of `from` replaced; all of them if negative.
    pub(in super::super) fn replaced(
        &mut self,
        text: &Text,
        from: &Text,
        to: &Text,
        count: i128,
    ) -> Result<Text> {
        let most = usize::try_from(count).unwrap_or(usize::MAX);
        let found = text.as_str().match_indices(from.as_str()).take(most);
        let (places, cost) = found.fold((Vec::new(), text.len()), |(mut places, cost), (at, _)| {
            places.push(at);
            (places, cost + to.len() + 16)
        });
        self.spend(cost)?;
        let mut out = TextBuilder::default();
        let mut at = 0;
        for place in places {
            out.push_slice(text, at..place);
            out.push(to);
            at = place + from.len();
        }
        out.push_slice(text, at..text.len());
        Ok(out.build())
    }

    fn pad(&mut self, text: &Text, name: &str, args: Args) -> Result<Value> {
        let [width, fill] = args.positional_only(name)?;
        let width = match width {
            None => return Err(Error::runtime(format!("{name}() needs a width"))),
            width => self.integer_argument(width, name, 0)?,
        };
        let fill = match fill {
            None => ' ',
            fill => {
                let fill = self.text_argument(fill, name)?;
                let mut chars = fill.as_str().chars();
                match (chars.next(), chars.next()) {
                    (Some(fill), None) => fill,
                    _ => {
                        return Err(Error::runtime(
                            "The fill character must be exactly one character long",
                        ))
                    }
                }
            }
        };
        let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
        self.spend(width)?;
        let missing = width.saturating_sub(text.as_str().chars().count());
        Ok(Value::Str(match name {
            "center" => centered(text, width, fill),
            "ljust" => padded(text, fill, 0, missing),
            "rjust" => padded(text, fill, missing, 0),
            _ => {
                // Zeros come after a sign.
                let sign = usize::from(text.as_str().starts_with(['+', '-']));
                let mut out = TextBuilder::default();
                out.push_slice(text, 0..sign);
                out.push_str(&"0".repeat(missing));
                out.push_slice(text, sign..text.len());
                out.build()
            }
        }))
    }
}

fn swap_case(text: &str) -> String {
    let swap = |c: char| -> String {
        match c.is_uppercase() {
            true => c.to_lowercase().collect(),
            false => c.to_uppercase().collect(),
        }
    };
    text.chars().map(swap).collect()
}

fn expand_tabs(text: &Text, size: usize) -> Text {
    let mut out = TextBuilder::default();
    let mut column = 0;
    for (piece, marked) in text.pieces() {
        let mut expanded = String::with_capacity(piece.len());
        for c in piece.chars() {
            match c {
                '\t' => {
                    let blanks = if size == 0 { 0 } else { size - column % size };
                    expanded.push_str(&" ".repeat(blanks));
                    column += blanks;
                }
                '\n' | '\r' => {
                    expanded.push(c);
                    column = 0;
                }
                _ => {
                    expanded.push(c);
                    column += 1;
                }
            }
        }
        out.push_as(&expanded, marked);
    }
    out.build()
}

/// The tests of all characters of a text: `isalpha` and the like.
fn has_property(text: &str, name: &str) -> bool {
    let cased = |c: char| c.is_uppercase() || c.is_lowercase();
    let digit = |c: char| {
        decimal_digit(c).is_some()
            || matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨')
    };
    let all = |property: &dyn Fn(char) -> bool| !text.is_empty() && text.chars().all(property);
    match name {
        "isalpha" => all(&|c| c.is_alphabetic()),
        "isalnum" => all(&|c| c.is_alphanumeric()),
        "isdecimal" => all(&|c| decimal_digit(c).is_some()),
        "isdigit" => all(&digit),
        "isnumeric" => all(&|c| c.is_numeric()),
        "isspace" => all(&is_space),
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(is_printable),
        "isupper" => text.chars().any(cased) && !text.chars().any(char::is_lowercase),
        "islower" => text.chars().any(cased) && !text.chars().any(char::is_uppercase),
        "isidentifier" => {
            let begins = text.starts_with(|c: char| c == '_' || c.is_alphabetic());
            begins && text.chars().all(|c| c == '_' || c.is_alphanumeric())
        }
        _ => {
            // A title has words that begin in upper case and go on in lower case.
            let mut within = false;
            let mut any = false;
            for c in text.chars() {
                if c.is_uppercase() == within && cased(c) {
                    return false;
                }
                within = cased(c);
                any |= within;
            }
            any
        }
    }
}
