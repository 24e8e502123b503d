//! Texts that are too long for the context, told before all of them is tokenized: that takes a hundred times their
//! memory, and seconds.

use crate::engine::api::Failure;
use crate::server::backend::TextModel;
use crate::server::error::from_failure;
use worker::http::ApiError;

/// Longer texts are counted piece by piece first.
const PIECE: usize = 256 << 10;
/// A text is cut between two pieces within a word, perhaps, which then has more tokens than it should. So a count has
/// to be so much larger than the context: a part of it, and some tokens.
const MARGIN: (usize, usize) = (8, 256);

/// Refuses a text that has more tokens than the context takes, as far as that can be told cheaply.
///
/// # Errors
/// 400 `context_length_exceeded`.
pub fn check_length(model: &TextModel, text: &str) -> Result<(), ApiError> {
    let context = model.backend.context();
    let tokens = |piece: &str| {
        model
            .tokenizer
            .encode(piece, false)
            .map(|tokens| tokens.len())
    };
    match least_tokens(text, model.longest_token, context, tokens) {
        Some(prompt) => Err(from_failure(&Failure::TooLong { prompt, context })),
        None => Ok(()),
    }
}

/// Tokens that a text has at least if these are more than `context`; `None` if it may fit. No token is longer than
/// `longest` bytes.
fn least_tokens<E>(
    text: &str,
    longest: usize,
    context: usize,
    tokens: impl Fn(&str) -> Result<usize, E>,
) -> Option<usize> {
    let least = text.len() / longest.max(1);
    if least > context {
        return Some(least);
    }
    if text.len() <= PIECE {
        return None;
    }
    let most = context.saturating_add(context / MARGIN.0 + MARGIN.1);
    let mut count = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(worker::text::beginning(rest, PIECE).len());
        // A text that cannot be tokenized is told when the whole is.
        count += tokens(piece).ok()?;
        if count > most {
            return Some(count - (count - context).min(MARGIN.1));
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn texts_are_counted_no_further_than_need_be() {
        let counted = Cell::new(0);
        let bytes = |piece: &str| {
            counted.set(counted.get() + piece.len());
            Ok::<_, ()>(piece.len())
        };
        let text = "é".repeat(PIECE);
        // By its length alone.
        assert!(least_tokens(&text, 16, 1000, bytes).is_some_and(|least| least > 1000));
        assert_eq!(counted.get(), 0);
        // By its first piece.
        assert!(least_tokens(&text, 600, 1000, bytes).is_some_and(|least| least > 1000));
        assert!(counted.get() <= PIECE);
        // By all pieces.
        assert_eq!(least_tokens(&text, 600, text.len(), bytes), None);
        assert_eq!(least_tokens("short", 600, 1, bytes), None);
        assert_eq!(least_tokens(&text, 600, 1000, |_| Err(())), None);
    }
}
