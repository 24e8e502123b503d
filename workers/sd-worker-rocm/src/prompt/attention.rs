//! The weights of web UIs' prompts.
//!
//! `(text)` weighs 1.1, `[text]` 1/1.1, `(text:1.5)` 1.5; brackets nest and multiply. `\(`, `\)`, `\[`, `\]` and `\\`
//! are the characters themselves. `BREAK` as a word of its own begins a new chunk. Brackets without a partner hold up
//! to the end, or are dropped.

/// What one pair of brackets multiplies by.
const STEP: f32 = 1.1;

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Segment {
    /// Text and its weight.
    Text(String, f32),
    /// A new chunk begins.
    Break,
}

/// The segments of a prompt, neighbours of the same weight joined.
pub fn parse(prompt: &str) -> Vec<Segment> {
    let mut reader = Reader::default();
    let mut chars = prompt.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match prompt[at + 1..].chars().next() {
                Some(next @ ('(' | ')' | '[' | ']' | '\\')) => {
                    chars.next();
                    reader.text(next);
                }
                _ => reader.text(c),
            },
            '(' => reader.open(Bracket::Round),
            '[' => reader.open(Bracket::Square),
            ')' => reader.close(Bracket::Round, STEP),
            ']' => reader.close(Bracket::Square, 1.0 / STEP),
            ':' if reader.is_inside(Bracket::Round) => match explicit_weight(&prompt[at + 1..]) {
                Some((weight, length)) => {
                    reader.close(Bracket::Round, weight);
                    for _ in 0..length {
                        chars.next();
                    }
                }
                None => reader.text(c),
            },
            _ => reader.text(c),
        }
    }
    reader.finish()
}

/// The number of `1.5)` and the characters that it takes with its bracket.
fn explicit_weight(text: &str) -> Option<(f32, usize)> {
    let end = text.find(')')?;
    let inside = &text[..end];
    let number = inside.trim();
    let plain = number
        .strip_prefix(['+', '-'])
        .unwrap_or(number)
        .chars()
        .all(|c| c.is_ascii_digit() || c == '.');
    if !plain {
        return None;
    }
    let weight = number.parse::<f32>().ok().filter(|w| w.is_finite())?;
    Some((weight, inside.chars().count() + 1))
}

#[derive(Clone, Copy, PartialEq)]
enum Bracket {
    Round,
    Square,
}

/// Segments so far and the brackets that are open, each with the segment where it began.
#[derive(Default)]
struct Reader {
    segments: Vec<(String, f32)>,
    open: Vec<(Bracket, usize)>,
    /// Text goes to a new segment, since a bracket came between.
    fresh: bool,
}

impl Reader {
    fn text(&mut self, c: char) {
        if self.fresh || self.segments.is_empty() {
            self.segments.push((String::new(), 1.0));
            self.fresh = false;
        }
        if let Some((text, _)) = self.segments.last_mut() {
            text.push(c);
        }
    }

    fn open(&mut self, bracket: Bracket) {
        self.open.push((bracket, self.segments.len()));
        self.fresh = true;
    }

    fn is_inside(&self, bracket: Bracket) -> bool {
        self.open.iter().any(|(b, _)| *b == bracket)
    }

    /// Weighs what came since the last bracket of this kind; a closing bracket without partner is text.
    fn close(&mut self, bracket: Bracket, weight: f32) {
        let Some(at) = self.open.iter().rposition(|(b, _)| *b == bracket) else {
            self.text(match bracket {
                Bracket::Round => ')',
                Bracket::Square => ']',
            });
            return;
        };
        let (_, from) = self.open.remove(at);
        for (_, w) in &mut self.segments[from..] {
            *w *= weight;
        }
        self.fresh = true;
    }

    fn finish(mut self) -> Vec<Segment> {
        for (bracket, from) in std::mem::take(&mut self.open) {
            let weight = match bracket {
                Bracket::Round => STEP,
                Bracket::Square => 1.0 / STEP,
            };
            for (_, w) in &mut self.segments[from..] {
                *w *= weight;
            }
        }
        let mut out: Vec<Segment> = Vec::new();
        for (text, weight) in self.segments {
            for (i, part) in split_breaks(&text).into_iter().enumerate() {
                if i > 0 {
                    out.push(Segment::Break);
                }
                match out.last_mut() {
                    _ if part.is_empty() => {}
                    Some(Segment::Text(before, w)) if *w == weight => before.push_str(part),
                    _ => out.push(Segment::Text(part.to_string(), weight)),
                }
            }
        }
        out
    }
}

/// The text between the words `BREAK`, with the space around them.
fn split_breaks(text: &str) -> Vec<&str> {
    const WORD: &str = "BREAK";
    let mut parts = Vec::new();
    let (mut from, mut search) = (0, 0);
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    while let Some(found) = text[search..].find(WORD) {
        let (start, end) = (search + found, search + found + WORD.len());
        search = end;
        if is_word(text[..start].chars().next_back()) || is_word(text[end..].chars().next()) {
            continue;
        }
        parts.push(text[from..start].trim_end());
        from = end + (text[end..].len() - text[end..].trim_start().len());
        search = from;
    }
    parts.push(&text[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(prompt: &str) -> Vec<(String, f32)> {
        parse(prompt)
            .into_iter()
            .map(|segment| match segment {
                Segment::Text(text, weight) => (text, (weight * 1e4).round() / 1e4),
                Segment::Break => ("|".to_string(), 0.0),
            })
            .collect()
    }

    fn check(prompt: &str, expected: &[(&str, f32)]) {
        let expected: Vec<_> = expected.iter().map(|(t, w)| (t.to_string(), *w)).collect();
        assert_eq!(weights(prompt), expected, "{prompt}");
    }

    #[test]
    fn brackets() {
        check("normal text", &[("normal text", 1.0)]);
        check(
            "an (important) word",
            &[("an ", 1.0), ("important", 1.1), (" word", 1.0)],
        );
        check("(unbalanced", &[("unbalanced", 1.1)]);
        check("unbalanced)", &[("unbalanced)", 1.0)]);
        check(
            "[less] ((more))",
            &[("less", 0.9091), (" ", 1.0), ("more", 1.21)],
        );
        check("(a:1.3)(b:1.3)", &[("ab", 1.3)]);
        check("(a (b:2) c:1.5)", &[("a ", 1.5), ("b", 3.0), (" c", 1.5)]);
        check("(a: 0.5 )x", &[("a", 0.5), ("x", 1.0)]);
        check("(ratio 16:9)", &[("ratio 16", 9.0)]);
        check("(time: now)", &[("time: now", 1.1)]);
        check("12:30", &[("12:30", 1.0)]);
    }

    #[test]
    fn escapes() {
        check(r"\(literal\]", &[("(literal]", 1.0)]);
        check(r"a\\b \c", &[(r"a\b \c", 1.0)]);
        check(r"(\(x\):1.2)", &[("(x)", 1.2)]);
        check("end\\", &[("end\\", 1.0)]);
    }

    #[test]
    fn breaks() {
        check("a BREAK b", &[("a", 1.0), ("|", 0.0), ("b", 1.0)]);
        check("BREAKFAST TEABREAK", &[("BREAKFAST TEABREAK", 1.0)]);
        check("(a BREAK b:1.5)", &[("a", 1.5), ("|", 0.0), ("b", 1.5)]);
    }

    #[test]
    fn anything_is_a_prompt() {
        for prompt in [
            "",
            "(",
            ")",
            "[[((",
            "(:1.0)",
            "((:",
            "(x:)",
            "(é:1.5)ü",
            "(x:1e9)",
            ":)",
        ] {
            parse(prompt);
        }
        check("(é:1.5)ü", &[("é", 1.5), ("ü", 1.0)]);
    }
}
