//! Answers in plain text.

use super::answers::Parse;

/// Leaves text as it is.
#[derive(Debug, Clone, Default)]
pub struct PlainText;

impl Parse for PlainText {
    type Part = String;
    type Whole = String;

    /// A part even of an empty text: it may have tokens.
    fn push(&mut self, text: String) -> Vec<String> {
        vec![text]
    }
}
