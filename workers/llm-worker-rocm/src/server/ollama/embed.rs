//! Texts to vectors in Ollama's two forms.

use super::error::OllamaError;
use super::plain_name;
use crate::server::error::from_worker;
use crate::server::generation::Texts;
use crate::server::Shared;
use axum::extract::State;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::time::Instant;
use worker::http::{ApiError, JsonBody};

/// The fields of texts.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct EmbedFields {
    /// The model's name.
    #[serde(default)]
    pub model: String,
    /// A text or several.
    pub input: Texts,
    /// Length of the vectors, at most the model's own.
    pub dimensions: Option<usize>,
}

/// The fields of a text, in the older form.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct EmbeddingsFields {
    /// The model's name.
    #[serde(default)]
    pub model: String,
    /// The text.
    pub prompt: String,
}

/// `POST /api/embed`
pub(in crate::server) async fn embed(
    state: Shared,
    body: Result<JsonBody<EmbedFields>, ApiError>,
) -> Result<Json<Value>, OllamaError> {
    let JsonBody(fields) = body?;
    let began = Instant::now();
    let texts = fields.input.into_vec();
    let (vectors, tokens) = vectors(&state, &fields.model, texts, fields.dimensions).await?;
    Ok(Json(json!({
        "model": fields.model,
        "embeddings": vectors,
        "total_duration": u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

/// `POST /api/embeddings`
pub(in crate::server) async fn embeddings(
    state: Shared,
    body: Result<JsonBody<EmbeddingsFields>, ApiError>,
) -> Result<Json<Value>, OllamaError> {
    let JsonBody(fields) = body?;
    let (vectors, _) = vectors(&state, &fields.model, vec![fields.prompt], None).await?;
    Ok(Json(json!({"embedding": vectors.first()})))
}

/// Vectors of texts, and how many tokens these have.
async fn vectors(
    State(app): &Shared,
    name: &str,
    texts: Vec<String>,
    dimensions: Option<usize>,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    app.check_model(Some(plain_name(name)))?;
    let model = app.embedding()?;
    let dimensions = model.shortened(dimensions);
    let dimensions = dimensions.map_err(|e| ApiError::field("dimensions", e.to_string()))?;
    if texts.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let embedded = app
        .embeddings
        .run(move || model.embed(&texts).map_err(|e| from_worker(&e)))
        .await?;
    let tokens = embedded.iter().map(|embedding| embedding.tokens).sum();
    let vectors = embedded.into_iter().map(|e| e.cut(dimensions));
    Ok((vectors.collect(), tokens))
}
