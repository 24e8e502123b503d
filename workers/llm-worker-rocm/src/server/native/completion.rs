//! `POST /completion`

use super::reply::PROTOCOL;
use super::request::{NativeFields, Understood};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::blocking;
use crate::server::generation::{Answers, SamplingFields};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::Json;
use std::sync::Arc;
use worker::http::sse;
use worker::http::{ApiError, Both, Caller, JsonBody};

pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(Both(sampling, mut fields)): JsonBody<Both<SamplingFields, NativeFields>>,
) -> Result<Response, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let prompts = fields.prompt.take();
    let prompts = prompts.ok_or_else(|| ApiError::field("prompt", "prompt is missing"))?;
    let (of_prompts, of_app) = (model.clone(), app.clone());
    let understood = blocking(move || {
        let all = prompts.all.iter();
        let tokens = all.map(|prompt| prompt.tokens(&of_prompts, true));
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        fields.understand(&of_app, &of_prompts, sampling, tokens, prompts.is_list)
    });
    answer(&app, &model, understood.await?, caller).await
}

/// Answers a request, whole or as it comes.
///
/// # Errors
/// The engine's refusal; what a whole answer failed with.
pub async fn answer(
    app: &Arc<App>,
    model: &Arc<TextModel>,
    understood: Understood,
    caller: Caller,
) -> Result<Response, ApiError> {
    let Understood {
        sampling,
        prompts,
        mut replies,
    } = understood;
    let stream = sampling.stream();
    let answers = Answers::submit(app, model, sampling, prompts, caller).await?;
    replies.seed = answers.seed;
    if !stream {
        let (answers, _) = answers.collect().await?;
        return Ok(Json(replies.whole(&answers)).into_response());
    }
    Ok(sse::stream(PROTOCOL, |frames| async move {
        answers
            .stream(&frames, |index| replies.writer(index))
            .await?;
        Ok(())
    }))
}
