//! Constant integers of C++ texts: `2 * 64`, `(256 + 31) / 32`, `1 << 5`, `0x20u`.

use super::lexer::{tokens, Kind};

/// Brackets inside of brackets.
const MAX_DEPTH: usize = 64;

/// The value of an integer expression without names; none if it is anything else, or overflows.
pub(crate) fn evaluate(text: &str) -> Option<i64> {
    let all = tokens(text);
    let words = all
        .iter()
        .map(|token| (token.kind, token.text(text)))
        .collect();
    let mut parser = Parser { words, at: 0 };
    let value = parser.binary(0, 0)?;
    (parser.at == parser.words.len()).then_some(value)
}

struct Parser<'a> {
    words: Vec<(Kind, &'a str)>,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self, ahead: usize) -> &str {
        self.words.get(self.at + ahead).map_or("", |(_, word)| word)
    }

    /// The operator here, how strongly it binds and how many tokens it has.
    fn operator(&self) -> Option<(&'static str, u32, usize)> {
        Some(match (self.peek(0), self.peek(1)) {
            ("<", "<") => ("<<", 1, 2),
            (">", ">") => (">>", 1, 2),
            ("+", _) => ("+", 2, 1),
            ("-", _) => ("-", 2, 1),
            ("*", _) => ("*", 3, 1),
            ("/", _) => ("/", 3, 1),
            ("%", _) => ("%", 3, 1),
            _ => return None,
        })
    }

    fn binary(&mut self, least: u32, depth: usize) -> Option<i64> {
        let mut left = self.unary(depth)?;
        while let Some((operator, strength, length)) = self.operator() {
            if strength <= least {
                break;
            }
            self.at += length;
            let right = self.binary(strength, depth + 1)?;
            let bits = || u32::try_from(right).ok();
            left = match operator {
                "<<" => left.checked_mul(1i64.checked_shl(bits()?).filter(|_| right < 62)?)?,
                ">>" => left.checked_shr(bits()?)?,
                "+" => left.checked_add(right)?,
                "-" => left.checked_sub(right)?,
                "*" => left.checked_mul(right)?,
                "/" => left.checked_div(right)?,
                _ => left.checked_rem(right)?,
            };
        }
        Some(left)
    }

    fn unary(&mut self, depth: usize) -> Option<i64> {
        if depth > MAX_DEPTH {
            return None;
        }
        let (kind, word) = *self.words.get(self.at)?;
        self.at += 1;
        match (kind, word) {
            (Kind::Punct, "-") => self.unary(depth + 1)?.checked_neg(),
            (Kind::Punct, "+") => self.unary(depth + 1),
            (Kind::Punct, "(") => {
                let value = self.binary(0, depth + 1)?;
                let closed = self.peek(0) == ")";
                self.at += 1;
                closed.then_some(value)
            }
            (Kind::Number, word) => literal(word),
            _ => None,
        }
    }
}

/// An integer literal, with its suffix and marks.
pub(crate) fn literal(word: &str) -> Option<i64> {
    let word = word.replace('\'', "").to_ascii_lowercase();
    let (digits, radix) = match word.get(..2) {
        Some("0x") => (&word[2..], 16),
        Some("0b") => (&word[2..], 2),
        _ => (word.as_str(), 10),
    };
    let digits = digits.trim_end_matches(['u', 'l', 'z']);
    if radix == 10 && digits.len() > 1 && digits.starts_with('0') {
        return i64::from_str_radix(digits, 8).ok();
    }
    i64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_the_value_that_cpp_gives_them() {
        for (text, expected) in [
            ("2 * 64", Some(128)),
            ("(256 + 31) / 32", Some(8)),
            ("1 << 5u", Some(32)),
            ("1 + 2 * 3 - 4", Some(3)),
            ("10 - 4 - 3", Some(3)),
            ("0x20", Some(32)),
            ("1'024UL", Some(1024)),
            ("010", Some(8)),
            ("-(-3)", Some(3)),
            ("N", None),
            ("1 / 0", None),
            ("1.5", None),
            ("1 << 70", None),
            ("9223372036854775807 + 1", None),
            ("(1", None),
            ("1 2", None),
            ("", None),
        ] {
            assert_eq!(evaluate(text), expected, "{text}");
        }
        assert_eq!(evaluate(&"(".repeat(100_000)), None);
        assert_eq!(evaluate(&"-".repeat(100_000)), None);
    }
}
