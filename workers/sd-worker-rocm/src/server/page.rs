//! Pages for people: a file each, no network beyond this server.

use super::ImageWorker;
use worker::http::page;
use worker::serve::Route;

const PAGE: &str = include_str!("page.html");
const DOCS: &str = include_str!("docs.html");
/// The page runs its own script and talks to this server only.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' blob: data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

/// The pages' routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    let show = || async { page::file("text/html; charset=utf-8", POLICY, PAGE) };
    let docs = || async { page::file("text/html; charset=utf-8", POLICY, DOCS) };
    vec![
        Route::get("/", "A page for people", show),
        Route::get("/docs", "The routes, for people", docs),
    ]
}
