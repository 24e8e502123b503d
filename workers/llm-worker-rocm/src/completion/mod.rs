//! A request's tokens as text: characters whole, stop strings never shown, probabilities with the text that they belong
//! to.

mod lines;
mod stop;

pub use lines::LineLimits;

use crate::engine::api::{
    DraftCount, Event, Failure, FinishReason, GeneratedToken, PromptToken, Ticket,
};
use crate::tokenizer::{Detokenizer, Tokenizer};
use lines::Lines;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stop::TextStream;

/// What a completion says.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// The request left the queue for this slot.
    Started(Option<usize>),
    /// More of the prompt is computed; only for requests that ask to be told.
    Progress(PromptProgress),
    /// The next tokens of the prompt behind its first, with their probabilities, if they were asked for.
    Prompt(Vec<PromptToken>),
    /// More of the answer.
    Delta(TextDelta),
    /// The answer is complete.
    Finished(Finish),
    /// It ended without an answer.
    Failed(Failure),
}

/// More of the answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextDelta {
    /// Text, perhaps none yet: a token may end inside of a character, or look like a prefix of a stop string.
    pub text: String,
    /// The tokens whose text is out with this delta; empty bytes count as out at once.
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
    /// When the engine chose it.
    pub at: Instant,
}

/// How much of a prompt is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptProgress {
    /// Its tokens.
    pub total: usize,
    /// Of these, the ones that were computed for an earlier request.
    pub cached: usize,
    /// Those that are computed by now, the cached ones included.
    pub computed: usize,
    /// Since the request left the queue.
    pub elapsed: Duration,
}

/// What a request took so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Took {
    /// Tokens.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
    /// Guesses at its tokens.
    pub drafts: DraftCount,
}

/// Why and how an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: StopReason,
    /// The slot that it ran in.
    pub slot: Option<usize>,
    /// Whether text was cut off: the context was full, or lost its older part so that the answer could go on.
    pub truncated: bool,
    /// What it took.
    pub usage: Usage,
    /// How long it took.
    pub timings: Timings,
    /// Guesses at its tokens.
    pub drafts: DraftCount,
}

impl Finish {
    /// What it took.
    pub fn took(&self) -> Took {
        Took {
            usage: self.usage,
            timings: self.timings,
            drafts: self.drafts,
        }
    }
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
    /// From the request's arrival to its last token.
    pub fn total(&self) -> Duration {
        self.queued + self.prefill + self.decode
    }

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
    pub visible_tokens: Vec<Cow<'static, str>>,
    /// What ends the answer at a line.
    pub lines: LineLimits,
}

/// A request in the engine and the text that comes of it. Dropping it cancels the request.
pub struct Completion {
    ticket: Option<Ticket>,
    detokenizer: Detokenizer,
    text: TextStream,
    lines: Lines,
    tokenizer: Arc<Tokenizer>,
    outputs: VecDeque<Output>,
    usage: Usage,
    clock: Clock,
    drafts: DraftCount,
    slot: Option<usize>,
    shifted: bool,
    /// Tokens of the prompt that are computed.
    computed: usize,
}

/// When things happened, by the engine's clock where it tells.
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
            queued: started.saturating_duration_since(self.submitted),
            prefill: first.saturating_duration_since(started),
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
            detokenizer: {
                let visible: Vec<&str> = options.visible_tokens.iter().map(Cow::as_ref).collect();
                tokenizer.detokenizer_showing(&visible)
            },
            text: TextStream::new(options.stop),
            lines: Lines::new(options.lines),
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
            drafts: DraftCount::default(),
            slot: None,
            shifted: false,
            computed: 0,
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

    /// What it took so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The same with times and guesses.
    pub fn took(&self) -> Took {
        Took {
            usage: self.usage,
            timings: self.clock.timings(),
            drafts: self.drafts,
        }
    }

    /// How much of the prompt is computed, as far as the engine has told.
    pub fn progress(&self) -> PromptProgress {
        let started = self.clock.started;
        PromptProgress {
            total: self.usage.prompt_tokens,
            cached: self.usage.cached_tokens,
            computed: self.computed,
            elapsed: started.map_or(Duration::ZERO, |started| started.elapsed()),
        }
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
            Event::Started {
                slot,
                cached_tokens,
                at,
            } => {
                self.slot = slot;
                self.usage.cached_tokens = cached_tokens;
                self.computed = cached_tokens;
                self.clock.started = Some(at);
                self.outputs.push_back(Output::Started(slot));
            }
            Event::Progress { computed, at } => {
                self.computed = computed;
                let started = self.clock.started.unwrap_or(at);
                let elapsed = at.saturating_duration_since(started);
                let progress = PromptProgress {
                    elapsed,
                    ..self.progress()
                };
                self.outputs.push_back(Output::Progress(progress));
            }
            Event::Prompt(tokens) => self.outputs.push_back(Output::Prompt(tokens)),
            Event::Token { token, at, drafts } => {
                self.drafts = drafts;
                self.take_token(token, at);
            }
            Event::Finished(summary) => {
                let rest = self.text.finish(&self.detokenizer.finish());
                self.say(rest);
                self.usage = Usage {
                    prompt_tokens: summary.prompt_tokens,
                    cached_tokens: summary.cached_tokens,
                    completion_tokens: summary.generated_tokens,
                };
                self.drafts = summary.drafts;
                self.shifted = summary.shifted;
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

    fn take_token(&mut self, token: GeneratedToken, at: Instant) {
        self.usage.completion_tokens += 1;
        self.clock.first.get_or_insert(at);
        self.clock.last = Some(at);
        let ends = self.tokenizer.is_end(token.token);
        let token = TextToken {
            id: token.token,
            logprob: token.logprob,
            top: token.top,
            at,
        };
        // What ends an answer has no text, and stays behind text that waits.
        let mut text = match ends {
            true => String::new(),
            false => self.detokenizer.push(token.id),
        };
        let first = self.clock.first.unwrap_or(at);
        let is_over = self
            .lines
            .end(&mut text, at.saturating_duration_since(first));
        let delta = self.text.push(token, &text);
        self.say(delta);
        if is_over && self.text.stopped.is_none() {
            let rest = self.text.finish("");
            self.say(rest);
            if let Some(ticket) = self.ticket.take() {
                ticket.finish();
            }
            self.end(StopReason::Length, self.clock.timings());
            return;
        }
        if let Some(stop) = self.text.stopped.take() {
            // The engine knows nothing of stop strings.
            if let Some(ticket) = self.ticket.take() {
                ticket.finish();
            }
            self.end(StopReason::StopString(stop), self.clock.timings());
        }
    }

    fn say(&mut self, delta: TextDelta) {
        if !delta.text.is_empty() || !delta.tokens.is_empty() {
            self.outputs.push_back(Output::Delta(delta));
        }
    }

    fn end(&mut self, reason: StopReason, timings: Timings) {
        self.ticket = None;
        self.outputs.push_back(Output::Finished(Finish {
            slot: self.slot,
            truncated: self.shifted || reason == StopReason::Context,
            reason,
            usage: self.usage,
            timings,
            drafts: self.drafts,
        }));
    }
}
