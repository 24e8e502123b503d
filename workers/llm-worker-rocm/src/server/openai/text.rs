//! `POST /v1/completions`

use super::constraint::Form;
use super::sampling::{check_top_logprobs, SamplingFields};
use super::wire::{self, Chunks, Head};
use crate::completion::{Finish, Output, TextOptions, TextToken, Usage};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::{blocking, from_failure};
use crate::server::generation::{Generation, Prepared};
use crate::server::Shared;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::Json;
use futures_util::future::try_join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use worker::http::json::from_value;
use worker::http::sse::{self, Frames};
use worker::http::{ApiError, JsonBody};

/// Most prompts of a request.
const MAX_PROMPTS: usize = 256;

/// A text or its tokens, one or several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a text, a list of texts, a list of tokens, or a list of lists of tokens"
)]
pub enum Inputs {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One text's tokens.
    Tokens(Vec<u32>),
    /// Several texts' tokens.
    TokenLists(Vec<Vec<u32>>),
}

/// The fields of a completion, besides those of [`SamplingFields`].
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct CompletionFields {
    /// What to go on from.
    pub prompt: Inputs,
    /// How many alternatives each token is reported with; absent reports no probabilities.
    pub logprobs: Option<usize>,
    /// Whether answers begin with their prompt.
    pub echo: Option<bool>,
    /// Not supported: text after the answer.
    pub suffix: Option<String>,
    /// Not supported other than equal to `n`: answers to choose from.
    pub best_of: Option<usize>,
}

/// Answers in the making.
struct Completions {
    model: Arc<TextModel>,
    head: Head,
    seed: u64,
    include_usage: bool,
    return_tokens: bool,
    /// Answers to the first prompt, then to the second one, and so on.
    choices: Vec<Choice>,
    per_prompt: usize,
}

struct Choice {
    index: usize,
    generation: Generation,
    /// The prompt, where it is to stand before the answer.
    echo: String,
}

pub async fn create(
    State(app): Shared,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ApiError> {
    let sampling: SamplingFields = from_value(&body)?;
    let fields: CompletionFields = from_value(&body)?;
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let stream = sampling.stream();
    let completions = blocking(move || Completions::start(&app, model, fields, &sampling)).await?;
    if stream {
        Ok(sse::stream(sse::OPENAI, |frames| {
            completions.stream(frames)
        }))
    } else {
        Ok(Json(completions.collect().await?).into_response())
    }
}

impl CompletionFields {
    /// The prompts as tokens.
    fn prompts(self, model: &TextModel) -> Result<Vec<Vec<u32>>, ApiError> {
        let encode = |text: String| {
            model
                .tokenizer
                .encode(&text, true)
                .map_err(|e| ApiError::field("prompt", e.to_string()))
        };
        let prompts = match self.prompt {
            Inputs::Text(text) => vec![encode(text)?],
            Inputs::Texts(texts) => texts.into_iter().map(encode).collect::<Result<_, _>>()?,
            Inputs::Tokens(tokens) => vec![tokens],
            Inputs::TokenLists(lists) => lists,
        };
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            let reason = format!(
                "prompt: {} prompts; 1 to {MAX_PROMPTS} are possible",
                prompts.len()
            );
            return Err(ApiError::field("prompt", reason));
        }
        Ok(prompts)
    }

    /// Refuses what is not supported rather than answering something else.
    fn check(&self, sampling: &SamplingFields) -> Result<(), ApiError> {
        let refuse =
            |field: &str, reason: &str| Err(ApiError::field(field, format!("{field}: {reason}")));
        if self
            .suffix
            .as_ref()
            .is_some_and(|suffix| !suffix.is_empty())
        {
            return refuse("suffix", "text after the answer is not supported");
        }
        if self
            .best_of
            .is_some_and(|best_of| Some(best_of) != sampling.n.or(Some(1)))
        {
            return refuse(
                "best_of",
                "choosing among more answers than n is not supported",
            );
        }
        if self.echo == Some(true) && self.logprobs.is_some() {
            return refuse("echo", "probabilities of the prompt are not supported");
        }
        Ok(())
    }
}

impl Completions {
    fn start(
        app: &Arc<App>,
        model: Arc<TextModel>,
        fields: CompletionFields,
        sampling: &SamplingFields,
    ) -> Result<Self, ApiError> {
        fields.check(sampling)?;
        let echo = fields.echo.unwrap_or(false);
        let top_logprobs = fields
            .logprobs
            .map(|top| check_top_logprobs("logprobs", top));
        let top_logprobs = top_logprobs.transpose()?;
        let prompts = fields.prompts(&model)?;
        let form = Form::of(sampling)?;
        let per_prompt = sampling.choices()?;
        let first = sampling.sampling(&app.options.sampling)?;
        let mut choices = Vec::new();
        for prompt in prompts {
            let echo = match echo {
                true => model.tokenizer.decode(&prompt),
                false => String::new(),
            };
            for _ in 0..per_prompt {
                let index = choices.len();
                let mut own = first.clone();
                own.seed = first.seed.wrapping_add(index as u64);
                let prepared = Prepared {
                    prompt: prompt.clone(),
                    sampling: own,
                    max_tokens: sampling.max_tokens()?,
                    top_logprobs,
                    ignore_end: sampling.ignore_eos.unwrap_or(false),
                    constraint: form.as_ref().map(|form| form.compile(&model)).transpose()?,
                    timeout: sampling.timeout(&app.options),
                    text: TextOptions {
                        stop: sampling.stops()?,
                        ..TextOptions::default()
                    },
                };
                choices.push(Choice {
                    index,
                    generation: Generation::submit(app, &model, prepared)?,
                    echo: echo.clone(),
                });
            }
        }
        Ok(Self {
            head: Head::new(app, "cmpl", "text_completion"),
            seed: first.seed,
            include_usage: sampling.include_usage(),
            return_tokens: sampling.return_tokens.unwrap_or(false),
            choices,
            per_prompt,
            model,
        })
    }

    /// The whole answer at once.
    async fn collect(self) -> Result<Value, ApiError> {
        let model = &self.model;
        let collect = |mut choice: Choice| async move {
            let mut text = std::mem::take(&mut choice.echo);
            let mut tokens = Vec::new();
            loop {
                match choice.next().await? {
                    Step::Piece(piece, more) => {
                        text += &piece;
                        tokens.extend(more);
                    }
                    Step::End(finish) => return Ok::<_, ApiError>((text, tokens, finish)),
                }
            }
        };
        let answers = try_join_all(self.choices.into_iter().map(collect)).await?;
        let choices: Value = answers
            .iter()
            .enumerate()
            .map(|(index, (text, tokens, finish))| {
                let reason = wire::finish_reason(&finish.reason);
                choice_json(
                    index,
                    text,
                    tokens,
                    Some(reason),
                    model,
                    0,
                    self.return_tokens,
                )
            })
            .collect();
        let usages: Vec<Usage> = answers.iter().map(|(_, _, finish)| finish.usage).collect();
        let usage = total(&usages, self.per_prompt);
        let first = answers.first().map(|(_, _, finish)| finish);
        Ok(wire::whole(&self.head, choices, &usage, first, self.seed))
    }

    /// The answer as it comes.
    async fn stream(self, frames: Frames) -> Result<(), ApiError> {
        let chunks = Chunks {
            model: self.model,
            head: self.head,
            seed: self.seed,
            include_usage: self.include_usage,
            return_tokens: self.return_tokens,
            frames,
        };
        let streams = self
            .choices
            .into_iter()
            .map(|choice| choice.stream(&chunks));
        let usages = try_join_all(streams).await?;
        let usage = total(&usages, self.per_prompt);
        chunks.send_usage(&usage).await;
        Ok(())
    }
}

/// Tokens of a request: each prompt counts once.
fn total(usages: &[Usage], per_prompt: usize) -> Usage {
    let prompts = usages.chunks(per_prompt).map(wire::sum);
    prompts.fold(Usage::default(), |total, usage| Usage {
        prompt_tokens: total.prompt_tokens + usage.prompt_tokens,
        cached_tokens: total.cached_tokens + usage.cached_tokens,
        completion_tokens: total.completion_tokens + usage.completion_tokens,
    })
}

enum Step {
    Piece(String, Vec<TextToken>),
    End(Finish),
}

impl Choice {
    async fn next(&mut self) -> Result<Step, ApiError> {
        loop {
            match self.generation.next().await {
                Some(Output::Started) => {}
                Some(Output::Delta(delta)) => return Ok(Step::Piece(delta.text, delta.tokens)),
                Some(Output::Finished(finish)) => return Ok(Step::End(finish)),
                Some(Output::Failed(failure)) => return Err(from_failure(&failure)),
                None => return Err(ApiError::internal("the answer went on after its end")),
            }
        }
    }

    async fn stream(mut self, chunks: &Chunks) -> Result<Usage, ApiError> {
        let index = self.index;
        let echo = std::mem::take(&mut self.echo);
        let mut offset = 0;
        if !echo.is_empty() {
            send(chunks, index, &echo, &[], 0, None).await;
            offset = echo.chars().count();
        }
        loop {
            match self.next().await? {
                Step::Piece(text, tokens) => {
                    send(chunks, index, &text, &tokens, offset, None).await;
                    offset += text.chars().count();
                }
                Step::End(finish) => {
                    send(chunks, index, "", &[], offset, Some(&finish)).await;
                    return Ok(finish.usage);
                }
            }
        }
    }
}

/// Sends what a choice goes on with; `offset` counts the characters before it.
async fn send(
    chunks: &Chunks,
    index: usize,
    text: &str,
    tokens: &[TextToken],
    offset: usize,
    finish: Option<&Finish>,
) {
    let reason = finish.map(|finish| wire::finish_reason(&finish.reason));
    let (model, return_tokens) = (&chunks.model, chunks.return_tokens);
    let choice = choice_json(index, text, tokens, reason, model, offset, return_tokens);
    chunks.send(choice, finish).await;
}

fn choice_json(
    index: usize,
    text: &str,
    tokens: &[TextToken],
    reason: Option<&str>,
    model: &TextModel,
    offset: usize,
    return_tokens: bool,
) -> Value {
    let mut choice = json!({
        "index": index,
        "text": text,
        "logprobs": logprobs(model, tokens, offset),
        "finish_reason": reason,
    });
    if return_tokens {
        choice["tokens"] = tokens.iter().map(|token| token.id).collect();
    }
    choice
}

/// Probabilities in the form of plain completions; `offset` counts the characters before the piece.
fn logprobs(model: &TextModel, tokens: &[TextToken], mut offset: usize) -> Value {
    let (mut texts, mut chosen, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens
        .iter()
        .filter(|token| !model.tokenizer.is_end(token.id))
    {
        let Some(logprob) = token.logprob else {
            return Value::Null;
        };
        let text = wire::token_text(&model.tokenizer, token.id);
        let top: Map<String, Value> = token
            .top
            .iter()
            .map(|&(id, logprob)| {
                let text = wire::token_text(&model.tokenizer, id);
                (text, json!(wire::finite(logprob)))
            })
            .collect();
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        chosen.push(wire::finite(logprob));
        tops.push(top);
    }
    if texts.is_empty() {
        return Value::Null;
    }
    json!({"tokens": texts, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets})
}
