//! Text that others wrote (names in model files, templates, answers of a hub, what a model says), made fit for a
//! terminal and for a log: escape sequences move the cursor, rename the window and hide what was printed before, and a
//! line break in a name begins a line that looks like the program's own.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character does something to a terminal, or to the order of what stands around it, other than to appear.
fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Line and paragraph separators, and what overrides the direction of text.
            '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn shown(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let active = |c: char| is_active(c) && !stays(c);
    if !text.contains(active) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !active(c) => shown.push(c),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            // Strings take everything.
            c => drop(write!(shown, "\\u{{{:x}}}", c as u32)),
        }
    }
    Cow::Owned(shown)
}

/// As much of the beginning of a text as fits into so many bytes, whole characters only.
pub fn beginning(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Text in one line, with control characters as Rust writes them: `\n`, `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    shown(text, |_| false)
}

/// Text of several lines, with all other control characters as [`one_line`] writes them; lines behind the first are
/// indented, so that none looks like the program's own.
pub fn indented(text: &str) -> Cow<'_, str> {
    let text = shown(text, |c| matches!(c, '\n' | '\t'));
    match text.contains('\n') {
        true => Cow::Owned(text.trim_end_matches('\n').replace('\n', "\n  ")),
        false => text,
    }
}

/// What is printed for a person to read as it is: line breaks and tabs stay, a carriage return goes, other control
/// characters are shown. Pieces of a text can be passed one by one.
pub fn on_terminal(text: &str) -> Cow<'_, str> {
    match shown(text, |c| matches!(c, '\n' | '\t' | '\r')) {
        shown if shown.contains('\r') => Cow::Owned(shown.replace('\r', "")),
        shown => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        for (text, shown) in [
            ("plain é 🙂 \u{200d}", "plain é 🙂 \u{200d}"),
            (
                "\u{1b}[2J\u{1b}]0;pwn\u{7}",
                "\\u{1b}[2J\\u{1b}]0;pwn\\u{7}",
            ),
            ("a\nINFO b\r\tc", "a\\nINFO b\\r\\tc"),
            ("\u{9b}31m\u{7f}\0", "\\u{9b}31m\\u{7f}\\u{0}"),
            ("a\u{202e}b\u{2028}c", "a\\u{202e}b\\u{2028}c"),
        ] {
            assert_eq!(one_line(text), shown);
        }
        assert!(matches!(one_line("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn lines_are_indented_or_stay() {
        assert_eq!(indented("a\nb\u{1b}\n"), "a\n  b\\u{1b}");
        assert_eq!(on_terminal("a\r\n\tb\u{1b}[1m"), "a\n\tb\\u{1b}[1m");
    }
}
