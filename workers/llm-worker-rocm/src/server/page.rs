//! The chat page: static files, built into the program. It needs no network but this server.
//!
//! `page/marked` is marked 18.2.1 (<https://github.com/markedjs/marked>) as its package has it, with its licence; the
//! rest is ours.

use axum::response::Response;
use worker::http::page;

/// Own files only, nothing inline, no frames around the page: what a model writes stays text even if the page had a
/// fault.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn file(content_type: &'static str, text: &'static str) -> Response {
    page::file(content_type, POLICY, text)
}

/// `GET /`
pub(super) async fn index() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// `GET /chat.css`
pub(super) async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("page/chat.css"))
}

/// `GET /chat.js`
pub(super) async fn script() -> Response {
    file(
        "text/javascript; charset=utf-8",
        include_str!("page/chat.js"),
    )
}

/// `GET /marked.js`
pub(super) async fn marked() -> Response {
    file(
        "text/javascript; charset=utf-8",
        include_str!("page/marked/marked.js"),
    )
}

/// `GET /markdown.js`
pub(super) async fn markdown() -> Response {
    file(
        "text/javascript; charset=utf-8",
        include_str!("page/markdown.js"),
    )
}
