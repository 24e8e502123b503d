//! What the engine takes and gives: requests, tickets, events. Everything above (command line, HTTP) speaks only this.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use worker::device::BufferMemory;

/// How to choose the next token. Applied in this order: bias, penalties, constraint, temperature, top-k, typical, top-p, min-p.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// 0 takes the most likely token; higher is more varied.
    pub temperature: f32,
    /// Only the `k` most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together reach this probability.
    pub top_p: Option<f32>,
    /// Only tokens at least this fraction as likely as the most likely one.
    pub min_p: Option<f32>,
    /// Only the tokens whose surprise is nearest to the expected one and that together reach this probability.
    pub typical_p: Option<f32>,
    /// Divides the positive and multiplies the negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens, the prompt's included, the repeat penalty looks at.
    pub repeat_last_n: usize,
    /// Taken from a token's logit for each time that it was generated; 0 is off.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was generated; 0 is off.
    pub presence_penalty: f32,
    /// Added to logits, by token.
    pub logit_bias: HashMap<u32, f32>,
    /// Start of the random sequence: the same seed gives the same answer, alone or in a batch.
    pub seed: u64,
}

impl SamplingOptions {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: HashMap::new(),
            seed: 0,
        }
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`Failure::Invalid`] with the option's name, its value and its range.
    pub fn validate(&self) -> Result<(), Failure> {
        let fraction = |name: &str, value: Option<f32>| match value {
            Some(p) if !(p > 0.0 && p <= 1.0) => Err(Failure::Invalid(format!(
                "{name} {p} is not above 0 and up to 1"
            ))),
            _ => Ok(()),
        };
        let check = |ok: bool, text: String| ok.then_some(()).ok_or(Failure::Invalid(text));
        let temperature = self.temperature;
        check(
            temperature.is_finite() && temperature >= 0.0,
            format!("temperature {temperature} is not a number from 0"),
        )?;
        check(
            self.top_k != Some(0),
            "top-k 0 leaves no token; leave it out for all".to_string(),
        )?;
        fraction("top-p", self.top_p)?;
        fraction("typical-p", self.typical_p)?;
        if let Some(p) = self.min_p {
            check(
                (0.0..=1.0).contains(&p),
                format!("min-p {p} is not from 0 to 1"),
            )?;
        }
        let penalty = self.repeat_penalty;
        check(
            penalty.is_finite() && penalty > 0.0,
            format!("repeat penalty {penalty} is not above 0"),
        )?;
        for (name, value) in [
            ("frequency penalty", self.frequency_penalty),
            ("presence penalty", self.presence_penalty),
        ] {
            check(value.is_finite(), format!("{name} {value} is not a number"))?;
        }
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan()) {
            Some((token, bias)) => Err(Failure::Invalid(format!(
                "logit bias {bias} of token {token} is not a number"
            ))),
            None => Ok(()),
        }
    }
}

/// What may come next, decided by a grammar.
pub trait Constraint: Send {
    /// One bit for each token of the vocabulary, lowest bit first: 1 where it may come next.
    ///
    /// # Errors
    /// A text for the client if the grammar is at odds with itself.
    fn mask(&mut self) -> Result<Vec<u32>, String>;

    /// Tells the chosen token.
    ///
    /// # Errors
    /// A text if the grammar does not allow it.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}

/// What to generate.
pub struct Request {
    /// The prompt's tokens; not empty.
    pub prompt: Vec<u32>,
    /// Most tokens to generate, at least 1; `None` is as many as the context takes.
    pub max_tokens: Option<usize>,
    /// How to choose them.
    pub sampling: SamplingOptions,
    /// How many of the most likely tokens to report with each one, up to [`MAX_TOP_LOGPROBS`]; `None` reports no probabilities.
    pub top_logprobs: Option<usize>,
    /// Goes on after the token that ends an answer (for benchmarks).
    pub ignore_end: bool,
    /// What may come next.
    pub constraint: Option<Box<dyn Constraint>>,
    /// When to give up.
    pub deadline: Option<Instant>,
}

/// Most alternatives that a token can be reported with.
pub const MAX_TOP_LOGPROBS: usize = 64;

impl Request {
    /// A prompt and how to go on from it; no limits, no probabilities, no constraint.
    pub fn new(prompt: Vec<u32>, sampling: SamplingOptions) -> Self {
        Self {
            prompt,
            max_tokens: None,
            sampling,
            top_logprobs: None,
            ignore_end: false,
            constraint: None,
            deadline: None,
        }
    }
}

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
        /// Prompt tokens whose keys and values were there already.
        cached_tokens: usize,
        /// When.
        at: Instant,
    },
    /// A token was chosen.
    Token {
        /// The token.
        token: GeneratedToken,
        /// When.
        at: Instant,
    },
    /// It ended.
    Finished(Summary),
    /// It ended without an answer; the engine goes on.
    Failed(Failure),
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability before temperature, if asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with theirs, most likely first.
    pub top: Vec<(u32, f32)>,
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
    /// In the queue.
    pub queued: Duration,
    /// From leaving the queue to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Why a request gave no answer. The variants are the codes of the wire formats.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens, the context takes {context} with the answer; shorten it"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// As many requests wait as may wait.
    #[error("{waiting} requests wait already; try again in {retry_after:?}")]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
        /// When there is likely to be room.
        retry_after: Duration,
    },
    /// Its deadline passed.
    #[error("the deadline passed after {0} tokens")]
    Timeout(usize),
    /// The device's memory does not suffice.
    #[error("out of device memory: {0}")]
    OutOfMemory(String),
    /// The device is gone; the process must be started anew.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The engine is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// Anything else that went wrong.
    #[error("{0}")]
    Internal(String),
}

impl From<Failure> for worker::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(_) | Failure::TooLong { .. } => Self::Usage(failure.to_string()),
            Failure::DeviceLost(reason) => Self::DeviceLost(reason),
            failure => Self::Runtime(failure.to_string()),
        }
    }
}

/// How an engine runs.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// Longest sequence in tokens, prompt and answer together; `None` is the model's own, as far as memory goes.
    pub context: Option<usize>,
    /// Blocks of the cache of keys and values; `None` is as many as fit into free memory, or as full sequences can use.
    pub kv_blocks: Option<usize>,
    /// Tokens of a block.
    pub block_size: usize,
    /// How keys and values are stored; `None` is f16 on a GPU (bf16 for a bf16 model) and f32 on the CPU.
    pub kv_dtype: Option<KvDType>,
    /// Most sequences that run at once.
    pub max_sequences: usize,
    /// Most tokens of a step: what prompts are cut into.
    pub max_step_tokens: usize,
    /// Most requests that wait.
    pub max_waiting: usize,
    /// Whether keys and values of equal prefixes are shared among requests.
    pub prefix_cache: bool,
    /// Whether steps of one new token for each sequence are recorded and enqueued as one graph, on devices that have graphs.
    pub graphs: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: None,
            kv_blocks: None,
            block_size: 16,
            kv_dtype: None,
            max_sequences: 16,
            max_step_tokens: 512,
            max_waiting: 64,
            prefix_cache: true,
            graphs: true,
        }
    }
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvDType {
    /// 4 bytes an element.
    F32,
    /// 2 bytes.
    F16,
    /// 2 bytes.
    Bf16,
    /// 8 bits and an f16 factor for 32 elements.
    Q8_0,
}

impl FromStr for KvDType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            "q8_0" => Ok(Self::Q8_0),
            _ => Err(format!("{text} is not one of f32, f16, bf16, q8_0")),
        }
    }
}

impl std::fmt::Display for KvDType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        })
    }
}

/// A moment's figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Requests that have blocks.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Blocks of the cache of keys and values.
    pub kv_blocks_total: usize,
    /// Blocks that running requests hold.
    pub kv_blocks_used: usize,
    /// Blocks that are kept for prefixes and free to reuse.
    pub kv_blocks_cached: usize,
    /// Prompt tokens that were computed, those of the prefix cache left out.
    pub prompt_tokens: u64,
    /// Tokens that were chosen.
    pub generated_tokens: u64,
    /// Prompt tokens that the prefix cache had.
    pub prefix_hit_tokens: u64,
    /// Requests that lost their blocks to others and were computed anew.
    pub preemptions: u64,
    /// Requests that ended with an answer.
    pub requests_finished: u64,
    /// Requests that ended without one.
    pub requests_failed: u64,
    /// Requests whose ticket was dropped before their end.
    pub requests_cancelled: u64,
    /// Steps of one new token for each sequence.
    pub decode: DecodeFigures,
    /// Device memory in use by this process.
    pub device_bytes_used: Option<u64>,
    /// Device memory in all.
    pub device_bytes_total: Option<u64>,
    /// What the engine's buffers have taken of it.
    pub buffers: Option<BufferMemory>,
    /// Why the device is gone, if it is.
    pub lost: Option<String>,
}

/// What steps of one new token for each sequence have cost the host, on a device that works on its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodeFigures {
    /// How many there were.
    pub steps: u64,
    /// Of these, the ones that were enqueued as a graph.
    pub graphs: u64,
    /// Launches that they took. A graph counts as one.
    pub launches: u64,
    /// Time until the device had its work.
    pub enqueue: Duration,
}

impl std::ops::Sub for DecodeFigures {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            steps: self.steps - before.steps,
            graphs: self.graphs - before.graphs,
            launches: self.launches - before.launches,
            enqueue: self.enqueue - before.enqueue,
        }
    }
}
