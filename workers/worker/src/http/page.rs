//! Pages for people: files that are built into the programs and need no network but the server.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use std::io::Read;

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

/// A file of a page of several, which was compressed when the program was built.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    /// Its path in the page, whose ending tells its type.
    pub path: &'static str,
    /// Whether `bytes` are compressed; fonts are so by themselves.
    pub is_gzip: bool,
    /// The content.
    pub bytes: &'static [u8],
}

/// How long browsers keep a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// They ask each time whether it is still the same.
    Checked,
    /// For good: its address changes with its content.
    Forever,
}

impl Asset {
    /// The content as it was before the program was built.
    pub fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        match self.is_gzip {
            // Memory to memory, from what the build wrote.
            true => drop(GzDecoder::new(self.bytes).read_to_end(&mut plain)),
            false => plain.extend_from_slice(self.bytes),
        }
        plain
    }

    fn content_type(&self) -> &'static str {
        match self.path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("woff2") => "font/woff2",
            _ => "text/plain; charset=utf-8",
        }
    }
}

/// Answers a request for a file of the page's `version`, compressed where the client takes that, and with 304 where it
/// has the file.
pub fn respond(
    asset: &Asset,
    version: &str,
    policy: &'static str,
    lifetime: Lifetime,
    request: &HeaderMap,
) -> Response {
    let mut headers = HeaderMap::new();
    let mut add = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    add(CONTENT_TYPE, asset.content_type());
    add(CONTENT_SECURITY_POLICY, policy);
    add(X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(REFERRER_POLICY, "no-referrer");
    add(VARY, "accept-encoding");
    add(
        CACHE_CONTROL,
        match lifetime {
            Lifetime::Checked => "no-cache",
            Lifetime::Forever => "public, max-age=31536000, immutable",
        },
    );
    // Weak, as compressed and plain bytes share it.
    let tag = format!("W/\"{version}\"");
    let is_known = values(request, &IF_NONE_MATCH).any(|known| known == "*" || known == tag);
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    if is_known {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    let body = match asset.is_gzip && !takes_gzip(request) {
        true => Body::from(asset.plain()),
        false => Body::from(asset.bytes),
    };
    if asset.is_gzip && takes_gzip(request) {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    (headers, body).into_response()
}

/// The parts of a header that is a list.
fn values<'a>(request: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = request.get_all(name).into_iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',').map(str::trim))
}

fn takes_gzip(request: &HeaderMap) -> bool {
    values(request, &ACCEPT_ENCODING).any(|part| {
        let (coding, weight) = part.split_once(';').unwrap_or((part, "q=1"));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        coding.trim().eq_ignore_ascii_case("gzip") && weight.parse::<f32>().unwrap_or(0.0) > 0.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::write::GzEncoder;
    use flate2::Compression;
    use std::io::Write;

    const TEXT: &[u8] = b"body { color: red }";

    fn asset() -> Asset {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(TEXT).unwrap();
        Asset {
            path: "style/base.css",
            is_gzip: true,
            bytes: encoder.finish().unwrap().leak(),
        }
    }

    async fn ask(lifetime: Lifetime, name: HeaderName, value: &'static str) -> (Response, Vec<u8>) {
        let request = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
        let response = respond(&asset(), "v1", "default-src 'none'", lifetime, &request);
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        (Response::from_parts(parts, Body::empty()), bytes.to_vec())
    }

    #[tokio::test]
    async fn files_are_compressed_for_those_who_take_it() {
        for taken in ["gzip", "br, GZIP;q=0.5", "deflate, gzip;q=1.0, *;q=0"] {
            let (response, bytes) = ask(Lifetime::Forever, ACCEPT_ENCODING, taken).await;
            assert_eq!(response.headers()[CONTENT_ENCODING], "gzip", "{taken}");
            assert_eq!(bytes, asset().bytes, "{taken}");
        }
        for refused in ["", "br", "gzip;q=0", "x-gzip"] {
            let (response, bytes) = ask(Lifetime::Forever, ACCEPT_ENCODING, refused).await;
            assert!(
                !response.headers().contains_key(CONTENT_ENCODING),
                "{refused}"
            );
            assert_eq!(bytes, TEXT, "{refused}");
            assert_eq!(response.headers()[CONTENT_TYPE], "text/css; charset=utf-8");
        }
    }

    #[tokio::test]
    async fn what_a_browser_has_is_not_sent_again() {
        for known in ["W/\"v1\"", "\"x\", W/\"v1\"", "*"] {
            let (response, bytes) = ask(Lifetime::Checked, IF_NONE_MATCH, known).await;
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{known}");
            assert_eq!(response.headers()[ETAG], "W/\"v1\"");
            assert!(bytes.is_empty());
        }
        let (response, bytes) = ask(Lifetime::Checked, IF_NONE_MATCH, "W/\"v0\"").await;
        assert_eq!(
            (response.status(), bytes.as_slice()),
            (StatusCode::OK, TEXT)
        );
        assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
        let (response, _) = ask(Lifetime::Forever, IF_NONE_MATCH, "W/\"v0\"").await;
        assert!(response.headers()[CACHE_CONTROL]
            .to_str()
            .unwrap()
            .contains("immutable"));
    }
}
