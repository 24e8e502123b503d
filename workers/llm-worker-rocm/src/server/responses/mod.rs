//! OpenAI's Responses API: `/v1/responses`, onto chats as all APIs have them.
//!
//! | Module    | Gives                                                      |
//! |-----------|------------------------------------------------------------|
//! | `request` | a request's fields as those of a chat                      |
//! | `items`   | items of an input as messages                              |
//! | `reply`   | answers as responses: whole, or as the events of a stream  |
//! | `store`   | responses that later ones go on from                       |

mod items;
mod reply;
mod request;
mod store;

pub use request::ResponseFields;
pub(super) use store::Store;

use super::app::App;
use super::error::blocking;
use super::generation::{Answers, ChatParser, Prompt, SamplingFields};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use reply::ResponseWriter;
use serde_json::{json, Value};
use std::sync::Arc;
use store::Kept;
use worker::http::sse::{self, Encoding, Protocol};
use worker::http::{ApiError, Both, Caller, JsonBody};

/// Streams whose end is an event of the response, and whose errors are events.
pub(super) const EVENTS: Protocol = Protocol {
    encoding: Encoding::Events,
    failure: |error| {
        let told = json!({"type": "error", "code": error.code, "message": error.message, "param": error.param});
        sse::named("error", &told)
    },
    done: None,
};

/// `POST /v1/responses`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, ResponseFields>>,
) -> Result<Response, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let earlier = match &fields.previous_response_id {
        Some(id) => app.responses.find(caller, id)?.messages.clone(),
        None => Vec::new(),
    };
    let of_prompt = model.clone();
    let (prompt, sampling, writer) = blocking({
        let app = app.clone();
        move || {
            let sampling = fields.sampling(sampling)?;
            let own = fields.messages()?;
            let messages = [earlier, own].concat();
            let prompt: (Prompt, ChatParser) = fields
                .chat(messages.clone())?
                .prompt(&of_prompt, &sampling)?;
            let writer = ResponseWriter::new(&app, caller, &fields, messages);
            Ok((prompt, sampling, writer))
        }
    })
    .await?;
    let stream = sampling.stream();
    let answers = Answers::submit(&app, &model, sampling, vec![prompt], caller).await?;
    if stream {
        return Ok(sse::stream(EVENTS, |frames| async move {
            let failed = writer.clone();
            if let Err(error) = answers.stream(&frames, |_| writer.clone()).await {
                frames.send(failed.failed(&error)).await;
            }
            Ok(())
        }));
    }
    let answer = answers.collect_one().await?;
    Ok(Json(writer.whole(&answer)).into_response())
}

/// `POST /v1/responses/input_tokens`
pub(super) async fn input_tokens(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, ResponseFields>>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let earlier = match &fields.previous_response_id {
        Some(id) => app.responses.find(caller, id)?.messages.clone(),
        None => Vec::new(),
    };
    let count = blocking(move || {
        let sampling = fields.sampling(sampling)?;
        let messages = [earlier, fields.messages()?].concat();
        let (prompt, _) = fields.chat(messages)?.prompt(&model, &sampling)?;
        Ok(prompt.tokens.len())
    });
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": count.await?}),
    ))
}

/// `GET /v1/responses/{id}`
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let kept: Arc<Kept> = app.responses.find(caller, &id)?;
    Ok(Json(kept.response.clone()))
}

/// `DELETE /v1/responses/{id}`
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.responses.forget(caller, &id)?;
    Ok(Json(
        json!({"id": id, "object": "response", "deleted": true}),
    ))
}
