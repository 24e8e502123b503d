//! Prompts that are drawn: `{red|blue}` is one of them, `__colours__` a line of the file `colours.txt`.
//!
//! | Written                   | Is                                                                            |
//! |---------------------------|-------------------------------------------------------------------------------|
//! | `{a\|b\|c}`               | one of them                                                                   |
//! | `{3::a\|b}`               | `a` three times as often                                                      |
//! | `{2$$a\|b\|c}`            | two of them, joined by `, `                                                   |
//! | `{1-2$$ and $$a\|b\|c}`   | one or two, joined by ` and `                                                 |
//! | `__name__`                | a line of `name.txt`; `__folder/*__` of any file there                        |
//!
//! All of it nests, in lines of files, too. The draws are a function of the seed. A folder of wildcards has text files,
//! in which empty lines and those that begin with `#` do not count.

use super::wildcards::Wildcards;
use std::collections::HashMap;
use worker::{Error, Result};

/// Longest text that comes of a prompt, in bytes.
const MOST_BYTES: usize = super::tokenizer::MAX_PROMPT_BYTES;
/// Deepest nesting of brackets and files.
const MOST_DEPTH: usize = 32;
/// Most draws of one choice.
const MOST_DRAWS: usize = 1024;
/// Most pieces that one prompt is made of.
const MOST_PIECES: usize = 1 << 16;

/// A piece of a prompt.
#[derive(Debug, Clone)]
enum Piece {
    Text(String),
    Choice {
        options: Vec<(f64, Vec<Piece>)>,
        least: usize,
        most: usize,
        separator: String,
    },
    Wildcard(String),
}

/// Whether there is anything to draw.
pub fn is_dynamic(prompt: &str) -> bool {
    let pieces = read(prompt, 0).unwrap_or_default();
    pieces.iter().any(|piece| !matches!(piece, Piece::Text(_)))
}

/// One prompt that a seed draws.
///
/// # Errors
/// [`Error::Usage`] for wildcards that do not exist, and prompts that become too long.
pub fn draw(prompt: &str, seed: u64, wildcards: &Wildcards) -> Result<String> {
    let mut drawing = Drawing::new(wildcards);
    drawing.numbers = seed;
    let mut out = String::new();
    drawing.write(&read(prompt, 0)?, 0, &mut out)?;
    Ok(out)
}

/// All prompts that can be drawn, the last choice changing first.
///
/// # Errors
/// As [`draw`], and for more than `most` prompts.
pub fn all(prompt: &str, most: usize, wildcards: &Wildcards) -> Result<Vec<String>> {
    let mut drawing = Drawing::new(wildcards);
    drawing.all(&read(prompt, 0)?, 0, most)
}

struct Drawing<'a> {
    wildcards: &'a Wildcards,
    /// Files that were read.
    lines: HashMap<String, Vec<String>>,
    numbers: u64,
    pieces: usize,
}

impl<'a> Drawing<'a> {
    fn new(wildcards: &'a Wildcards) -> Self {
        Self {
            wildcards,
            lines: HashMap::new(),
            numbers: 0,
            pieces: 0,
        }
    }

    /// The next random number, 0 to 1 (SplitMix64, Steele et al. 2014).
    fn number(&mut self) -> f64 {
        self.numbers = self.numbers.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.numbers;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, count: usize) -> usize {
        ((self.number() * count as f64) as usize).min(count.saturating_sub(1))
    }

    fn count(&mut self, depth: usize, length: usize) -> Result<()> {
        self.pieces += 1;
        if depth > MOST_DEPTH || self.pieces > MOST_PIECES || length > MOST_BYTES {
            return Err(Error::Usage(format!(
                "the prompt becomes too long: more than {MOST_BYTES} bytes, {MOST_PIECES} pieces or {MOST_DEPTH} levels"
            )));
        }
        Ok(())
    }

    fn file(&mut self, name: &str) -> Result<&[String]> {
        if !self.lines.contains_key(name) {
            let lines = self.wildcards.lines(name)?;
            self.lines.insert(name.to_string(), lines);
        }
        Ok(self.lines.get(name).map_or(&[], Vec::as_slice))
    }

    fn write(&mut self, pieces: &[Piece], depth: usize, out: &mut String) -> Result<()> {
        for piece in pieces {
            self.count(depth, out.len())?;
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Wildcard(name) => {
                    let count = self.file(name)?.len();
                    let at = self.below(count);
                    let line = read(&self.file(name)?[at].clone(), depth + 1)?;
                    self.write(&line, depth + 1, out)?;
                }
                Piece::Choice {
                    options,
                    least,
                    most,
                    separator,
                } => {
                    let wanted = least + self.below(most - least + 1);
                    let mut left: Vec<usize> = (0..options.len()).collect();
                    for i in 0..wanted {
                        if i > 0 {
                            out.push_str(separator);
                        }
                        // More than there are begin anew.
                        if left.is_empty() {
                            left = (0..options.len()).collect();
                        }
                        let sum: f64 = left.iter().map(|at| options[*at].0).sum();
                        let mut mark = self.number() * sum;
                        let found = left.iter().position(|at| {
                            mark -= options[*at].0;
                            mark < 0.0
                        });
                        let at = left.remove(found.unwrap_or(left.len() - 1));
                        self.write(&options[at].1, depth + 1, out)?;
                    }
                }
            }
        }
        self.count(depth, out.len())
    }

    fn all(&mut self, pieces: &[Piece], depth: usize, most: usize) -> Result<Vec<String>> {
        let mut texts = vec![String::new()];
        for piece in pieces {
            let ends = match piece {
                Piece::Text(text) => vec![text.clone()],
                Piece::Wildcard(name) => {
                    let lines = self.file(name)?.to_vec();
                    let mut ends = Vec::new();
                    for line in lines {
                        self.count(depth, 0)?;
                        let line = read(&line, depth + 1)?;
                        ends.extend(self.all(&line, depth + 1, most)?);
                        few(ends.len(), most)?;
                    }
                    ends
                }
                Piece::Choice {
                    options,
                    least,
                    most: largest,
                    separator,
                } => {
                    let mut each = Vec::new();
                    for (_, option) in options {
                        self.count(depth, 0)?;
                        each.push(self.all(option, depth + 1, most)?);
                    }
                    let mut ends = Vec::new();
                    for wanted in *least..=(*largest).min(each.len()) {
                        chosen(
                            &each,
                            wanted,
                            separator,
                            String::new(),
                            true,
                            most,
                            &mut ends,
                        )?;
                    }
                    ends
                }
            };
            few(texts.len().saturating_mul(ends.len()), most)?;
            let mut longer = Vec::new();
            for text in &texts {
                for end in &ends {
                    self.count(depth, text.len() + end.len())?;
                    longer.push(format!("{text}{end}"));
                }
            }
            texts = longer;
        }
        Ok(texts)
    }
}

/// All ways to take so many of the options in their order.
fn chosen(
    each: &[Vec<String>],
    wanted: usize,
    separator: &str,
    begun: String,
    is_first: bool,
    most: usize,
    ends: &mut Vec<String>,
) -> Result<()> {
    if wanted == 0 {
        ends.push(begun);
        return few(ends.len(), most);
    }
    for at in 0..=each.len().saturating_sub(wanted) {
        let Some(texts) = each.get(at) else { break };
        for text in texts {
            let between = if is_first { "" } else { separator };
            let longer = format!("{begun}{between}{text}");
            chosen(
                &each[at + 1..],
                wanted - 1,
                separator,
                longer,
                false,
                most,
                ends,
            )?;
        }
    }
    Ok(())
}

fn few(count: usize, most: usize) -> Result<()> {
    match count <= most {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "the prompt has more than {most} combinations; that many pictures are possible"
        ))),
    }
}

/// A prompt's pieces. Brackets without an end are text.
fn read(prompt: &str, depth: usize) -> Result<Vec<Piece>> {
    if depth > MOST_DEPTH {
        return Err(Error::Usage(format!(
            "the prompt has choices within choices, more than {MOST_DEPTH} deep"
        )));
    }
    let mut pieces = Vec::new();
    let mut text = String::new();
    let partners = partners(prompt);
    let mut rest = prompt;
    while let Some(c) = rest.chars().next() {
        let at = prompt.len() - rest.len();
        let found = match c {
            '{' => (partners.get(&at))
                .map(|end| Result::Ok((choice(&prompt[at + 1..*end], depth)?, end + 1 - at))),
            '_' => wildcard(rest).map(|(name, length)| Ok((Piece::Wildcard(name), length))),
            _ => None,
        };
        match found.transpose()? {
            Some((piece, length)) => {
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                pieces.push(piece);
                rest = &rest[length..];
            }
            None => {
                // An escaped character is none of ours.
                let mut length = c.len_utf8();
                if c == '\\' {
                    length += rest[length..].chars().next().map_or(0, char::len_utf8);
                }
                text.push_str(&rest[..length]);
                rest = &rest[length..];
            }
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

/// Where braces open, and where their partners are.
fn partners(text: &str) -> HashMap<usize, usize> {
    let (mut open, mut found) = (Vec::new(), HashMap::new());
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '{' => open.push(at),
            '}' => {
                if let Some(from) = open.pop() {
                    found.insert(from, at);
                }
            }
            _ => {}
        }
    }
    found
}

/// The name between two pairs of underscores, and the length with them.
fn wildcard(text: &str) -> Option<(String, usize)> {
    let inside = text.strip_prefix("__")?;
    let end = inside.find("__")?;
    let name = &inside[..end];
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | '*' | '.');
    let is_name = !name.is_empty() && name.chars().all(plain);
    is_name.then(|| (name.to_string(), end + 4))
}

/// The options between two braces.
fn choice(inside: &str, depth: usize) -> Result<Piece> {
    let (mut least, mut most, mut separator, mut rest) = (1, 1, ", ".to_string(), inside);
    if let Some((head, tail)) = inside.split_once("$$") {
        if let Some((from, to)) = range(head) {
            (least, most, rest) = (from, to, tail);
            // A second mark ends what stands between those that are drawn.
            if let Some((between, tail)) = tail.split_once("$$") {
                if !between.contains(['|', '{']) {
                    (separator, rest) = (between.to_string(), tail);
                }
            }
        }
    }
    let mut options = Vec::new();
    for option in split(rest) {
        let (weight, text) = match option.split_once("::") {
            Some((weight, text)) => match weight.trim().parse::<f64>() {
                Ok(weight) if weight.is_finite() && weight >= 0.0 => (weight, text),
                _ => (1.0, option),
            },
            None => (1.0, option),
        };
        options.push((weight, read(text, depth + 1)?));
    }
    if most > MOST_DRAWS {
        return Err(Error::Usage(format!(
            "{{{most}$$…}} draws more than {MOST_DRAWS} times"
        )));
    }
    Ok(Piece::Choice {
        options,
        least,
        most,
        separator,
    })
}

/// `2` or `1-3`.
fn range(text: &str) -> Option<(usize, usize)> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let (from, to) = match text.split_once('-') {
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(text)?, number(text)?),
    };
    (from <= to).then_some((from, to))
}

/// The options: strokes within other brackets do not part them.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, 0usize);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Wildcards) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        std::fs::create_dir(place.join("deep")).unwrap();
        for (name, text) in [
            ("colour", "# of things\nred\n\n  blue \n"),
            ("deep/one", "{a|b} __colour__"),
            ("deep/two", "z"),
            ("loop", "x __loop__"),
        ] {
            std::fs::write(place.join(format!("{name}.txt")), text).unwrap();
        }
        std::fs::write(place.join("secret"), "no").unwrap();
        let wildcards = Wildcards::new(Some(place.to_path_buf()));
        (folder, wildcards)
    }

    fn combinations(prompt: &str) -> Vec<String> {
        let (_folder, wildcards) = folder();
        all(prompt, 100, &wildcards).unwrap()
    }

    #[test]
    fn all_combinations_in_order() {
        assert_eq!(combinations("a {b|c} d"), ["a b d", "a c d"]);
        assert_eq!(combinations("{a|b}{1|2}"), ["a1", "a2", "b1", "b2"]);
        assert_eq!(combinations("{a{1|2}|b}"), ["a1", "a2", "b"]);
        assert_eq!(combinations("{2$$a|b|c}"), ["a, b", "a, c", "b, c"]);
        assert_eq!(combinations("{1-2$$ and $$a|b}"), ["a", "b", "a and b"]);
        assert_eq!(combinations("a __colour__"), ["a red", "a blue"]);
        assert_eq!(
            combinations("__deep/*__"),
            ["a red", "a blue", "b red", "b blue", "z"]
        );
        assert_eq!(combinations("{5::a|b}"), ["a", "b"]);
        for plain in [
            "plain", "a } b", "{", "a__b", "____", r"\{a|b\}", "a | b", "{[a|b]}",
        ] {
            let expected = plain.strip_prefix("{[").map_or(plain, |_| "[a|b]");
            assert_eq!(combinations(plain), [expected]);
        }
    }

    #[test]
    fn draws_are_a_function_of_the_seed() {
        let (_folder, wildcards) = folder();
        let of = |prompt: &str, seed| draw(prompt, seed, &wildcards).unwrap();
        let prompt = "{a|b|c|d} __colour__ {2$$x|y|z}";
        assert_eq!(of(prompt, 5), of(prompt, 5));
        let every = combinations(prompt);
        let mut seen = std::collections::HashSet::new();
        for seed in 0..200 {
            let drawn = of(prompt, seed);
            // Two of three come in any order.
            let words: Vec<&str> = drawn.split(' ').collect();
            assert!(
                every
                    .iter()
                    .any(|one| one.starts_with(&words[..2].join(" "))),
                "{drawn}"
            );
            seen.insert(drawn);
        }
        assert!(seen.len() > 20);
        let often = (0..400).filter(|seed| of("{3::a|b}", *seed) == "a").count();
        assert!((240..360).contains(&often), "{often}");
        assert!((0..50).all(|seed| of("{1::a|0::b}", seed) == "a"));
        assert_eq!(of("{3$$a}", 1), "a, a, a");
        assert!(is_dynamic(prompt) && !is_dynamic("a [b|c]"));
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let (_folder, wildcards) = folder();
        for (prompt, reason) in [
            ("__none__", "no wildcard"),
            ("__../colour__", "no wildcard"),
            ("__/etc/passwd__", "no wildcard"),
            ("__secret__", "no wildcard"),
            ("__loop__", "deep"),
            (&"{a|".repeat(100) as &str, ""),
            ("{9999999$$a|b}", "more than"),
        ] {
            match draw(prompt, 1, &wildcards) {
                Err(e) => assert!(!reason.is_empty() && e.to_string().contains(reason), "{e}"),
                Ok(text) => assert!(reason.is_empty() && text == prompt),
            }
        }
        let bomb = "{a|b}".repeat(40);
        assert!(all(&bomb, 64, &wildcards)
            .unwrap_err()
            .to_string()
            .contains("64"));
        let deep = format!("{}x{}", "{".repeat(60), "}".repeat(60));
        assert!(draw(&deep, 1, &wildcards).is_err());
        let none = Wildcards::default();
        let error = draw("__colour__", 1, &none).unwrap_err().to_string();
        assert!(error.contains("--wildcards-dir"), "{error}");
    }
}
