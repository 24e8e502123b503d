//! Content, reasoning, and where calls begin.

use super::super::forms::{follow, pieces, CallForm, Follow, Opening, Piece};
use super::super::read::Reader;
use super::{push_text, Delta, Open, OutputParser, State};

/// What a mark means.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    Calls(&'static CallForm, Opening, &'static str),
    Reasoning,
    Nothing,
}

impl OutputParser {
    /// The marks that mean something now.
    fn marks(&self) -> Vec<(String, Meaning)> {
        let mut marks = Vec::new();
        if !self.tools.is_empty() {
            for &form in &self.forms {
                let openings = form.openings();
                marks.extend(
                    openings
                        .map(|(mark, what)| (mark.to_string(), Meaning::Calls(form, what, mark))),
                );
            }
        }
        if self.reasoning {
            let tags = self.format.reasoning;
            marks.extend(tags.map(|tags| (tags.open.to_string(), Meaning::Reasoning)));
        }
        marks.extend(
            self.silent
                .iter()
                .map(|mark| (mark.clone(), Meaning::Nothing)),
        );
        marks
    }

    /// Gives out content up to a mark. `ending` says that no more text comes.
    pub(super) fn content(&mut self, ending: bool, deltas: &mut Vec<Delta>) -> bool {
        // Calls that nothing marks are the answer's beginning.
        let form = self.format.calls;
        if !self.tools.is_empty() && !self.spoken && self.calls == 0 {
            let start = self.buffer.trim_start();
            let begins = start.chars().next().map(|c| form.begins_bare(c));
            if begins == Some(true) {
                self.buffer = start.to_string();
                self.blank.clear();
                let section = form.section.open == "[";
                let mut open = Self::opened(form, section, "", String::new());
                if section {
                    open.raw = self.buffer.drain(..1).collect();
                    self.state = State::Between(open);
                } else {
                    self.state = State::Call(open);
                }
                return true;
            }
        }
        let marks = self.marks();
        let mut from = 0;
        loop {
            let Some(at) = self.next_mark(from, &marks) else {
                let text = std::mem::take(&mut self.buffer);
                self.say(&text, deltas);
                return false;
            };
            // Reasoning comes first, but for families that write it in turns.
            let first = !self.spoken && self.calls == 0 && self.buffer[..at].trim().is_empty();
            let again = self.format.reasoning.is_some_and(|tags| tags.again);
            let rest = &self.buffer[at..];
            let mut best: Option<(usize, Meaning)> = None;
            let mut may_go_on = false;
            for (mark, meaning) in &marks {
                if matches!(meaning, Meaning::Reasoning) && !first && !again {
                    continue;
                }
                match follow(rest, mark) {
                    Follow::Done(end) if best.is_none_or(|(longest, _)| end > longest) => {
                        best = Some((end, *meaning));
                    }
                    Follow::More => may_go_on = true,
                    _ => {}
                }
            }
            if may_go_on && !ending {
                let before: String = self.buffer.drain(..at).collect();
                self.say(&before, deltas);
                return false;
            }
            if let Some((end, meaning)) = best {
                let before: String = self.buffer.drain(..at).collect();
                self.say(&before, deltas);
                let mark: String = self.buffer.drain(..end).collect();
                self.begin(meaning, mark);
                return true;
            }
            from = at + self.buffer[at..].chars().next().map_or(1, char::len_utf8);
        }
    }

    fn begin(&mut self, meaning: Meaning, mark: String) {
        // White space before a part belongs to it.
        match meaning {
            Meaning::Nothing if self.spoken => {}
            Meaning::Nothing => {
                self.blank.clear();
                self.after_part = true;
            }
            Meaning::Reasoning => {
                self.blank.clear();
                self.spoken = false;
                self.state = State::Reasoning;
            }
            Meaning::Calls(form, Opening::Section, opening) => {
                let raw = std::mem::take(&mut self.blank) + &mark;
                self.state = State::Between(Self::opened(form, true, opening, raw));
            }
            Meaning::Calls(form, Opening::Call, opening) => {
                let raw = std::mem::take(&mut self.blank) + &mark;
                self.state = State::Call(Self::opened(form, false, opening, raw));
            }
        }
    }

    pub(super) fn opened(
        form: &'static CallForm,
        section: bool,
        mark: &'static str,
        raw: String,
    ) -> Box<Open> {
        Box::new(Open {
            form,
            section,
            reader: Reader::new(form),
            id: None,
            raw,
            mark,
        })
    }

    /// Where the next mark begins or may begin, from `from` on.
    fn next_mark(&self, from: usize, marks: &[(String, Meaning)]) -> Option<usize> {
        let text = &self.buffer[from..];
        let firsts: Vec<&str> = marks
            .iter()
            .filter_map(|(mark, _)| first_piece(mark))
            .collect();
        let whole = firsts.iter().filter_map(|mark| text.find(mark)).min();
        let tail = longest_tail(text, &firsts);
        let partial = (tail > 0).then(|| text.len() - tail);
        let at = match (whole, partial) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(from + at)
    }

    /// Gives out content, white space at its end held back.
    pub(super) fn say(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        let text = std::mem::take(&mut self.blank) + text;
        let text = if self.after_part {
            text.trim_start()
        } else {
            &text
        };
        // Without anything that could follow, nothing needs to be held back.
        let body = if self.tools.is_empty() && (self.spoken || !self.reasoning) {
            text
        } else {
            text.trim_end()
        };
        self.blank = text[body.len()..].to_string();
        if !body.is_empty() {
            self.spoken = true;
            self.after_part = false;
            push_text(deltas, Delta::Content, body.to_string());
        }
    }

    pub(super) fn reason(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let Some(tags) = self.format.reasoning else {
            self.state = State::Content;
            return true;
        };
        let (end, closed) = match self.buffer.find(tags.close) {
            Some(at) => (at, true),
            None => {
                let tail = longest_tail(&self.buffer, &[tags.close]);
                (self.buffer.len() - tail, false)
            }
        };
        let text = std::mem::take(&mut self.blank) + &self.buffer[..end];
        let mark = if closed { tags.close.len() } else { 0 };
        self.buffer.drain(..end + mark);
        let text = if self.spoken {
            &text
        } else {
            text.trim_start()
        };
        let body = text.trim_end();
        self.spoken |= !body.is_empty();
        push_text(deltas, Delta::Reasoning, body.to_string());
        if closed {
            self.spoken = false;
            self.reasoning = tags.again;
            self.after_part = true;
            self.state = State::Content;
        } else {
            self.blank = text[body.len()..].to_string();
        }
        closed
    }
}

fn first_piece(mark: &str) -> Option<&str> {
    pieces(mark).find_map(|piece| match piece {
        Piece::Text(text) => Some(text),
        Piece::Space | Piece::Number => None,
    })
}

/// Length of the longest end of `text` that begins one of the marks.
pub(super) fn longest_tail(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|m| m.len()).max().unwrap_or(0);
    let most = longest.saturating_sub(1).min(text.len());
    let begins = |n: &usize| {
        let tail = &text[text.len() - n..];
        marks.iter().any(|mark| mark.starts_with(tail))
    };
    let cuts = (1..=most)
        .rev()
        .filter(|n| text.is_char_boundary(text.len() - n));
    cuts.into_iter().find(begins).unwrap_or(0)
}
