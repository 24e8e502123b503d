//! Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`, onto chats as all APIs have them.
//!
//! | Module    | Gives                                                     |
//! |-----------|-----------------------------------------------------------|
//! | `request` | a request's fields as those of a chat                     |
//! | `blocks`  | content blocks of messages as parts, calls and results    |
//! | `reply`   | answers as messages: whole, or as the events of a stream  |
//! | [`batches`] | batches of messages                                     |
//! | `error`   | errors in Anthropic's form                                |

pub(super) mod batches;
mod blocks;
mod error;
mod reply;
mod request;

pub use request::MessageFields;

use super::app::App;
use super::error::blocking;
use super::generation::{Answers, SamplingFields};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::Json;
use error::AnthropicError;
pub(super) use error::EVENTS;
use reply::MessageWriter;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::{sse, ApiError, Both, Caller, JsonBody};

/// An error in Anthropic's form.
pub(super) fn refusal(error: ApiError) -> Response {
    AnthropicError::from(error).into_response()
}

type Body = JsonBody<Both<SamplingFields, MessageFields>>;

/// `POST /v1/messages`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Result<Body, ApiError>,
) -> Result<Response, AnthropicError> {
    let JsonBody(Both(sampling, fields)) = body?;
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let of_prompt = model.clone();
    let (prompt, sampling) = blocking(move || {
        let sampling = fields.sampling(sampling)?;
        let prompt = fields.into_chat()?.prompt(&of_prompt, &sampling)?;
        Ok((prompt, sampling))
    })
    .await?;
    let stream = sampling.stream();
    let writer = MessageWriter::new(&app.options.model, prompt.0.tokens.len());
    let answers = Answers::submit(&app, &model, sampling, vec![prompt], caller).await?;
    if stream {
        return Ok(sse::stream(EVENTS, |frames| async move {
            answers.stream(&frames, |_| writer.clone()).await?;
            Ok(())
        }));
    }
    let answer = answers.collect_one().await?;
    Ok(Json(writer.whole(&answer)).into_response())
}

/// `POST /v1/messages/count_tokens`
pub(super) async fn count_tokens(
    State(app): State<Arc<App>>,
    body: Result<Body, ApiError>,
) -> Result<Json<Value>, AnthropicError> {
    let JsonBody(Both(sampling, fields)) = body?;
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let (prompt, _) = blocking(move || {
        let sampling = fields.sampling(sampling)?;
        fields.into_chat()?.prompt(&model, &sampling)
    })
    .await?;
    Ok(Json(json!({"input_tokens": prompt.tokens.len()})))
}
