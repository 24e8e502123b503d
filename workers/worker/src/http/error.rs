//! One error type in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use crate::observe::RequestScope;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Value};
use std::time::Duration;

/// An answer that is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// A code for programs, for example `INVALID_REQUEST`.
    pub code: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// The field of the request that is at fault.
    pub param: Option<String>,
    /// When the same request may succeed.
    pub retry_after: Option<Duration>,
    /// Another word for the kind of error than OpenAI's, and further fields, where another API has them.
    pub other: Option<Box<OtherForm>>,
}

/// What another API than OpenAI's says of an error.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherForm {
    /// The kind of error.
    pub kind: &'static str,
    /// Further fields.
    pub fields: Vec<(&'static str, Value)>,
}

/// Code of a request that makes no sense.
pub const INVALID_REQUEST: &str = "INVALID_REQUEST";
/// Code of every request while the model loads.
pub const LOADING: &str = "LOADING";
/// Code of a request that ended, or was not taken, because it or the server is to end.
pub const CANCELLED: &str = "CANCELLED";
/// Code of a full queue.
pub const QUEUE_FULL: &str = "QUEUE_FULL";
/// Code of a request that found no room in the device's memory.
pub const VRAM_OOM: &str = "VRAM_OOM";
/// Code of every request between a crash and the next process that serves.
pub const RESTARTING: &str = "RESTARTING";
/// Code of every request after the device is lost.
pub const DEVICE_LOST: &str = "DEVICE_LOST";

impl ApiError {
    /// An error without field and retry time.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            param: None,
            retry_after: None,
            other: None,
        }
    }

    /// 400 with [`INVALID_REQUEST`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
    }

    /// 400 with [`INVALID_REQUEST`] that names the field at fault.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::invalid(message)
        }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    /// 503: not now, for a reason outside of the request.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", message)
    }

    /// The word for the kind of error, mostly OpenAI's.
    pub fn kind(&self) -> &'static str {
        if let Some(other) = &self.other {
            return other.kind;
        }
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// Notes for the log and the trace what the current request is answered with. Failures of ours are logged at once,
    /// with their reason.
    pub fn note(&self) {
        RequestScope::note(|figures| figures.error = Some(self.code));
        let is_ours = self.status == StatusCode::INTERNAL_SERVER_ERROR
            || [VRAM_OOM, DEVICE_LOST].contains(&self.code);
        if is_ours {
            tracing::warn!(code = self.code, "the request failed: {}", self.message);
        }
    }

    /// The body.
    pub fn to_json(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        });
        for (name, value) in self.other.iter().flat_map(|other| &other.fields) {
            error[*name] = value.clone();
        }
        json!({"error": error})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.note();
        let mut response = (self.status, Json(self.to_json())).into_response();
        if let Some(wait) = self.retry_after {
            // The header takes whole seconds; 0 would invite a busy loop.
            let seconds = wait.as_millis().div_ceil(1000).max(1) as u64;
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
