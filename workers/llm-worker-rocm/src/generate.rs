//! The loop: prompt in, tokens out.

use crate::engine::{Engine, Sampler, SamplingOptions};
use crate::model::Model;
use candle_core::{DType, Tensor};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Prompt tokens run at once: bounds the attention matrix, which grows with the square of it.
const PREFILL_CHUNK: usize = 512;

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

impl Model {
    /// Generates from a prompt. `on_text` gets each piece of text once it is certain, never half a character, and
    /// may break the generation off.
    ///
    /// # Errors
    /// [`Error::Usage`] for a prompt that is empty or longer than the context, [`Error::Candle`] if the device fails.
    pub fn generate(
        &mut self,
        request: &Request,
        interrupt: &Interrupt,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let context = self.engine.context_length();
        check_prompt(&request.prompt, context)?;
        let mut sampler = Sampler::new(request.sampling)?;
        let mut detokenizer = self.tokenizer.detokenizer();
        let mut history = request.prompt.clone();
        let mut text = String::new();
        let start = Instant::now();
        let mut first_token = start;

        let mut logits = prefill(&mut *self.engine, &request.prompt, interrupt)?;
        let finish_reason = loop {
            let generated = history.len() - request.prompt.len();
            let Some(current) = logits.as_ref().filter(|_| !interrupt.is_raised()) else {
                break FinishReason::Interrupted;
            };
            if generated == request.max_tokens {
                break FinishReason::Length;
            }
            let token = sampler.sample(current, &history)?;
            if generated == 0 {
                first_token = Instant::now();
            }
            history.push(token);
            if self.tokenizer.is_end(token) {
                break FinishReason::Stop;
            }
            let piece = detokenizer.push(token);
            text.push_str(&piece);
            if !piece.is_empty() && on_text(&piece).is_break() {
                break FinishReason::Interrupted;
            }
            if generated + 1 == request.max_tokens {
                break FinishReason::Length;
            }
            if history.len() == context {
                break FinishReason::Context;
            }
            logits = Some(self.engine.forward(&[token], history.len() - 1)?);
        };
        let rest = detokenizer.finish();
        if !rest.is_empty() {
            text.push_str(&rest);
            // The generation is over; whether the reader still listens changes nothing.
            let _ = on_text(&rest);
        }
        let tokens = history.split_off(request.prompt.len());
        let timings = if tokens.is_empty() {
            Timings {
                prompt: start.elapsed(),
                decode: Duration::ZERO,
                prompt_tokens: request.prompt.len(),
                generated_tokens: 0,
            }
        } else {
            Timings {
                prompt: first_token - start,
                decode: first_token.elapsed(),
                prompt_tokens: request.prompt.len(),
                generated_tokens: tokens.len(),
            }
        };
        Ok(Generation {
            tokens,
            text,
            finish_reason,
            timings,
        })
    }
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

/// Runs the prompt and returns the logits after it, `None` if interrupted.
fn prefill(
    engine: &mut dyn Engine,
    prompt: &[u32],
    interrupt: &Interrupt,
) -> Result<Option<Tensor>> {
    let mut logits = None;
    for (i, chunk) in prompt.chunks(PREFILL_CHUNK).enumerate() {
        if interrupt.is_raised() {
            return Ok(None);
        }
        logits = Some(engine.forward(chunk, i * PREFILL_CHUNK)?);
    }
    if let Some(logits) = &logits {
        check_numbers(logits)?;
    }
    Ok(logits)
}

/// Damaged weights or a miscomputing device show in the first logits; later steps would only hide it.
fn check_numbers(logits: &Tensor) -> Result<()> {
    let values = logits
        .to_dtype(DType::F32)
        .and_then(|logits| logits.to_vec1::<f32>())
        .map_err(Error::candle("reading the logits"))?;
    if values.iter().any(|v| v.is_nan()) {
        return Err(Error::Runtime(
            "the model's output is not a number: its file is damaged, or the device computes wrongly (compare with --device cpu)"
                .to_string(),
        ));
    }
    Ok(())
}
