//! What a schema says of a text, as a terminal: length, pattern, format, the texts to choose from.

use super::super::schema::{kind, Kind};
use super::rules::{literal, quoted};
use serde_json::Value as Json;

/// Longest repetition that is counted; longer texts are not limited.
const MAX_COUNT: u64 = 10_000;

/// Formats and what their texts look like, after RFC 3339, 4122, 5321, 2673 and 3986, the last three in short.
const FORMATS: &[(&str, &str)] = &[
    (
        "date",
        r"[0-9]{4}\-(0[1-9]|1[0-2])\-(0[1-9]|[12][0-9]|3[01])",
    ),
    (
        "time",
        r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]{1,9})?([zZ]|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    (
        "date-time",
        r"[0-9]{4}\-(0[1-9]|1[0-2])\-(0[1-9]|[12][0-9]|3[01])[tT]([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]{1,9})?([zZ]|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    (
        "uuid",
        r"[0-9a-fA-F]{8}\-([0-9a-fA-F]{4}\-){3}[0-9a-fA-F]{12}",
    ),
    (
        "email",
        r"[a-zA-Z0-9!#$%&'*+\-\/=?^_`{|}~]+(\.[a-zA-Z0-9!#$%&'*+\-\/=?^_`{|}~]+)*@[a-zA-Z0-9]([a-zA-Z0-9\-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9\-]*[a-zA-Z0-9])?)+",
    ),
    (
        "hostname",
        r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)*",
    ),
    (
        "ipv4",
        r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    ),
    ("ipv6", r"([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}"),
    (
        "uri",
        r"[a-zA-Z][a-zA-Z0-9+.\-]*:[a-zA-Z0-9\-._~:\/?#@!$&'()*+,;=%]+",
    ),
];

/// Any text.
pub(super) fn any() -> String {
    "/(?s:.*)/".to_string()
}

/// For each branch of a value that is written as it is: the terminal of its texts, or `None` where it is JSON.
///
/// What no text may be taken for, as a lone `null`, is a text too.
pub(super) fn of(branches: &[Json]) -> Vec<Option<String>> {
    let of_branch = |branch: &Json| match kind(branch) {
        Kind::Text => Some(text(branch)),
        Kind::Any => Some(match choices(branch) {
            Some(choices) => choices,
            None => any(),
        }),
        Kind::Null => Some(literal("null")),
        _ => None,
    };
    branches.iter().map(of_branch).collect()
}

/// The values to choose from, as they are written.
fn choices(branch: &Json) -> Option<String> {
    let values: Vec<&Json> = match (branch.get("const"), branch["enum"].as_array()) {
        (Some(value), _) => vec![value],
        (None, Some(values)) => values.iter().collect(),
        (None, None) => return None,
    };
    let spelled: Vec<String> = values
        .iter()
        .map(|value| {
            literal(
                &value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_string),
            )
        })
        .collect();
    (!spelled.is_empty()).then(|| spelled.join(" | "))
}

fn text(branch: &Json) -> String {
    if let Some(choices) = choices(branch) {
        return choices;
    }
    let count = |key: &str| branch[key].as_u64();
    let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
    let mut conditions = Vec::new();
    match most.filter(|most| *most <= MAX_COUNT) {
        Some(0) => return literal(""),
        Some(most) => conditions.push(format!("/(?s:.){{{},{most}}}/", least.min(most))),
        None if least > 0 => conditions.push(format!("/(?s:.){{{},}}/", least.min(MAX_COUNT))),
        None => {}
    }
    if let Some(pattern) = branch["pattern"].as_str() {
        conditions.push(format!("/{}/", anywhere(pattern)));
    }
    let format = branch["format"].as_str();
    let format = FORMATS.iter().find(|(name, _)| Some(*name) == format);
    conditions.extend(format.map(|(_, pattern)| format!("/{pattern}/")));
    if conditions.is_empty() {
        return any();
    }
    conditions.join(" & ")
}

/// A pattern of a JSON schema, which may match anywhere in a text, as one of the whole text.
fn anywhere(pattern: &str) -> String {
    let whole: Vec<String> = alternatives(pattern)
        .into_iter()
        .map(|way| {
            let (way, start) = match way.strip_prefix('^') {
                Some(way) => (way, ""),
                None => (way, "(?s:.*)"),
            };
            let escapes = way.trim_end_matches('$');
            let escapes = escapes.len() - escapes.trim_end_matches('\\').len();
            let (way, end) = match way.strip_suffix('$') {
                Some(way) if escapes % 2 == 0 => (way, ""),
                _ => (way, "(?s:.*)"),
            };
            format!("{start}({}){end}", translated(way))
        })
        .collect();
    whole.join("|")
}

/// The ways that a pattern has at its outermost level.
fn alternatives(pattern: &str) -> Vec<&str> {
    let (mut ways, mut start, mut depth) = (Vec::new(), 0, 0usize);
    let (mut escaped, mut in_class) = (false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                ways.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    ways.push(&pattern[start..]);
    ways
}

/// A pattern in JavaScript's notation, in which digits and word characters are ASCII, as a regular expression between
/// slashes.
fn translated(pattern: &str) -> String {
    let mut text = String::new();
    let (mut escaped, mut in_class) = (false, false);
    for c in pattern.chars() {
        if escaped {
            escaped = false;
            let class = match c {
                'd' => Some("0-9"),
                'w' => Some("A-Za-z0-9_"),
                _ => None,
            };
            match (class, in_class) {
                (Some(class), true) => text.push_str(class),
                (Some(class), false) => text.push_str(&format!("[{class}]")),
                // These two would mean the edges of words.
                (None, _) if "<>".contains(c) => text.push(c),
                (None, _) => {
                    text.push('\\');
                    text.push(c);
                }
            }
            continue;
        }
        match c {
            '\\' => escaped = true,
            '/' | '\n' | '\r' => text.push_str(&quoted(&c.to_string())),
            c => {
                in_class = (in_class || c == '[') && c != ']';
                text.push(c);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patterns_match_anywhere_unless_they_say_where() {
        assert_eq!(anywhere("^a$"), "(a)");
        assert_eq!(anywhere("a"), "(?s:.*)(a)(?s:.*)");
        assert_eq!(anywhere("^a|b$"), "(a)(?s:.*)|(?s:.*)(b)");
        assert_eq!(anywhere("^(a|b)$"), "((a|b))");
        assert_eq!(anywhere("^a\\$"), "(a\\$)(?s:.*)");
        assert_eq!(anywhere("^[|/]\\d[\\w]$"), "([|\\/][0-9][A-Za-z0-9_])");
    }

    #[test]
    fn texts_are_limited() {
        let of = |schema: Json| of(&[schema]).remove(0);
        assert_eq!(of(json!({"type": "integer"})), None);
        assert_eq!(of(json!({})), Some(any()));
        assert_eq!(
            of(json!({"enum": ["a", 1]})),
            Some("\"a\" | \"1\"".to_string())
        );
        assert_eq!(
            of(json!({"type": "string", "maxLength": 8})),
            Some("/(?s:.){0,8}/".to_string())
        );
        assert_eq!(
            of(json!({"type": "string", "maxLength": 0})),
            Some("\"\"".to_string())
        );
        assert_eq!(of(json!({"const": "x"})), Some("\"x\"".to_string()));
    }
}
