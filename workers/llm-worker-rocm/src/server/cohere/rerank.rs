//! `POST /v2/rerank`

use super::error::CohereError;
use crate::server::openai::rerank::Ranked;
use crate::server::Shared;
use axum::extract::State;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use uuid::Uuid;
use worker::http::{ApiError, JsonBody};

/// The fields of a request for scores.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct RerankFields {
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// What is asked.
    pub query: String,
    /// What may answer it.
    pub documents: Vec<String>,
    /// How many of the best to give; all if absent.
    pub top_n: Option<usize>,
    /// Not possible here: documents are cut where the model's context ends.
    pub max_tokens_per_doc: Option<usize>,
}

pub(in crate::server) async fn rerank(
    State(app): Shared,
    body: Result<JsonBody<RerankFields>, ApiError>,
) -> Result<Json<Value>, CohereError> {
    let JsonBody(fields) = body?;
    app.check_model(fields.model.as_deref())?;
    if fields.max_tokens_per_doc.is_some() {
        let reason = "max_tokens_per_doc: documents are cut only where the model's context ends";
        return Err(ApiError::field("max_tokens_per_doc", reason).into());
    }
    let documents = ("documents", fields.documents);
    let ranked = Ranked::new(&app, fields.query, documents, fields.top_n).await?;
    Ok(Json(json!({
        "id": Uuid::new_v4().to_string(),
        "results": ranked.results(false),
        "meta": ranked.meta("2"),
    })))
}
