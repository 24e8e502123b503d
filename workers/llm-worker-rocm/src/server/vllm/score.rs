//! `POST /v1/score` and `/score`: how well texts go together, by a model that scores documents.

use crate::server::openai::rerank::Ranked;
use crate::server::openai::text::Inputs;
use crate::server::Shared;
use axum::extract::State;
use axum::Json;
use chrono::Utc;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use uuid::Uuid;
use worker::http::{ApiError, JsonBody};

/// The fields of a request for scores.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ScoreFields {
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// The query.
    #[serde(alias = "queries")]
    pub text_1: String,
    /// A document, or several.
    #[serde(alias = "documents")]
    pub text_2: Inputs,
}

pub(in crate::server) async fn score(
    State(app): Shared,
    JsonBody(fields): JsonBody<ScoreFields>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(fields.model.as_deref())?;
    let documents = match fields.text_2 {
        Inputs::Text(text) => vec![text],
        Inputs::Texts(texts) => texts,
        Inputs::Tokens(_) | Inputs::TokenLists(_) => {
            return Err(ApiError::field("text_2", "text_2 takes texts, not tokens"))
        }
    };
    let ranked = Ranked::new(&app, fields.text_1, ("text_2", documents), None).await?;
    let scores = ranked.scores.iter().enumerate();
    let data: Value = scores
        .map(|(index, score)| json!({"index": index, "object": "score", "score": score.relevance}))
        .collect();
    let tokens = ranked.tokens();
    Ok(Json(json!({
        "id": format!("score-{}", Uuid::new_v4().simple()),
        "object": "list",
        "created": Utc::now().timestamp(),
        "model": app.options.model,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}
