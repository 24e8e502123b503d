//! Pages for people: files that are built into the program. They need no network but this server.
//!
//! `page` has modules and styles that browsers read as they are; `build.rs` compresses all of them into one table. Their
//! addresses carry the version of the page, so that browsers keep them for good and never mix two versions.

use super::ImageWorker;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use worker::http::page::{self, respond, Asset, Lifetime};
use worker::http::ApiError;
use worker::serve::Route;

include!(concat!(env!("OUT_DIR"), "/page.rs"));

const DOCS: &str = include_str!("docs.html");
/// The page of the routes is one file, with its own script.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' blob: data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";
/// Own files only, nothing inline, no frames around the page, and no text that becomes HTML: prompts and names of files
/// stay text even if the page had a fault.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' blob: data:; img-src 'self' data: blob:; media-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The pages' routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    let docs = || async { page::file("text/html; charset=utf-8", DOCS_POLICY, DOCS) };
    vec![
        Route::get("/", "A page for people", index),
        Route::get("/page/{version}/{*file}", "A file of the page", file),
        Route::get("/docs", "The routes, for people", docs),
    ]
}

async fn index(headers: HeaderMap) -> Result<Response, ApiError> {
    answer("index.html", Lifetime::Checked, &headers)
}

async fn file(uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    let path = uri.path().strip_prefix("/page/").unwrap_or_default();
    let (version, file) = path.split_once('/').unwrap_or_default();
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

    /// Bytes of the page in the program, and of its first download.
    const MOST_BYTES: usize = 150_000;

    fn text(asset: &Asset) -> String {
        String::from_utf8(asset.plain()).unwrap()
    }

    fn exists(path: &str) -> bool {
        FILES.iter().any(|asset| asset.path == path)
    }

    #[test]
    fn the_page_is_small_and_refers_to_what_is_there() {
        let size: usize = FILES.iter().map(|asset| asset.bytes.len()).sum();
        assert!(size < MOST_BYTES, "{size} bytes");
        let index = FILES.iter().find(|asset| asset.path == "index.html");
        let index = text(index.unwrap());
        let prefix = format!("page/{VERSION}/");
        let paths = index.split(&prefix).skip(1);
        let paths: Vec<_> = paths.filter_map(|part| part.split('"').next()).collect();
        assert!(paths.len() >= 3);
        for path in paths {
            assert!(exists(path), "{path}");
        }
    }

    /// Modules name each other by paths, which nothing else checks before a browser reads them.
    #[test]
    fn modules_import_what_is_there() {
        let modules = FILES.iter().filter(|asset| asset.path.ends_with(".js"));
        let mut count = 0;
        for module in modules {
            let text = text(module);
            let lines = text
                .lines()
                .filter(|line| line.starts_with("import ") || line.starts_with("} from"));
            for line in lines {
                let name = line.split('"').nth(1).unwrap();
                let mut folders: Vec<&str> = module.path.split('/').collect();
                folders.pop();
                for part in name.split('/') {
                    match part {
                        "." => {}
                        ".." => drop(folders.pop()),
                        part => folders.push(part),
                    }
                }
                let path = folders.join("/");
                assert!(exists(&path), "{} imports {name}", module.path);
                count += 1;
            }
        }
        assert!(count > 10, "{count}");
    }
}
