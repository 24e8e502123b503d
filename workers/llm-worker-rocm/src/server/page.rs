//! The chat page: static files, built into the program. It needs no network but this server.
//!
//! `page/app` and `page/style` are ours, modules that browsers read as they are; `page/vendor` are libraries as their
//! packages have them, with their licences (`page/vendor/README.md`). `build.rs` compresses all of them into one table.
//! Their addresses carry the version of the page, so that browsers keep them for good and never mix two versions.

use super::Shared;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use worker::http::page::{respond, Asset, Lifetime};
use worker::http::ApiError;

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Own files only, nothing inline, no frames around the page, and no text that becomes HTML (but the names of
/// characters, which `page/app/markdown.js` checks): what a model writes stays text even if the page had a fault.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types characters";

/// `GET /`
pub(super) async fn index(State(app): Shared, headers: HeaderMap) -> Result<Response, ApiError> {
    match app.options.page {
        true => answer("index.html", Lifetime::Checked, &headers),
        false => Err(ApiError::not_found(
            "this worker has no page: it was started with --no-page",
        )),
    }
}

/// `GET /page/{version}/{*file}`
pub(super) async fn file(uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    let path = uri.path().strip_prefix("/page/");
    let (version, file) = path
        .and_then(|path| path.split_once('/'))
        .unwrap_or_default();
    // A page that was loaded before the program was replaced gets what there is now, and asks again next time.
    let lifetime = match version == VERSION {
        true => Lifetime::Forever,
        false => Lifetime::Checked,
    };
    answer(file, lifetime, &headers)
}

fn answer(path: &str, lifetime: Lifetime, headers: &HeaderMap) -> Result<Response, ApiError> {
    let asset = FILES.iter().find(|asset| asset.path == path);
    let asset = asset.ok_or_else(|| ApiError::not_found(format!("the page has no file {path}")))?;
    Ok(respond(asset, VERSION, POLICY, lifetime, headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the page in the program; a download of everything is as large.
    const MOST_BYTES: usize = 700_000;

    #[test]
    fn the_page_is_small_and_refers_to_what_is_there() {
        let size: usize = FILES.iter().map(|asset| asset.bytes.len()).sum();
        assert!(size < MOST_BYTES, "{size} bytes");
        let index = FILES.iter().find(|asset| asset.path == "index.html");
        let index = String::from_utf8(index.unwrap().plain()).unwrap();
        let prefix = format!("page/{VERSION}/");
        let mut count = 0;
        for part in index.split(&prefix).skip(1) {
            let path = part.split('"').next().unwrap();
            assert!(FILES.iter().any(|asset| asset.path == path), "{path}");
            count += 1;
        }
        assert!(count >= 5);
    }

    /// Modules name each other by paths, which nothing else checks.
    #[test]
    fn modules_import_what_is_there() {
        let modules = FILES.iter().filter(|asset| asset.path.starts_with("app/"));
        let mut count = 0;
        for module in modules {
            let text = String::from_utf8(module.plain()).unwrap();
            let pieces = text.split(['"', '\'']);
            let is_path = |name: &&str| {
                (name.starts_with("./") || name.starts_with("../"))
                    && !name.contains(char::is_whitespace)
            };
            for name in pieces.filter(is_path) {
                let path = match name.strip_prefix("./") {
                    Some(name) => format!("app/{name}"),
                    None => name.trim_start_matches("../").to_string(),
                };
                let found = FILES.iter().any(|asset| asset.path == path);
                assert!(found, "{} imports {name}", module.path);
                count += 1;
            }
        }
        assert!(count > 30, "{count}");
    }
}
