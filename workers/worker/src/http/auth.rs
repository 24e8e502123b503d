//! API keys as a middleware.

use super::ApiError;
use crate::{Error, Result};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use subtle::{ConditionallySelectable, ConstantTimeEq};

/// Another header for the key, as Anthropic's clients and some proxies send it.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Longest file of keys.
const MAX_KEY_FILE: u64 = 1 << 20;

/// Which key a request came with, by a number that a key has whatever the others are; 0 where none is asked for. Handlers
/// take it as an argument.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Caller(pub u64);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> std::result::Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// The keys that open the server; without any it is open to all who reach it.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<[String]>);

impl ApiKeys {
    /// Takes keys, without spaces around them; empty ones count as not given.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        let keys = keys.into_iter().map(|key| key.trim().to_string());
        Self(keys.filter(|key| !key.is_empty()).collect())
    }

    /// For each key its [`Caller`]'s number, and a key made of it for a process that serves on behalf of this one: as
    /// secret as the key itself, and the same each time.
    pub(crate) fn derived(&self) -> Vec<(u64, String)> {
        let derive = |key: &String| {
            let digest = Sha256::digest(format!("of a model's process: {key}"));
            let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            (number_of(key), text)
        };
        self.0.iter().map(derive).collect()
    }

    /// Whether no key is asked for.
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys of a file: one a line, empty lines and those that begin with `#` left out.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file that cannot be read or holds none.
    pub fn read(path: &Path) -> Result<Vec<String>> {
        let bad =
            |reason: String| Error::Usage(format!("--api-key-file {}: {reason}", path.display()));
        let about = std::fs::metadata(path).map_err(|e| bad(e.to_string()))?;
        if !about.is_file() || about.len() > MAX_KEY_FILE {
            return Err(bad(format!("not a file of at most {MAX_KEY_FILE} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        let lines = text.lines().map(str::trim);
        let keys: Vec<String> = lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_string)
            .collect();
        match keys.is_empty() {
            true => Err(bad("there is no key in it".to_string())),
            false => Ok(keys),
        }
    }

    /// Checks a request's headers: `Authorization: Bearer KEY`, `X-Api-Key: KEY`, or `Authorization: Basic …` of a name
    /// and a password, of which the password is the key, or both together as `NAME:PASSWORD`. Gives whose key it is.
    ///
    /// The time taken tells nothing about the keys but their lengths.
    ///
    /// # Errors
    /// 401 with code `MISSING_API_KEY` or `INVALID_API_KEY`.
    pub fn check(&self, headers: &HeaderMap) -> std::result::Result<Caller, ApiError> {
        if self.is_open() {
            return Ok(Caller::default());
        }
        let refuse = |code, message| Err(ApiError::new(StatusCode::UNAUTHORIZED, code, message));
        let pair = headers.get(AUTHORIZATION).and_then(basic);
        let (given, other) = match (headers.get(AUTHORIZATION), headers.get(X_API_KEY)) {
            (Some(given), _) => match &pair {
                Some(pair) => {
                    let colon = pair.iter().position(|byte| *byte == b':');
                    (&pair[..], colon.map_or(&[][..], |at| &pair[at + 1..]))
                }
                None => (bearer(given.as_bytes()).unwrap_or_default(), &[][..]),
            },
            (None, Some(given)) => (given.as_bytes().trim_ascii(), &[][..]),
            (None, None) => {
                return refuse(
                    "MISSING_API_KEY",
                    "this server asks for a key: send the header Authorization: Bearer KEY",
                )
            }
        };
        // 0 is none of them.
        let mut found = 0u64;
        for (number, key) in (1u64..).zip(self.0.iter()) {
            let is_it = key.as_bytes().ct_eq(given) | key.as_bytes().ct_eq(other);
            found.conditional_assign(&number, is_it);
        }
        match found.checked_sub(1) {
            Some(index) => Ok(Caller(number_of(&self.0[index as usize]))),
            None => refuse("INVALID_API_KEY", "this key is not known here"),
        }
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

/// A key's number, never 0: from it nobody finds a key that is hard to guess.
fn number_of(key: &str) -> u64 {
    let digest = Sha256::digest(key.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(bytes).max(1)
}

/// What follows `Bearer `; the scheme's name has no case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer ";
    let (scheme, key) = header.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then(|| key.trim_ascii())
}

/// Name and password of HTTP's own scheme, with the colon between them.
pub(super) fn basic(header: &HeaderValue) -> Option<Vec<u8>> {
    const SCHEME: &[u8] = b"Basic ";
    let (scheme, pair) = header.as_bytes().split_at_checked(SCHEME.len())?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return None;
    }
    STANDARD.decode(pair.trim_ascii()).ok()
}

/// For [`axum::middleware::from_fn_with_state`]: lets a request through if its key is right.
/// Handlers find whose it is as [`Caller`].
pub async fn require_key(
    State(keys): State<ApiKeys>,
    mut request: Request,
    next: Next,
) -> Response {
    match keys.check(request.headers()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
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
        let keys = ApiKeys::new(["one".to_string(), " second".to_string(), " ".to_string()]);
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
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", "second".parse().unwrap());
        let second = keys.check(&headers).unwrap();
        let alone = ApiKeys::new(["second".to_string()]);
        assert_eq!(
            alone.check(&headers),
            Ok(second),
            "it is the same among others"
        );
        assert_ne!(second, Caller::default());
        headers.insert("x-api-key", "third".parse().unwrap());
        assert_eq!(keys.check(&headers).unwrap_err().code, "INVALID_API_KEY");
        // A wrong key beside a right one is a wrong key.
        headers.insert("x-api-key", "second".parse().unwrap());
        headers.insert(AUTHORIZATION, "Bearer third".parse().unwrap());
        assert_eq!(keys.check(&headers).unwrap_err().code, "INVALID_API_KEY");
        assert!(!format!("{keys:?}").contains("one"));
    }

    #[test]
    fn a_key_is_the_password_of_any_name() {
        let keys = ApiKeys::new(["one".to_string(), "ann:two".to_string()]);
        let basic = |pair: &str| {
            let header = format!("basic {}", STANDARD.encode(pair));
            check(&keys, Some(&header))
        };
        for good in ["any:one", ":one", "one", "ann:two"] {
            assert_eq!(basic(good), None, "{good}");
        }
        for bad in ["one:", "any:on", "bob:two", "ann:", "two", "", ":"] {
            assert_eq!(basic(bad), Some("INVALID_API_KEY"), "{bad}");
        }
        assert_eq!(check(&keys, Some("Basic %%")), Some("INVALID_API_KEY"));
    }

    #[test]
    fn keys_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "# people\none\n\n  second \r\n").unwrap();
        assert_eq!(ApiKeys::read(&path).unwrap(), ["one", "second"]);
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(ApiKeys::read(&path)
            .unwrap_err()
            .to_string()
            .contains("no key"));
        for bad in [folder.path(), Path::new("/nowhere/keys")] {
            assert_eq!(ApiKeys::read(bad).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn empty_keys_ask_for_nothing() {
        let keys = ApiKeys::new([String::new()]);
        assert!(keys.is_open());
        assert_eq!(check(&keys, None), None);
    }
}
