//! The tokens of a kernel file, as a compiler's first pass sees them.
//!
//! What the guard compares must not depend on how well a text parses: tokens are there for every text, macros and
//! broken functions included. What compilers read in a way that people do not expect (digraphs, trigraphs, a backslash
//! that joins lines, letters beyond ASCII in names) is a token of its own kind, [`Kind::Odd`].

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or a keyword.
    Word,
    /// A number, with its suffix.
    Number,
    /// A string or a character, with its prefix and quotes.
    Literal,
    /// One character of punctuation.
    Sign,
    /// A preprocessor directive up to the end of its last line.
    Directive,
    /// What is read otherwise than it looks.
    Odd,
}

/// A piece of the text; comments and blanks are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    /// Byte at which it begins.
    pub start: usize,
}

impl Token<'_> {
    /// The byte behind it.
    pub(crate) fn end(&self) -> usize {
        self.start + self.text.len()
    }
    /// Whether it is this sign or word.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, Kind::Sign | Kind::Word)
    }
}

/// The tokens of a text.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer {
        text,
        bytes: text.as_bytes(),
        at: 0,
        line_begins: true,
        found: Vec::new(),
    };
    while lexer.at < lexer.bytes.len() {
        lexer.step();
    }
    lexer.found
}

/// The line, from 1, in which a byte lies.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|b| **b == b'\n').count()
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    line_begins: bool,
    found: Vec<Token<'a>>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn push(&mut self, kind: Kind, start: usize) {
        // Ends are moved to a border of characters, so that a cut through one cannot panic.
        while !self.text.is_char_boundary(self.at) {
            self.at += 1;
        }
        self.found.push(Token {
            kind,
            text: &self.text[start..self.at],
            start,
        });
        self.line_begins = false;
    }

    fn step(&mut self) {
        let start = self.at;
        match self.peek(0) {
            b'\n' => {
                self.line_begins = true;
                self.at += 1;
            }
            b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c' => self.at += 1,
            b'/' if self.peek(1) == b'/' => self.line_comment(),
            b'/' if self.peek(1) == b'*' => self.block_comment(),
            b'#' if self.line_begins => {
                self.directive();
                self.push(Kind::Directive, start);
                self.line_begins = true;
            }
            b'"' | b'\'' => self.literal(start),
            b'R' | b'L' | b'u' | b'U' if self.prefix().is_some() => {
                let (length, raw) = self.prefix().unwrap_or((0, false));
                self.at += length;
                match raw {
                    true => self.raw_string(start),
                    false => self.literal(start),
                }
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                while matches!(self.peek(0), b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'0'..=b'9') {
                    self.at += 1;
                }
                self.push(Kind::Word, start);
            }
            b'0'..=b'9' => self.number(start),
            b'.' if self.peek(1).is_ascii_digit() => self.number(start),
            b'%' if self.peek(1) == b':' => self.odd(start, 2),
            b'<' if matches!(self.peek(1), b'%' | b':') => self.odd(start, 2),
            b'?' if self.peek(1) == b'?' && b"=/'()!<>-".contains(&self.peek(2)) => {
                self.odd(start, 3)
            }
            byte if byte.is_ascii_punctuation()
                && !matches!(byte, b'\\' | b'$' | b'@' | b'`' | b'#') =>
            {
                self.at += 1;
                self.push(Kind::Sign, start);
            }
            _ => self.odd(start, 1),
        }
    }

    fn odd(&mut self, start: usize, length: usize) {
        self.at += length;
        self.push(Kind::Odd, start);
    }

    /// The length of a string's prefix, and whether the string is raw.
    fn prefix(&self) -> Option<(usize, bool)> {
        let rest = &self.bytes[self.at..];
        [
            "u8R\"", "uR\"", "UR\"", "LR\"", "R\"", "u8\"", "u\"", "U\"", "L\"", "u8'", "u'", "U'",
            "L'",
        ]
        .iter()
        .find(|p| rest.starts_with(p.as_bytes()))
        .map(|p| (p.len() - 1, p.contains('R')))
    }

    fn line_comment(&mut self) {
        while self.at < self.bytes.len() && self.peek(0) != b'\n' {
            if self.joins_lines() {
                // The next line is a part of the comment, which no reader would see.
                let start = self.at;
                self.at += 1;
                self.push(Kind::Odd, start);
                while self.peek(0) == b'\r' || self.peek(0) == b'\n' {
                    self.at += 1;
                }
                continue;
            }
            self.at += 1;
        }
    }

    /// Whether a backslash stands here that joins the line with the next one. Compilers forgive blanks behind it.
    fn joins_lines(&self) -> bool {
        if self.peek(0) != b'\\' {
            return false;
        }
        let rest = &self.bytes[self.at + 1..];
        let blanks = rest
            .iter()
            .take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c'))
            .count();
        rest.get(blanks) == Some(&b'\n')
    }

    fn block_comment(&mut self) {
        let start = self.at;
        self.at += 2;
        loop {
            if self.at >= self.bytes.len() {
                return self.push(Kind::Odd, start);
            }
            if self.peek(0) == b'*' && self.peek(1) == b'/' {
                self.at += 2;
                return;
            }
            self.at += 1;
        }
    }

    /// To the end of the directive: lines that a backslash or a comment joins belong to it.
    fn directive(&mut self) {
        while self.at < self.bytes.len() && self.peek(0) != b'\n' {
            if self.joins_lines() {
                while self.peek(0) != b'\n' {
                    self.at += 1;
                }
                self.at += 1;
            } else if self.peek(0) == b'/' && self.peek(1) == b'*' {
                self.at += 2;
                while self.at < self.bytes.len() && !(self.peek(0) == b'*' && self.peek(1) == b'/')
                {
                    self.at += 1;
                }
                self.at = (self.at + 2).min(self.bytes.len());
            } else {
                self.at += 1;
            }
        }
    }

    fn literal(&mut self, start: usize) {
        let quote = self.peek(0);
        self.at += 1;
        loop {
            match self.peek(0) {
                _ if self.at >= self.bytes.len() => return self.push(Kind::Odd, start),
                b'\n' => return self.push(Kind::Odd, start),
                b'\\' if self.joins_lines() => return self.push(Kind::Odd, start),
                b'\\' => self.at = (self.at + 2).min(self.bytes.len()),
                byte => {
                    self.at += 1;
                    if byte == quote {
                        return self.push(Kind::Literal, start);
                    }
                }
            }
        }
    }

    fn raw_string(&mut self, start: usize) {
        let rest = &self.bytes[self.at + 1..];
        let length = rest.iter().take(17).position(|b| *b == b'(');
        let end = length.and_then(|length| {
            let mut close = vec![b')'];
            close.extend_from_slice(&rest[..length]);
            close.push(b'"');
            rest.windows(close.len())
                .position(|window| window == close)
                .map(|found| self.at + 1 + found + close.len())
        });
        self.at = end.unwrap_or(self.bytes.len());
        self.push(
            if end.is_some() {
                Kind::Literal
            } else {
                Kind::Odd
            },
            start,
        );
    }

    fn number(&mut self, start: usize) {
        loop {
            match self.peek(0) {
                b'e' | b'E' | b'p' | b'P' if matches!(self.peek(1), b'+' | b'-') => self.at += 2,
                b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'.' => self.at += 1,
                b'\'' if self.peek(1).is_ascii_alphanumeric() => self.at += 2,
                _ => break,
            }
        }
        self.push(Kind::Number, start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        tokens(text).iter().map(|t| (t.kind, t.text)).collect()
    }

    #[test]
    fn comments_and_strings_hide_nothing() {
        use Kind::*;
        assert_eq!(
            kinds("/* # */ #define A \"//\" \\\n b // c\nx/*y*/=1.5e-3f;"),
            [
                (Directive, "#define A \"//\" \\\n b // c"),
                (Word, "x"),
                (Sign, "="),
                (Number, "1.5e-3f"),
                (Sign, ";"),
            ]
        );
        assert_eq!(
            kinds("R\"a(\")\" )a\" 'x' u8\"\\\"\""),
            [
                (Literal, "R\"a(\")\" )a\""),
                (Literal, "'x'"),
                (Literal, "u8\"\\\"\""),
            ]
        );
    }

    #[test]
    fn what_compilers_read_otherwise_is_odd() {
        for text in [
            "// a \\\nint x;",
            "%:include <x>",
            "a \\\n b",
            "caf\u{e9}",
            "\"open\nx",
            "/* open",
            "??=x",
            "a\\u0041",
            "x$y",
            "// a \\  \nb",
            "'a\\\n'",
        ] {
            let odd = tokens(text).iter().any(|t| t.kind == Kind::Odd);
            assert!(odd, "{text:?}");
        }
        assert!(!tokens("// caf\u{e9} \u{2014}\nint x = a ? b : c;")
            .iter()
            .any(|t| t.kind == Kind::Odd));
    }
}
