//! Deduction of template arguments from the types of arguments.

use std::collections::BTreeMap;

/// Matches a parameter's type with an argument's, and notes what template parameters stand for.
pub(super) fn unify(
    parameter: &str,
    argument: &str,
    names: &[String],
    binding: &mut BTreeMap<String, String>,
) {
    let (parameter, stars) = plain(parameter);
    let (argument, given) = plain(argument);
    if stars > given {
        return;
    }
    let rest = "*".repeat(given - stars);
    match_core(&parameter, &format!("{argument}{rest}"), names, binding, 0);
}

fn match_core(
    parameter: &str,
    argument: &str,
    names: &[String],
    binding: &mut BTreeMap<String, String>,
    depth: usize,
) {
    if names.iter().any(|name| name == parameter) {
        binding
            .entry(parameter.to_string())
            .or_insert_with(|| argument.to_string());
        return;
    }
    let (Some((head, inner)), Some((given_head, given))) =
        (template(parameter), template(argument))
    else {
        return;
    };
    let last = |name: &str| name.rsplit("::").next().unwrap_or(name).to_string();
    if last(head) != last(given_head) || depth > 8 {
        return;
    }
    let (inner, given) = (split_arguments(inner), split_arguments(given));
    for (inner, given) in inner.iter().zip(&given) {
        match_core(inner, given, names, binding, depth + 1);
    }
}

/// `A<B, C>` as `A` and `B, C`.
fn template(kind: &str) -> Option<(&str, &str)> {
    let (head, rest) = kind.split_once('<')?;
    Some((head.trim(), rest.trim_end().strip_suffix('>')?))
}

/// A type without qualifiers and references, and how many pointers it has.
fn plain(kind: &str) -> (String, usize) {
    let mut depth = 0usize;
    let mut stars = 0;
    let mut core = String::new();
    for c in kind.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '*' | '[' if depth == 0 => {
                stars += 1;
                core.push(' ');
                continue;
            }
            '&' | ']' if depth == 0 => {
                core.push(' ');
                continue;
            }
            _ => {}
        }
        core.push(c);
    }
    let words: Vec<&str> = core
        .split_whitespace()
        .filter(|word| {
            ![
                "const",
                "volatile",
                "struct",
                "typename",
                "constexpr",
                "static",
                "__restrict__",
            ]
            .contains(word)
        })
        .collect();
    (words.join(" "), stars)
}

/// Splits at the commas that are in no parentheses or angle brackets.
pub(crate) fn split_arguments(list: &str) -> Vec<String> {
    let mut depth = 0usize;
    let mut parts = vec![String::new()];
    for c in list.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let parts: Vec<String> = parts.iter().map(|part| part.trim().to_string()).collect();
    match parts.as_slice() {
        [only] if only.is_empty() => Vec::new(),
        _ => parts,
    }
}

#[cfg(test)]
mod tests {
    use super::{split_arguments, unify};
    use std::collections::BTreeMap;

    #[test]
    fn types_are_matched() {
        let cases = [
            ("const T *", "const float*", Some("float")),
            ("T *", "float", None),
            ("T", "__half *", Some("__half*")),
            ("const V<T, 4> &", "ns::V<double, 4>", Some("double")),
            ("const V<T> &", "W<double>", None),
            ("T const *", "unsigned char *", Some("unsigned char")),
        ];
        for (parameter, argument, expected) in cases {
            let mut binding = BTreeMap::new();
            unify(parameter, argument, &["T".to_string()], &mut binding);
            assert_eq!(
                binding.get("T").map(String::as_str),
                expected,
                "{parameter} {argument}"
            );
        }
    }

    #[test]
    fn arguments_are_split() {
        assert_eq!(
            split_arguments("a<b, c>, f(1, 2), 3"),
            ["a<b, c>", "f(1, 2)", "3"]
        );
        assert!(split_arguments("").is_empty());
    }
}
