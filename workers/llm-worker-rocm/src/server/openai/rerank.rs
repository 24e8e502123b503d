//! `POST /v1/rerank` and `/rerank`, in the form of Jina's and Cohere's APIs.

use crate::server::app::App;
use crate::server::error::from_worker;
use axum::extract::State;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::{ApiError, JsonBody};

/// Most documents of a request.
const MAX_DOCUMENTS: usize = 2048;

/// The fields of a request for scores.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct RerankFields {
    /// What is asked.
    pub query: String,
    /// What may answer it.
    pub documents: Option<Vec<Document>>,
    /// The same, for an answer in the form of Hugging Face's text-embeddings-inference: a list of `index` and `score`.
    pub texts: Option<Vec<Document>>,
    /// Whether to give the texts in that form, too.
    #[serde(default)]
    pub return_text: bool,
    /// How many of the best to give; all if absent.
    pub top_n: Option<usize>,
    /// Whether to give the documents' texts, too.
    #[serde(default)]
    pub return_documents: bool,
    /// The model's name; may be left out.
    pub model: Option<String>,
}

/// A document, as a text or an object with one.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Document {
    /// The text.
    Text(String),
    /// An object with it.
    Object {
        /// The text.
        text: String,
    },
}

impl AsRef<str> for Document {
    fn as_ref(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

pub async fn create(
    State(app): State<Arc<App>>,
    JsonBody(mut fields): JsonBody<RerankFields>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(fields.model.as_deref())?;
    let model = app.reranker()?;
    let (documents, of_tei) = match (fields.documents.take(), fields.texts.take()) {
        (Some(documents), None) => (documents, false),
        (None, Some(texts)) => (texts, true),
        _ => {
            return Err(ApiError::field(
                "documents",
                "either documents or texts are needed",
            ))
        }
    };
    let count = documents.len();
    if !(1..=MAX_DOCUMENTS).contains(&count) {
        let reason = format!("documents: {count} of them; 1 to {MAX_DOCUMENTS} are possible");
        return Err(ApiError::field("documents", reason));
    }
    if fields.top_n == Some(0) {
        return Err(ApiError::field(
            "top_n",
            "top_n must be above 0".to_string(),
        ));
    }
    let compute = move || {
        let scores = model.score(&fields.query, &documents);
        scores
            .map(|scores| (fields, documents, scores))
            .map_err(|e| from_worker(&e))
    };
    let (fields, documents, scores) = app.embeddings.run(compute).await?;
    let tokens: usize = scores.iter().map(|score| score.tokens).sum();
    app.note_prompt(tokens);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| scores[b].relevance.total_cmp(&scores[a].relevance));
    order.truncate(fields.top_n.unwrap_or(count));
    if of_tei {
        let results = order.into_iter().map(|index| {
            let mut result = json!({"index": index, "score": scores[index].relevance});
            if fields.return_text {
                result["text"] = json!(documents[index].as_ref());
            }
            result
        });
        return Ok(Json(results.collect()));
    }
    let results: Vec<Value> = order
        .into_iter()
        .map(|index| {
            let mut result = json!({"index": index, "relevance_score": scores[index].relevance});
            if fields.return_documents {
                result["document"] = json!({"text": documents[index].as_ref()});
            }
            result
        })
        .collect();
    Ok(Json(json!({
        "object": "list",
        "model": app.options.model,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}
