//! Answers in plain text.

use super::answers::Parse;

/// Leaves text as it is.
#[derive(Debug, Clone, Default)]
pub struct PlainText {
    /// Text that stands before the answer.
    pub echo: String,
}

impl Parse for PlainText {
    type Part = String;
    type Whole = String;

    fn start(&mut self) -> Vec<String> {
        let echo = std::mem::take(&mut self.echo);
        match echo.is_empty() {
            true => Vec::new(),
            false => vec![echo],
        }
    }

    /// A part even of an empty text: it may have tokens.
    fn push(&mut self, text: String) -> Vec<String> {
        vec![text]
    }
}
