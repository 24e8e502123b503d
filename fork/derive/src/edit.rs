//! Insertions and replacements by byte range that leave the rest of a text as it was.

use std::ops::Range;

/// Edits of one text, applied together.
#[derive(Debug, Default)]
pub struct Edits {
    edits: Vec<(Range<usize>, String)>,
}

impl Edits {
    /// Inserts `text` before byte `at`.
    pub fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    /// Replaces `range` by `text`.
    pub fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.edits.push((range, text.into()));
    }

    /// Number of edits recorded.
    pub fn len(&self) -> usize {
        self.edits.len()
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The edited text. Edits at the same place keep the order in which they were recorded.
    ///
    /// # Panics
    /// If two replaced ranges overlap, which would be a fault of the rules.
    pub fn apply(mut self, text: &str) -> String {
        self.edits
            .sort_by_key(|(range, _)| (range.start, range.end));
        let mut out = String::with_capacity(text.len() + 64 * self.edits.len());
        let mut done = 0;
        for (range, insert) in &self.edits {
            assert!(
                range.start >= done,
                "overlapping edits at byte {}",
                range.start
            );
            out.push_str(&text[done..range.start]);
            out.push_str(insert);
            done = range.end;
        }
        out.push_str(&text[done..]);
        out
    }
}

/// The white space before byte `at` on its line, so that an inserted line stands like its neighbour.
pub fn indent_at(text: &str, at: usize) -> &str {
    let line = text[..at].rfind('\n').map_or(0, |i| i + 1);
    let width = text[line..at].len() - text[line..at].trim_start_matches([' ', '\t']).len();
    &text[line..line + width]
}

/// One-based line of byte `at`.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].bytes().filter(|b| *b == b'\n').count() + 1
}
