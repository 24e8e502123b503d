//! API keys as a middleware.

use super::ApiError;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

/// The keys that open the server; without any it is open to all who reach it.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<[String]>);

impl ApiKeys {
    /// Takes keys; empty ones count as not given.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    /// Whether no key is asked for.
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks a request's headers: `Authorization: Bearer KEY`.
    ///
    /// The time taken tells nothing about the keys but their lengths.
    ///
    /// # Errors
    /// 401 with code `MISSING_API_KEY` or `INVALID_API_KEY`.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.is_open() {
            return Ok(());
        }
        let refuse = |code, message| Err(ApiError::new(StatusCode::UNAUTHORIZED, code, message));
        let Some(given) = headers.get(AUTHORIZATION) else {
            return refuse(
                "MISSING_API_KEY",
                "this server asks for a key: send the header Authorization: Bearer KEY",
            );
        };
        let given = bearer(given.as_bytes()).unwrap_or_default();
        let known = self.0.iter().fold(Choice::from(0), |known, key| {
            known | key.as_bytes().ct_eq(given)
        });
        if bool::from(known) {
            Ok(())
        } else {
            refuse("INVALID_API_KEY", "this key is not known here")
        }
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

/// What follows `Bearer `; the scheme's name has no case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer ";
    let (scheme, key) = header.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then(|| key.trim_ascii())
}

/// For [`axum::middleware::from_fn_with_state`]: lets a request through if its key is right.
pub async fn require_key(State(keys): State<ApiKeys>, request: Request, next: Next) -> Response {
    match keys.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let mut response = error.into_response();
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &ApiKeys, header: Option<&str>) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().unwrap());
        }
        keys.check(&headers).err().map(|error| error.code)
    }

    #[test]
    fn only_whole_keys_open() {
        let keys = ApiKeys::new(["one".to_string(), "second".to_string(), String::new()]);
        for good in ["Bearer one", "bearer second", "BEARER  one "] {
            assert_eq!(check(&keys, Some(good)), None, "{good}");
        }
        for bad in [
            "Bearer on",
            "Bearer onee",
            "Bearer ",
            "Basic one",
            "one",
            "",
        ] {
            assert_eq!(check(&keys, Some(bad)), Some("INVALID_API_KEY"), "{bad}");
        }
        assert_eq!(check(&keys, None), Some("MISSING_API_KEY"));
        assert!(!format!("{keys:?}").contains("one"));
    }

    #[test]
    fn empty_keys_ask_for_nothing() {
        let keys = ApiKeys::new([String::new()]);
        assert!(keys.is_open());
        assert_eq!(check(&keys, None), None);
    }
}
