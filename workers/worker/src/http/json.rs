//! A request body that is JSON, or an error that says where it is not.
//!
//! What a client sends must not take much more memory than it has bytes. So fields are read straight into their types,
//! and fields that no type has are skipped; what stays JSON, such as messages, is read by [`value`] and its sisters,
//! which take [`MAX_VALUES`] values and no more. Bodies that are held at once have a bound together, and long ones are
//! read off the threads that serve.

use super::body::TooSlow;
use super::error::QUEUE_FULL;
use super::{blocking, ApiError};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::RequestExt;
use futures_core::Stream;
use http_body_util::LengthLimitError;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::cell::Cell;
use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Most values of a body that stay JSON: objects, lists, and what is in them. An object takes some 500 bytes.
pub const MAX_VALUES: usize = 100_000;
/// A longer body is read on a thread of its own, …
const LONG_BODY: usize = 64 << 10;
/// … of which so many run at once.
static READERS: Semaphore = Semaphore::const_new(2);
/// Bytes that all bodies may hold together; one alone may hold more.
const MAX_HELD: usize = 256 << 20;

/// A body as `T`.
///
/// Refuses a body that says to be anything but JSON: a browser sends `text/plain` and forms across origins without
/// asking first, so a page elsewhere could set the worker to work. One that does not say what it is comes from no
/// browser, or is refused, too.
#[derive(Debug, Clone)]
pub struct JsonBody<T>(pub T);

impl<T: FromJson + Send + 'static, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        check_type(request.headers())?;
        let (bytes, held) = read(request).await?;
        if bytes.len() <= LONG_BODY {
            return T::from_json(&bytes).map(Self);
        }
        let turn = READERS.acquire().await;
        let turn = turn.map_err(|_| ApiError::internal("no body is read any more"))?;
        let parsed = blocking(move || {
            let parsed = T::from_json(&bytes);
            drop((bytes, held));
            parsed
        });
        let parsed = parsed.await?;
        drop(turn);
        parsed.map(Self)
    }
}

/// What can be read from a body: a type, or two whose fields are side by side.
pub trait FromJson: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// 400 that names field, line and column.
    fn from_json(bytes: &[u8]) -> Result<Self, ApiError>;
}

impl<T: DeserializeOwned> FromJson for T {
    fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        parse(bytes)
    }
}

/// Two types whose fields are side by side in one body.
#[derive(Debug, Clone)]
pub struct Both<A, B>(pub A, pub B);

impl<A: DeserializeOwned, B: DeserializeOwned> FromJson for Both<A, B> {
    fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        Ok(Self(parse(bytes)?, parse(bytes)?))
    }
}

/// One of two types; which one, the first one tells by its fields.
#[derive(Debug, Clone)]
pub enum Either<A, B> {
    /// The first.
    First(A),
    /// The second.
    Second(B),
}

/// A type that tells whether a body was meant for it.
pub trait Meant {
    /// Whether it has a field by which bodies are known to be of this type.
    fn is_meant(&self) -> bool;
}

impl<A: DeserializeOwned + Meant, B: DeserializeOwned> FromJson for Either<A, B> {
    fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        let first: A = parse(bytes)?;
        match first.is_meant() {
            true => Ok(Self::First(first)),
            false => parse(bytes).map(Self::Second),
        }
    }
}

/// Refuses a body that is not said to be JSON.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_json = match headers.get(CONTENT_TYPE) {
        Some(found) => is_json(found.as_bytes()),
        // Browsers send these with every body.
        None => {
            !headers.contains_key(ORIGIN)
                && !headers
                    .keys()
                    .any(|name| name.as_str().starts_with("sec-fetch-"))
        }
    };
    match is_json {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            super::error::INVALID_REQUEST,
            "the body must be JSON: send the header Content-Type: application/json",
        )),
    }
}

/// Bytes of bodies that are held until they are parsed.
pub(crate) struct Held(usize);

static HELD: AtomicUsize = AtomicUsize::new(0);

impl Held {
    fn add(&mut self, bytes: usize) -> Result<(), ApiError> {
        let all = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0 += bytes;
        if all <= MAX_HELD || all == self.0 {
            return Ok(());
        }
        Err(ApiError {
            retry_after: Some(Duration::from_secs(1)),
            ..ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                QUEUE_FULL,
                format!(
                    "the bodies of all requests take more than {MAX_HELD} bytes; try again soon"
                ),
            )
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A body's bytes, and their part of what all bodies may hold.
///
/// # Errors
/// 413 for one that is too long, 408 for one that comes too slowly, 429 while others hold too much.
pub(crate) async fn read(request: Request) -> Result<(Vec<u8>, Held), ApiError> {
    let mut held = Held(0);
    let mut bytes = Vec::new();
    let mut parts = request.with_limited_body().into_body().into_data_stream();
    while let Some(part) = poll_fn(|context| Pin::new(&mut parts).poll_next(context)).await {
        let part = part.map_err(|error| unreadable(&error))?;
        held.add(part.len())?;
        bytes.extend_from_slice(&part);
    }
    Ok((bytes, held))
}

/// Why a body could not be read.
fn unreadable(error: &(dyn StdError + 'static)) -> ApiError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            let text = "the body is longer than --max-body-bytes allows";
            return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", text);
        }
        if error.is::<TooSlow>() {
            return ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                "BODY_TOO_SLOW",
                error.to_string(),
            );
        }
        cause = error.source();
    }
    ApiError::invalid(format!("the body could not be read: {error}"))
}

thread_local! {
    /// Values that the body in hand may still have.
    static LEFT: Cell<usize> = const { Cell::new(MAX_VALUES) };
}

/// JSON that counts against [`MAX_VALUES`].
struct Bounded(Value);

impl<'de> Deserialize<'de> for Bounded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BoundedSeed.deserialize(deserializer).map(Self)
    }
}

/// An object of any JSON, which counts against [`MAX_VALUES`].
#[derive(Debug, Clone)]
pub struct Object(pub Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match BoundedSeed.deserialize(deserializer)? {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(D::Error::custom("invalid type, expected an object")),
        }
    }
}

#[derive(Clone, Copy)]
struct BoundedSeed;

impl<'de> DeserializeSeed<'de> for BoundedSeed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = LEFT.get().checked_sub(1);
        LEFT.set(left.ok_or_else(|| {
            D::Error::custom(format!(
                "the body has more than {MAX_VALUES} values in messages, tools, schemas and the like"
            ))
        })?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedSeed {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            values.insert(name, map.next_value_seed(self)?);
        }
        Ok(Value::Object(values))
    }
}

/// For `deserialize_with`: JSON within [`MAX_VALUES`], or nothing.
///
/// # Errors
/// The deserializer's, and too many values.
pub fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let read = Option::<Bounded>::deserialize(deserializer)?;
    Ok(read.map(|Bounded(value)| value))
}

/// For `deserialize_with`: a list of JSON within [`MAX_VALUES`].
///
/// # Errors
/// The deserializer's, and too many values.
pub fn values<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Value>, D::Error> {
    let read = Vec::<Bounded>::deserialize(deserializer)?;
    Ok(read.into_iter().map(|Bounded(value)| value).collect())
}

/// For `deserialize_with`: a list of JSON within [`MAX_VALUES`], or nothing.
///
/// # Errors
/// The deserializer's, and too many values.
pub fn optional_values<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Value>>, D::Error> {
    let read = Option::<Vec<Bounded>>::deserialize(deserializer)?;
    Ok(read.map(|read| read.into_iter().map(|Bounded(value)| value).collect()))
}

/// For `deserialize_with`: a JSON object within [`MAX_VALUES`], or nothing.
///
/// # Errors
/// The deserializer's, and too many values.
pub fn optional_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    let read = Option::<Object>::deserialize(deserializer)?;
    Ok(read.map(|Object(map)| map))
}

/// JSON as `T`; the error names field, line and column.
///
/// # Errors
/// 400.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    LEFT.set(MAX_VALUES);
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
    fn a_body_is_of_the_type_that_it_was_meant_for() {
        #[derive(Debug, serde::Deserialize)]
        struct Texts {
            texts: Option<Vec<String>>,
        }
        impl Meant for Texts {
            fn is_meant(&self) -> bool {
                self.texts.is_some()
            }
        }
        let read = |text: &str| Either::<Texts, Body>::from_json(text.as_bytes());
        let first = read(r#"{"texts": ["a"], "sizes": []}"#).unwrap();
        assert!(
            matches!(first, Either::First(first) if first.texts.as_deref() == Some(&["a".to_string()]))
        );
        let second = read(r#"{"sizes": [7]}"#).unwrap();
        assert!(matches!(second, Either::Second(second) if second.sizes == [7]));
        assert_eq!(read("{}").unwrap_err().status, StatusCode::BAD_REQUEST);
        let error = read(r#"{"texts": [1], "sizes": []}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("texts[0]"));
    }

    #[derive(Debug, serde::Deserialize)]
    struct Free {
        #[serde(default, deserialize_with = "value")]
        any: Option<Value>,
        #[serde(default, deserialize_with = "optional_map")]
        map: Option<Map<String, Value>>,
        #[serde(default, deserialize_with = "values")]
        list: Vec<Value>,
    }

    #[test]
    fn json_stays_what_it_was() {
        let json = serde_json::json!({
            "any": [null, true, -1, 18446744073709551615u64, 1.5, "é\n", {"b": [], "a": {}}],
            "map": {"z": 1, "a": [2]},
            "list": [{"role": "user"}, 3],
            "unknown": {"any": 1},
        });
        let free: Free = parse(json.to_string().as_bytes()).unwrap();
        assert_eq!(free.any.unwrap(), json["any"]);
        assert_eq!(Value::Object(free.map.unwrap()), json["map"]);
        assert_eq!(Value::Array(free.list), json["list"]);
        let none: Free = parse(br#"{"any": null, "map": null}"#).unwrap();
        assert!(none.any.is_none() && none.map.is_none());
        let error = parse::<Free>(br#"{"map": [1]}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("map"));
        let error = parse::<Free>(br#"{"any": [1, {"b": nope}]}"#).unwrap_err();
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn values_are_counted_over_all_fields() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        let half = list(MAX_VALUES / 2 - 1);
        let most = format!(r#"{{"any": {half}, "list": {half}}}"#);
        parse::<Free>(most.as_bytes()).unwrap();
        // What nobody asks for does not count.
        let ignored = format!(
            r#"{{"zz": {}, "any": {half}, "list": {half}}}"#,
            list(2 * MAX_VALUES)
        );
        parse::<Free>(ignored.as_bytes()).unwrap();
        for (field, text) in [
            ("any", list(MAX_VALUES + 1)),
            ("list", list(MAX_VALUES + 1)),
            ("map", format!(r#"{{"a": {}}}"#, list(MAX_VALUES))),
        ] {
            let body = format!(r#"{{"{field}": {text}}}"#);
            let error = parse::<Free>(body.as_bytes()).unwrap_err();
            assert!(
                error.message.contains("100000 values"),
                "{field}: {}",
                error.message
            );
        }
    }

    #[test]
    fn bodies_have_a_bound_together() {
        let mut alone = Held(0);
        alone.add(MAX_HELD + 1).unwrap();
        let mut second = Held(0);
        assert_eq!(second.add(1).unwrap_err().status, 429);
        drop(alone);
        second.add(1).unwrap();
    }

    #[test]
    fn types_of_bodies() {
        let checked = |lines: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                let name = axum::http::HeaderName::try_from(*name).unwrap();
                headers.insert(name, value.parse().unwrap());
            }
            check_type(&headers).map_err(|error| error.status.as_u16())
        };
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&[("content-type", "application/json")]), Ok(()));
        assert_eq!(checked(&[("content-type", "text/plain")]), Err(415));
        // A browser that does not say what it sends.
        assert_eq!(checked(&[("origin", "http://localhost:8080")]), Err(415));
        assert_eq!(checked(&[("sec-fetch-site", "same-origin")]), Err(415));
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
