//! Rust as a flat list of tokens, with the depth of the groups that they are in.
//!
//! Tokens and not a syntax tree: they are read without recursion, so that no file can exhaust the stack.

use crate::model::Place;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A token; groups are an opening and a closing one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Ident(String),
    /// A string literal's value.
    Text(String),
    /// Another literal, as written.
    Literal(String),
    Punct(char),
    Open(char),
    Close(char),
}

/// A token and where it is.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub place: Place,
}

impl Token {
    pub(super) fn is(&self, text: &str) -> bool {
        match &self.kind {
            Kind::Ident(name) => name == text,
            Kind::Punct(c) | Kind::Open(c) | Kind::Close(c) => text.chars().eq([*c]),
            Kind::Text(_) | Kind::Literal(_) => false,
        }
    }

    pub(super) fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The tokens of a file; none if it is no Rust.
pub(super) fn tokens(file: &str, source: &str) -> Vec<Token> {
    let Ok(stream) = source.parse::<TokenStream>() else {
        return Vec::new();
    };
    let place = |span: proc_macro2::Span| {
        let start = span.start();
        Place {
            file: file.to_string(),
            line: start.line,
            column: start.column + 1,
        }
    };
    let mut tokens = Vec::new();
    let mut stack = vec![(stream.into_iter(), None)];
    while let Some((stream, close)) = stack.last_mut() {
        let Some(tree) = stream.next() else {
            if let Some(token) = close.take() {
                tokens.push(token);
            }
            stack.pop();
            continue;
        };
        let kind = match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ('(', ')'),
                    Delimiter::Brace => ('{', '}'),
                    Delimiter::Bracket => ('[', ']'),
                    Delimiter::None => (' ', ' '),
                };
                tokens.push(Token {
                    kind: Kind::Open(open),
                    place: place(group.span_open()),
                });
                let end = Token {
                    kind: Kind::Close(close),
                    place: place(group.span_close()),
                };
                stack.push((group.stream().into_iter(), Some(end)));
                continue;
            }
            TokenTree::Ident(ref ident) => Kind::Ident(ident.to_string()),
            TokenTree::Punct(ref punct) => Kind::Punct(punct.as_char()),
            TokenTree::Literal(ref literal) => {
                let text = literal.to_string();
                match string_value(&text) {
                    Some(value) => Kind::Text(value),
                    None => Kind::Literal(text),
                }
            }
        };
        tokens.push(Token {
            kind,
            place: place(tree.span()),
        });
    }
    tokens
}

/// The value of `"…"`, `r"…"`, `b"…"` or `c"…"`; escapes other than of quotes and backslashes stay as they are.
fn string_value(literal: &str) -> Option<String> {
    let body = literal.trim_start_matches(['b', 'c', 'r', '#']);
    let raw = literal[..literal.len() - body.len()].contains('r');
    let value = body
        .trim_end_matches('#')
        .strip_prefix('"')?
        .strip_suffix('"')?;
    Some(match raw {
        true => value.to_string(),
        false => value.replace("\\\"", "\"").replace("\\\\", "\\"),
    })
}
