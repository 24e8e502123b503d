//! A request's tokens as text: characters whole, stop strings never shown, probabilities with the text that they belong to.

use crate::engine::api::{Event, Failure, FinishReason, GeneratedToken, Ticket};
use crate::tokenizer::{Detokenizer, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a completion says.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// The request left the queue.
    Started,
    /// More of the answer.
    Delta(Delta),
    /// The answer is complete.
    Finished(Finish),
    /// It ended without an answer.
    Failed(Failure),
}

/// A piece of the answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Text, perhaps none yet: a token may end inside of a character, or look like the beginning of a stop string.
    pub text: String,
    /// The tokens whose text is out with this piece; empty bytes count as out at once.
    pub tokens: Vec<TextToken>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct TextToken {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability, if asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with theirs.
    pub top: Vec<(u32, f32)>,
}

/// Why and how an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: StopReason,
    /// What it took.
    pub usage: Usage,
    /// How long it took.
    pub timings: Timings,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it.
    End,
    /// It came to this stop string.
    StopString(String),
    /// The requested number of tokens is reached.
    Length,
    /// The model's context is full.
    Context,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of these, the ones that were computed for an earlier request.
    pub cached_tokens: usize,
    /// Of the answer, the one that ends it included.
    pub completion_tokens: usize,
}

/// Times of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// In the queue.
    pub queued: Duration,
    /// From leaving the queue to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

impl Timings {
    /// Prompt tokens per second, the ones that were computed.
    pub fn prefill_per_second(&self, usage: &Usage) -> f64 {
        let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        per_second(computed, self.prefill)
    }

    /// Tokens of the answer per second; the first one belongs to the prompt's time.
    pub fn decode_per_second(&self, usage: &Usage) -> f64 {
        per_second(usage.completion_tokens.saturating_sub(1), self.decode)
    }
}

fn per_second(count: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        count as f64 / time.as_secs_f64()
    }
}

/// How a request's tokens become text.
#[derive(Debug, Clone, Default)]
pub struct TextOptions {
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Control tokens that are text here, such as the marks of tool calls.
    pub visible_tokens: Vec<&'static str>,
}

/// A request in the engine and the text that comes of it. Dropping it cancels the request.
pub struct Completion {
    ticket: Option<Ticket>,
    detokenizer: Detokenizer,
    text: TextStream,
    tokenizer: Arc<Tokenizer>,
    outputs: VecDeque<Output>,
    usage: Usage,
    clock: Clock,
}

/// When things happened.
struct Clock {
    submitted: Instant,
    started: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Clock {
    fn timings(&self) -> Timings {
        let started = self.started.unwrap_or(self.submitted);
        let first = self.first.unwrap_or(started);
        Timings {
            queued: started - self.submitted,
            prefill: first - started,
            decode: self.last.map_or(Duration::ZERO, |last| last - first),
        }
    }
}

impl Completion {
    /// Text of a request that was just submitted with a prompt of `prompt_tokens` tokens.
    pub fn new(
        ticket: Ticket,
        tokenizer: Arc<Tokenizer>,
        prompt_tokens: usize,
        options: TextOptions,
    ) -> Self {
        Self {
            ticket: Some(ticket),
            detokenizer: tokenizer.detokenizer_showing(&options.visible_tokens),
            text: TextStream::new(options.stop),
            tokenizer,
            outputs: VecDeque::new(),
            usage: Usage {
                prompt_tokens,
                ..Usage::default()
            },
            clock: Clock {
                submitted: Instant::now(),
                started: None,
                first: None,
                last: None,
            },
        }
    }

    /// The next thing that happens; `None` after the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let event = self.ticket.as_mut()?.events.recv().await;
            self.take(event);
        }
    }

    /// The same for threads.
    pub fn blocking_next(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let event = self.ticket.as_mut()?.events.blocking_recv();
            self.take(event);
        }
    }

    /// What it took so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// How long it took so far.
    pub fn timings(&self) -> Timings {
        self.clock.timings()
    }

    fn take(&mut self, event: Option<Event>) {
        let event = event.unwrap_or_else(|| {
            Event::Failed(Failure::Internal(
                "the engine ended before the answer did".to_string(),
            ))
        });
        match event {
            Event::Started { cached_tokens } => {
                self.usage.cached_tokens = cached_tokens;
                self.clock.started = Some(Instant::now());
                self.outputs.push_back(Output::Started);
            }
            Event::Token(token) => self.take_token(token),
            Event::Finished(summary) => {
                let rest = self.text.finish(&self.detokenizer.finish());
                self.say(rest);
                self.usage = Usage {
                    prompt_tokens: summary.prompt_tokens,
                    cached_tokens: summary.cached_tokens,
                    completion_tokens: summary.generated_tokens,
                };
                let reason = match self.text.stopped.take() {
                    Some(stop) => StopReason::StopString(stop),
                    None => match summary.reason {
                        FinishReason::Stop => StopReason::End,
                        FinishReason::Length => StopReason::Length,
                        FinishReason::Context => StopReason::Context,
                    },
                };
                let timings = Timings {
                    queued: summary.queued,
                    prefill: summary.prefill,
                    decode: summary.decode,
                };
                self.end(reason, timings);
            }
            Event::Failed(failure) => {
                self.ticket = None;
                self.outputs.push_back(Output::Failed(failure));
            }
        }
    }

    fn take_token(&mut self, token: GeneratedToken) {
        let now = Instant::now();
        self.usage.completion_tokens += 1;
        self.clock.first.get_or_insert(now);
        self.clock.last = Some(now);
        let ends = self.tokenizer.is_end(token.token);
        let token = TextToken {
            id: token.token,
            logprob: token.logprob,
            top: token.top,
        };
        let delta = if ends {
            Delta {
                text: String::new(),
                tokens: vec![token],
            }
        } else {
            let text = self.detokenizer.push(token.id);
            self.text.push(token, &text)
        };
        self.say(delta);
        if let Some(stop) = self.text.stopped.take() {
            self.end(StopReason::StopString(stop), self.clock.timings());
        }
    }

    fn say(&mut self, delta: Delta) {
        if !delta.text.is_empty() || !delta.tokens.is_empty() {
            self.outputs.push_back(Output::Delta(delta));
        }
    }

    /// Gives the ticket up: after a stop string this is what tells the engine.
    fn end(&mut self, reason: StopReason, timings: Timings) {
        self.ticket = None;
        self.outputs.push_back(Output::Finished(Finish {
            reason,
            usage: self.usage,
            timings,
        }));
    }
}

/// Tokens and their text in, certain text out.
struct TextStream {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    /// Bytes of text that came before `held`.
    said: usize,
    /// Tokens whose text is not out, each with the byte where its text ends.
    tokens: VecDeque<(usize, TextToken)>,
    /// The stop string that was met.
    stopped: Option<String>,
}

impl TextStream {
    fn new(stops: Vec<String>) -> Self {
        Self {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            held: String::new(),
            said: 0,
            tokens: VecDeque::new(),
            stopped: None,
        }
    }

    fn push(&mut self, token: TextToken, text: &str) -> Delta {
        self.held.push_str(text);
        self.tokens.push_back((self.said + self.held.len(), token));
        self.release(false)
    }

    fn finish(&mut self, text: &str) -> Delta {
        self.held.push_str(text);
        self.release(true)
    }

    /// Gives out what no stop string can begin with, or all of it at the end.
    fn release(&mut self, all: bool) -> Delta {
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
        Delta { text, tokens }
    }

    /// Bytes at the end of the held text that are the beginning of a stop string.
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

    /// Pushes each text as a token of its own; the pieces, and the ids that were told.
    fn run(stops: &[&str], texts: &[&str]) -> (Vec<String>, Vec<u32>, Option<String>) {
        let mut stream = TextStream::new(stops.iter().map(|s| s.to_string()).collect());
        let (mut pieces, mut ids) = (Vec::new(), Vec::new());
        let mut take = |delta: Delta| {
            pieces.push(delta.text);
            ids.extend(delta.tokens.iter().map(|token| token.id));
        };
        for (id, text) in (0..).zip(texts) {
            let token = TextToken {
                id,
                logprob: None,
                top: Vec::new(),
            };
            take(stream.push(token, text));
            if stream.stopped.is_some() {
                return (pieces, ids, stream.stopped);
            }
        }
        take(stream.finish(""));
        (pieces, ids, stream.stopped)
    }

    #[test]
    fn text_that_could_become_a_stop_string_waits() {
        let (pieces, ids, stopped) = run(&["</s>", "###"], &["a<", "/", "b#", "#", "c"]);
        assert_eq!(pieces, ["a", "", "</b", "", "##c", ""]);
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        assert_eq!(stopped, None);
        let (pieces, _, _) = run(&["end"], &["the en"]);
        assert_eq!(pieces, ["the ", "en"]);
    }

    #[test]
    fn a_stop_string_is_never_shown() {
        let (pieces, ids, stopped) = run(&["late", "stop"], &["go ", "st", "op or late"]);
        assert_eq!(pieces, ["go ", "", ""]);
        assert_eq!(ids, [0]);
        assert_eq!(stopped.as_deref(), Some("stop"));
        // Overlapping beginnings, and a stop string within one token.
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
