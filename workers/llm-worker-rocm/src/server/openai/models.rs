//! `GET /v1/models`

use crate::adapters::AdapterSource;
use crate::server::app::App;
use crate::server::routers;
use axum::extract::{Path, State};
use axum::Json;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::ApiError;

pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let adapters = app.adapters();
    let adapters = adapters.iter().map(|source| adapter(&app, source));
    let models: Vec<Value> = std::iter::once(model(&app)).chain(adapters).collect();
    Json(json!({"object": "list", "data": models, "models": [named(&app)]}))
}

/// The model by the names of llama.cpp's server, some of whose clients look for what it can do.
fn named(app: &App) -> Value {
    let loaded = app.loaded().unwrap_or_default();
    let mut capabilities = Vec::new();
    if let Some(text) = &loaded.text {
        capabilities.push("completion");
        if text.processor.is_ok() {
            capabilities.push("multimodal");
        }
    }
    if loaded.embedding.is_some() {
        capabilities.push("embedding");
    }
    if loaded.reranker.is_some() {
        capabilities.push("rerank");
    }
    let name = &app.options.model;
    json!({"name": name, "model": name, "type": "model", "capabilities": capabilities})
}

pub async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(Some(&id))?;
    Ok(Json(match app.adapter_named(&id) {
        Some((_, source)) => adapter(&app, &source),
        None => model(&app),
    }))
}

/// The model with an adapter, by the adapter's name.
fn adapter(app: &App, source: &AdapterSource) -> Value {
    json!({
        "id": source.name,
        "object": "model",
        "created": app.created,
        "owned_by": "candle-rocm",
        "root": source.path.display().to_string(),
        "parent": app.options.model,
        "permission": permission(app),
    })
}

/// What OpenAI once told of each model, which some clients still look for.
fn permission(app: &App) -> Value {
    json!([{
        "id": "modelperm-0",
        "object": "model_permission",
        "created": app.created,
        "allow_create_engine": false,
        "allow_sampling": true,
        "allow_logprobs": true,
        "allow_search_indices": false,
        "allow_view": true,
        "allow_fine_tuning": false,
        "organization": "*",
        "group": null,
        "is_blocking": false,
    }])
}

/// The model as OpenAI describes one, and what else clients like to know once it is loaded.
fn model(app: &App) -> Value {
    let loaded = app.loaded().unwrap_or_default();
    let root = routers::path(loaded.origin.as_deref());
    let longest = loaded.text.as_ref().map(|text| text.backend.context());
    let longest = longest.or(loaded.embedding.as_ref().map(|model| model.max_tokens()));
    let text = loaded.text.map(|text| {
        let mut fields = json!({
            "n_ctx": text.backend.context(),
            "n_vocab": text.tokenizer.vocab_size(),
        });
        if let Some(split) = &text.split {
            fields["split"] = json!(split);
        }
        fields
    });
    let embedding = loaded.embedding.map(|embedding| {
        json!({
            "dimensions": embedding.dimensions(),
            "max_tokens": embedding.max_tokens(),
        })
    });
    let transcription = loaded
        .transcriber
        .map(|transcriber| json!({"multilingual": transcriber.model().is_multilingual()}));
    json!({
        "id": app.options.model,
        "object": "model",
        "created": app.created,
        "owned_by": "candle-rocm",
        "root": root.unwrap_or_else(|| app.options.model.clone()),
        "parent": null,
        "max_model_len": longest,
        "permission": permission(app),
        "aliases": app.options.aliases,
        "text": text,
        "embedding": embedding,
        "transcription": transcription,
    })
}
