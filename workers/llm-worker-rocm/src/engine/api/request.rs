//! What is asked of the engine.

use super::adapters::AdapterUse;
use super::sampling::SamplingOptions;
use crate::engine::media::Media;
use std::sync::Arc;
use std::time::Instant;

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

    /// Whether any token may come next, so that no mask is needed.
    fn is_free(&self) -> bool {
        false
    }

    /// How many of these tokens may come, one behind the other, at most: what a guess is worth before it is computed.
    /// Changes nothing; [`Constraint::mask`] has the last word.
    fn allowed(&mut self, guesses: &[u32]) -> usize {
        guesses.len()
    }
}

/// What to generate.
pub struct Request {
    /// The prompt's tokens; not empty.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; `None` is as many as the context takes. With 0 the prompt is read and nothing else.
    pub max_tokens: Option<usize>,
    /// How to choose them.
    pub sampling: SamplingOptions,
    /// How many of the most likely tokens to report with each one, up to [`MAX_TOP_LOGPROBS`]; `None` reports no
    /// probabilities.
    pub top_logprobs: Option<usize>,
    /// Whether these are probabilities among the tokens that the samplers have left, rather than the model's own.
    pub after_sampling: bool,
    /// How many of the most likely tokens to report with each token of the prompt but the first, up to
    /// [`MAX_TOP_LOGPROBS`]; `None` reports nothing of the prompt. All of such a prompt is computed, whatever is known
    /// of it.
    pub prompt_logprobs: Option<usize>,
    /// Goes on after the token that ends an answer (for benchmarks).
    pub ignore_end: bool,
    /// What may come next.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Most guesses at its next tokens in a step, as far as the engine guesses; `None` is as many as the engine's
    /// options say, 0 is none. They change how long the answer takes and nothing else.
    pub max_drafts: Option<usize>,
    /// When to give up.
    pub deadline: Option<Instant>,
    /// Whose request it is: keys and values are shared among requests of one namespace only, so that nobody can find
    /// out what others have sent.
    pub namespace: u64,
    /// Whether others go first: in the queue, and where prompts are computed.
    pub background: bool,
    /// Adapters of the model that are added, each once.
    pub adapters: Arc<[AdapterUse]>,
    /// The prompt's pictures, if it has some.
    pub media: Option<Arc<Media>>,
    /// The slot to run in, which is waited for; `None` is any that is free.
    pub slot: Option<usize>,
    /// Computes all of the prompt, also where keys and values of an equal beginning are known.
    pub afresh: bool,
    /// First tokens that stay when the context is shifted, if not as many as the engine's options say.
    pub keep: Option<usize>,
    /// Whether to tell how much of the prompt is computed after each step ([`Event::Progress`](super::Event)).
    pub progress: bool,
    /// What the engine's log lines about it belong to: the span that it was made in.
    pub log: tracing::Span,
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
            after_sampling: false,
            prompt_logprobs: None,
            ignore_end: false,
            constraint: None,
            max_drafts: None,
            deadline: None,
            namespace: 0,
            background: false,
            adapters: Arc::default(),
            media: None,
            slot: None,
            afresh: false,
            keep: None,
            progress: false,
            log: tracing::Span::current(),
        }
    }
}
