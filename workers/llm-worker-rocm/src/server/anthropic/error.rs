//! Errors in Anthropic's form: `{"type": "error", "error": {"type", "message"}}`.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Value};
use worker::http::sse::{self, Encoding, Protocol};
use worker::http::ApiError;

/// An error as Anthropic's clients read it; status and headers are as everywhere.
pub(in crate::server) struct AnthropicError(ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        let body = to_json(&self.0);
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

/// Streams whose end is an event of the answer, and whose errors are events.
pub(in crate::server) const EVENTS: Protocol = Protocol {
    encoding: Encoding::Events,
    failure: |error| sse::named("error", &to_json(error)),
    done: None,
};

fn to_json(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}
