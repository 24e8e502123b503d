//! Calls, from what opens them to what closes them.

use super::super::forms::{eat, follow, pieces, starts_piece, Body, Follow, Ids, Piece};
use super::super::read::{Reader, Said, Step};
use super::super::{is_name_char, new_call_id};
use super::text::longest_tail;
use super::{push_text, Delta, Open, OutputParser, State};

impl OutputParser {
    /// Before a call, or after the last one.
    pub(super) fn between(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let State::Between(open) = &mut self.state else {
            return false;
        };
        let form = open.form;
        let separates = |c: char| c.is_whitespace() || c == ',' || c == ';';
        let start = self.buffer.trim_start_matches(separates);
        let Some(first) = start.chars().next() else {
            return false;
        };
        let blank = self.buffer.len() - start.len();
        let closes = match open.section {
            true => starts_piece(start, form.section.close),
            false => Some(false),
        };
        if closes == Some(true) {
            let Some(end) = eat(start, form.section.close) else {
                return false;
            };
            self.buffer.drain(..blank + end);
            self.after_part = true;
            self.state = State::Content;
            return true;
        }
        let opens = match (form.call.open, form.body) {
            ("", Body::Object { .. }) if first == '{' => Follow::Done(0),
            ("", Body::Python) if is_name_char(first) => Follow::Done(0),
            ("", _) => Follow::No,
            (mark, _) => follow(start, mark),
        };
        match opens {
            Follow::Done(end) => {
                // What separates calls is none of them.
                let skipped = if self.calls > 0 { blank } else { 0 };
                let read: String = self.buffer.drain(..blank + end).collect();
                open.raw.push_str(&read[skipped..]);
                open.reader = Reader::new(form);
                open.id = None;
                let open = std::mem::replace(&mut self.state, State::Content);
                if let State::Between(open) = open {
                    self.state = State::Call(open);
                }
                true
            }
            Follow::More => false,
            Follow::No if closes.is_none() => false,
            Follow::No => {
                let raw = std::mem::take(&mut open.raw);
                if self.calls > 0 {
                    self.buffer.drain(..blank);
                }
                self.give_back(raw, deltas);
                true
            }
        }
    }

    /// Tells as content what turned out not to be a call.
    fn give_back(&mut self, raw: String, deltas: &mut Vec<Delta>) {
        self.state = State::Content;
        if raw.is_empty() && self.calls > 0 {
            self.after_part = true;
            return;
        }
        self.spoken = true;
        self.after_part = false;
        push_text(deltas, Delta::Content, raw);
    }

    pub(super) fn call(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let State::Call(open) = &mut self.state else {
            return false;
        };
        let mut said = Vec::new();
        let step = open.reader.step(&self.buffer, &self.tools, &mut said);
        let taken = match step {
            Step::Wait => return false,
            Step::Took(end) | Step::Done(end) | Step::Bad(end) => end,
        };
        let read: String = self.buffer.drain(..taken).collect();
        open.raw.push_str(&read);
        let known = self.tell(said, deltas);
        let State::Call(open) = std::mem::replace(&mut self.state, State::Content) else {
            return false;
        };
        match step {
            _ if !known => self.give_back(open.raw, deltas),
            Step::Done(_) => {
                self.calls += 1;
                self.state = State::Closing(open);
            }
            Step::Bad(_) if open.id.is_none() => self.give_back(open.raw, deltas),
            Step::Bad(_) => {
                self.end_call(*open.clone(), "", true, deltas);
                self.state = State::Skipping(open);
            }
            _ => self.state = State::Call(open),
        }
        true
    }

    /// Tells what a call says; false if it is none after all.
    fn tell(&mut self, said: Vec<Said>, deltas: &mut Vec<Delta>) -> bool {
        let State::Call(open) = &mut self.state else {
            return true;
        };
        for part in said {
            let (name, arguments) = match part {
                Said::Name { name, id } => {
                    let known = |name: &str| self.tools.iter().any(|tool| tool.name == name);
                    // Some models write the namespace where their template leaves it out.
                    let short = name.strip_prefix("functions.").filter(|short| known(short));
                    let name = short.map_or_else(|| name.clone(), str::to_string);
                    if open.form.known_only && !known(&name) {
                        return false;
                    }
                    let id = call_id(open.form.ids, &name, id, &self.ids);
                    self.ids.push(id.clone());
                    open.id = Some(id);
                    (Some(name), String::new())
                }
                Said::Arguments(arguments) => (None, arguments),
            };
            open.raw.clear();
            deltas.push(Delta::ToolCall {
                index: self.calls,
                id: open.id.clone().unwrap_or_default(),
                name,
                arguments,
            });
        }
        // What was told is not given back.
        if open.id.is_some() {
            open.raw.clear();
        }
        true
    }

    pub(super) fn closing(&mut self) -> bool {
        let State::Closing(open) = &self.state else {
            return false;
        };
        let Some(end) = eat(&self.buffer, open.form.call.close) else {
            return false;
        };
        self.buffer.drain(..end);
        self.after_call();
        true
    }

    /// Goes on after a call that is closed.
    fn after_call(&mut self) {
        self.after_part = true;
        self.state = match std::mem::replace(&mut self.state, State::Content) {
            State::Closing(open) | State::Skipping(open)
                if open.section
                    || open.form.section.open.is_empty() && open.form.call.open.is_empty() =>
            {
                State::Between(open)
            }
            // A section whose beginning was left out goes on nevertheless.
            State::Closing(mut open) if !open.form.section.open.is_empty() => {
                open.section = true;
                State::Between(open)
            }
            _ => State::Content,
        };
    }

    /// Drops what is left of a call up to the mark that closes it.
    pub(super) fn skip(&mut self) -> bool {
        let State::Skipping(open) = &self.state else {
            return false;
        };
        let last = |mark: &'static str| {
            let texts = pieces(mark).filter_map(|piece| match piece {
                Piece::Text(text) => Some(text),
                Piece::Space | Piece::Number => None,
            });
            texts.last()
        };
        let Some(mark) = last(open.form.call.close).or_else(|| last(open.form.section.close))
        else {
            self.after_call();
            return true;
        };
        let closes_all = open.form.call.close.is_empty();
        match self.buffer.find(mark) {
            Some(at) => {
                self.buffer.drain(..at + mark.len());
                self.after_call();
                if closes_all {
                    self.state = State::Content;
                }
                true
            }
            None => {
                let tail = longest_tail(&self.buffer, &[mark]);
                self.buffer.drain(..self.buffer.len() - tail);
                false
            }
        }
    }

    /// Ends a call that goes no further. What was told of it stays; if nothing was, it is content where the answer is
    /// complete.
    pub(super) fn end_call(
        &mut self,
        mut open: Open,
        rest: &str,
        complete: bool,
        deltas: &mut Vec<Delta>,
    ) {
        let Some(id) = open.id else {
            let text = open.raw + rest;
            // A text that nothing marks is a call's only where it has come so far.
            let is_text = complete || open.mark.is_empty() && self.calls == 0 && !may_name(&text);
            if is_text {
                push_text(deltas, Delta::Content, text);
            }
            return;
        };
        let mut said = Vec::new();
        if complete {
            open.reader.finish(rest, &self.tools, &mut said);
        }
        for part in said {
            if let Said::Arguments(arguments) = part {
                deltas.push(Delta::ToolCall {
                    index: self.calls,
                    id: id.clone(),
                    name: None,
                    arguments,
                });
            }
        }
        self.calls += 1;
    }
}

/// Whether a JSON object's beginning may be that of a call.
fn may_name(text: &str) -> bool {
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    ["{\"name\":", "{\"type\":\"function\",\"name\":", "["]
        .iter()
        .any(|head| head.starts_with(&compact) || compact.starts_with(head))
}

/// What a call is named. The model's own id is taken where it is one of the form.
fn call_id(ids: Ids, name: &str, given: Option<String>, taken: &[String]) -> String {
    match ids {
        Ids::Letters => {
            let good = |id: &String| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric());
            let given = given.filter(|id| good(id) && !taken.contains(id));
            given.unwrap_or_else(new_call_id)
        }
        Ids::Numbered => {
            let number = given.and_then(|id| id.parse::<usize>().ok());
            let mut number = number.unwrap_or(taken.len());
            loop {
                let id = format!("functions.{name}:{number}");
                if !taken.contains(&id) {
                    return id;
                }
                number = number.saturating_add(1);
            }
        }
    }
}
