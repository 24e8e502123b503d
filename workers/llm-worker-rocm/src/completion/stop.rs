//! Text without stop strings: what may become one waits.

use super::{TextDelta, TextToken};
use std::collections::VecDeque;

/// Tokens and their text in, certain text out.
pub(super) struct TextStream {
    stops: Vec<String>,
    /// Text that may be a prefix of a stop string.
    held: String,
    /// Bytes of text that came before `held`.
    said: usize,
    /// Tokens whose text is not out, each with the byte where its text ends.
    tokens: VecDeque<(usize, TextToken)>,
    /// The stop string that was met.
    pub(super) stopped: Option<String>,
}

impl TextStream {
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            held: String::new(),
            said: 0,
            tokens: VecDeque::new(),
            stopped: None,
        }
    }

    pub(super) fn push(&mut self, token: TextToken, text: &str) -> TextDelta {
        self.held.push_str(text);
        self.tokens.push_back((self.said + self.held.len(), token));
        self.release(false)
    }

    pub(super) fn finish(&mut self, text: &str) -> TextDelta {
        self.held.push_str(text);
        self.release(true)
    }

    /// Gives out what no stop string can begin with, or all of it at the end.
    fn release(&mut self, all: bool) -> TextDelta {
        let found = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)))
            .min_by_key(|(at, _)| *at);
        let end = match found {
            Some((at, stop)) => {
                self.stopped = Some(stop.clone());
                at
            }
            None if all => self.held.len(),
            None => self.held.len() - self.possible_stop(),
        };
        let text = self.held[..end].to_string();
        self.held.drain(..end);
        self.said += end;
        let out = self.tokens.iter().take_while(|(end, _)| *end <= self.said);
        let out = out.count();
        let tokens = self.tokens.drain(..out).map(|(_, token)| token).collect();
        if self.stopped.is_some() {
            // What belongs to the stop string, in part or whole, is never out.
            self.tokens.clear();
        }
        TextDelta { text, tokens }
    }

    /// Bytes at the end of the held text that are a prefix of a stop string.
    fn possible_stop(&self) -> usize {
        let held = self.held.as_bytes();
        self.stops
            .iter()
            .filter_map(|stop| {
                (1..stop.len().min(held.len() + 1))
                    .rev()
                    .find(|&n| held.ends_with(&stop.as_bytes()[..n]))
            })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Pushes each text as a token of its own; the chunks, and the ids that were told.
    fn run(stops: &[&str], texts: &[&str]) -> (Vec<String>, Vec<u32>, Option<String>) {
        let mut stream = TextStream::new(stops.iter().map(|s| s.to_string()).collect());
        let (mut chunks, mut ids) = (Vec::new(), Vec::new());
        let mut take = |delta: TextDelta| {
            chunks.push(delta.text);
            ids.extend(delta.tokens.iter().map(|token| token.id));
        };
        for (id, text) in (0..).zip(texts) {
            let token = TextToken {
                id,
                logprob: None,
                top: Vec::new(),
                at: Instant::now(),
            };
            take(stream.push(token, text));
            if stream.stopped.is_some() {
                return (chunks, ids, stream.stopped);
            }
        }
        take(stream.finish(""));
        (chunks, ids, stream.stopped)
    }

    #[test]
    fn text_that_could_become_a_stop_string_waits() {
        let (chunks, ids, stopped) = run(&["</s>", "###"], &["a<", "/", "b#", "#", "c"]);
        assert_eq!(chunks, ["a", "", "</b", "", "##c", ""]);
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        assert_eq!(stopped, None);
        let (chunks, _, _) = run(&["end"], &["the en"]);
        assert_eq!(chunks, ["the ", "en"]);
    }

    #[test]
    fn a_stop_string_is_never_shown() {
        let (chunks, ids, stopped) = run(&["late", "stop"], &["go ", "st", "op or late"]);
        assert_eq!(chunks, ["go ", "", ""]);
        assert_eq!(ids, [0]);
        assert_eq!(stopped.as_deref(), Some("stop"));
        // Overlapping prefixes, and a stop string within one token.
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]).0.concat(), "a");
        assert_eq!(run(&["\n"], &["x\ny"]).0, ["x"]);
    }

    #[test]
    fn stop_strings_of_several_bytes_and_empty_ones() {
        assert_eq!(run(&["é!"], &["é", "?", "é", "!"]).0, ["", "é?", "", ""]);
        assert_eq!(run(&[""], &["a"]).0, ["a", ""]);
    }

    #[test]
    fn tokens_without_text_are_told_at_once() {
        assert_eq!(run(&["ab"], &["", "a", "", "c"]).1, [0, 1, 2, 3]);
    }
}
