//! Filters of texts.

use super::super::error::{Error, Result};
use super::super::interpreter::{Args, Interpreter};
use super::super::lexer::is_space;
use super::super::methods::text::{capitalize, centered};
use super::super::text::{Text, TextBuilder};
use super::super::value::Value;

/// Characters that a text may exceed its length by before it is truncated.
const LEEWAY: i128 = 5;

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

impl<'t> Interpreter<'t> {
    pub(super) fn text_filter(&mut self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let text = match (value, name) {
            (Value::Str(text), _) => text.clone(),
            (other, "indent" | "wordwrap") => {
                let kind = self.heap.type_name(other);
                return Err(Error::runtime(format!(
                    "{name}: a text is needed, not '{kind}'"
                )));
            }
            (other, _) => self.text_of(other)?,
        };
        self.spend(text.len() + 16)?;
        let none = |args: Args| args.bind::<0>(name, []);
        Ok(Value::Str(match name {
            "string" | "safe" => none(args).map(|_| text)?,
            "upper" => none(args).map(|_| text.map(str::to_uppercase))?,
            "lower" => none(args).map(|_| text.map(str::to_lowercase))?,
            "capitalize" => none(args).map(|_| capitalize(&text))?,
            "title" => none(args).map(|_| title(&text))?,
            "escape" | "e" | "forceescape" => none(args).map(|_| escaped(&text))?,
            "trim" => {
                let [chars] = args.bind(name, ["chars"])?;
                let chars = match chars {
                    None | Some(Value::None) => None,
                    Some(chars) => Some(self.text_of(&chars)?),
                };
                self.spend(
                    text.len()
                        .saturating_mul(chars.as_ref().map_or(0, |c| c.len().min(64))),
                )?;
                let drop = |c: char| match &chars {
                    Some(chars) => chars.as_str().contains(c),
                    None => is_space(c),
                };
                text.part(text.as_str().trim_matches(drop))
            }
            "replace" => {
                let [from, to, count] = args.bind(name, ["old", "new", "count"])?;
                let (Some(from), Some(to)) = (from, to) else {
                    return Err(Error::runtime("replace() needs two texts"));
                };
                let (from, to) = (self.text_of(&from)?, self.text_of(&to)?);
                let count = count.filter(|count| !matches!(count, Value::None));
                let count = self.integer(count, name, -1)?;
                self.replaced(&text, &from, &to, count)?
            }
            "center" => {
                let [width] = args.bind(name, ["width"])?;
                let width = usize::try_from(self.integer(width, name, 80)?).unwrap_or(0);
                self.spend(width)?;
                centered(&text, width, ' ')
            }
            "format" => {
                let arguments = match (args.positional.is_empty(), args.named.is_empty()) {
                    (false, false) => {
                        return Err(Error::runtime(
                            "can't handle positional and keyword arguments at the same time",
                        ))
                    }
                    (_, true) => self.tuple(args.positional)?,
                    (true, false) => {
                        let dict = self.dict_of(args)?;
                        self.dict(dict)?
                    }
                };
                return self.percent_format(&text, &arguments);
            }
            "indent" => {
                let [width, first, blank] = args.bind(name, ["width", "first", "blank"])?;
                let unit = match width {
                    Some(Value::Str(unit)) => unit,
                    width => {
                        let width = usize::try_from(self.integer(width, name, 4)?).unwrap_or(0);
                        self.spend(width)?;
                        Text::own(" ".repeat(width))
                    }
                };
                let lines = text.as_str().matches('\n').count() + 1;
                self.spend(lines.saturating_mul(unit.len()))?;
                indented(&text, &unit, self.flag(&first), self.flag(&blank))
            }
            "truncate" => self.truncated(&text, args)?,
            "wordwrap" => self.wrapped(&text, args)?,
            "striptags" => none(args).map(|_| without_tags(&text))?,
            "urlencode" => {
                none(args)?;
                return self.url_encoded(value, &text);
            }
            "xmlattr" => {
                let [space] = args.bind(name, ["autospace"])?;
                let space = space.is_none() || self.flag(&space);
                self.xml_attributes(value, space)?
            }
            "wordcount" => {
                none(args)?;
                let words = text
                    .as_str()
                    .split(|c| !is_word(c))
                    .filter(|word| !word.is_empty());
                return Ok(Value::int(words.count()));
            }
            "pprint" => none(args).and_then(|_| self.repr(value))?,
            _ => return Err(Error::runtime(format!("No filter named '{name}'."))),
        }))
    }

    fn truncated(&mut self, text: &Text, args: Args) -> Result<Text> {
        let [length, kill, end, leeway] =
            args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
        let length = self.integer(length, "truncate", 255)?;
        let leeway = leeway.filter(|leeway| !matches!(leeway, Value::None));
        let leeway = self.integer(leeway, "truncate", LEEWAY)?;
        let end = self.text_or(end, "...")?;
        let end_length = end.as_str().chars().count() as i128;
        if length < end_length || leeway < 0 {
            return Err(Error::runtime(format!(
                "expected length >= {end_length}, got {length}"
            )));
        }
        if text.as_str().chars().count() as i128 <= length.saturating_add(leeway) {
            return Ok(text.clone());
        }
        let kept = usize::try_from(length - end_length).unwrap_or(usize::MAX);
        let kept = text
            .as_str()
            .char_indices()
            .nth(kept)
            .map_or(text.len(), |(at, _)| at);
        let mut kept = &text.as_str()[..kept];
        if !self.flag(&kill) {
            kept = kept.rsplit_once(' ').map_or(kept, |(before, _)| before);
        }
        let mut out = TextBuilder::default();
        out.push(&text.part(kept));
        out.push(&end);
        Ok(out.build())
    }

    fn wrapped(&mut self, text: &Text, args: Args) -> Result<Text> {
        let names = [
            "width",
            "break_long_words",
            "wrapstring",
            "break_on_hyphens",
        ];
        let [width, long, newline, hyphens] = args.bind("wordwrap", names)?;
        let width = self.integer(width, "wordwrap", 79)?;
        let width = usize::try_from(width).ok().filter(|width| *width > 0);
        let width = width
            .ok_or_else(|| Error::runtime(format!("invalid width {width:?} (must be > 0)")))?;
        let long = long.is_none() || self.flag(&long);
        let hyphens = hyphens.is_none() || self.flag(&hyphens);
        let newline = match newline.filter(|n| !matches!(n, Value::None)) {
            Some(newline) => self.text_of(&newline)?,
            None => Text::own("\n"),
        };
        self.spend(text.len().saturating_mul(8 + newline.len()))?;
        let mut out = TextBuilder::default();
        for (i, line) in text.as_str().lines().enumerate() {
            if i > 0 {
                out.push(&newline);
            }
            for (j, range) in wrap(line, width, long, hyphens).into_iter().enumerate() {
                if j > 0 {
                    out.push(&newline);
                }
                for piece in range {
                    out.push(&text.part(piece));
                }
            }
        }
        Ok(out.build())
    }

    fn url_encoded(&mut self, value: &Value, text: &Text) -> Result<Value> {
        let pairs = match self.heap.dict(value).cloned() {
            Some(dict) => self.pairs(dict)?,
            None => match value {
                Value::Object(_) => self.iterate(value)?,
                _ => return Ok(Value::Str(text.map(|piece| percent_encoded(piece, "/")))),
            },
        };
        let mut out = TextBuilder::default();
        for (i, pair) in pairs.into_iter().enumerate() {
            let pair = self.iterate(&pair)?;
            let [key, value] = <[Value; 2]>::try_from(pair)
                .map_err(|_| Error::runtime("urlencode: not a pair"))?;
            if i > 0 {
                out.push_str("&");
            }
            let encode = |piece: &str| percent_encoded(piece, "").replace("%20", "+");
            out.push(&self.text_of(&key)?.map(encode));
            out.push_str("=");
            out.push(&self.text_of(&value)?.map(encode));
        }
        Ok(Value::Str(out.build()))
    }

    fn xml_attributes(&mut self, value: &Value, space: bool) -> Result<Text> {
        let dict = self.heap.dict(value).cloned();
        let dict = dict.ok_or_else(|| Error::runtime("xmlattr needs a mapping"))?;
        let mut out = TextBuilder::default();
        for (key, value) in dict.into_values() {
            if matches!(value, Value::None | Value::Undefined(_)) {
                continue;
            }
            let (key, value) = (self.text_of(&key)?, self.text_of(&value)?);
            if key
                .as_str()
                .contains([' ', '\t', '\n', '\r', '\x0b', '\x0c', '/', '>', '='])
            {
                return Err(Error::runtime(format!(
                    "Invalid character in attribute name: {:?}",
                    key.as_str()
                )));
            }
            if space || out.len() > 0 {
                out.push_str(" ");
            }
            out.push(&escaped(&key));
            out.push_str("=\"");
            out.push(&escaped(&value));
            out.push_str("\"");
        }
        Ok(out.build())
    }
}

/// Words that begin after blanks, dashes and opening brackets, in title case.
fn title(text: &Text) -> Text {
    let mut out = TextBuilder::default();
    let mut begins = true;
    let mut kept = true;
    for (piece, marked) in text.pieces() {
        let mut changed = String::with_capacity(piece.len());
        for c in piece.chars() {
            let between = matches!(c, '-' | '(' | '{' | '[' | '<') || is_space(c);
            if between != kept {
                begins = true;
            }
            kept = between;
            match begins {
                true => changed.extend(c.to_uppercase()),
                false => changed.extend(c.to_lowercase()),
            }
            begins = false;
        }
        out.push_as(&changed, marked);
    }
    out.build()
}

/// `&`, `<`, `>` and quotes as HTML writes them.
fn escaped(text: &Text) -> Text {
    text.map(|piece| {
        let mut out = String::with_capacity(piece.len());
        for c in piece.chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '\'' => out.push_str("&#39;"),
                '"' => out.push_str("&#34;"),
                c => out.push(c),
            }
        }
        out
    })
}

fn indented(text: &Text, unit: &Text, first: bool, blank: bool) -> Text {
    let mut out = TextBuilder::default();
    if first {
        out.push(unit);
    }
    for (i, line) in text.as_str().split('\n').enumerate() {
        if i > 0 {
            out.push_str("\n");
            if blank || !line.is_empty() {
                out.push(unit);
            }
        }
        out.push(&text.part(line.strip_suffix('\r').unwrap_or(line)));
    }
    out.build()
}

/// The text without tags and comments, its white space single blanks.
fn without_tags(text: &Text) -> Text {
    let mut stripped = TextBuilder::default();
    let mut rest = text.as_str();
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut kept = TextBuilder::default();
        let whole = if open == "<" {
            stripped.build()
        } else {
            text.clone()
        };
        rest = whole.as_str();
        while let Some(start) = rest.find(open) {
            let Some(end) = rest[start..].find(close) else {
                break;
            };
            kept.push(&whole.part(&rest[..start]));
            rest = &rest[start + end + close.len()..];
        }
        kept.push(&whole.part(rest));
        stripped = kept;
        rest = "";
    }
    debug_assert!(rest.is_empty());
    let stripped = stripped.build();
    let mut out = TextBuilder::default();
    for word in stripped
        .as_str()
        .split(is_space)
        .filter(|word| !word.is_empty())
    {
        if out.len() > 0 {
            out.push_str(" ");
        }
        out.push(&stripped.part(word));
    }
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#39;", "'"),
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    out.build().map(|piece| {
        let replace = |text: String, (entity, plain): &(&str, &str)| text.replace(entity, plain);
        entities.iter().fold(piece.to_string(), replace)
    })
}

fn percent_encoded(text: &str, safe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "_.-~".contains(c) || safe.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The pieces of each of the lines that a line is broken into.
fn wrap(line: &str, width: usize, long: bool, hyphens: bool) -> Vec<Vec<&str>> {
    let mut chunks = chunks(line, hyphens);
    chunks.reverse();
    let mut lines = Vec::new();
    let count = |text: &str| text.chars().count();
    let blank = |text: &&str| text.chars().all(is_space);
    while !chunks.is_empty() {
        let mut pieces: Vec<&str> = Vec::new();
        let mut length = 0;
        if !lines.is_empty() && chunks.last().is_some_and(blank) {
            chunks.pop();
        }
        while let Some(chunk) = chunks.last() {
            if length + count(chunk) > width {
                break;
            }
            length += count(chunk);
            pieces.extend(chunks.pop());
        }
        if let Some(chunk) = chunks.last().copied().filter(|chunk| count(chunk) > width) {
            if long {
                let room = (width - length).max(1);
                let cut = chunk
                    .char_indices()
                    .nth(room)
                    .map_or(chunk.len(), |(at, _)| at);
                let mut cut = cut;
                if hyphens {
                    // Python breaks a long word after its last hyphen that fits.
                    if let Some(hyphen) = chunk[..cut].rfind('-').filter(|at| *at > 0) {
                        if chunk[..hyphen].contains(|c| c != '-') {
                            cut = hyphen + 1;
                        }
                    }
                }
                pieces.push(&chunk[..cut]);
                chunks.pop();
                chunks.push(&chunk[cut..]);
            } else if pieces.is_empty() {
                pieces.extend(chunks.pop());
            }
        }
        if pieces.last().is_some_and(blank) {
            pieces.pop();
        }
        if !pieces.is_empty() {
            lines.push(pieces);
        }
    }
    lines
}

/// Words and the blanks between them; words may end after a hyphen between letters.
fn chunks(line: &str, hyphens: bool) -> Vec<&str> {
    let mut chunks = Vec::new();
    let mut start = 0;
    let chars: Vec<(usize, char)> = line.char_indices().collect();
    let letter = |i: usize| {
        chars
            .get(i)
            .is_some_and(|(_, c)| c.is_alphabetic() || *c == '_')
    };
    let word = |i: usize| chars.get(i).is_some_and(|(_, c)| is_word(*c));
    for i in 1..chars.len() {
        let (at, c) = chars[i];
        let before = chars[i - 1].1;
        let after_hyphen = hyphens
            && before == '-'
            && i >= 3
            && letter(i - 2)
            && word(i - 3)
            && word(i)
            && letter(i + 1);
        if is_space(c) != is_space(before) || after_hyphen {
            chunks.push(&line[start..at]);
            start = at;
        }
    }
    chunks.push(&line[start..]);
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}
