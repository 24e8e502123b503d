//! Unified diffs as language models write them: numbers and counts of lines may be wrong, blanks may be missing.
//!
//! Hunks are found by their text. A hunk goes where its old lines stand; if they stand in several places, where the
//! number of its header is nearest, and without a usable number nowhere.

/// A hunk: the lines that it removes or keeps, and those that it adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hunk {
    /// The first line by its header, from 1.
    pub line: Option<usize>,
    pub lines: Vec<Line>,
}

/// A line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Keep(String),
    Remove(String),
    Add(String),
}

/// Why a diff cannot be applied; said to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatchError {
    #[error("hunk {0} has no line that begins with + or -")]
    Empty(usize),
    #[error("hunk {0} keeps or removes no line, so its place is unknown: give lines of context")]
    NoPlace(usize),
    #[error("hunk {number}: its old lines are not in the file; the first is {first:?}")]
    Missing { number: usize, first: String },
    #[error(
        "hunk {number}: its old lines are in the file {times} times: give more lines of context"
    )]
    Ambiguous { number: usize, times: usize },
}

/// Reads the hunks behind the headers of a file.
pub(crate) fn hunks(text: &str) -> Vec<Hunk> {
    let mut found: Vec<Hunk> = Vec::new();
    for line in text.lines() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.starts_with("@@") {
            found.push(Hunk {
                line: first_number(line),
                lines: Vec::new(),
            });
            continue;
        }
        let Some(hunk) = found.last_mut() else {
            continue;
        };
        let entry = match line.as_bytes().first() {
            Some(b'+') => Line::Add(line[1..].into()),
            Some(b'-') => Line::Remove(line[1..].into()),
            Some(b' ') => Line::Keep(line[1..].into()),
            Some(b'\\') => continue,
            // The blank that marks a line of context gets lost.
            _ => Line::Keep(line.into()),
        };
        hunk.lines.push(entry);
    }
    for hunk in &mut found {
        // Empty lines before a fence or the next header belong to the message, not to the file.
        while matches!(hunk.lines.last(), Some(Line::Keep(line)) if line.trim().is_empty()) {
            hunk.lines.pop();
        }
    }
    found
}

/// The 12 of `@@ -12,4 +12,5 @@`.
fn first_number(header: &str) -> Option<usize> {
    let (_, rest) = header.split_once('-')?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|n| *n > 0)
}

/// Applies hunks to a text, whose line ends are kept.
pub(crate) fn apply(text: &str, hunks: &[Hunk]) -> Result<String, PatchError> {
    let end = match text.contains("\r\n") {
        true => "\r\n",
        false => "\n",
    };
    let mut lines: Vec<String> = text.split('\n').map(str::to_string).collect();
    // The last piece stands behind the last line end.
    let tail = lines.pop().unwrap_or_default();
    if !tail.is_empty() {
        lines.push(tail.clone());
    }
    let mut moved: isize = 0;
    for (index, hunk) in hunks.iter().enumerate() {
        moved += apply_one(&mut lines, hunk, index + 1, moved, end)?;
    }
    let mut joined = lines.join("\n");
    if tail.is_empty() && !joined.is_empty() {
        joined.push('\n');
    }
    Ok(joined)
}

fn apply_one(
    lines: &mut Vec<String>,
    hunk: &Hunk,
    number: usize,
    moved: isize,
    end: &str,
) -> Result<isize, PatchError> {
    if !hunk.lines.iter().any(|l| !matches!(l, Line::Keep(_))) {
        return Err(PatchError::Empty(number));
    }
    let old: Vec<&str> = hunk
        .lines
        .iter()
        .filter_map(|line| match line {
            Line::Keep(text) | Line::Remove(text) => Some(text.as_str()),
            Line::Add(_) => None,
        })
        .collect();
    if old.iter().all(|line| line.trim().is_empty()) {
        return Err(PatchError::NoPlace(number));
    }
    let at = place(lines, &old, hunk.line, number, moved)?;
    let mut replaced = Vec::with_capacity(hunk.lines.len());
    let mut next = at;
    for line in &hunk.lines {
        match line {
            // The file's own line, whatever blanks the model gave it.
            Line::Keep(_) => {
                replaced.push(lines[next].clone());
                next += 1;
            }
            Line::Remove(_) => next += 1,
            Line::Add(text) if end == "\r\n" => replaced.push(format!("{text}\r")),
            Line::Add(text) => replaced.push(text.clone()),
        }
    }
    let grown = replaced.len() as isize - (next - at) as isize;
    lines.splice(at..next, replaced);
    Ok(grown)
}

/// Where the old lines stand, the strictest comparison first.
fn place(
    lines: &[String],
    old: &[&str],
    line: Option<usize>,
    number: usize,
    moved: isize,
) -> Result<usize, PatchError> {
    let compare: [fn(&str, &str) -> bool; 3] = [
        |a, b| a.trim_end_matches('\r') == b,
        |a, b| a.trim_end() == b.trim_end(),
        |a, b| a.split_whitespace().eq(b.split_whitespace()),
    ];
    for same in compare {
        let found: Vec<usize> = (0..(lines.len() + 1).saturating_sub(old.len()))
            .filter(|at| old.iter().zip(&lines[*at..]).all(|(a, b)| same(b, a)))
            .collect();
        match (found.as_slice(), line) {
            ([], _) => continue,
            ([only], _) => return Ok(*only),
            (several, Some(line)) => {
                let wanted = line as isize - 1 + moved;
                let distance = |at: &usize| (*at as isize - wanted).abs();
                let nearest = several.iter().map(distance).min().unwrap_or(0);
                let mut best = several.iter().filter(|at| distance(at) == nearest);
                if let (Some(at), None) = (best.next(), best.next()) {
                    return Ok(*at);
                }
                return Err(PatchError::Ambiguous {
                    number,
                    times: several.len(),
                });
            }
            (several, None) => {
                return Err(PatchError::Ambiguous {
                    number,
                    times: several.len(),
                })
            }
        }
    }
    Err(PatchError::Missing {
        number,
        first: old.first().unwrap_or(&"").chars().take(120).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "a\n  b\nc\nd\nb\ne\n";

    fn applied(diff: &str) -> Result<String, PatchError> {
        apply(FILE, &hunks(diff))
    }

    #[test]
    fn wrong_numbers_and_counts_do_not_matter() {
        let wanted = Ok("a\n  b\nC\nd\nb\ne\n".to_string());
        assert_eq!(applied("@@ -99,7 +3,1 @@\n   b\n-c\n+C\n d\n"), wanted);
        assert_eq!(applied("@@\n   b\n-c\n+C\n d\n\n"), wanted);
        // A lost blank, other blanks, and CRLF.
        assert_eq!(applied("@@ @@\n\tb\r\n-c\r\n+C\r\nd\r\n"), wanted);
    }

    #[test]
    fn several_hunks_and_crlf_files() {
        assert_eq!(
            applied("@@ -1 +1 @@\n-a\n+A\n+A2\n@@ -6 +7 @@\n-e\n+E\n").as_deref(),
            Ok("A\nA2\n  b\nc\nd\nb\nE\n")
        );
        let diff = hunks("@@ -2 +2 @@\n-b\n+B\n");
        assert_eq!(apply("a\r\nb\r\nc", &diff).as_deref(), Ok("a\r\nB\r\nc"));
    }

    #[test]
    fn places_that_are_not_clear_are_refused() {
        let file = "x\ny\nx\ny\n";
        let at = |diff| apply(file, &hunks(diff));
        assert_eq!(at("@@ -3 +3 @@\n-x\n+z\n").as_deref(), Ok("x\ny\nz\ny\n"));
        assert_eq!(
            at("@@\n-x\n+z\n"),
            Err(PatchError::Ambiguous {
                number: 1,
                times: 2
            })
        );
        assert_eq!(at("@@ -1 +1 @@\n+z\n"), Err(PatchError::NoPlace(1)));
        assert_eq!(at("@@ -1 +1 @@\n x\n"), Err(PatchError::Empty(1)));
        assert!(matches!(
            at("@@ -1 +1 @@\n-q\n+z\n"),
            Err(PatchError::Missing { .. })
        ));
    }
}
