//! A kernel file as what may be changed, and the rest.
//!
//! The rest is the *frame*: directives, types, variables, host functions, heads of kernels, entries that `port` wrote.
//! Bodies of functions stand in it as [`BODY`], macros as the text in front of what they stand for, device functions and
//! constants not at all. Two texts with equal frames differ in device code only.

use crate::repair::lexer::{tokens as tokens_of, Kind, Token};

/// What stands in the frame for a body.
const BODY: &str = "{…}";

/// What may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The body of a function that has to stay: a kernel's, or one in a structure.
    Body,
    /// A device function with its head.
    Function,
    /// A `constexpr` at the level of functions.
    Constant,
    /// What a macro stands for.
    Macro,
}

/// A changeable piece of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub part: Part,
    /// What makes it the same piece in another text: the head's words.
    pub key: String,
    /// The function's or macro's name.
    pub name: String,
    /// Parameters by name, for bodies that stay.
    pub parameters: Vec<String>,
    /// From the head on.
    pub start: usize,
    /// Where the body begins; the same as `start` for what has none.
    pub body: usize,
    pub end: usize,
}

/// A file in its two halves.
#[derive(Debug, Default)]
pub(crate) struct Items {
    /// Words and signs that must stay as they are, with the byte that each begins at.
    pub frame: Vec<(String, usize)>,
    pub pieces: Vec<Piece>,
}

/// Takes a file apart.
pub(crate) fn items(text: &str) -> Items {
    let mut found = Items::default();
    read(&tokens_of(text), 0, &mut found);
    found
}

/// Reads tokens whose texts lie `offset` bytes further in the file.
pub(super) fn read(tokens: &[Token], offset: usize, found: &mut Items) {
    let mut head = 0;
    let mut at = 0;
    let mut round = 0usize;
    while let Some(token) = tokens.get(at) {
        if token.kind == Kind::Directive {
            flush(&tokens[head..at], offset, found);
            directive(token, offset, found);
            head = at + 1;
        } else if at == head && ["PORT_BEGIN", "PORT_END"].contains(&token.text) {
            flush(&tokens[head..=at], offset, found);
            head = at + 1;
        } else if token.is("(") {
            round += 1;
        } else if token.is(")") {
            round = round.saturating_sub(1);
            if round == 0 && is_macro_call(&tokens[head..=at], tokens.get(at + 1)) {
                flush(&tokens[head..=at], offset, found);
                head = at + 1;
            }
        } else if token.is("}") && round == 0 {
            flush(&tokens[head..=at], offset, found);
            head = at + 1;
        } else if token.is(";") && round == 0 {
            statement(&tokens[head..=at], offset, found);
            head = at + 1;
        } else if token.is("{") && round == 0 {
            let start = &tokens[head..at];
            if opens_function(start) {
                let close = closing(tokens, at);
                let Some(close) = close else {
                    // Braces that do not match: nothing behind can be told apart.
                    flush(&tokens[head..], offset, found);
                    return;
                };
                function(&tokens[head..=close], at - head, offset, found);
                at = close;
                head = at + 1;
            } else if opens_container(start) {
                flush(&tokens[head..=at], offset, found);
                head = at + 1;
            } else {
                // An initialiser, an enumeration: it ends with its statement.
                match closing(tokens, at) {
                    Some(close) => at = close,
                    None => {
                        flush(&tokens[head..], offset, found);
                        return;
                    }
                }
            }
        }
        at += 1;
    }
    flush(&tokens[head.min(tokens.len())..], offset, found);
}

/// Whether tokens are the use of a macro that stands alone, without a semicolon: the next thing begins behind it.
fn is_macro_call(head: &[Token], next: Option<&Token>) -> bool {
    let [name, open, .., close] = head else {
        return false;
    };
    let whole = closing_of(head, 1, "(", ")") == Some(head.len() - 1);
    let begins =
        next.is_none_or(|t| t.kind == Kind::Directive || t.is("}") || t.kind == Kind::Word);
    let keyword = [
        "__launch_bounds__",
        "__attribute__",
        "__declspec",
        "alignas",
        "__align__",
        "static_assert",
    ];
    let attribute = keyword.contains(&name.text) || name.text.starts_with("PORT_");
    name.kind == Kind::Word && open.is("(") && close.is(")") && whole && begins && !attribute
}

fn flush(tokens: &[Token], offset: usize, found: &mut Items) {
    for token in tokens {
        let place = token.start + offset;
        found.frame.push((token.text.to_string(), place));
    }
}

/// Whether a brace behind these tokens begins a function's body: parameters come before it.
fn opens_function(head: &[Token]) -> bool {
    let last = head
        .iter()
        .rev()
        .find(|t| !["const", "noexcept", "override", "final", "mutable"].contains(&t.text));
    let type_words = ["struct", "class", "union", "enum", "namespace"];
    // `struct __align__(8) Name {` has parentheses, too, but a name behind them.
    last.is_some_and(|t| t.is(")"))
        && !outside_of_brackets(head).any(|t| t.is("="))
        && !outside_of_brackets(head).any(|t| type_words.contains(&t.text))
}

fn opens_container(head: &[Token]) -> bool {
    let type_words = ["struct", "class", "union", "namespace"];
    let linkage =
        matches!(head, [first, second] if first.is("extern") && second.kind == Kind::Literal);
    linkage
        || (outside_of_brackets(head).any(|t| type_words.contains(&t.text))
            && !head.iter().any(|t| t.is("=") || t.is("enum")))
}

/// Tokens that are no arguments of templates and no parameters.
fn outside_of_brackets<'a>(head: &'a [Token<'a>]) -> impl Iterator<Item = &'a Token<'a>> {
    let mut depth = 0isize;
    head.iter().filter(move |t| {
        match t.text {
            "<" | "(" | "[" => depth += 1,
            ">" | ")" | "]" => depth -= 1,
            _ => {}
        }
        depth <= 0
    })
}

/// The index of the brace that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    closing_of(tokens, open, "{", "}")
}

fn closing_of(tokens: &[Token], open: usize, opens: &str, closes: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.is(opens) {
            depth += 1;
        } else if token.is(closes) {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}

/// Whether a function is device code that nothing outside of the file calls.
fn is_helper(head: &[Token]) -> bool {
    let device = head
        .iter()
        .any(|t| ["__device__", "DEVICE_FN", "PORT_FN"].contains(&t.text));
    let outside = head.iter().any(|t| {
        [
            "__global__",
            "KERNEL",
            "PORT_KERNEL",
            "extern",
            "operator",
            "__host__",
        ]
        .contains(&t.text)
    });
    device && !outside
}

fn function(tokens: &[Token], open: usize, offset: usize, found: &mut Items) {
    let (head, body) = tokens.split_at(open);
    let (Some(first), Some(last), Some(brace)) = (head.first(), tokens.last(), body.first()) else {
        return flush(tokens, offset, found);
    };
    let directives = body
        .iter()
        .any(|t| t.kind == Kind::Directive && !is_unroll(&tokens_of(&unfolded(t.text)[1..])));
    let helper = is_helper(head) && !directives;
    let (name, parameters) = name_and_parameters(head);
    if !helper {
        flush(head, offset, found);
        found.frame.push((BODY.into(), brace.start + offset));
        // Directives count wherever they are.
        for token in body.iter().filter(|t| t.kind == Kind::Directive) {
            directive(token, offset, found);
        }
    }
    found.pieces.push(Piece {
        part: if helper { Part::Function } else { Part::Body },
        key: words(head),
        name,
        parameters,
        start: first.start + offset,
        body: brace.start + offset,
        end: last.end() + offset,
    });
}

/// The words of tokens, one blank between them.
fn words(tokens: &[Token]) -> String {
    let words: Vec<&str> = tokens.iter().map(|t| t.text).collect();
    words.join(" ")
}

/// The name before the last parameter list at the outermost level, and the last word of each parameter.
fn name_and_parameters(head: &[Token]) -> (String, Vec<String>) {
    let mut depth = 0usize;
    let mut open = None;
    let close = head.iter().rposition(|t| t.is(")")).unwrap_or(0);
    for at in (0..=close.min(head.len().saturating_sub(1))).rev() {
        match head[at].text {
            ")" => depth += 1,
            "(" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    open = Some(at);
                    break;
                }
            }
            _ => {}
        }
    }
    let Some(open) = open else {
        return (String::new(), Vec::new());
    };
    let name = match open.checked_sub(1).map(|at| &head[at]) {
        Some(token) if token.kind == Kind::Word => token.text.to_string(),
        _ => String::new(),
    };
    let mut parameters = Vec::new();
    let mut last: Option<&str> = None;
    let mut depth = 0isize;
    let mut default = false;
    for token in &head[open + 1..close] {
        match token.text {
            "(" | "<" | "[" => depth += 1,
            ")" | ">" | "]" => depth -= 1,
            "=" => default = true,
            "," if depth == 0 => {
                parameters.extend(last.take().map(str::to_string));
                default = false;
            }
            word if token.kind == Kind::Word && depth == 0 && !default => last = Some(word),
            _ => {}
        }
    }
    parameters.extend(last.map(str::to_string));
    (name, parameters)
}

fn statement(tokens: &[Token], offset: usize, found: &mut Items) {
    let constant = tokens.iter().take(4).any(|t| t.is("constexpr"))
        && tokens.iter().any(|t| t.is("="))
        && !tokens.iter().any(|t| t.is("extern"));
    let (Some(first), Some(last), true) = (tokens.first(), tokens.last(), constant) else {
        return flush(tokens, offset, found);
    };
    let name = tokens
        .iter()
        .take_while(|t| !t.is("=") && !t.is("["))
        .filter(|t| t.kind == Kind::Word)
        .last();
    found.pieces.push(Piece {
        part: Part::Constant,
        key: name.map(|t| t.text.to_string()).unwrap_or_default(),
        name: name.map(|t| t.text.to_string()).unwrap_or_default(),
        parameters: Vec::new(),
        start: first.start + offset,
        body: first.start + offset,
        end: last.end() + offset,
    });
}

/// A directive in the frame: as it is, but for what macros stand for and hints on loops.
fn directive(token: &Token, offset: usize, found: &mut Items) {
    let place = token.start + offset;
    let plain = unfolded(token.text);
    let inner = tokens_of(&plain[1..]);
    if is_unroll(&inner) {
        return;
    }
    if let Some(head) = macro_head(&inner) {
        let shown: Vec<&str> = inner[..head].iter().map(|t| t.text).collect();
        found.frame.push((format!("#{}", shown.join(" ")), place));
        // Unfolding keeps lengths, so that places in it are places in the file.
        let body = inner.get(head).map_or(plain.len(), |t| t.start + 1);
        found.pieces.push(Piece {
            part: Part::Macro,
            key: shown.join(" "),
            name: inner.get(1).map(|t| t.text.to_string()).unwrap_or_default(),
            parameters: Vec::new(),
            start: place,
            body: place + body,
            end: token.end() + offset,
        });
        return;
    }
    let words: Vec<&str> = inner.iter().map(|t| t.text).collect();
    found.frame.push((format!("#{}", words.join(" ")), place));
}

/// A directive on one line: what joined its lines is blank.
pub(crate) fn unfolded(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let behind = &rest[at + 1..];
        let blanks = behind.len() - behind.trim_start_matches([' ', '\t', '\r']).len();
        plain.push_str(&rest[..at]);
        if behind[blanks..].starts_with('\n') {
            plain.extend(std::iter::repeat_n(' ', blanks + 2));
            rest = &behind[blanks + 1..];
        } else {
            plain.push('\\');
            rest = behind;
        }
    }
    plain.push_str(rest);
    plain
}

/// `#pragma unroll`, which changes no result.
fn is_unroll(inner: &[Token]) -> bool {
    let argument = match inner.get(2..) {
        None | Some([]) => true,
        Some([only]) => matches!(only.kind, Kind::Number | Kind::Word),
        Some([open, only, close]) => {
            open.is("(") && close.is(")") && matches!(only.kind, Kind::Number | Kind::Word)
        }
        _ => false,
    };
    matches!(inner, [pragma, unroll, ..] if pragma.is("pragma") && unroll.is("unroll")) && argument
}

/// How many tokens of `define NAME` or `define NAME(parameters)` come before what the macro stands for.
fn macro_head(inner: &[Token]) -> Option<usize> {
    let [define, name, rest @ ..] = inner else {
        return None;
    };
    if !define.is("define") || name.kind != Kind::Word {
        return None;
    }
    match rest.first() {
        None => None,
        Some(open) if open.is("(") && open.start == name.end() => {
            let close = rest.iter().position(|t| t.is(")"))?;
            (close + 1 < rest.len()).then_some(close + 3)
        }
        Some(_) => Some(2),
    }
}
