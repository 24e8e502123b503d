//! Fields and a prompt, checked, as a request to the engine.

use super::calls::OfferedForm;
use super::form::Form;
use super::sampling::SamplingFields;
use crate::completion::{LineLimits, TextOptions};
use crate::engine::api::{Constraint, Request};
use crate::engine::media::Media;
use crate::grammar::{Compiled, LazyGrammar};
use crate::server::app::App;
use crate::tokenizer::Tokenizer;
use crate::tools::{OfferedCalls, ThoughtLimit};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;
use worker::http::{ApiError, Caller};

/// What to answer, and in which form.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// Its pictures, if it has some.
    pub media: Option<Arc<Media>>,
    /// What answers must look like.
    pub form: Option<Form>,
    /// What calls in them must look like, if they may have some.
    pub calls: Option<OfferedForm>,
    /// How many alternatives each token is reported with; `None` reports no probabilities.
    pub top_logprobs: Option<usize>,
    /// The same of each token of the prompt but the first.
    pub prompt_logprobs: Option<usize>,
    /// Whether `max_tokens` may be 0: the prompt is read and not answered.
    pub may_only_read: bool,
    /// Control tokens that are text in answers.
    pub visible_tokens: Vec<&'static str>,
    /// What else is asked for.
    pub wishes: Wishes,
    /// How long the model may think, if there is a limit.
    pub thoughts: Option<ThoughtLimit>,
}

/// What llama.cpp's API can ask for besides.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wishes {
    /// The slot to run in.
    pub slot: Option<usize>,
    /// Whether the prompt is computed anew.
    pub afresh: bool,
    /// Whether probabilities are those behind the samplers.
    pub after_sampling: bool,
    /// First tokens that stay when the context is shifted.
    pub keep: Option<usize>,
    /// What ends the text besides stop strings.
    pub lines: LineLimits,
}

impl Prompt {
    /// A prompt that is answered in plain text, in the form that the fields ask for.
    ///
    /// # Errors
    /// 400 for a malformed form.
    pub fn plain(tokens: Vec<u32>, fields: &SamplingFields) -> Result<Self, ApiError> {
        Ok(Self {
            tokens,
            media: None,
            form: Form::requested(fields)?,
            calls: None,
            top_logprobs: None,
            prompt_logprobs: None,
            may_only_read: false,
            visible_tokens: Vec::new(),
            wishes: Wishes::default(),
            thoughts: None,
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

/// What holds an answer to a form, compiled.
#[derive(Clone)]
pub enum Held {
    /// All of the answer.
    Form(Compiled),
    /// What follows a trigger.
    Lazy(Box<LazyGrammar>),
    /// The calls in it.
    Calls(Box<OfferedCalls>),
}

impl Held {
    /// The constraint of one answer, at its beginning.
    pub fn constraint(&self) -> Box<dyn Constraint> {
        match self {
            Self::Form(compiled) => compiled.constraint(),
            Self::Lazy(grammar) => grammar.constraint(),
            Self::Calls(calls) => calls.clone(),
        }
    }
}

/// What the answers to a request have in common.
pub struct Common<'a> {
    /// The server.
    pub app: &'a App,
    /// Its model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The request's fields.
    pub fields: &'a SamplingFields,
    /// Whose request it is.
    pub caller: Caller,
    /// Whether others go first.
    pub background: bool,
    /// The seed of the first answer.
    pub seed: u64,
    /// When to give up.
    pub deadline: Option<Instant>,
}

impl Common<'_> {
    /// Makes the engine's request for one answer to a prompt. `choice` counts the answers to all prompts from 0: each
    /// has a seed of its own, [`Self::seed`] and those that follow it.
    ///
    /// # Errors
    /// 400 that names the field at fault; the engine checks the ranges of what it takes.
    pub fn prepare(
        &self,
        prompt: &Prompt,
        held: Option<&Held>,
        choice: usize,
    ) -> Result<Prepared, ApiError> {
        let fields = self.fields;
        let seed = self.seed.wrapping_add(choice as u64);
        let sampling = fields.sampling(&self.app.options.sampling, self.tokenizer, seed)?;
        let constraint = held.map(Held::constraint);
        let constraint = match &prompt.thoughts {
            Some(limit) => Some(limit.constraint(constraint)),
            None => constraint,
        };
        let preserved = fields.preserved_tokens().into_iter().map(Cow::Owned);
        let visible = prompt.visible_tokens.iter().copied().map(Cow::Borrowed);
        Ok(Prepared {
            request: Request {
                max_tokens: fields.most_tokens(&self.app.options, prompt.may_only_read)?,
                top_logprobs: prompt.top_logprobs,
                prompt_logprobs: prompt.prompt_logprobs,
                ignore_end: fields.ignore_eos.unwrap_or(false),
                constraint,
                max_drafts: fields.speculative_n_max,
                deadline: self.deadline,
                namespace: self.caller.0,
                background: self.background,
                adapters: self.app.wanted_adapters(fields)?,
                media: prompt.media.clone(),
                slot: prompt.wishes.slot,
                afresh: prompt.wishes.afresh,
                after_sampling: prompt.wishes.after_sampling,
                keep: prompt.wishes.keep,
                progress: fields.tells_progress(),
                ..Request::new(prompt.tokens.clone(), sampling)
            },
            text: TextOptions {
                stop: fields.stops()?,
                lines: prompt.wishes.lines,
                visible_tokens: visible.chain(preserved).collect(),
            },
        })
    }
}
