//! A request body that is JSON, or an error that says where it is not.

use super::ApiError;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::StatusCode;
use serde::de::DeserializeOwned;

/// A body as `T`.
///
/// Refuses a body that says to be anything but JSON: a browser sends `text/plain` and forms across origins without
/// asking first, so a page elsewhere could set the worker to work.
#[derive(Debug, Clone)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if let Some(found) = request.headers().get(CONTENT_TYPE) {
            if !is_json(found.as_bytes()) {
                return Err(ApiError::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    super::error::INVALID_REQUEST,
                    "the body must be JSON: send the header Content-Type: application/json",
                ));
            }
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|e| {
            let status = e.status();
            let code = match status {
                StatusCode::PAYLOAD_TOO_LARGE => "BODY_TOO_LARGE",
                _ => super::error::INVALID_REQUEST,
            };
            ApiError::new(status, code, e.body_text())
        })?;
        parse(&bytes).map(Self)
    }
}

/// JSON as `T`; the error names field, line and column.
///
/// # Errors
/// 400.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|e| refuse(&e.path().to_string(), e.inner()))?;
    deserializer
        .end()
        .map_err(|e| ApiError::invalid(format!("the body goes on after its JSON: {e}")))?;
    Ok(value)
}

/// A part of parsed JSON as `T`; the error names the field.
///
/// # Errors
/// 400.
pub fn from_value<T: DeserializeOwned>(value: &serde_json::Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|e| refuse(&e.path().to_string(), e.inner()))
}

fn refuse(path: &str, error: &serde_json::Error) -> ApiError {
    match path {
        "." => ApiError::invalid(format!("the body is not what is expected: {error}")),
        _ => ApiError::field(path, format!("{path}: {error}")),
    }
}

/// `application/json`, `application/problem+json`, with any parameters.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type
        .split(|&b| b == b';')
        .next()
        .unwrap_or_default();
    let essence = essence.trim_ascii().to_ascii_lowercase();
    essence == b"application/json"
        || essence.starts_with(b"application/") && essence.ends_with(b"+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Body {
        #[allow(dead_code)]
        sizes: Vec<u32>,
    }

    #[test]
    fn errors_name_the_place() {
        let error = parse::<Body>(br#"{"sizes": [1, "x"]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("sizes[1]"));
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        for bad in [&b""[..], b"{", b"{}", b"[]", b"{\"sizes\": []} x", b"\xff"] {
            assert_eq!(
                parse::<Body>(bad).unwrap_err().status,
                StatusCode::BAD_REQUEST
            );
        }
        // Deep nesting must not exhaust the stack.
        parse::<serde_json::Value>("[".repeat(1 << 20).as_bytes()).unwrap_err();
    }

    #[test]
    fn content_types() {
        for good in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/a+json",
        ] {
            assert!(is_json(good.as_bytes()), "{good}");
        }
        for bad in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "",
            "application/jsonx",
        ] {
            assert!(!is_json(bad.as_bytes()), "{bad}");
        }
    }
}
