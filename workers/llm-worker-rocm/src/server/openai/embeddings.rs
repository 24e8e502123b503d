//! `POST /v1/embeddings`

use super::text::Inputs;
use crate::server::app::App;
use crate::server::error::from_worker;
use axum::extract::State;
use axum::Json;
use base64::prelude::{Engine as _, BASE64_STANDARD};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::{ApiError, JsonBody};

/// Most texts of a request, as with OpenAI.
const MAX_INPUTS: usize = 2048;

/// The fields of a request for embeddings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct EmbeddingFields {
    /// The texts.
    pub input: Inputs,
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// `float` (the default) or `base64`: the numbers as bytes, little-endian.
    pub encoding_format: Option<String>,
    /// Length of the vectors; the model's own only.
    pub dimensions: Option<usize>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    JsonBody(fields): JsonBody<EmbeddingFields>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(fields.model.as_deref())?;
    let model = app.embedding()?;
    let base64 = match fields.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let reason = format!("encoding_format is \"float\" or \"base64\", not {other:?}");
            return Err(ApiError::field("encoding_format", reason));
        }
    };
    let own = model.dimensions();
    if let Some(dimensions) = fields.dimensions.filter(|&dimensions| dimensions != own) {
        let reason = format!("dimensions {dimensions}: this model's vectors have {own}");
        return Err(ApiError::field("dimensions", reason));
    }
    let count = match &fields.input {
        Inputs::Text(_) | Inputs::Tokens(_) => 1,
        Inputs::Texts(texts) => texts.len(),
        Inputs::TokenLists(lists) => lists.len(),
    };
    if !(1..=MAX_INPUTS).contains(&count) {
        let reason = format!("input: {count} texts; 1 to {MAX_INPUTS} are possible");
        return Err(ApiError::field("input", reason));
    }
    let compute = move || {
        let embedded = match fields.input {
            Inputs::Text(text) => model.embed(&[text]),
            Inputs::Texts(texts) => model.embed(&texts),
            Inputs::Tokens(tokens) => model.embed_tokens(&[tokens]),
            Inputs::TokenLists(lists) => model.embed_tokens(&lists),
        };
        embedded.map_err(|e| from_worker(&e))
    };
    let embeddings = app.embeddings.run(compute).await?;
    let tokens: usize = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let data: Value = embeddings
        .iter()
        .enumerate()
        .map(|(index, embedding)| {
            let values = match base64 {
                true => json!(to_base64(&embedding.values)),
                false => json!(embedding.values),
            };
            json!({"object": "embedding", "index": index, "embedding": values})
        })
        .collect();
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": app.options.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

fn to_base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    BASE64_STANDARD.encode(bytes)
}
