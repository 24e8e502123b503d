//! Errors in Ollama's form: `{"error": "…"}`.

use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Value};
use worker::http::sse::{self, Encoding, Protocol};
use worker::http::ApiError;

/// An error as Ollama's clients read it.
pub(in crate::server) struct OllamaError(ApiError);

impl From<ApiError> for OllamaError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for OllamaError {
    fn into_response(self) -> Response {
        self.0.note();
        (self.0.status, Json(to_json(&self.0))).into_response()
    }
}

/// Streams of lines, whose last one says that it is.
pub(in crate::server) const LINES: Protocol = Protocol {
    encoding: Encoding::Lines,
    failure: |error| sse::data(&to_json(error)),
    done: None,
};

fn to_json(error: &ApiError) -> Value {
    json!({"error": error.message})
}
