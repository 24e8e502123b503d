//! Marks in a text that is still coming.

/// A part of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tools) enum Piece<'a> {
    /// These characters.
    Text(&'a str),
    /// Any white space, or none.
    Space,
    /// Digits, in place of `{n}`.
    Number,
}

/// Whether a text goes on as a mark does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tools) enum Follow {
    /// It does; the mark ends after so many bytes.
    Done(usize),
    /// It does as far as it goes.
    More,
    /// It does not.
    No,
}

/// The parts of a mark.
pub(in crate::tools) fn pieces(mark: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = mark;
    std::iter::from_fn(move || {
        let is_space = |c: char| c.is_whitespace() || c == '\0';
        let space = rest.len() - rest.trim_start_matches(is_space).len();
        if space > 0 {
            rest = &rest[space..];
            return Some(Piece::Space);
        }
        if let Some(after) = rest.strip_prefix("{n}") {
            rest = after;
            return Some(Piece::Number);
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        let end = rest[..end].find("{n}").unwrap_or(end);
        let (text, after) = rest.split_at(end);
        rest = after;
        (!text.is_empty()).then_some(Piece::Text(text))
    })
}

/// Follows a mark from the beginning of `text`. White space after the mark is left where it is.
pub(in crate::tools) fn follow(text: &str, mark: &str) -> Follow {
    let mark = mark.trim_end_matches(|c: char| c.is_whitespace() || c == '\0');
    let mut rest = text;
    for piece in pieces(mark) {
        match piece {
            Piece::Space => rest = rest.trim_start(),
            Piece::Number => {
                let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                if digits.is_empty() {
                    return Follow::More;
                }
                rest = digits;
            }
            Piece::Text(wanted) => match rest.strip_prefix(wanted) {
                Some(after) => rest = after,
                None if wanted.starts_with(rest) => return Follow::More,
                None => return Follow::No,
            },
        }
    }
    Follow::Done(text.len() - rest.len())
}

/// Goes over what is there of a mark, parts that are missing left out. `None` if that is not certain yet.
pub(in crate::tools) fn eat(text: &str, mark: &str) -> Option<usize> {
    let mut rest = text;
    let mut at = text.len();
    for piece in pieces(mark) {
        let start = rest.trim_start();
        match piece {
            Piece::Space => {}
            Piece::Number => {
                let digits = start.trim_start_matches(|c: char| c.is_ascii_digit());
                if digits.is_empty() {
                    return None;
                }
                if digits.len() < start.len() {
                    rest = digits;
                    at = rest.len();
                }
            }
            Piece::Text(wanted) => match start.strip_prefix(wanted) {
                Some(after) => {
                    rest = after;
                    at = rest.len();
                }
                None if wanted.starts_with(start) => return None,
                None => {}
            },
        }
    }
    Some(text.len() - at)
}

/// Whether one of a mark's parts begins here; `None` if that is not certain yet.
pub(in crate::tools) fn starts_piece(text: &str, mark: &str) -> Option<bool> {
    let mut certain = Some(false);
    for piece in pieces(mark) {
        if let Piece::Text(wanted) = piece {
            if text.starts_with(wanted) {
                return Some(true);
            }
            if wanted.starts_with(text) {
                certain = None;
            }
        }
    }
    certain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_followed_as_far_as_the_text_goes() {
        let mark = "<tool_call>\n<function=";
        assert_eq!(follow("<tool_call>\n<function=f", mark), Follow::Done(22));
        assert_eq!(follow("<tool_call><function=f", mark), Follow::Done(21));
        assert_eq!(follow("<tool_call>  \n", mark), Follow::More);
        assert_eq!(follow("<tool_call>{", mark), Follow::No);
        assert_eq!(follow("a\0", "a"), Follow::Done(1));
        assert_eq!(
            follow("<|open|> [", "<|open|>\0[\n"),
            Follow::Done("<|open|> [".len())
        );
        assert_eq!(follow("i=12", "i={n}\""), Follow::More);
        assert_eq!(follow("i=12\"", "i={n}\""), Follow::Done(5));
        assert_eq!(follow("", ""), Follow::Done(0));
    }

    #[test]
    fn missing_parts_are_left_out() {
        let mark = "\n```\0<end>";
        assert_eq!(eat("\n```<end>x", mark), Some(9));
        assert_eq!(eat("<end>x", mark), Some(5));
        assert_eq!(eat(" x", mark), Some(0));
        assert_eq!(eat("\n``", mark), None);
        assert_eq!(eat("\n", mark), None);
        assert_eq!(starts_piece("```", mark), Some(true));
        assert_eq!(starts_piece("<e", mark), None);
        assert_eq!(starts_piece("y", mark), Some(false));
    }
}
