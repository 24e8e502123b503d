//! What the server has, told as Ollama tells it.

use super::error::OllamaError;
use super::plain_name;
use crate::server::Shared;
use axum::extract::State;
use axum::Json;
use chrono::{DateTime, SecondsFormat};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use worker::http::{ApiError, JsonBody};

/// The version whose API this is: clients ask before they use what came later.
const VERSION: &str = "0.12.0";

/// The fields of a question for a model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ShowFields {
    /// The model's name.
    #[serde(alias = "name", default)]
    pub model: String,
}

/// `GET /api/version`
pub(in crate::server) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

/// `GET /api/tags`
pub(in crate::server) async fn tags(State(app): Shared) -> Json<Value> {
    Json(json!({"models": [entry(&app.options.model, 0, app.created)]}))
}

/// `GET /api/ps`
pub(in crate::server) async fn ps(State(app): Shared) -> Json<Value> {
    let running: Vec<Value> = app
        .loaded()
        .iter()
        .map(|_| entry(&app.options.model, 0, app.created))
        .collect();
    Json(json!({"models": running}))
}

/// `POST /api/show`
pub(in crate::server) async fn show(
    State(app): Shared,
    body: Result<JsonBody<ShowFields>, ApiError>,
) -> Result<Json<Value>, OllamaError> {
    let JsonBody(fields) = body?;
    app.check_model(Some(plain_name(&fields.model)))?;
    let loaded = app.loaded().map_err(ApiError::from)?;
    let mut capabilities = Vec::new();
    let (mut template, mut info) = (String::new(), json!({}));
    if let Some(text) = &loaded.text {
        capabilities.extend(["completion", "tools"]);
        if text.pictures().is_ok() {
            capabilities.push("vision");
        }
        if text.format.reasoning.is_some() {
            capabilities.push("thinking");
        }
        template = text.template.source().to_string();
        info = json!({"general.architecture": "llm", "llm.context_length": text.backend.context()});
    }
    if let Some(embedding) = &loaded.embedding {
        capabilities.push("embedding");
        info["llm.embedding_length"] = json!(embedding.dimensions());
    }
    Ok(Json(json!({
        "modelfile": "",
        "parameters": "",
        "template": template,
        "details": details(),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": modified(app.created),
    })))
}

fn modified(created: i64) -> String {
    let started = DateTime::from_timestamp(created, 0).unwrap_or_default();
    started.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// What is not known of a file stays empty.
fn details() -> Value {
    json!({
        "parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "",
        "quantization_level": "",
    })
}

/// A model in a list, which takes so many bytes as far as that is known, of a server that started at `created`.
pub(in crate::server) fn entry(name: &str, bytes: u64, created: i64) -> Value {
    json!({
        "name": name,
        "model": name,
        "modified_at": modified(created),
        "size": bytes,
        "digest": "",
        "details": details(),
    })
}
