//! Texts that know which of their parts came from outside of the template.

use std::ops::Range;
use std::sync::Arc;

/// A text of a template. Parts that come from messages, tools and other variables are marked, through all that a
/// template does with them, so that the tokenizer can tell what a user typed from what the template wrote.
#[derive(Debug, Clone)]
pub(super) struct Text {
    text: Arc<str>,
    /// Byte ranges of what came from outside, in order, apart from each other and not empty.
    marks: Option<Arc<[Range<usize>]>>,
}

impl Text {
    /// A text of the template's own.
    pub(super) fn own(text: impl Into<Arc<str>>) -> Self {
        Self {
            text: text.into(),
            marks: None,
        }
    }

    /// A text from outside.
    pub(super) fn input(text: &str) -> Self {
        let whole = 0..text.len();
        Self {
            text: text.into(),
            marks: (!text.is_empty()).then(|| Arc::from([whole])),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The marked byte ranges.
    pub(super) fn marks(&self) -> &[Range<usize>] {
        self.marks.as_deref().unwrap_or_default()
    }

    /// A part, by bytes.
    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        if range == (0..self.len()) {
            return self.clone();
        }
        let mut part = TextBuilder::default();
        part.push_slice(self, range);
        part.build()
    }

    /// The part that a slice of [`Self::as_str`] is.
    pub(super) fn part(&self, part: &str) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        if part.is_empty() || start > self.len() {
            return Self::own("");
        }
        self.slice(start..start + part.len())
    }

    /// Runs of the text with whether each came from outside.
    pub(super) fn pieces(&self) -> Vec<(&str, bool)> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for mark in self.marks() {
            if at < mark.start {
                pieces.push((&self.text[at..mark.start], false));
            }
            pieces.push((&self.text[mark.clone()], true));
            at = mark.end;
        }
        if at < self.len() {
            pieces.push((&self.text[at..], false));
        }
        pieces
    }

    /// The text with each run changed.
    pub(super) fn map(&self, change: impl Fn(&str) -> String) -> Self {
        let mut changed = TextBuilder::default();
        for (piece, marked) in self.pieces() {
            changed.push_as(&change(piece), marked);
        }
        changed.build()
    }
}

/// Puts a [`Text`] together.
#[derive(Debug, Default)]
pub(super) struct TextBuilder {
    text: String,
    marks: Vec<Range<usize>>,
}

impl TextBuilder {
    /// Adds text of the template's own.
    pub(super) fn push_str(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds text, from outside if `marked`.
    pub(super) fn push_as(&mut self, text: &str, marked: bool) {
        let start = self.text.len();
        self.text.push_str(text);
        if marked {
            self.mark(start..self.text.len());
        }
    }

    /// Adds a text with its marks.
    pub(super) fn push(&mut self, text: &Text) {
        self.push_slice(text, 0..text.len());
    }

    /// Adds a part of a text, by bytes, with its marks.
    pub(super) fn push_slice(&mut self, text: &Text, range: Range<usize>) {
        let to = self.text.len();
        self.text.push_str(&text.text[range.clone()]);
        for mark in text.marks() {
            let start = mark.start.max(range.start);
            let end = mark.end.min(range.end);
            if start < end {
                self.mark(to + start - range.start..to + end - range.start);
            }
        }
    }

    fn mark(&mut self, range: Range<usize>) {
        match self.marks.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.marks.push(range),
        }
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn build(self) -> Text {
        Text {
            text: self.text.into(),
            marks: (!self.marks.is_empty()).then(|| self.marks.into()),
        }
    }

    /// The text and its marked ranges.
    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        (self.text, self.marks)
    }
}
