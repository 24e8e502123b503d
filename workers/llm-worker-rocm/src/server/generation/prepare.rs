//! Fields and a prompt, checked, as a request to the engine.

use super::form::Form;
use super::sampling::SamplingFields;
use crate::completion::TextOptions;
use crate::engine::api::{Constraint, Request};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::tools::OfferedCalls;
use std::time::Instant;
use worker::http::ApiError;

/// What to answer, and in which form.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// What answers must look like.
    pub form: Option<Form>,
    /// What calls in them must look like, if they may have some.
    pub calls: Option<OfferedCalls>,
    /// How many alternatives each token is reported with; `None` reports no probabilities.
    pub top_logprobs: Option<usize>,
    /// Control tokens that are text in answers.
    pub visible_tokens: Vec<&'static str>,
}

impl Prompt {
    /// A prompt that is answered in plain text, in the form that the fields ask for.
    ///
    /// # Errors
    /// 400 for a malformed form.
    pub fn plain(tokens: Vec<u32>, fields: &SamplingFields) -> Result<Self, ApiError> {
        Ok(Self {
            tokens,
            form: Form::requested(fields)?,
            calls: None,
            top_logprobs: None,
            visible_tokens: Vec::new(),
        })
    }
}

/// A request that is checked and ready for the engine.
pub struct Prepared {
    /// The engine's part.
    pub request: Request,
    /// How its tokens become text.
    pub text: TextOptions,
}

/// Makes the request for one answer to a prompt. `choice` counts the answers to all prompts from 0: each has a seed of
/// its own, `seed` and those that follow it.
///
/// # Errors
/// 400 that names the field at fault; the engine checks the ranges of what it takes.
pub fn prepare(
    app: &App,
    model: &TextModel,
    fields: &SamplingFields,
    prompt: &Prompt,
    seed: u64,
    choice: usize,
) -> Result<Prepared, ApiError> {
    let seed = seed.wrapping_add(choice as u64);
    let sampling = fields.sampling(&app.options.sampling, seed)?;
    let constraint = match (&prompt.form, &prompt.calls) {
        (Some(form), _) => Some(form.compile(model)?),
        (None, Some(calls)) => Some(Box::new(calls.clone()) as Box<dyn Constraint>),
        (None, None) => None,
    };
    let deadline = fields.timeout(&app.options);
    Ok(Prepared {
        request: Request {
            max_tokens: fields.max_tokens()?,
            top_logprobs: prompt.top_logprobs,
            ignore_end: fields.ignore_eos.unwrap_or(false),
            constraint,
            deadline: deadline.and_then(|timeout| Instant::now().checked_add(timeout)),
            ..Request::new(prompt.tokens.clone(), sampling)
        },
        text: TextOptions {
            stop: fields.stops()?,
            visible_tokens: prompt.visible_tokens.clone(),
        },
    })
}
