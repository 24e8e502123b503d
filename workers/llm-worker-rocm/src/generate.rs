//! The loop: prompt in, tokens out.

use crate::engine::api::{self, Engine, Event, SamplingOptions};
use crate::tokenizer::Tokenizer;
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TryRecvError;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// What to generate.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// How to choose them.
    pub sampling: SamplingOptions,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended its answer.
    Stop,
    /// The requested number of tokens is reached.
    Length,
    /// The model's context is full.
    Context,
    /// A signal, or the reader of the text went away.
    Interrupted,
}

impl From<api::FinishReason> for FinishReason {
    fn from(reason: api::FinishReason) -> Self {
        match reason {
            api::FinishReason::Stop => Self::Stop,
            api::FinishReason::Length => Self::Length,
            api::FinishReason::Context => Self::Context,
        }
    }
}

/// Where the time went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timings {
    /// From the start to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Generated tokens, the one that ends the answer included.
    pub generated_tokens: usize,
}

impl Timings {
    /// Prompt tokens a second.
    pub fn prompt_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt)
    }

    /// Generated tokens a second, the first one left out since the prompt's run gives it.
    pub fn decode_per_second(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 || time.is_zero() {
        0.0
    } else {
        count as f64 / time.as_secs_f64()
    }
}

/// A finished generation.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Generated tokens, the one that ends the answer included.
    pub tokens: Vec<u32>,
    /// Their text, special tokens left out.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Where the time went.
    pub timings: Timings,
}

/// Generates from a prompt. `on_text` gets each piece of text once it is certain, never half a character, and
/// may break the generation off.
///
/// # Errors
/// [`Error::Usage`] for a prompt that is empty or longer than the context, [`Error::Runtime`] if the device fails.
pub fn generate(
    engine: &Engine,
    tokenizer: &Tokenizer,
    request: &Request,
    interrupt: &Interrupt,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    /// How often the interrupt is looked at while no token comes.
    const PAUSE: Duration = Duration::from_micros(200);
    let mut detokenizer = tokenizer.detokenizer();
    let mut tokens = Vec::new();
    let mut text = String::new();
    let start = Instant::now();
    let mut first_token = None;
    let mut ticket = engine.submit(api::Request {
        max_tokens: Some(request.max_tokens),
        ..api::Request::new(request.prompt.clone(), request.sampling.clone())
    })?;
    let finish_reason = loop {
        let event = match ticket.events.try_recv() {
            Ok(event) => event,
            Err(_) if interrupt.is_raised() => break FinishReason::Interrupted,
            Err(TryRecvError::Empty) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(TryRecvError::Disconnected) => {
                return Err(Error::Runtime("the engine ended unexpectedly".to_string()))
            }
        };
        match event {
            Event::Started { .. } => {}
            Event::Token(token) => {
                first_token.get_or_insert_with(Instant::now);
                tokens.push(token.token);
                if tokenizer.is_end(token.token) {
                    continue;
                }
                let piece = detokenizer.push(token.token);
                text.push_str(&piece);
                if !piece.is_empty() && on_text(&piece).is_break() {
                    break FinishReason::Interrupted;
                }
            }
            Event::Finished(summary) => break summary.reason.into(),
            Event::Failed(failure) => return Err(failure.into()),
        }
    };
    let rest = detokenizer.finish();
    if !rest.is_empty() {
        text.push_str(&rest);
        // The generation is over; whether the reader still listens changes nothing.
        let _ = on_text(&rest);
    }
    let first_token = first_token.unwrap_or_else(Instant::now);
    Ok(Generation {
        text,
        finish_reason,
        timings: Timings {
            prompt: first_token - start,
            decode: first_token.elapsed(),
            prompt_tokens: request.prompt.len(),
            generated_tokens: tokens.len(),
        },
        tokens,
    })
}

/// Refuses prompts that cannot be run.
///
/// # Errors
/// [`Error::Usage`] for a prompt that is empty or leaves no room for an answer.
pub fn check_prompt(prompt: &[u32], context: usize) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::Usage("the prompt is empty".to_string()));
    }
    if prompt.len() >= context {
        return Err(Error::Usage(format!(
            "the prompt has {} tokens, the model takes at most {context} with the answer; shorten it",
            prompt.len()
        )));
    }
    Ok(())
}
