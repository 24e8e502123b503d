//! Pages for people: files of ours that are built into the programs and need no network but the server.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};

/// A file of a page, under a content security policy.
pub fn file(content_type: &'static str, policy: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The next version of the worker brings another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
