//! Tokens that stand for a text wherever it occurs, before the vocabulary's rules see it.

use aho_corasick::{AhoCorasick, Input, MatchKind};
use std::ops::Range;

/// A token that is found by its spelling.
#[derive(Debug, Clone)]
pub(in super::super) struct AddedToken {
    /// Its number.
    pub(in super::super) id: u32,
    /// Its spelling.
    pub(in super::super) text: String,
    /// Whether white space before it belongs to it.
    pub(in super::super) lstrip: bool,
    /// Whether white space after it belongs to it.
    pub(in super::super) rstrip: bool,
}

/// All such tokens of a vocabulary.
#[derive(Debug)]
pub(in super::super) struct AddedTokens {
    finder: AhoCorasick,
    tokens: Vec<AddedToken>,
}

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(super) enum Fragment<'a> {
    /// A token's spelling stood there.
    Token(u32),
    /// Text between such.
    Text(&'a str),
}

impl AddedTokens {
    /// # Errors
    /// If there are too many for one automaton.
    pub(in super::super) fn new(tokens: Vec<AddedToken>) -> Result<Self, aho_corasick::BuildError> {
        let tokens: Vec<AddedToken> = tokens
            .into_iter()
            .filter(|token| !token.text.is_empty())
            .collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.text))?;
        Ok(Self { finder, tokens })
    }

    /// The text with its tokens found, the leftmost first and of several there the longest. What stands at `spelled`,
    /// ranges in ascending order, is text whatever it spells.
    pub(super) fn split<'a>(&self, text: &'a str, spelled: &[Range<usize>]) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        let (mut begin, mut from) = (0, 0);
        while let Some(found) = self.finder.find(Input::new(text).span(from..text.len())) {
            if spelled
                .binary_search_by_key(&found.start(), |range| range.start)
                .is_ok_and(|place| spelled[place].end == found.end())
            {
                from = found.start()
                    + text[found.start()..]
                        .chars()
                        .next()
                        .map_or(1, char::len_utf8);
                continue;
            }
            from = found.end();
            // White space that an earlier token took is gone, but what it belongs to cannot be.
            let token = &self.tokens[found.pattern().as_usize()];
            let before = &text[begin.min(found.start())..found.start()];
            let before = if token.lstrip {
                before.trim_end()
            } else {
                before
            };
            if !before.is_empty() {
                fragments.push(Fragment::Text(before));
            }
            fragments.push(Fragment::Token(token.id));
            begin = found.end();
            if token.rstrip {
                begin = text.len() - text[begin..].trim_start().len();
            }
        }
        if begin < text.len() {
            fragments.push(Fragment::Text(&text[begin..]));
        }
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_and_take_the_space_that_is_theirs() {
        let token = |id, text: &str, lstrip, rstrip| AddedToken {
            id,
            text: text.to_string(),
            lstrip,
            rstrip,
        };
        let added = AddedTokens::new(vec![
            token(1, "<a>", false, false),
            token(2, "<a><b>", false, false),
            token(3, "<mask>", true, false),
            token(4, "<end>", false, true),
            token(5, "", false, false),
        ])
        .unwrap();
        use Fragment::{Text, Token};
        assert_eq!(
            added.split("x<a><b> <a>", &[]),
            [Text("x"), Token(2), Text(" "), Token(1)]
        );
        assert_eq!(
            added.split("x \u{a0}<mask> y", &[]),
            [Text("x"), Token(3), Text(" y")]
        );
        assert_eq!(
            added.split("<end>\n \n<a> <end>  ", &[]),
            [Token(4), Token(1), Text(" "), Token(4)]
        );
        assert_eq!(
            added.split("<end> <mask>z", &[]),
            [Token(4), Token(3), Text("z")]
        );
        assert_eq!(added.split("", &[]), []);
        assert_eq!(added.split("plain", &[]), [Text("plain")]);
        let text = "<a><b>é<a>";
        assert_eq!(
            added.split(text, std::slice::from_ref(&(0..6))),
            [Text("<a><b>é"), Token(1)]
        );
        assert_eq!(
            added.split(text, std::slice::from_ref(&(8..11))),
            [Token(2), Text("é<a>")]
        );
    }
}
