//! What happens to a request.

use super::failure::Failure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// A request in the queue or running. Dropping it cancels the request within one step and frees its blocks.
pub struct Ticket {
    /// Counts up from 1.
    pub id: u64,
    /// What happens to it; the last event is [`Event::Finished`] or [`Event::Failed`].
    pub events: mpsc::UnboundedReceiver<Event>,
    finished: Arc<AtomicBool>,
}

impl Ticket {
    /// A ticket, and the engine's side of it.
    pub fn new(id: u64) -> (Self, EventSender) {
        let (sender, events) = mpsc::unbounded_channel();
        let finished = Arc::new(AtomicBool::new(false));
        let sender = EventSender {
            sender,
            finished: finished.clone(),
        };
        let ticket = Self {
            id,
            events,
            finished,
        };
        (ticket, sender)
    }

    /// Ends the request within one step, as one whose answer is complete: a stop string was met, say.
    pub fn finish(self) {
        self.finished.store(true, Ordering::Release);
    }
}

/// The engine's side of a [`Ticket`].
#[derive(Debug, Clone)]
pub struct EventSender {
    sender: mpsc::UnboundedSender<Event>,
    finished: Arc<AtomicBool>,
}

impl EventSender {
    /// Tells what happened. Where the ticket is gone there is nobody to tell.
    pub fn send(&self, event: Event) {
        let _ = self.sender.send(event);
    }

    /// Whether the ticket is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether the ticket is gone because the answer is complete.
    pub fn is_finished(&self) -> bool {
        // In this order: a ticket says so before it goes.
        self.is_closed() && self.finished.load(Ordering::Acquire)
    }
}

/// What happens to a request.
#[derive(Debug, Clone)]
pub enum Event {
    /// It left the queue.
    Started {
        /// The slot that it runs in.
        slot: Option<usize>,
        /// Prompt tokens whose keys and values were there already.
        cached_tokens: usize,
        /// When.
        at: Instant,
    },
    /// More of the prompt is computed; only where the request asks for it.
    Progress {
        /// Prompt tokens whose keys and values are there.
        computed: usize,
        /// When.
        at: Instant,
    },
    /// The next tokens of the prompt behind its first, with their probabilities, if they were asked for.
    Prompt(Vec<PromptToken>),
    /// A token was chosen.
    Token {
        /// The token.
        token: GeneratedToken,
        /// When.
        at: Instant,
        /// Guesses for the answer up to it.
        drafts: DraftCount,
    },
    /// It ended.
    Finished(Summary),
    /// It ended without an answer; the engine goes on.
    Failed(Failure),
}

/// A token of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability behind the tokens before it.
    pub logprob: f32,
    /// The most likely tokens in its place with theirs, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability before temperature, or [after sampling](super::Request::after_sampling), if
    /// asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with theirs, most likely first.
    pub top: Vec<(u32, f32)>,
    /// Its probability among the tokens that the samplers have left, for an [`Aim`](super::Aim) to learn from.
    pub share: Option<f32>,
}

/// Guesses at a request's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCount {
    /// Those that steps have checked.
    pub drafted: usize,
    /// Of these, the ones that were right.
    pub accepted: usize,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended its answer.
    Stop,
    /// The requested number of tokens is reached.
    Length,
    /// The model's context is full.
    Context,
}

/// Figures of an ended request.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, the ones whose keys and values were there already.
    pub cached_tokens: usize,
    /// Generated tokens, the one that ends the answer included.
    pub generated_tokens: usize,
    /// Guesses at its tokens.
    pub drafts: DraftCount,
    /// Whether it dropped tokens to go on at the end of the context.
    pub shifted: bool,
    /// In the queue.
    pub queued: Duration,
    /// From leaving the queue to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}
