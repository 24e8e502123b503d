//! Ollama's API, which many desktop programs speak and nothing else: `/api/chat` and its sisters, onto the same chats,
//! texts and vectors.
//!
//! | Module    | Gives                                                       |
//! |-----------|-------------------------------------------------------------|
//! | `request` | a request's fields as those of a chat or a text             |
//! | `reply`   | answers in Ollama's form: whole, or line by line            |
//! | `models`  | what the server has, told as Ollama tells it                |
//! | `embed`   | texts to vectors                                            |
//! | `error`   | errors in Ollama's form                                     |

mod embed;
mod error;
mod models;
mod reply;
mod request;

pub(super) use embed::{embed, embeddings};
pub use embed::{EmbedFields, EmbeddingsFields};
pub use models::ShowFields;
pub(super) use models::{entry, ps, show, tags, version};
pub use request::{ChatFields, GenerateFields};

use super::app::App;
use super::error::blocking;
use super::generation::{Answers, ChatParser, Prompt, SamplingFields};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::Json;
use error::OllamaError;
pub(super) use error::LINES;
use reply::{Form, LineWriter};
use std::sync::Arc;
use worker::http::{sse, ApiError, Caller, JsonBody};

/// The name that this server knows: Ollama's clients add the tag that means the latest.
fn plain_name(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// An error in Ollama's form.
pub(super) fn refusal(error: ApiError) -> Response {
    OllamaError::from(error).into_response()
}

/// `POST /api/chat`
pub(super) async fn chat(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<JsonBody<ChatFields>, ApiError>,
) -> Result<Response, OllamaError> {
    let JsonBody(fields) = body?;
    app.check_model(Some(plain_name(&fields.model)))?;
    let model = app.text()?;
    let writer = LineWriter::new(Form::Chat, &fields.model);
    if fields.messages.is_empty() {
        return Ok(Json(writer.loaded()).into_response());
    }
    let stream = fields.stream.unwrap_or(true);
    let made = blocking(move || {
        let (chat, sampling) = fields.into_chat()?;
        let prompt = chat.prompt(&model, &sampling)?;
        Ok((prompt, sampling))
    });
    answer(&app, made.await?, stream, writer, caller).await
}

/// `POST /api/generate`
pub(super) async fn generate(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<JsonBody<GenerateFields>, ApiError>,
) -> Result<Response, OllamaError> {
    let JsonBody(fields) = body?;
    app.check_model(Some(plain_name(&fields.model)))?;
    let model = app.text()?;
    let writer = LineWriter::new(Form::Generate, &fields.model);
    if fields.prompt.is_empty() {
        return Ok(Json(writer.loaded()).into_response());
    }
    let stream = fields.stream.unwrap_or(true);
    let made = blocking(move || fields.into_prompt(&model));
    answer(&app, made.await?, stream, writer, caller).await
}

async fn answer(
    app: &Arc<App>,
    (prompt, sampling): ((Prompt, ChatParser), SamplingFields),
    stream: bool,
    writer: LineWriter,
    caller: Caller,
) -> Result<Response, OllamaError> {
    let model = app.text()?;
    let answers = Answers::submit(app, &model, sampling, vec![prompt], caller).await?;
    if stream {
        return Ok(sse::stream(LINES, |frames| async move {
            answers.stream(&frames, |_| writer.clone()).await?;
            Ok(())
        }));
    }
    let answer = answers.collect_one().await?;
    Ok(Json(writer.whole(&answer)).into_response())
}
