//! Errors in Cohere's form: `{"id", "message"}`.

use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::json;
use uuid::Uuid;
use worker::http::ApiError;

/// An error as Cohere's clients read it; status and headers are as everywhere.
pub(in crate::server) struct CohereError(ApiError);

impl From<ApiError> for CohereError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for CohereError {
    fn into_response(self) -> Response {
        let body = json!({"id": Uuid::new_v4().to_string(), "message": self.0.message});
        let headers = self.0.clone().into_response().headers().clone();
        let mut response = (self.0.status, Json(body)).into_response();
        for (name, value) in &headers {
            if !response.headers().contains_key(name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }
}
