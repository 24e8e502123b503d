//! What went wrong, for HTTP.

use crate::engine::api::Failure;
use axum::http::StatusCode;
use serde_json::json;
use worker::http::error::OtherForm;
use worker::http::ApiError;

pub(super) use worker::http::error::{CANCELLED, DEVICE_LOST, QUEUE_FULL, VRAM_OOM};
pub(super) use worker::http::try_blocking as blocking;

/// Code of a request whose deadline passed.
pub(super) const TIMEOUT: &str = "TIMEOUT";
/// Code of a failure on the server's side.
pub(super) const INFERENCE_FAILED: &str = "INFERENCE_FAILED";
/// Code of what this server or model does not do.
pub(super) const NOT_SUPPORTED: &str = "NOT_SUPPORTED";
/// Code of a prompt that does not fit; OpenAI's spelling, as clients look for it.
pub(super) const TOO_LONG: &str = "context_length_exceeded";

/// The engine's failure as an answer.
pub(super) fn from_failure(failure: &Failure) -> ApiError {
    let (status, code) = match failure {
        Failure::Invalid(_) => return ApiError::invalid(failure.to_string()),
        Failure::TooLong { .. } => (StatusCode::BAD_REQUEST, TOO_LONG),
        Failure::QueueFull { .. } => (StatusCode::TOO_MANY_REQUESTS, QUEUE_FULL),
        Failure::Timeout(_) => (StatusCode::GATEWAY_TIMEOUT, TIMEOUT),
        Failure::OutOfMemory(_) => (StatusCode::SERVICE_UNAVAILABLE, VRAM_OOM),
        Failure::DeviceLost(_) => (StatusCode::SERVICE_UNAVAILABLE, DEVICE_LOST),
        Failure::Stopping => (StatusCode::SERVICE_UNAVAILABLE, CANCELLED),
        Failure::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, INFERENCE_FAILED),
    };
    let mut error = ApiError::new(status, code, failure.to_string());
    match failure {
        Failure::QueueFull { retry_after, .. } => error.retry_after = Some(*retry_after),
        // As llama.cpp's server tells it.
        Failure::TooLong { prompt, context } => {
            error.other = Some(Box::new(OtherForm {
                kind: "exceed_context_size_error",
                fields: vec![
                    ("n_prompt_tokens", json!(prompt)),
                    ("n_ctx", json!(context)),
                ],
            }));
        }
        _ => {}
    }
    error
}

/// 501: what this server does not do as it was started, in the form of llama.cpp's server.
pub(super) fn not_supported(message: impl Into<String>) -> ApiError {
    let mut error = ApiError::new(StatusCode::NOT_IMPLEMENTED, NOT_SUPPORTED, message);
    error.other = Some(Box::new(OtherForm {
        kind: "not_supported_error",
        fields: Vec::new(),
    }));
    error
}

/// A worker's error as an answer: a mistake of the client's, or a failure of ours.
pub(super) fn from_worker(error: &worker::Error) -> ApiError {
    match error {
        worker::Error::Usage(text) => ApiError::invalid(text.clone()),
        other => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            INFERENCE_FAILED,
            other.to_string(),
        ),
    }
}
