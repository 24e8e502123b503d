//! `POST /v1/rerank` and `/rerank`, in the form of Jina's and Cohere's APIs, or of Text Embeddings Inference (with
//! `texts`, <https://github.com/huggingface/text-embeddings-inference>).

use crate::embedding::Score;
use crate::server::app::App;
use crate::server::error::from_worker;
use axum::extract::State;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;
use uuid::Uuid;
use worker::http::{json, ApiError, JsonBody};

/// Most documents of a request.
const MAX_DOCUMENTS: usize = 2048;

/// The fields of a request for scores.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct RerankFields {
    /// What is asked.
    pub query: Document,
    /// What may answer it.
    pub documents: Option<Vec<Document>>,
    /// The same, for an answer in the form of Text Embeddings Inference: a list of `index` and `score`.
    pub texts: Option<Vec<Document>>,
    /// Whether to give the texts in that form, too.
    pub return_text: Option<bool>,
    /// How many of the best to give; all if absent.
    pub top_n: Option<usize>,
    /// Whether to give the documents' texts, too.
    pub return_documents: Option<bool>,
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// Not possible here: fields of documents other than their text.
    #[serde(default, deserialize_with = "json::value")]
    pub rank_fields: Option<Value>,
    /// Not possible here: scores as they are before they are brought between 0 and 1.
    pub raw_scores: Option<bool>,
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

/// Documents with their scores.
pub struct Ranked<T> {
    /// The documents, in the request's order.
    pub documents: Vec<T>,
    /// Their scores.
    pub scores: Vec<Score>,
    /// Their numbers, the best first.
    pub order: Vec<usize>,
}

impl<T: AsRef<str> + Send + 'static> Ranked<T> {
    /// Scores the documents of a request; `field` is what has them there.
    ///
    /// # Errors
    /// 400 that names the field at fault, 429 if too many requests wait.
    pub async fn new(
        app: &App,
        query: impl AsRef<str> + Send + 'static,
        (field, documents): (&str, Vec<T>),
        top_n: Option<usize>,
    ) -> Result<Self, ApiError> {
        let model = app.reranker()?;
        let count = documents.len();
        if !(1..=MAX_DOCUMENTS).contains(&count) {
            let reason = format!("{field}: {count} of them; 1 to {MAX_DOCUMENTS} are possible");
            return Err(ApiError::field(field, reason));
        }
        if top_n == Some(0) {
            return Err(ApiError::field("top_n", "top_n must be above 0"));
        }
        let compute = move || {
            let scores = model.score(query.as_ref(), &documents);
            let scores = scores.map_err(|e| from_worker(&e))?;
            Ok((documents, scores))
        };
        let (documents, scores) = app.embeddings.run(compute).await?;
        app.note_prompt(scores.iter().map(|score| score.tokens).sum());
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| scores[b].relevance.total_cmp(&scores[a].relevance));
        order.truncate(top_n.unwrap_or(count));
        Ok(Self {
            documents,
            scores,
            order,
        })
    }

    /// Tokens of all documents, each with the query.
    pub fn tokens(&self) -> usize {
        self.scores.iter().map(|score| score.tokens).sum()
    }

    /// The best documents as Jina and Cohere tell them.
    pub fn results(&self, with_documents: bool) -> Vec<Value> {
        let result = |&index: &usize| {
            let score = self.scores[index].relevance;
            let mut result = json!({"index": index, "relevance_score": score});
            if with_documents {
                result["document"] = json!({"text": self.documents[index].as_ref()});
            }
            result
        };
        self.order.iter().map(result).collect()
    }

    /// What Cohere tells of a request besides, in a version of its API.
    pub fn meta(&self, version: &str) -> Value {
        /// Documents of what Cohere counts as one search.
        const SEARCH: usize = 100;
        json!({
            "api_version": {"version": version},
            "billed_units": {"search_units": self.documents.len().div_ceil(SEARCH)},
            "tokens": {"input_tokens": self.tokens()},
        })
    }
}

pub async fn create(
    State(app): State<Arc<App>>,
    JsonBody(fields): JsonBody<RerankFields>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(fields.model.as_deref())?;
    if fields.rank_fields.is_some_and(|fields| !fields.is_null()) {
        let reason = "rank_fields: documents are texts, or objects with a text";
        return Err(ApiError::field("rank_fields", reason));
    }
    if fields.raw_scores == Some(true) {
        let reason = "raw_scores: scores are told between 0 and 1 only";
        return Err(ApiError::field("raw_scores", reason));
    }
    let (documents, of_tei) = match (fields.documents, fields.texts) {
        (Some(documents), None) => (("documents", documents), false),
        (None, Some(texts)) => (("texts", texts), true),
        _ => {
            let reason = "either documents or texts are needed";
            return Err(ApiError::field("documents", reason));
        }
    };
    let ranked = Ranked::new(&app, fields.query, documents, fields.top_n).await?;
    if of_tei {
        let of_text = |&index: &usize| {
            let mut result = json!({"index": index, "score": ranked.scores[index].relevance});
            if fields.return_text == Some(true) {
                result["text"] = json!(ranked.documents[index].as_ref());
            }
            result
        };
        return Ok(Json(ranked.order.iter().map(of_text).collect()));
    }
    let tokens = ranked.tokens();
    Ok(Json(json!({
        "id": Uuid::new_v4().to_string(),
        "object": "list",
        "model": app.options.model,
        "results": ranked.results(fields.return_documents.unwrap_or(false)),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": ranked.meta("1"),
    })))
}
