//! `POST /predict`: several requests in one, as Google's Vertex AI sends them to containers.
//!
//! See <https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements>; that an instance names its
//! route in `@requestFormat` is llama.cpp's.

use super::completion;
use crate::server::app::App;
use crate::server::openai::{chat, embeddings, rerank, text};
use crate::server::{anthropic, responses};
use axum::body::{to_bytes, Body};
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::header::CONTENT_TYPE;
use axum::http::HeaderValue;
use axum::Json;
use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use worker::http::json;
use worker::http::{ApiError, Caller, JsonBody};

/// Most requests in one.
const MAX_INSTANCES: usize = 64;
/// Longest answer to one of them, in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// Where an instance says which route it is for.
const FORMAT: &str = "@requestFormat";

/// The body of `POST /predict`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct PredictFields {
    /// Bodies of requests, each with the route that it is for in `@requestFormat`: `chatCompletions`, `completions`,
    /// `completion`, `embeddings`, `rerank`, `messages` or `responses`.
    #[serde(deserialize_with = "json::values")]
    pub instances: Vec<Value>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(fields): JsonBody<PredictFields>,
) -> Result<Json<Value>, ApiError> {
    if fields.instances.len() > MAX_INSTANCES {
        let reason = format!("instances: at most {MAX_INSTANCES} are possible");
        return Err(ApiError::field("instances", reason));
    }
    let all = fields.instances.into_iter();
    let predictions = join_all(all.map(|instance| predict(&app, caller, instance))).await;
    // What one of them fails with is told in its place.
    let predictions = predictions
        .into_iter()
        .map(|prediction| prediction.unwrap_or_else(|error| error.to_json()));
    Ok(Json(
        json!({"predictions": predictions.collect::<Vec<_>>()}),
    ))
}

/// The answer to one request.
async fn predict(app: &Arc<App>, caller: Caller, instance: Value) -> Result<Value, ApiError> {
    let mut fields: Map<String, Value> = match instance {
        Value::Object(fields) => fields,
        _ => return Err(ApiError::field("instances", "instances: one is no object")),
    };
    let format = fields.remove(FORMAT);
    if fields.get("stream") == Some(&Value::Bool(true)) {
        let reason = "stream: a prediction is told as a whole; leave it out";
        return Err(ApiError::field("stream", reason));
    }
    let body = serde_json::to_vec(&fields).map_err(|e| ApiError::internal(e.to_string()))?;
    let mut request = Request::new(Body::from(body));
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    request.extensions_mut().insert(caller);
    let app = app.clone();
    let response = match format.as_ref().and_then(Value::as_str) {
        Some("chatCompletions") => Handler::call(chat::create, request, app).await,
        Some("completions") => Handler::call(text::create, request, app).await,
        Some("completion") => Handler::call(completion::create, request, app).await,
        Some("embeddings") => Handler::call(embeddings::create, request, app).await,
        Some("rerank") => Handler::call(rerank::create, request, app).await,
        Some("messages") => Handler::call(anthropic::create, request, app).await,
        Some("responses") => Handler::call(responses::create, request, app).await,
        _ => {
            let reason = format!(
                "{FORMAT} is chatCompletions, completions, completion, embeddings, rerank, messages or responses, not {}",
                format.unwrap_or_default()
            );
            return Err(ApiError::field(FORMAT, reason));
        }
    };
    let body = to_bytes(response.into_body(), MAX_ANSWER).await;
    let bytes = body.map_err(|e| ApiError::internal(e.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|e| ApiError::internal(e.to_string()))
}
