//! Prompts that change on the way, as AUTOMATIC1111's web UI writes them, and prompts that are composed.
//!
//! `[a:b:10]` is `a` up to step 10 and `b` behind it, `[b:10]` begins with nothing and `[a::10]` ends so; a number with a
//! point is a share of the steps. `[a|b|c]` takes turns. All of it nests. `a AND b:0.5` are two prompts with weights
//! (Liu et al. 2022). Brackets of other forms stay as they are: attention weights.
//!
//! The web UI's grammar has a prompt between all brackets, in which a bracket without a partner or a colon of its own
//! cannot be; where they are, the outer bracket is text. What is written here reads the same language from left to right.

/// Deepest nesting of brackets that is looked into; deeper ones are text.
const MOST_DEPTH: usize = 32;
/// Most prompts that `AND` joins.
const MOST_PARTS: usize = 16;

/// What a prompt is in each step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule(Vec<(usize, String)>);

impl Schedule {
    /// The schedule of a prompt over so many steps: texts, each with the last step that it counts for.
    pub fn new(prompt: &str, steps: usize) -> Self {
        let tree = sequence_of(prompt);
        let mut ends = vec![steps];
        collect(&tree, steps, &mut ends);
        ends.sort_unstable();
        ends.dedup();
        let text = |end: usize| {
            let mut text = String::new();
            write(&tree, end, steps, &mut text);
            (end, text)
        };
        Self(ends.into_iter().map(text).collect())
    }

    /// A prompt that is the same in all steps, whatever is written in it.
    pub fn fixed(prompt: &str, steps: usize) -> Self {
        Self(vec![(steps, prompt.to_string())])
    }

    /// Texts and the last steps that they count for.
    pub fn entries(&self) -> &[(usize, String)] {
        &self.0
    }

    /// The text in a step, counted from 0. As in the web UI, a text that ends with step 10 still counts for the step of
    /// number 10, which is the eleventh.
    pub fn at(&self, step: usize) -> &str {
        let found = self.0.iter().find(|(end, _)| step <= *end);
        found.or(self.0.last()).map_or("", |(_, text)| text)
    }
}

/// The prompts that `AND` joins, each with its weight. A prompt without `AND` is itself with the weight 1: only behind
/// `AND` is a number after the last colon a weight.
///
/// # Errors
/// If there are too many.
pub fn composed(prompt: &str) -> Result<Vec<(String, f64)>, String> {
    let parts = split_word(prompt, "AND");
    match parts.len() {
        1 => Ok(vec![(prompt.to_string(), 1.0)]),
        2..=MOST_PARTS => Ok(parts.into_iter().map(weighted).collect()),
        count => Err(format!(
            "the prompt has {count} parts with AND between; {MOST_PARTS} are possible"
        )),
    }
}

/// A part and the weight behind its last colon.
fn weighted(part: &str) -> (String, f64) {
    let part = part.trim_end();
    let number = part.rsplit_once(':').and_then(|(text, number)| {
        let number = number.trim_start();
        let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
        let plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
        let weight = number
            .parse::<f64>()
            .ok()
            .filter(|_| plain && !digits.is_empty())?;
        Some((text.trim_end().to_string(), weight))
    });
    number.unwrap_or_else(|| (part.to_string(), 1.0))
}

/// The text between the occurrences of a word.
fn split_word<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut parts, mut from, mut search) = (Vec::new(), 0, 0);
    while let Some(found) = text[search..].find(word) {
        let (start, end) = (search + found, search + found + word.len());
        search = end;
        if !is_word(text[..start].chars().next_back()) && !is_word(text[end..].chars().next()) {
            parts.push(&text[from..start]);
            from = end;
        }
    }
    parts.push(&text[from..]);
    parts
}

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    /// Before and after a step; a number with a point is a share of the steps.
    Scheduled {
        before: Option<Vec<Piece>>,
        after: Vec<Piece>,
        when: f64,
        is_share: bool,
    },
    Alternate(Vec<Vec<Piece>>),
}

/// The last step before a change.
fn end_of(when: f64, is_share: bool, steps: usize) -> f64 {
    let step = if is_share { when * steps as f64 } else { when };
    step.trunc().min(steps as f64)
}

fn collect(pieces: &[Piece], steps: usize, ends: &mut Vec<usize>) {
    for piece in pieces {
        match piece {
            Piece::Text(_) => {}
            Piece::Scheduled {
                before,
                after,
                when,
                is_share,
            } => {
                let end = end_of(*when, *is_share, steps);
                if end >= 1.0 {
                    ends.push(end as usize);
                }
                before
                    .iter()
                    .chain([after])
                    .for_each(|p| collect(p, steps, ends));
            }
            Piece::Alternate(turns) => {
                // Once for all of them: there may be many.
                if ends.len() <= steps {
                    ends.extend(1..=steps);
                    ends.sort_unstable();
                    ends.dedup();
                }
                turns.iter().for_each(|p| collect(p, steps, ends));
            }
        }
    }
}

fn write(pieces: &[Piece], step: usize, steps: usize, out: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Scheduled {
                before,
                after,
                when,
                is_share,
            } => match (step as f64 <= end_of(*when, *is_share, steps), before) {
                (true, Some(before)) => write(before, step, steps, out),
                (true, None) => {}
                (false, _) => write(after, step, steps, out),
            },
            Piece::Alternate(turns) => {
                write(
                    &turns[step.saturating_sub(1) % turns.len()],
                    step,
                    steps,
                    out,
                );
            }
        }
    }
}

/// A whole prompt: brackets and colons that belong to nothing are text.
fn sequence_of(prompt: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    let mut tries = Tries(prompt.len().saturating_mul(8) + 1024);
    while at < prompt.len() {
        if let Some((mut found, end)) = bracket(prompt, at, 0, &mut tries) {
            pieces.append(&mut found);
            at = end;
            continue;
        }
        let end = at + plain(&prompt[at..]).max(first_char(&prompt[at..]));
        text(&mut pieces, &prompt[at..end]);
        at = end;
    }
    pieces
}

/// Work that is left: brackets that come to nothing are read again from within.
struct Tries(usize);

fn first_char(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// The length of the beginning that has no bracket, colon or stroke but escaped ones.
fn plain(text: &str) -> usize {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '[' | ']' | '(' | ')' | ':' | '|' => return at,
            _ => {}
        }
    }
    text.len()
}

fn text(pieces: &mut Vec<Piece>, more: &str) {
    match pieces.last_mut() {
        Some(Piece::Text(text)) => text.push_str(more),
        _ => pieces.push(Piece::Text(more.to_string())),
    }
}

/// A prompt within brackets, up to the first character that cannot be in one, and where that is.
fn inner(prompt: &str, mut at: usize, depth: usize, tries: &mut Tries) -> (Vec<Piece>, usize) {
    let mut pieces = Vec::new();
    loop {
        let length = plain(&prompt[at..]);
        if length > 0 {
            text(&mut pieces, &prompt[at..at + length]);
            at += length;
        }
        match bracket(prompt, at, depth, tries) {
            Some((mut found, end)) => {
                pieces.append(&mut found);
                at = end;
            }
            None => return (pieces, at),
        }
    }
}

/// What a bracket at this place is, and where it ends; nothing if it is text.
fn bracket(
    prompt: &str,
    at: usize,
    depth: usize,
    tries: &mut Tries,
) -> Option<(Vec<Piece>, usize)> {
    let open = prompt[at..]
        .chars()
        .next()
        .filter(|c| matches!(c, '(' | '['))?;
    if depth >= MOST_DEPTH {
        return None;
    }
    // All parts up to the bracket's end, with what is between.
    let mut parts: Vec<(Vec<Piece>, std::ops::Range<usize>)> = Vec::new();
    let mut between = Vec::new();
    let mut from = at + 1;
    let end = loop {
        tries.0 = tries.0.checked_sub(1)?;
        let (pieces, end) = inner(prompt, from, depth + 1, tries);
        parts.push((pieces, from..end));
        match (open, prompt[end..].chars().next()?) {
            ('(', ')') | ('[', ']') => break end + 1,
            ('(', ':') if between.is_empty() => between.push(':'),
            ('[', c @ (':' | '|')) if between.iter().all(|b| *b == c) => between.push(c),
            _ => return None,
        }
        from = end + 1;
    };
    let mut pieces = Vec::new();
    match (open, between.first(), between.len()) {
        ('[', Some('|'), _) => {
            let turns = parts.into_iter().map(|(pieces, _)| pieces).collect();
            pieces.push(Piece::Alternate(turns));
        }
        ('[', Some(_), 1 | 2) => {
            let (_, range) = parts.pop()?;
            let number = prompt[range].trim();
            let when = number_of(number)?;
            let (after, _) = parts.pop()?;
            pieces.push(Piece::Scheduled {
                before: parts.pop().map(|(pieces, _)| pieces),
                after,
                when,
                is_share: number.contains('.'),
            });
        }
        ('[', Some(_), _) => return None,
        _ => {
            // Weights of attention, with what changes within them.
            text(&mut pieces, &prompt[at..=at]);
            let count = parts.len();
            for (i, (inside, range)) in parts.into_iter().enumerate() {
                for piece in inside {
                    match piece {
                        Piece::Text(more) => text(&mut pieces, &more),
                        other => pieces.push(other),
                    }
                }
                let mark = if i + 1 < count {
                    range.end..range.end + 1
                } else {
                    end - 1..end
                };
                text(&mut pieces, &prompt[mark]);
            }
        }
    }
    Some((pieces, end))
}

/// A number as the grammar has it: a sign, digits with a point, an exponent.
fn number_of(text: &str) -> Option<f64> {
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-' | 'e' | 'E');
    let digits = text.chars().any(|c| c.is_ascii_digit());
    let number = text.chars().all(plain) && digits;
    text.parse::<f64>().ok().filter(|n| number && n.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(prompt: &str) -> Vec<(usize, String)> {
        Schedule::new(prompt, 10).entries().to_vec()
    }

    fn check(prompt: &str, expected: &[(usize, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(n, t)| (*n, t.to_string())).collect();
        assert_eq!(schedule(prompt), expected, "{prompt}");
    }

    /// As the web UI's own parser has them.
    #[test]
    fn schedules() {
        check("a house", &[(10, "a house")]);
        check("a [red:4] house", &[(4, "a  house"), (10, "a red house")]);
        check("a [red: 4 ] house", &[(4, "a  house"), (10, "a red house")]);
        check("a [red::4]house", &[(4, "a redhouse"), (10, "a house")]);
        check("[red:blue:.3] x", &[(3, "red x"), (10, "blue x")]);
        check("[red:blue:1.0]", &[(10, "red")]);
        check("[red:blue:1]", &[(1, "red"), (10, "blue")]);
        check("[red:blue:0]", &[(10, "blue")]);
        check("[red:blue:25]", &[(10, "red")]);
        check(
            "[a:[b:[c:d:6]:4]:2]",
            &[(2, "a"), (4, "b"), (6, "c"), (10, "d")],
        );
        check("[(a:1.3):b:2]", &[(2, "(a:1.3)"), (10, "b")]);
        check("([a:b:2]:1.3)", &[(2, "(a:1.3)"), (10, "(b:1.3)")]);
        check("[[[a]]:2]", &[(2, ""), (10, "[[a]]")]);
        check(r"[a\:b:c:2]", &[(2, r"a\:b"), (10, "c")]);
    }

    #[test]
    fn turns() {
        let turns = schedule("[a|b|]c");
        assert_eq!(turns.len(), 10);
        let texts: Vec<_> = turns.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts[..5], ["ac", "bc", "c", "ac", "bc"]);
        check(
            "[[a|b]:c:2]",
            &[(1, "a"), (2, "b")]
                .iter()
                .copied()
                .chain((3..=10).map(|n| (n, "c")))
                .collect::<Vec<_>>(),
        );
        assert_eq!(schedule("([a|b]:1.2)")[1].1, "(b:1.2)");
    }

    #[test]
    fn what_is_no_schedule_stays() {
        for prompt in [
            "",
            "[",
            "]",
            "a [b",
            "a] b",
            "(a:b:c)",
            "[a:b:c:3]",
            "[a:b:c]",
            "[a:b]",
            "[less]",
            "(more:1.2)",
            "12:30",
            "[:",
            "a | b",
            "[a:b|c:3]",
            "\\",
            "[a\\",
            "[é:ü",
            "((((",
            "[a:nan]",
        ] {
            check(prompt, &[(10, prompt)]);
        }
        check("[a b:c [d:3]", &[(3, "[a b:c "), (10, "[a b:c d")]);
        check("((x][:y:z [é:3]", &[(3, "((x][:y:z "), (10, "((x][:y:z é")]);
    }

    #[test]
    fn hostile_prompts_end() {
        for piece in ["[", "(", "[a:", "[a|", "([", "[(", "[[a:b:3]", "[a|b]"] {
            let prompt = piece.repeat(65_536 / piece.len());
            let schedule = Schedule::new(&prompt, 20);
            assert!(!schedule.entries().is_empty());
        }
    }

    #[test]
    fn texts_by_step() {
        let schedule = Schedule::new("[a:b:4]", 10);
        let texts: String = (0..10).map(|step| schedule.at(step).to_string()).collect();
        assert_eq!(texts, "aaaaabbbbb");
        let turns = Schedule::new("[a|b]", 6);
        let texts: String = (0..6).map(|step| turns.at(step).to_string()).collect();
        assert_eq!(texts, "aababa");
    }

    #[test]
    fn prompts_joined_by_and() {
        let parts = |prompt: &str| composed(prompt).unwrap();
        assert_eq!(parts("12:30"), [("12:30".to_string(), 1.0)]);
        assert_eq!(parts("SAND ANDY"), [("SAND ANDY".to_string(), 1.0)]);
        let expected = [("a cat", 1.0), (" (a:1.2) dog", 0.5), (" x", -1.0)];
        let expected = expected.map(|(text, weight)| (text.to_string(), weight));
        assert_eq!(parts("a cat AND (a:1.2) dog : 0.5 AND x:-1"), expected);
        assert!(composed(&"a AND ".repeat(17)).is_err());
    }
}
