//! What went wrong, for HTTP.

use crate::engine::api::Failure;
use axum::http::StatusCode;
use worker::http::ApiError;

/// Code of a request that found no room in the device's memory.
pub(super) const VRAM_OOM: &str = "VRAM_OOM";
/// Code of a request whose deadline passed.
pub(super) const TIMEOUT: &str = "TIMEOUT";
/// Code of a request that ended because the server does.
pub(super) const CANCELLED: &str = "CANCELLED";
/// Code of a failure on the server's side.
pub(super) const INFERENCE_FAILED: &str = "INFERENCE_FAILED";
/// Code of a prompt that does not fit; OpenAI's spelling, as clients look for it.
pub(super) const TOO_LONG: &str = "context_length_exceeded";
/// Code of a full queue.
pub(super) const QUEUE_FULL: &str = "QUEUE_FULL";
/// Code of every request after the device is lost.
pub(super) const DEVICE_LOST: &str = "DEVICE_LOST";

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
    if let Failure::QueueFull { retry_after, .. } = failure {
        error.retry_after = Some(*retry_after);
    }
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

/// Runs what takes long on a thread where it holds nobody up.
///
/// # Errors
/// Its own, and 500 if it panics.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
        Err(ApiError::internal(format!(
            "the server made a mistake: {e}"
        )))
    })
}
