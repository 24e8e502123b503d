//! llama.cpp's grammar notation in llguidance's Lark.
//!
//! GBNF has one kind of rule: `name ::= alternatives` of literals `"…"`, character classes `[…]`, `.`, references,
//! groups and the repetitions `* + ? {m} {m,} {m,n}`; `#` begins a comment. A rule goes on over line ends inside of
//! parentheses and after `|` or `::=`. Lark writes the same with `:`, `/[…]/` for classes, and lower-case names.

use std::collections::HashSet;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 64;

/// What a grammar knows of a vocabulary.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a> {
    /// Control tokens that literals may spell, with their numbers.
    pub(super) preserved: &'a [(&'a str, u32)],
    /// The number of a control token that a grammar names, if there is one.
    pub(super) id: &'a dyn Fn(&str) -> Option<u32>,
}

/// Translates a grammar.
///
/// # Errors
/// What is wrong, with the line.
pub(super) fn to_lark(source: &str, tokens: Tokens) -> Result<String, String> {
    let mut reader = Reader {
        tokens,
        rest: source.chars().peekable(),
        line: 1,
        defined: HashSet::new(),
        used: Vec::new(),
    };
    let mut rules = String::new();
    reader.space(true);
    while reader.rest.peek().is_some() {
        let name = reader.name()?;
        reader.space(true);
        for expected in "::=".chars() {
            reader.expect(expected)?;
        }
        reader.space(true);
        let body = reader.alternatives(0)?;
        writeln!(rules, "{}: {body}", lark_name(&name)).map_err(|e| e.to_string())?;
        if !reader.defined.insert(name.clone()) {
            return reader.fail(&format!("the rule {name} is defined twice"));
        }
        reader.space(true);
    }
    if !reader.defined.contains("root") {
        return Err("it has no rule named root".to_string());
    }
    match reader
        .used
        .iter()
        .find(|(name, _)| !reader.defined.contains(name))
    {
        Some((name, line)) => Err(format!("line {line}: there is no rule {name}")),
        None => Ok(format!("start: {}\n{rules}", lark_name("root"))),
    }
}

/// Names of Lark's rules are lower-case letters, digits and underscores.
fn lark_name(name: &str) -> String {
    let mut out = "r_".to_string();
    for c in name.chars() {
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            // Other characters by their code, so that different names stay different.
            other => {
                let _ = write!(out, "_{:x}_", u32::from(other));
            }
        }
    }
    out
}

struct Reader<'a> {
    tokens: Tokens<'a>,
    rest: Peekable<Chars<'a>>,
    line: usize,
    defined: HashSet<String>,
    used: Vec<(String, usize)>,
}

impl Reader<'_> {
    fn fail<T>(&self, reason: &str) -> Result<T, String> {
        Err(format!("line {}: {reason}", self.line))
    }

    fn take(&mut self) -> Option<char> {
        let c = self.rest.next();
        if c == Some('\n') {
            self.line += 1;
        }
        c
    }

    fn expect(&mut self, expected: char) -> Result<(), String> {
        match self.take() {
            Some(c) if c == expected => Ok(()),
            Some(c) => self.fail(&format!("{expected:?} is expected, not {c:?}")),
            None => self.fail(&format!("{expected:?} is expected, not the end")),
        }
    }

    /// Skips spaces and comments, line ends only where the rule may go on behind them.
    fn space(&mut self, lines: bool) {
        while let Some(&c) = self.rest.peek() {
            match c {
                '#' => {
                    while self.rest.peek().is_some_and(|&c| c != '\n') {
                        self.take();
                    }
                }
                '\n' | '\r' if !lines => return,
                c if c.is_whitespace() => {
                    self.take();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        while let Some(&c) = self.rest.peek() {
            if !(c.is_ascii_alphanumeric() || c == '-' || c == '_') {
                break;
            }
            name.push(c);
            self.take();
        }
        if name.is_empty() {
            let found = self
                .rest
                .peek()
                .map_or("the end".to_string(), |c| format!("{c:?}"));
            return self.fail(&format!("a rule's name is expected, not {found}"));
        }
        Ok(name)
    }

    fn alternatives(&mut self, depth: usize) -> Result<String, String> {
        if depth > MAX_DEPTH {
            return self.fail("groups are nested too deeply");
        }
        let mut out = self.sequence(depth)?;
        while self.rest.peek() == Some(&'|') {
            self.take();
            self.space(true);
            let _ = write!(out, " | {}", self.sequence(depth)?);
        }
        Ok(out)
    }

    fn sequence(&mut self, depth: usize) -> Result<String, String> {
        let mut parts: Vec<String> = Vec::new();
        loop {
            self.space(depth > 0);
            let part = match self.rest.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('<') => self.token()?,
                Some('.') => {
                    self.take();
                    r"/(.|\n)/".to_string()
                }
                Some('(') => {
                    self.take();
                    self.space(true);
                    let group = self.alternatives(depth + 1)?;
                    self.space(true);
                    self.expect(')')?;
                    format!("({group})")
                }
                Some(c) if c.is_ascii_alphanumeric() || *c == '_' => {
                    let name = self.name()?;
                    let out = lark_name(&name);
                    self.used.push((name, self.line));
                    out
                }
                _ => break,
            };
            let repetition = self.repetition()?;
            parts.push(format!("{part}{repetition}"));
        }
        // An empty alternative is legal.
        if parts.is_empty() {
            return Ok("\"\"".to_string());
        }
        Ok(parts.join(" "))
    }

    fn repetition(&mut self) -> Result<String, String> {
        Ok(match self.rest.peek() {
            Some(&c @ ('*' | '+' | '?')) => {
                self.take();
                c.to_string()
            }
            Some('{') => {
                let mut text = String::new();
                loop {
                    match self.take() {
                        Some(c) if c.is_ascii_digit() || c == ',' || c == '{' => text.push(c),
                        Some(' ') => {}
                        Some('}') => break,
                        _ => return self.fail("a repetition is {m}, {m,} or {m,n}"),
                    }
                }
                format!("{text}}}")
            }
            _ => String::new(),
        })
    }

    /// The character behind a backslash.
    fn escape(&mut self) -> Result<char, String> {
        let digits = match self.take() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some(c) => return self.fail(&format!("\\{c} is not an escape")),
            None => return self.fail("the grammar ends in an escape"),
        };
        let hex: String = (0..digits).filter_map(|_| self.take()).collect();
        match u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32) {
            Some(c) => Ok(c),
            None => self.fail(&format!("\\{hex} is not a character")),
        }
    }

    fn literal(&mut self) -> Result<String, String> {
        self.take();
        let mut text = String::new();
        loop {
            match self.take() {
                Some('"') => break,
                Some('\\') => text.push(self.escape()?),
                Some('\n') | None => return self.fail("a literal has no end"),
                Some(c) => text.push(c),
            }
        }
        self.spelled(&text)
    }

    /// A literal. Lark's are those of JSON; control tokens in it may come as such, too.
    fn spelled(&self, text: &str) -> Result<String, String> {
        let quoted = |text: &str| serde_json::to_string(text).map_err(|e| e.to_string());
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let found = self
                .tokens
                .preserved
                .iter()
                .filter(|(token, _)| !token.is_empty());
            let found = found.filter_map(|(token, id)| Some((rest.find(token)?, *token, *id)));
            // The first, and of those at one place the longest.
            let first = found.min_by_key(|(at, token, _)| (*at, usize::MAX - token.len()));
            let Some((at, token, id)) = first else {
                parts.push(quoted(rest)?);
                break;
            };
            if at > 0 {
                parts.push(quoted(&rest[..at])?);
            }
            parts.push(format!("(<[{id}]> | {})", quoted(token)?));
            rest = &rest[at + token.len()..];
        }
        match parts.len() {
            0 => quoted(""),
            1 => Ok(parts.remove(0)),
            _ => Ok(format!("({})", parts.join(" "))),
        }
    }

    /// A control token: `<[number]>`, or its text with its own angle brackets.
    fn token(&mut self) -> Result<String, String> {
        let mut text = String::new();
        loop {
            match self.take() {
                Some('\n') | None => return self.fail("a token has no end"),
                Some(c) => text.push(c),
            }
            if text.ends_with('>') {
                break;
            }
        }
        let number = text
            .strip_prefix("<[")
            .and_then(|rest| rest.strip_suffix("]>"));
        let id = match number {
            Some(number) => number.parse().ok(),
            None => (self.tokens.id)(&text),
        };
        match id {
            Some(id) => Ok(format!("<[{id}]>")),
            None => self.fail(&format!("{text} is not a control token of this model")),
        }
    }

    fn class(&mut self) -> Result<String, String> {
        self.take();
        let mut out = "/[".to_string();
        if self.rest.peek() == Some(&'^') {
            self.take();
            out.push('^');
        }
        let mut empty = true;
        loop {
            let c = match self.take() {
                Some(']') if !empty => break,
                // Ranges are written alike.
                Some('-') if !empty && self.rest.peek() != Some(&']') => {
                    out.push('-');
                    continue;
                }
                Some('\\') => self.escape()?,
                Some('\n') | None => return self.fail("a character class has no end"),
                Some(c) => c,
            };
            empty = false;
            if c.is_ascii_alphanumeric() {
                out.push(c);
            } else {
                let _ = write!(out, "\\x{{{:x}}}", u32::from(c));
            }
        }
        out.push_str("]/");
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::Tokens;

    fn to_lark(source: &str) -> Result<String, String> {
        let tokens = Tokens {
            preserved: &[("<call>", 7), ("<call", 6)],
            id: &|text| (text == "<|think|>").then_some(9),
        };
        super::to_lark(source, tokens)
    }

    #[test]
    fn tokens_are_named_or_spelled() {
        let lark = to_lark("root ::= <[5]> <|think|>+ \"a<call>\\n\" \"<call>\"").unwrap();
        let expected = "<[5]> <[9]>+ (\"a\" (<[7]> | \"<call>\") \"\\n\") (<[7]> | \"<call>\")";
        assert_eq!(lark, format!("start: r_root\nr_root: {expected}\n"));
        for (grammar, reason) in [
            ("root ::= <other>", "<other> is not a control token"),
            ("root ::= <[x]>", "<[x]> is not"),
            ("root ::= <a", "no end"),
        ] {
            let error = to_lark(grammar).unwrap_err();
            assert!(error.contains(reason), "{grammar}: {error}");
        }
    }

    #[test]
    fn rules_become_lark() {
        let lark = to_lark(
            "# a list\nroot ::= item (\",\" item)* # more\nitem ::= [a-z]+ |\n  \"\\\"x\\n\" | My-Rule{2,3}\nMy-Rule ::= [^\\]/-]?",
        )
        .unwrap();
        assert_eq!(
            lark,
            "start: r_root\nr_root: r_item (\",\" r_item)*\nr_item: /[a-z]/+ | \"\\\"x\\n\" | r__4d_y_2d__52_ule{2,3}\n\
             r__4d_y_2d__52_ule: /[^\\x{5d}\\x{2f}\\x{2d}]/?\n"
        );
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (grammar, reason) in [
            ("a ::= \"x\"", "root"),
            ("root ::= b", "line 1: there is no rule b"),
            ("root ::= \"x", "no end"),
            (
                "root ::= \"x\"\nroot ::= \"y\"",
                "line 2: the rule root is defined twice",
            ),
            ("root ::= (\"x\"", "')' is expected"),
            ("root ::= [a", "no end"),
            ("root = x", "line 1"),
            ("root ::= \"\\q\"", "\\q"),
        ] {
            let error = to_lark(grammar).unwrap_err();
            assert!(error.contains(reason), "{grammar}: {error}");
        }
        let deep = format!("root ::= {}\"x\"{}", "(".repeat(99), ")".repeat(99));
        assert!(to_lark(&deep).unwrap_err().contains("too deeply"));
    }
}
