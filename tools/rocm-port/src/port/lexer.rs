//! Tokens of C++ as the edits need them: where words, literals and directives begin and end.
//!
//! The text is not preprocessed, so this must stand any macro; it therefore knows no grammar, and unfinished comments
//! and strings end with the text.

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Word,
    Number,
    /// A string or character literal, with its prefix and quotes.
    Text,
    /// `<<<`, `::`, `->`, or one other character.
    Punct,
    /// A whole preprocessor line, with the lines that continue it, without its last newline.
    Directive,
}

/// A token; comments and blanks are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

impl Token {
    /// Its characters.
    pub fn text<'a>(&self, source: &'a str) -> &'a str {
        &source[self.start..self.end]
    }

    /// Where it stands.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Whether it is this word or sign.
    pub fn is(&self, source: &str, text: &str) -> bool {
        self.kind != Kind::Text && self.text(source) == text
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// The tokens of a text.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer {
        bytes: source.as_bytes(),
        at: 0,
    };
    let mut found = Vec::new();
    let mut fresh_line = true;
    while let Some(byte) = lexer.peek(0) {
        let start = lexer.at;
        let kind = match byte {
            b'\n' => {
                fresh_line = true;
                lexer.at += 1;
                continue;
            }
            b'\\' if lexer.continuation() => continue,
            byte if byte.is_ascii_whitespace() => {
                lexer.at += 1;
                continue;
            }
            b'/' if lexer.comment() => continue,
            b'#' if fresh_line => lexer.directive(),
            b'"' | b'\'' => lexer.literal(),
            byte if byte.is_ascii_digit() => lexer.number(),
            b'.' if lexer.peek(1).is_some_and(|next| next.is_ascii_digit()) => lexer.number(),
            byte if is_word(byte) => lexer.word(),
            _ => lexer.punct(),
        };
        fresh_line = false;
        found.push(Token {
            kind,
            start,
            end: lexer.at,
        });
    }
    found
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn starts_with(&self, text: &[u8]) -> bool {
        self.bytes[self.at..].starts_with(text)
    }

    /// Skips a backslash at a line's end, with the line's end.
    fn continuation(&mut self) -> bool {
        for end in [&b"\\\n"[..], b"\\\r\n"] {
            if self.starts_with(end) {
                self.at += end.len();
                return true;
            }
        }
        false
    }

    /// Skips a comment, if one begins here.
    fn comment(&mut self) -> bool {
        if self.starts_with(b"//") {
            while let Some(byte) = self.peek(0) {
                if byte == b'\n' {
                    break;
                }
                if !self.continuation() {
                    self.at += 1;
                }
            }
            return true;
        }
        if self.starts_with(b"/*") {
            let rest = &self.bytes[self.at + 2..];
            let length = rest.windows(2).position(|two| two == b"*/");
            self.at = length.map_or(self.bytes.len(), |length| self.at + length + 4);
            return true;
        }
        false
    }

    fn directive(&mut self) -> Kind {
        let mut end = self.at;
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\n' => break,
                b'\\' if self.continuation() => {}
                b'/' if self.comment() => end = self.at,
                // An apostrophe in `#error don't` begins no literal.
                b'"' => {
                    self.literal();
                    end = self.at;
                }
                byte => {
                    self.at += 1;
                    if !byte.is_ascii_whitespace() {
                        end = self.at;
                    }
                }
            }
        }
        self.at = end;
        Kind::Directive
    }

    /// A literal from its quote on. One that is not closed ends with its line.
    fn literal(&mut self) -> Kind {
        let quote = self.bytes[self.at];
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' => {
                    if !self.continuation() {
                        self.at = (self.at + 2).min(self.bytes.len());
                    }
                }
                b'\n' => break,
                byte => {
                    self.at += 1;
                    if byte == quote {
                        break;
                    }
                }
            }
        }
        Kind::Text
    }

    /// `R"mark(…)mark"` from its quote on.
    fn raw_literal(&mut self) {
        let rest = &self.bytes[self.at + 1..];
        let Some(open) = rest.iter().take(17).position(|&byte| byte == b'(') else {
            self.literal();
            return;
        };
        let close = [b")", &rest[..open], b"\""].concat();
        let body = &rest[open..];
        let length = body
            .windows(close.len())
            .position(|window| window == close.as_slice());
        self.at = length.map_or(self.bytes.len(), |length| {
            self.at + 1 + open + length + close.len()
        });
    }

    fn number(&mut self) -> Kind {
        while let Some(byte) = self.peek(0) {
            let exponent = matches!(byte, b'+' | b'-')
                && self.at > 0
                && matches!(self.bytes[self.at - 1], b'e' | b'E' | b'p' | b'P');
            let separator = byte == b'\'' && self.peek(1).is_some_and(is_word);
            if !(is_word(byte) || byte == b'.' || exponent || separator) {
                break;
            }
            self.at += 1;
        }
        Kind::Number
    }

    fn word(&mut self) -> Kind {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        let word = &self.bytes[start..self.at];
        match self.peek(0) {
            Some(b'"') if matches!(word, b"R" | b"u8R" | b"uR" | b"UR" | b"LR") => {
                self.raw_literal();
                Kind::Text
            }
            Some(b'"' | b'\'') if matches!(word, b"u8" | b"u" | b"U" | b"L") => self.literal(),
            _ => Kind::Word,
        }
    }

    fn punct(&mut self) -> Kind {
        let length = if self.starts_with(b"<<<") {
            3
        } else if self.starts_with(b"::") || self.starts_with(b"->") {
            2
        } else {
            1
        };
        self.at += length;
        Kind::Punct
    }
}

/// The index of the token that closes the bracket at `open`, or none if nothing does.
///
/// Each branch of a `#if` is looked at as if it were the only one: `#else` goes back to the depth before the `#if`, as
/// alternative heads of one function have a brace each.
pub(crate) fn closing(source: &str, tokens: &[Token], open: usize) -> Option<usize> {
    let (opens, closes) = match tokens.get(open)?.text(source) {
        "(" => ("(", ")"),
        "[" => ("[", "]"),
        "{" => ("{", "}"),
        _ => return None,
    };
    let mut depth = 0usize;
    let mut before = Vec::new();
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Punct => match token.text(source) {
                text if text == opens => depth += 1,
                text if text == closes => {
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(index);
                    }
                }
                _ => {}
            },
            Kind::Directive => match directive(token.text(source)).0 {
                "if" | "ifdef" | "ifndef" => before.push(depth),
                // Without an `#if` behind the bracket, this is another head of what the bracket began.
                "else" | "elif" => depth = before.last().copied().unwrap_or(0),
                "endif" => {
                    before.pop();
                }
                _ => {}
            },
            _ => {}
        }
    }
    None
}

/// A directive's name and what follows it.
pub(crate) fn directive(text: &str) -> (&str, &str) {
    let rest = text.trim_start().trim_start_matches('#').trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    (&rest[..end], rest[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|t| t.text(source)).collect()
    }

    #[test]
    fn words_literals_and_signs() {
        assert_eq!(
            texts("f<<<g, 0>>>(a->b, ns::c, 1'000.5e-3f);"),
            [
                "f",
                "<<<",
                "g",
                ",",
                "0",
                ">",
                ">",
                ">",
                "(",
                "a",
                "->",
                "b",
                ",",
                "ns",
                "::",
                "c",
                ",",
                "1'000.5e-3f",
                ")",
                ";"
            ]
        );
        assert_eq!(
            texts("x /* { */ = \"}\\\"\" // (\n 'a'"),
            ["x", "=", "\"}\\\"\"", "'a'"]
        );
        assert_eq!(
            texts("R\"x(\")x\" + u8\"s\""),
            ["R\"x(\")x\"", "+", "u8\"s\""]
        );
    }

    #[test]
    fn directives_run_over_continued_lines() {
        let source = "#define A(x) \\\r\n  f(x) /* more\n */ + 1\nb # c\n";
        assert_eq!(
            texts(source),
            ["#define A(x) \\\r\n  f(x) /* more\n */ + 1", "b", "#", "c"]
        );
        assert_eq!(directive("#  define A 1"), ("define", "A 1"));
        assert_eq!(directive("#"), ("", ""));
    }

    #[test]
    fn unfinished_text_ends_with_the_text() {
        for source in ["/*", "\"", "'\\", "R\"(", "R\"", "#define \\", "1'", "\\"] {
            tokens(source);
        }
    }

    #[test]
    fn branches_are_alternatives() {
        let source = "{\n#if A\n f() {\n#else\n g() {\n#endif\n }\n} end";
        let tokens = tokens(source);
        let close = closing(source, &tokens, 0).expect("it closes");
        assert_eq!(tokens[close + 1].text(source), "end");
        assert_eq!(closing("((", &super::tokens("(("), 0), None);
    }
}
