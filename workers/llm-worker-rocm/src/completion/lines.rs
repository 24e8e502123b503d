//! Ends of answers at lines, as code editors want them.

use std::time::Duration;

/// What ends an answer at a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineLimits {
    /// A line behind the first one that begins with less white space ends the answer, and is not part of it but for that
    /// white space; 0 is off.
    pub min_indent: usize,
    /// An answer that takes longer than this from its first token ends, once it has a line feed.
    pub most_time: Option<Duration>,
}

/// The lines of an answer so far.
pub(super) struct Lines {
    limits: LineLimits,
    /// White space at the beginning of a line, as long as there is nothing else in it.
    indent: Option<usize>,
    /// Whether there was a line feed.
    several: bool,
}

impl Lines {
    pub(super) fn new(limits: LineLimits) -> Self {
        Self {
            limits,
            indent: None,
            several: false,
        }
    }

    /// Takes more text, cuts it where the answer ends, and gives whether it does. `time` is that since the first token.
    pub(super) fn end(&mut self, text: &mut String, time: Duration) -> bool {
        for (at, c) in text.char_indices() {
            match (c, self.indent) {
                ('\n', _) => {
                    self.several = true;
                    self.indent = Some(0);
                }
                (' ' | '\t', Some(indent)) => self.indent = Some(indent + 1),
                (_, Some(indent)) if indent < self.limits.min_indent => {
                    text.truncate(at);
                    return true;
                }
                (_, Some(_)) => self.indent = None,
                (_, None) => {}
            }
        }
        self.several && self.limits.most_time.is_some_and(|most| time > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(limits: LineLimits, parts: &[(&str, u64)]) -> (String, bool) {
        let mut lines = Lines::new(limits);
        let mut all = String::new();
        for (part, millis) in parts {
            let mut text = part.to_string();
            let ends = lines.end(&mut text, Duration::from_millis(*millis));
            all += &text;
            if ends {
                return (all, true);
            }
        }
        (all, false)
    }

    #[test]
    fn a_line_that_is_indented_less_ends_the_answer() {
        let limits = LineLimits {
            min_indent: 2,
            most_time: None,
        };
        let all = |parts: &[&str]| {
            let parts: Vec<_> = parts.iter().map(|part| (*part, 0)).collect();
            run(limits, &parts)
        };
        let ended = |text: &str| (text.to_string(), true);
        assert_eq!(
            all(&["a\n  b\n", "\t", " c\n", " ", "} d"]),
            ended("a\n  b\n\t c\n ")
        );
        assert_eq!(all(&["a\nb"]), ended("a\n"));
        let text = "a\n\n  \n   b";
        assert_eq!(all(&[text]), (text.to_string(), false));
        let none = run(LineLimits::default(), &[("a\nb", 1000)]);
        assert_eq!(none, ("a\nb".to_string(), false));
    }

    #[test]
    fn time_ends_an_answer_of_several_lines() {
        let limits = LineLimits {
            min_indent: 0,
            most_time: Some(Duration::from_millis(5)),
        };
        let (text, ended) = run(limits, &[("a", 9), ("b\n", 9), ("c", 9)]);
        assert_eq!((text.as_str(), ended), ("ab\n", true));
        assert!(!run(limits, &[("a\n", 5), ("b", 5)]).1);
    }
}
