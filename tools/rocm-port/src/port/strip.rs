//! Takes host code out of a flattened file: functions, launches, and what only they use. Device code stays as it is,
//! and so do lines and directives.

use super::lexer::{closing, directive, tokens, Kind, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What is left of a text, and what was taken out.
#[derive(Debug)]
pub(crate) struct Stripped {
    pub text: String,
    /// Names of host functions and types, in the text's order.
    pub host: Vec<String>,
}

/// Types that only host code knows: a declaration with one of them is the host's unless it says `__device__`.
const HOST_WORDS: &[&str] = &[
    "cudaStream_t",
    "cudaError_t",
    "cudaEvent_t",
    "cudaDeviceProp",
    "cudaGraph_t",
    "cudaGraphExec_t",
    "cudaFuncAttributes",
    "cublasHandle_t",
    "cublasLtHandle_t",
    "CUstream",
    "CUtensorMap",
];

/// The same of `std`.
const STD_WORDS: &[&str] = &[
    "vector",
    "string",
    "unordered_map",
    "map",
    "set",
    "function",
    "unique_ptr",
    "shared_ptr",
    "ostream",
    "ostringstream",
    "stringstream",
    "mutex",
    "atomic",
    "thread",
    "initializer_list",
    "runtime_error",
    "exception",
];

/// Words that make a function one for the device.
const DEVICE_WORDS: &[&str] = &[
    "__device__",
    "__global__",
    "__constant__",
    "__shared__",
    "__managed__",
];

/// Takes host code out.
pub(crate) fn strip(source: &str) -> Stripped {
    let tokens = tokens(source);
    let macros = Macros::of(source, &tokens);
    let mut walk = Walk {
        source,
        macros: &macros,
        out: Vec::new(),
        host: Vec::new(),
        types: BTreeSet::new(),
        used: BTreeSet::new(),
    };
    walk.items(&tokens, 0..tokens.len());
    let Walk {
        mut out,
        mut host,
        used,
        ..
    } = walk;
    // Macros that make whole functions: the host's are taken out of their bodies.
    let mut done = BTreeSet::new();
    let mut open: Vec<String> = used.into_iter().collect();
    while let Some(name) = open.pop() {
        if !done.insert(name.clone()) {
            continue;
        }
        for body in macros.bodies.get(&name).into_iter().flatten() {
            let text = &source[body.clone()];
            let inner = super::lexer::tokens(text);
            let mut walk = Walk {
                source: text,
                macros: &macros,
                out: Vec::new(),
                host: Vec::new(),
                types: BTreeSet::new(),
                used: BTreeSet::new(),
            };
            walk.items(&inner, 0..inner.len());
            let moved = |range: Range<usize>| range.start + body.start..range.end + body.start;
            out.extend(walk.out.into_iter().map(moved));
            host.extend(walk.host);
            open.extend(walk.used);
        }
    }
    Stripped {
        text: blank(source, out),
        host,
    }
}

/// Blanks ranges: only newlines, the backslashes that continue a macro, and directives stay.
fn blank(source: &str, mut ranges: Vec<Range<usize>>) -> String {
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut text = String::with_capacity(source.len());
    let mut at = 0;
    for range in ranges {
        let start = range.start.max(at);
        if range.end <= start {
            continue;
        }
        text.push_str(&source[at..start]);
        let inside = &source[start..range.end];
        let mut kept = 0;
        for token in tokens(inside) {
            if token.kind == Kind::Directive {
                newlines(&mut text, &inside[kept..token.start]);
                text.push_str(token.text(inside));
                kept = token.end;
            }
        }
        newlines(&mut text, &inside[kept..]);
        at = range.end;
    }
    text.push_str(&source[at..]);
    text
}

fn newlines(text: &mut String, blanked: &str) {
    for line in blanked.split_inclusive('\n') {
        let end = line.trim_end_matches(['\n', '\r']);
        if end.len() < line.len() {
            if end.ends_with('\\') {
                text.push('\\');
            }
            text.push_str(&line[end.len()..]);
        }
    }
}

/// The macros of a text.
struct Macros {
    /// Names of those with parameters.
    functions: BTreeSet<String>,
    /// Where bodies stand; a macro may be defined more than once.
    bodies: BTreeMap<String, Vec<Range<usize>>>,
    /// Those that bring `__device__` or `__global__`, directly or through others.
    device: BTreeSet<String>,
    /// Those that make a function or a declaration: with a brace or a semicolon.
    items: BTreeSet<String>,
}

impl Macros {
    fn of(source: &str, tokens: &[Token]) -> Self {
        let mut macros = Macros {
            functions: BTreeSet::new(),
            bodies: BTreeMap::new(),
            device: BTreeSet::new(),
            items: BTreeSet::new(),
        };
        let mut words: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for token in tokens.iter().filter(|token| token.kind == Kind::Directive) {
            let text = token.text(source);
            let ("define", rest) = directive(text) else {
                continue;
            };
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
            let mut body = token.end - after.len()..token.end;
            if after.starts_with('(') {
                macros.functions.insert(name.to_string());
                body.start += after.find(')').map_or(after.len(), |close| close + 1);
            }
            let inside = &source[body.clone()];
            let inner = super::lexer::tokens(inside);
            let entry = words.entry(name.to_string()).or_default();
            entry.extend(
                inner
                    .iter()
                    .filter(|t| t.kind == Kind::Word)
                    .map(|t| t.text(inside)),
            );
            if inner.iter().any(|t| t.is(inside, "{") || t.is(inside, ";")) {
                macros.items.insert(name.to_string());
            }
            macros
                .bodies
                .entry(name.to_string())
                .or_default()
                .push(body);
        }
        // To a fixed point: what calls a macro that says __device__ says it, too.
        let reaches = |known: &BTreeSet<String>, words: &BTreeSet<&str>| {
            words.iter().any(|word| known.contains(*word))
        };
        loop {
            let before = macros.device.len() + macros.items.len();
            for (name, words) in &words {
                if words.iter().any(|word| DEVICE_WORDS.contains(word))
                    || reaches(&macros.device, words)
                {
                    macros.device.insert(name.clone());
                }
                if reaches(&macros.items, words) {
                    macros.items.insert(name.clone());
                }
            }
            if macros.device.len() + macros.items.len() == before {
                return macros;
            }
        }
    }
}

struct Walk<'a> {
    source: &'a str,
    macros: &'a Macros,
    out: Vec<Range<usize>>,
    host: Vec<String>,
    /// Names of types that were taken out.
    types: BTreeSet<String>,
    /// Macros that stand at file scope and make whole functions.
    used: BTreeSet<String>,
}

impl Walk<'_> {
    fn is(&self, token: &Token, text: &str) -> bool {
        token.is(self.source, text)
    }

    /// Walks over the items of a scope; `range` counts tokens.
    fn items(&mut self, tokens: &[Token], range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            if tokens[at].kind == Kind::Directive
                || self.is(&tokens[at], ";")
                || self.is(&tokens[at], "}")
            {
                at += 1;
                continue;
            }
            let item = self.item(tokens, at, range.end);
            match item.inside {
                Some(inside) => self.items(tokens, inside),
                None => self.decide(tokens, at, &item),
            }
            at = item.end.max(at + 1);
        }
    }

    /// Finds the end of the item that begins at `start`.
    fn item(&mut self, tokens: &[Token], start: usize, end: usize) -> Item {
        let mut item = Item::default();
        let mut at = start;
        let mut scope = false;
        let mut equals = false;
        let first = tokens[start].text(self.source);
        if tokens[start].kind == Kind::Word && self.macros.functions.contains(first) {
            if let Some(close) = self.call(tokens, start, end) {
                // Else it is an attribute of what follows.
                if self.macros.items.contains(first) || self.semicolon_follows(tokens, close, end) {
                    item.end = close + 1;
                    item.call = Some(first.to_string());
                    return item;
                }
            }
        }
        while at < end {
            let token = &tokens[at];
            let text = token.text(self.source);
            match (token.kind, text) {
                (Kind::Word, "namespace") => scope = true,
                (Kind::Word, "extern") => {
                    // `extern "C" {` has declarations in it, `extern "C" void f() {` does not.
                    let language = tokens
                        .get(at + 1)
                        .is_some_and(|next| next.kind == Kind::Text);
                    if language && tokens.get(at + 2).is_some_and(|next| self.is(next, "{")) {
                        scope = true;
                    }
                }
                (Kind::Word, "struct" | "class" | "union" | "enum")
                    if item.parameters.is_none() =>
                {
                    item.is_type = true;
                }
                (Kind::Word, "template")
                    if tokens.get(at + 1).is_some_and(|next| self.is(next, "<")) =>
                {
                    at = self.angles(tokens, at + 1, end);
                    item.head = at + 1;
                }
                (Kind::Punct, "=") if item.parameters.is_none() => {
                    let operator = tokens[start..at].iter().rev().take(2);
                    equals |= !operator.into_iter().any(|token| self.is(token, "operator"));
                }
                (Kind::Punct, "<") if at > start && self.is_name(&tokens[at - 1]) && !equals => {
                    // Parentheses in template arguments are no parameters.
                    at = self.angles(tokens, at, end);
                }
                (Kind::Punct, "(" | "[") => {
                    let Some(close) = closing(self.source, tokens, at).filter(|&close| close < end)
                    else {
                        item.end = end;
                        return item;
                    };
                    let attribute = at > start
                        && matches!(
                            tokens[at - 1].text(self.source),
                            "__launch_bounds__"
                                | "__align__"
                                | "alignas"
                                | "__attribute__"
                                | "decltype"
                                | "noexcept"
                                | "__declspec"
                                | "__cluster_dims__"
                        );
                    if text == "(" && !attribute && !equals {
                        item.parameters = Some(at..close);
                    }
                    at = close;
                }
                (Kind::Punct, "{") => {
                    let close = closing(self.source, tokens, at).filter(|&close| close < end);
                    let Some(close) = close else {
                        item.end = end;
                        return item;
                    };
                    if scope {
                        item.inside = Some(at + 1..close);
                        item.end = close + 1;
                        return item;
                    }
                    item.body = Some(at..close);
                    at = close;
                    let function = item.parameters.is_some() && !equals;
                    if function && !(item.is_type && self.semicolon_follows(tokens, close, end)) {
                        item.end = close + 1;
                        return item;
                    }
                }
                (Kind::Punct, ";") => {
                    item.end = at + 1;
                    return item;
                }
                _ => {}
            }
            at += 1;
        }
        item.end = end;
        item
    }

    fn is_name(&self, token: &Token) -> bool {
        token.kind == Kind::Word && !self.is(token, "operator")
    }

    fn semicolon_follows(&self, tokens: &[Token], at: usize, end: usize) -> bool {
        at + 1 < end && self.is(&tokens[at + 1], ";")
    }

    /// The token that closes the call of the macro at `at`.
    fn call(&self, tokens: &[Token], at: usize, end: usize) -> Option<usize> {
        let open = at + 1;
        if open >= end || !self.is(&tokens[open], "(") {
            return None;
        }
        closing(self.source, tokens, open).filter(|&close| close < end)
    }

    /// The `>` that closes the `<` at `open`; `open` itself if none does before the statement ends.
    fn angles(&self, tokens: &[Token], open: usize, end: usize) -> usize {
        let mut depth = 0usize;
        let mut at = open;
        while at < end {
            let token = &tokens[at];
            match token.text(self.source) {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return at;
                    }
                }
                "(" | "[" | "{" if token.kind == Kind::Punct => {
                    match closing(self.source, tokens, at) {
                        Some(close) if close < end => at = close,
                        _ => return open,
                    }
                }
                ";" => return open,
                _ => {}
            }
            at += 1;
        }
        open
    }

    /// Takes the item out if it is the host's.
    fn decide(&mut self, tokens: &[Token], start: usize, item: &Item) {
        let inside = &tokens[start..item.end];
        if let Some(name) = &item.call {
            // Its body is looked at once; what is left of it stands here.
            if self.macros.items.contains(name) {
                self.used.insert(name.clone());
            } else if !self.macros.device.contains(name) {
                self.take(inside, name.clone());
            }
            return;
        }
        let words = |range: &[Token]| -> BTreeSet<&str> {
            let words = range.iter().filter(|token| token.kind == Kind::Word);
            words.map(|token| token.text(self.source)).collect()
        };
        let head_end = item.body.as_ref().map_or(item.end, |body| body.start);
        let head = words(&tokens[start..head_end]);
        let all = words(inside);
        let is_device = |words: &BTreeSet<&str>| {
            words
                .iter()
                .any(|word| DEVICE_WORDS.contains(word) || self.macros.device.contains(*word))
        };
        let hostly = inside.iter().enumerate().any(|(index, token)| {
            let word = token.text(self.source);
            let of_std = || {
                index >= 2
                    && self.is(&inside[index - 1], "::")
                    && self.is(&inside[index - 2], "std")
            };
            token.kind == Kind::Word
                && (HOST_WORDS.contains(&word)
                    || self.types.contains(word)
                    || (STD_WORDS.contains(&word) && of_std()))
        });
        let launches = inside.iter().any(|token| self.is(token, "<<<"));
        // A type of functions is no function.
        let function = item.parameters.is_some()
            && !item.is_type
            && !head.contains("typedef")
            && !head.contains("using");
        let assertion = head.contains("static_assert");
        let out = if assertion {
            false
        } else if function {
            let constant = head.contains("constexpr") || head.contains("consteval");
            !is_device(&head) && (!constant || launches || hostly)
        } else {
            !is_device(&all) && (launches || hostly)
        };
        if !out {
            return;
        }
        let name = self.name(tokens, start, item);
        if !function {
            self.types.insert(name.clone());
        }
        self.take(inside, name);
    }

    fn take(&mut self, inside: &[Token], name: String) {
        if let (Some(first), Some(last)) = (inside.first(), inside.last()) {
            self.out.push(first.start..last.end);
            self.host.push(name);
        }
    }

    /// What an item declares: the word before its parameters, or after `struct`, `using`, or before `=`, `;`.
    fn name(&self, tokens: &[Token], start: usize, item: &Item) -> String {
        let word = |at: usize| tokens[at].text(self.source).to_string();
        if let (Some(parameters), false) = (&item.parameters, item.is_type) {
            let mut at = parameters.start.saturating_sub(1).max(start);
            // Before the arguments of a template.
            let mut depth = 0usize;
            while at > start {
                match tokens[at].text(self.source) {
                    ">" => depth += 1,
                    "<" => depth = depth.saturating_sub(1),
                    _ if depth == 0 => break,
                    _ => {}
                }
                at -= 1;
            }
            return word(at);
        }
        let from = item.head.max(start);
        let keyword = (from..item.end).find(|&at| {
            matches!(
                tokens[at].text(self.source),
                "struct" | "class" | "union" | "enum" | "using"
            )
        });
        if let Some(next) = keyword.map(|at| at + 1).filter(|&at| at < item.end) {
            return word(next);
        }
        let stop =
            (from..item.end).find(|&at| matches!(tokens[at].text(self.source), "=" | ";" | "{"));
        word(stop.unwrap_or(item.end).saturating_sub(1).max(start))
    }
}

/// A declaration or a function; all numbers count tokens.
#[derive(Debug, Default)]
struct Item {
    end: usize,
    /// After the template's parameters.
    head: usize,
    parameters: Option<Range<usize>>,
    body: Option<Range<usize>>,
    /// What is in a namespace or in `extern "C"`.
    inside: Option<Range<usize>>,
    is_type: bool,
    /// The macro that it is a call of.
    call: Option<String>,
}

#[cfg(test)]
mod tests;
