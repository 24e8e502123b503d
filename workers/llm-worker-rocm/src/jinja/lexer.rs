//! Template text to tokens, with the blanks around tags removed as `trim_blocks` and `lstrip_blocks` say.

use super::error::{Error, Result};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Text between tags.
    Data(String),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
}

/// Longest first, so that `//` is not read as two `/`.
const OPERATORS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",",
];

/// White space as Python's `str.isspace` has it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The tokens of a template, the last of which is [`Kind::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<Token>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    // One line break at the end belongs to the file, not to the template.
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer {
        source: &source,
        at: 0,
        line: 1,
        line_starts: true,
        tokens: Vec::new(),
    };
    lexer.run()?;
    lexer.push(Kind::End);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
    /// Whether what was read last ended with a line break.
    line_starts: bool,
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Block,
    Comment,
    Print,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn push(&mut self, kind: Kind) {
        let line = self.line;
        self.tokens.push(Token { kind, line });
    }

    fn fault<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::syntax(message, self.line))
    }

    fn advance(&mut self, bytes: usize) {
        let read = &self.source[self.at..self.at + bytes];
        self.line += read.matches('\n').count();
        self.line_starts = read.ends_with('\n');
        self.at += bytes;
    }

    fn run(&mut self) -> Result<()> {
        loop {
            let rest = self.rest();
            let mut opening = None;
            for (i, _) in rest.match_indices('{') {
                let tag = match rest.as_bytes().get(i + 1) {
                    Some(b'%') => Tag::Block,
                    Some(b'#') => Tag::Comment,
                    Some(b'{') => Tag::Print,
                    _ => continue,
                };
                opening = Some((i, tag));
                break;
            }
            let Some((start, tag)) = opening else {
                if !rest.is_empty() {
                    self.push(Kind::Data(rest.to_string()));
                }
                return Ok(());
            };
            let sign = rest.as_bytes().get(start + 2).copied();
            let raw = if tag == Tag::Block {
                raw_tag(&rest[start..], "raw")
            } else {
                None
            };
            let data = self.before_tag(&rest[..start], sign, tag != Tag::Print);
            if !data.is_empty() {
                self.push(Kind::Data(data.to_string()));
            }
            let signed = usize::from(matches!(sign, Some(b'-' | b'+')));
            if let Some(length) = raw {
                self.advance(start + length);
                self.raw()?;
                continue;
            }
            self.advance(start + 2 + signed);
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Block => self.expression(Kind::BlockBegin, Kind::BlockEnd)?,
                Tag::Print => self.expression(Kind::PrintBegin, Kind::PrintEnd)?,
            }
        }
    }

    /// What stays of the text before a tag.
    fn before_tag(&self, data: &'s str, sign: Option<u8>, strips: bool) -> &'s str {
        if sign == Some(b'-') {
            return data.trim_end_matches(is_space);
        }
        if sign == Some(b'+') || !strips {
            return data;
        }
        let line = data.rfind('\n').map_or(0, |i| i + 1);
        if (line > 0 || self.line_starts) && data[line..].chars().all(is_space) {
            return &data[..line];
        }
        data
    }

    /// Bytes of the end of a tag that closes with `close`, if the text goes on with it.
    fn tag_end(&self, close: &str, trims: bool) -> Option<usize> {
        let rest = self.rest();
        if let Some(after) = rest.strip_prefix('-').and_then(|r| r.strip_prefix(close)) {
            let blank = after.len() - after.trim_start_matches(is_space).len();
            return Some(1 + close.len() + blank);
        }
        if trims && rest.strip_prefix('+').is_some_and(|r| r.starts_with(close)) {
            return Some(1 + close.len());
        }
        let after = rest.strip_prefix(close)?;
        Some(close.len() + usize::from(trims && after.starts_with('\n')))
    }

    fn comment(&mut self) -> Result<()> {
        loop {
            let Some(end) = self.rest().find("#}") else {
                return self.fault("a comment has no end");
            };
            let sign = self.rest()[..end].ends_with(['-', '+']);
            self.advance(end - usize::from(sign));
            if let Some(bytes) = self.tag_end("#}", true) {
                self.advance(bytes);
                return Ok(());
            }
        }
    }

    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(i) = rest[from..].find("{%").map(|i| i + from) {
            if let Some(length) = raw_tag(&rest[i..], "endraw") {
                let sign = rest.as_bytes().get(i + 2).copied();
                let data = self.before_tag(&rest[..i], sign, true);
                if !data.is_empty() {
                    self.push(Kind::Data(data.to_string()));
                }
                self.advance(i + length);
                // A line break after the end of the block goes, too.
                if self.source[..self.at].ends_with("%}")
                    && !self.source[..self.at].ends_with("+%}")
                    && self.rest().starts_with('\n')
                {
                    self.advance(1);
                }
                return Ok(());
            }
            from = i + 2;
        }
        self.fault("{% raw %} has no {% endraw %}")
    }

    fn expression(&mut self, begin: Kind, end: Kind) -> Result<()> {
        let block = end == Kind::BlockEnd;
        self.push(begin);
        let mut open: Vec<char> = Vec::new();
        loop {
            let blank = self.rest().len() - self.rest().trim_start_matches(is_space).len();
            self.advance(blank);
            if open.is_empty() {
                let close = if block { "%}" } else { "}}" };
                if let Some(bytes) = self.tag_end(close, block) {
                    self.push(end);
                    self.advance(bytes);
                    return Ok(());
                }
            }
            let rest = self.rest();
            let Some(c) = rest.chars().next() else {
                return self.fault("the template ends within a tag");
            };
            if c.is_ascii_digit() {
                self.number()?;
            } else if c == '_' || c.is_alphabetic() {
                let name = |c: char| c == '_' || c.is_alphanumeric();
                let length = rest.find(|c| !name(c)).unwrap_or(rest.len());
                self.push(Kind::Name(rest[..length].to_string()));
                self.advance(length);
            } else if c == '"' || c == '\'' {
                self.string(c)?;
            } else {
                let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
                    return self.fault(format!("unexpected character {c:?}"));
                };
                match *op {
                    "(" | "[" | "{" => open.push(c),
                    ")" | "]" | "}" => {
                        let pair = open.pop();
                        if !matches!(
                            (pair, c),
                            (Some('('), ')') | (Some('['), ']') | (Some('{'), '}')
                        ) {
                            return self.fault(format!("unexpected {c:?}"));
                        }
                    }
                    _ => {}
                }
                self.push(Kind::Op(op));
                self.advance(op.len());
            }
        }
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let digits = |from: usize, radix: u32| {
            let digit = |b: &u8| (*b as char).is_digit(radix) || *b == b'_';
            from + bytes[from..].iter().take_while(|b| digit(b)).count()
        };
        let radix = match bytes.get(1).map(u8::to_ascii_lowercase) {
            Some(b'x') if bytes[0] == b'0' => 16,
            Some(b'o') if bytes[0] == b'0' => 8,
            Some(b'b') if bytes[0] == b'0' => 2,
            _ => 10,
        };
        let (start, mut end) = match radix {
            10 => (0, digits(0, 10)),
            _ => (2, digits(2, radix)),
        };
        let mut float = false;
        let after_dot = matches!(
            self.tokens.last(),
            Some(Token {
                kind: Kind::Op("."),
                ..
            })
        );
        if radix == 10 && !after_dot {
            let is_digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
            if bytes.get(end) == Some(&b'.') && is_digit(end + 1) {
                float = true;
                end = digits(end + 1, 10);
            }
            if matches!(bytes.get(end), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
                if is_digit(end + 1 + sign) {
                    float = true;
                    end = digits(end + 1 + sign, 10);
                }
            }
        }
        let text = rest[start..end].replace('_', "");
        let kind = if float {
            text.parse().ok().map(Kind::Float)
        } else {
            i128::from_str_radix(&text, radix).ok().map(Kind::Int)
        };
        let Some(kind) = kind else {
            return self.fault(format!("the number {} is not supported", &rest[..end]));
        };
        self.push(kind);
        self.advance(end);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let body = &self.rest()[1..];
        let mut text = String::new();
        let mut chars = body.char_indices();
        while let Some((i, c)) = chars.next() {
            if c == quote {
                self.push(Kind::Str(text));
                self.advance(i + 2);
                return Ok(());
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((_, escaped)) = chars.next() else {
                break;
            };
            let plain = match escaped {
                '\n' => continue,
                'a' => '\x07',
                'b' => '\x08',
                'f' => '\x0c',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\x0b',
                '\\' | '\'' | '"' => escaped,
                'x' | 'u' | 'U' | '0'..='7' => {
                    let (radix, most, first) = match escaped {
                        'x' => (16, 2, None),
                        'u' => (16, 4, None),
                        'U' => (16, 8, None),
                        digit => (8, 2, Some(digit)),
                    };
                    let mut code = first.and_then(|d| d.to_digit(8)).unwrap_or(0);
                    let mut taken = 0;
                    while taken < most {
                        let mut ahead = chars.clone();
                        let Some(digit) = ahead.next().and_then(|(_, c)| c.to_digit(radix)) else {
                            break;
                        };
                        code = code.wrapping_mul(radix).wrapping_add(digit);
                        chars = ahead;
                        taken += 1;
                    }
                    if radix == 16 && taken < most {
                        return self.fault(format!("a truncated \\{escaped} escape"));
                    }
                    match char::from_u32(code) {
                        Some(c) => c,
                        None => return self.fault(format!("there is no character {code:#x}")),
                    }
                }
                // Python keeps the backslash of an escape that it does not know.
                other => {
                    text.push('\\');
                    other
                }
            };
            text.push(plain);
        }
        self.fault("a text has no end")
    }
}

/// Bytes of `{% raw %}` (or `endraw`) where the text begins with it.
fn raw_tag(text: &str, name: &str) -> Option<usize> {
    let inner = text.strip_prefix("{%")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.trim_start_matches(is_space).strip_prefix(name)?;
    let inner = inner.trim_start_matches(is_space);
    let rest = match inner.strip_prefix("-%}") {
        Some(after) => after.trim_start_matches(is_space),
        None if name == "endraw" => inner.strip_prefix("+%}").or(inner.strip_prefix("%}"))?,
        None => inner.strip_prefix("%}")?,
    };
    Some(text.len() - rest.len())
}
