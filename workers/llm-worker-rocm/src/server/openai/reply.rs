//! A request's answers as OpenAI's replies: whole, or as the chunks of a stream.

use super::verbose::Verbose;
use super::wire::{Wire, VERBOSE};
use crate::completion::Finish;
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::generation::{Answer, Answers, Parse, Prompt, SamplingFields, Writer};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::Value;
use std::sync::Arc;
use worker::http::sse::{self, Frames};
use worker::http::{ApiError, Caller};

/// How one of OpenAI's routes shows answers.
pub trait Shape: Parse {
    /// What the ids of its replies begin with.
    const ID_PREFIX: &'static str;
    /// The name of a whole reply's type.
    const OBJECT: &'static str;
    /// The name of a chunk's type.
    const CHUNK_OBJECT: &'static str;

    /// A whole answer as a choice.
    fn choice(wire: &Wire, index: usize, answer: &Answer<Self>) -> Value;

    /// Adds to a whole reply what it tells of its first answer besides.
    fn describe(wire: &Wire, answer: &Answer<Self>, body: &mut Value) {
        let _ = (wire, answer, body);
    }

    /// What writes an answer's chunks.
    fn writer(wire: &Wire, index: usize) -> impl Writer<Self>;
}

/// The reply to a request in the making. Dropping it cancels the request.
pub struct Reply<P> {
    wire: Wire,
    answers: Answers<P>,
    stream: bool,
    /// How many of the answers to each prompt are given, the best ones; all if absent.
    best: Option<usize>,
}

impl<P: Shape> Reply<P> {
    /// Submits a request to the engine.
    ///
    /// # Errors
    /// 400 that names the field at fault; the engine's refusal.
    pub async fn submit(
        app: &Arc<App>,
        model: Arc<TextModel>,
        fields: SamplingFields,
        prompts: Vec<(Prompt, P)>,
        caller: Caller,
    ) -> Result<Self, ApiError> {
        let stream = fields.stream();
        let object = if stream { P::CHUNK_OBJECT } else { P::OBJECT };
        let mut wire = Wire::new(app, model.clone(), &fields, (P::ID_PREFIX, object));
        let all = prompts.iter().map(|(prompt, _)| prompt);
        wire.verbose = Verbose::of(app, &model, &fields, all)?;
        let answers = Answers::submit(app, &model, fields, prompts, caller).await?;
        wire.seed = answers.seed;
        Ok(Self {
            wire,
            answers,
            stream,
            best: None,
        })
    }

    /// Gives only the best `n` answers to each prompt.
    pub fn choosing(self, n: Option<usize>) -> Self {
        Self { best: n, ..self }
    }

    /// The reply, once it is complete or as it comes.
    ///
    /// # Errors
    /// What a whole reply failed with; a stream tells failures itself.
    pub async fn respond(self) -> Result<Response, ApiError> {
        match self.stream {
            true => Ok(sse::stream(sse::OPENAI, |frames| self.stream(frames))),
            false => Ok(Json(self.collect().await?).into_response()),
        }
    }

    async fn collect(self) -> Result<Value, ApiError> {
        let Self {
            wire,
            answers,
            best,
            ..
        } = self;
        let (answers, usage) = match best {
            Some(n) => answers.collect_best(n).await?,
            None => answers.collect().await?,
        };
        let choices = answers.iter().enumerate();
        let choices = choices.map(|(index, answer)| P::choice(&wire, index, answer));
        let first: Option<&Finish> = answers.first().map(|answer| &answer.end.finish);
        let mut body = wire.whole(choices.collect(), &usage, first);
        if let (Some(verbose), Some(first)) = (&wire.verbose, answers.first()) {
            body[VERBOSE] = verbose.json(&wire.model, 0, wire.seed, &first.tokens);
        }
        if let Some(answer) = answers.first() {
            P::describe(&wire, answer, &mut body);
        }
        Ok(body)
    }

    async fn stream(self, frames: Frames) -> Result<(), ApiError> {
        let Self { wire, answers, .. } = self;
        let (usage, first) = answers
            .stream(&frames, |index| P::writer(&wire, index))
            .await?;
        if let Some(chunk) = wire.usage_chunk(&usage, first.as_ref()) {
            frames.send(chunk).await;
        }
        Ok(())
    }
}
