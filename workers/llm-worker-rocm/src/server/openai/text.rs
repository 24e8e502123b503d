//! `POST /v1/completions`

use super::logprobs;
use super::reply::{Reply, Shape};
use super::wire::Wire;
use crate::completion::TextToken;
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::blocking;
use crate::server::generation::{
    check_top_logprobs, Answer, End, PlainText, Prompt, SamplingFields, Writer,
};
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::json::from_value;
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

pub async fn create(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ApiError> {
    let sampling: SamplingFields = from_value(&body)?;
    let fields: CompletionFields = from_value(&body)?;
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let reply = blocking(move || {
        let prompts = fields.prompts(&model, &sampling)?;
        Reply::submit(&app, model, &sampling, &prompts)
    });
    reply.await?.respond().await
}

impl CompletionFields {
    /// The prompts, and what stands before the answers to them.
    fn prompts(
        self,
        model: &TextModel,
        sampling: &SamplingFields,
    ) -> Result<Vec<(Prompt, PlainText)>, ApiError> {
        self.check(sampling)?;
        let top_logprobs = self
            .logprobs
            .map(|top| check_top_logprobs("logprobs", top))
            .transpose()?;
        let echo = self.echo.unwrap_or(false);
        let with_echo = |tokens: Vec<u32>| {
            let echo = match echo {
                true => model.tokenizer.decode(&tokens),
                false => String::new(),
            };
            let prompt = Prompt {
                top_logprobs,
                ..Prompt::plain(tokens, sampling)?
            };
            Ok((prompt, PlainText { echo }))
        };
        self.tokens(model)?.into_iter().map(with_echo).collect()
    }

    /// The prompts as tokens.
    fn tokens(self, model: &TextModel) -> Result<Vec<Vec<u32>>, ApiError> {
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

impl Shape for PlainText {
    const ID_PREFIX: &'static str = "cmpl";
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";

    fn choice(wire: &Wire, index: usize, answer: &Answer<Self>) -> Value {
        let text = ("text", json!(answer.whole));
        let logprobs = logprobs::of_text(&wire.model, &answer.tokens, 0);
        wire.choice(index, text, logprobs, &answer.tokens, Some(&answer.end))
    }

    fn writer(wire: &Wire, index: usize) -> impl Writer<Self> {
        ChunkWriter {
            wire,
            index,
            offset: 0,
        }
    }
}

/// Writes the chunks of an answer.
struct ChunkWriter<'a> {
    wire: &'a Wire,
    index: usize,
    /// Characters that were written.
    offset: usize,
}

impl ChunkWriter<'_> {
    fn chunk(&mut self, text: &str, tokens: &[TextToken], end: Option<&End>) -> Vec<Event> {
        let logprobs = logprobs::of_text(&self.wire.model, tokens, self.offset);
        self.offset += text.chars().count();
        let choice = (self.wire).choice(self.index, ("text", json!(text)), logprobs, tokens, end);
        vec![self.wire.chunk(choice, end)]
    }
}

impl Writer<PlainText> for ChunkWriter<'_> {
    fn part(&mut self, part: String, tokens: &[TextToken]) -> Vec<Event> {
        self.chunk(&part, tokens, None)
    }

    fn end(&mut self, end: &End, tokens: &[TextToken]) -> Vec<Event> {
        self.chunk("", tokens, Some(end))
    }
}
