//! How large a grammar is, told before anything calls itself over it.
//!
//! llguidance's readers and compilers call themselves for what lies within something: a group in a group, a rule that
//! names a rule, a schema in a schema. How deep that goes is at most the number of such parts in the text, which this
//! counts without calling itself: brackets that open, and colons, by which rules and properties begin. Too high a count
//! (of characters in a class, say) does no harm.

use super::Notation;

/// Longest text in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Most parts; each takes some 4 KiB of the stack.
const MAX_PARTS: usize = 20_000;
/// Most brackets that are open at once.
const MAX_DEPTH: usize = 200;

/// Checks a grammar.
///
/// # Errors
/// What there is too much of.
pub(super) fn check(notation: Notation, text: &str) -> Result<(), String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    let skips = match notation {
        // The engine of regular expressions has limits of its own, and no rules.
        Notation::Regex => return Ok(()),
        Notation::JsonSchema => Skips {
            regexes: false,
            comments: false,
        },
        Notation::Lark => Skips {
            regexes: true,
            comments: true,
        },
        // Its classes and comments are read when it is translated, and what comes of it is counted then.
        Notation::Gbnf => return Ok(()),
    };
    let mut parts = 0;
    let mut depth = 0usize;
    let mut rest = text.as_bytes().iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => skip_to(&mut rest, b'"'),
            b'#' if skips.comments => skip_to_end_of_line(&mut rest),
            b'/' if skips.comments && rest.peek() == Some(&b'/') => skip_to_end_of_line(&mut rest),
            b'/' if skips.regexes => skip_to(&mut rest, b'/'),
            b'(' | b'[' | b'{' => {
                parts += 1;
                depth += 1;
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b':' => parts += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!(
                "more than {MAX_DEPTH} brackets lie within each other"
            ));
        }
    }
    match parts > MAX_PARTS {
        true => Err(format!(
            "it has {parts} rules, properties, references and groups; at most {MAX_PARTS} are possible"
        )),
        false => Ok(()),
    }
}

/// What of a text is no structure, besides literals.
struct Skips {
    regexes: bool,
    comments: bool,
}

type Bytes<'a> = std::iter::Peekable<std::iter::Copied<std::slice::Iter<'a, u8>>>;

/// Skips a literal up to its end, or the end of the line: neither language has literals of several lines.
fn skip_to(rest: &mut Bytes<'_>, end: u8) {
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => {
                rest.next();
            }
            b'\n' => return,
            byte if byte == end => return,
            _ => {}
        }
    }
}

fn skip_to_end_of_line(rest: &mut Bytes<'_>) {
    rest.find(|byte| *byte == b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted() {
        let lark = |text: &str| check(Notation::Lark, text);
        let schema = |text: &str| check(Notation::JsonSchema, text);
        let rules = |count: usize| "a: b\n".repeat(count);
        lark(&rules(MAX_PARTS)).unwrap();
        assert!(lark(&rules(MAX_PARTS + 1))
            .unwrap_err()
            .contains("20001 rules"));
        lark(&"((".repeat(MAX_DEPTH / 2)).unwrap();
        assert!(lark(&"(".repeat(MAX_DEPTH + 1))
            .unwrap_err()
            .contains("brackets"));
        let many = "(".repeat(MAX_DEPTH + 1);
        for text in [
            format!("a: \"{many}\""),
            format!("a: \"\\\"{many}\""),
            format!("a: /[{many}\\/{many}/"),
            format!("a: b // {many}"),
            format!("a: b # {many}"),
        ] {
            lark(&text).unwrap();
        }
        for text in [
            format!("a: \"x\" {many}"),
            format!("a: \"\\\\\" {many}"),
            format!("a: /x/ {many}"),
            format!("a: b # \"\n {many}"),
        ] {
            lark(&text).unwrap_err();
        }
        // No comments and no expressions in JSON.
        schema(&format!("{{\"/#\": /{many}")).unwrap_err();
        let names: Vec<String> = (0..MAX_PARTS).map(|i| format!("\"a{i}\":1")).collect();
        assert!(schema(&format!("{{{}}}", names.join(",")))
            .unwrap_err()
            .contains("at most 20000"));
        let long = format!("{{\"enum\": [\"{}\"]}}", "x".repeat(MAX_BYTES));
        assert!(schema(&long).unwrap_err().contains("longer than"));
    }
}
