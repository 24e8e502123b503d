//! Which model a request names.

use super::options::Span;
use crate::http::{blocking, json, ApiError};
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A longer body is read on a thread of its own.
const LONG_BODY: usize = 1 << 20;
/// Longest name; longer ones are no model's.
const LONGEST: usize = 1 << 10;

/// What a request says about the model that is to answer it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Named {
    /// Its name, if there is one.
    pub(super) model: Option<String>,
    /// Whether it may be loaded for this.
    pub(super) autoload: Option<bool>,
    /// How long it is to stay loaded, as Ollama has it.
    pub(super) keep_alive: Option<Span>,
}

impl Named {
    /// Reads it from a request whose body is there: the query comes first, then JSON or a form.
    ///
    /// # Errors
    /// 400 for JSON that is none, or a `keep_alive` that is no time.
    pub(super) async fn read(parts: &Parts, body: &Bytes) -> Result<Self, ApiError> {
        let mut named = Self::of_query(parts.uri.query().unwrap_or_default());
        let kind = parts
            .headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok());
        let fields = match kind.and_then(|kind| multer::parse_boundary(kind).ok()) {
            Some(boundary) => Self::of_form(body.clone(), boundary).await,
            None if body.trim_ascii_start().starts_with(b"{") => {
                let body = body.clone();
                match body.len() > LONG_BODY {
                    true => blocking(move || Self::of_json(&body)).await??,
                    false => Self::of_json(&body)?,
                }
            }
            None => Self::default(),
        };
        named.model = named.model.or(fields.model);
        named.keep_alive = fields.keep_alive;
        named.model = named
            .model
            .filter(|model| model.len() <= LONGEST || model.is_empty());
        Ok(named)
    }

    fn of_query(query: &str) -> Self {
        let mut named = Self::default();
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "model" => named.model = Some(value.into_owned()),
                "autoload" => named.autoload = Some(["1", "true"].contains(&&*value)),
                _ => {}
            }
        }
        named
    }

    fn of_json(bytes: &[u8]) -> Result<Self, ApiError> {
        let fields: Fields = json::parse(bytes)?;
        let overridden = fields.override_settings.sd_model_checkpoint.text();
        let model = fields.model.text().or(fields.name.text()).or(overridden);
        let keep_alive = match fields.keep_alive {
            Scalar::Text(text) => {
                let refuse =
                    |reason| ApiError::field("keep_alive", format!("keep_alive: {reason}"));
                Some(text.parse().map_err(refuse)?)
            }
            Scalar::Number(seconds) => Span::of_seconds(seconds),
            Scalar::Other => None,
        };
        Ok(Self {
            model,
            keep_alive,
            autoload: None,
        })
    }

    /// The field `model` of a form, wherever it stands; a form that is none is for the model's process to refuse.
    async fn of_form(body: Bytes, boundary: String) -> Self {
        let mut form = multer::Multipart::new(Body::from(body).into_data_stream(), boundary);
        let mut named = Self::default();
        while let Ok(Some(field)) = form.next_field().await {
            if field.name() == Some("model") {
                named.model = field.text().await.ok();
                break;
            }
        }
        named
    }
}

/// The fields that matter here; others are skipped, not read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    model: Scalar,
    /// As Ollama's `/api/show` had it.
    name: Scalar,
    keep_alive: Scalar,
    override_settings: Overrides,
}

/// As AUTOMATIC1111's web UI has it.
#[derive(Debug, Default)]
struct Overrides {
    sd_model_checkpoint: Scalar,
}

/// A text, a number, or something else that is skipped.
#[derive(Debug, Default, PartialEq)]
enum Scalar {
    Text(String),
    Number(f64),
    #[default]
    Other,
}

impl Scalar {
    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct OverridesVisitor;

impl<'de> Visitor<'de> for OverridesVisitor {
    type Value = Overrides;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Overrides, E> {
        Ok(Overrides::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Overrides, A::Error> {
        // An empty list is PHP's empty object; what else it is, the model's process says.
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Overrides::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Overrides, A::Error> {
        let mut overrides = Overrides::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "sd_model_checkpoint" => overrides.sd_model_checkpoint = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(overrides)
    }
}

impl<'de> Deserialize<'de> for Overrides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OverridesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    async fn read(path: &str, kind: &str, body: &str) -> Result<Named, ApiError> {
        let request = Request::post(path)
            .header("content-type", kind)
            .body(())
            .unwrap();
        let (parts, ()) = request.into_parts();
        Named::read(&parts, &Bytes::copy_from_slice(body.as_bytes())).await
    }

    async fn model(path: &str, kind: &str, body: &str) -> Option<String> {
        read(path, kind, body).await.unwrap().model
    }

    #[tokio::test]
    async fn names_in_all_places() {
        let json = "application/json";
        for (path, body, expected) in [
            (
                "/x",
                r#" {"messages": [{"model": "no"}], "model": "a"}"#,
                Some("a"),
            ),
            ("/x", r#"{"name": "b"}"#, Some("b")),
            (
                "/x",
                r#"{"override_settings": {"x": [1], "sd_model_checkpoint": "c"}}"#,
                Some("c"),
            ),
            (
                "/x",
                r#"{"model": {"a": 1}, "override_settings": null}"#,
                None,
            ),
            ("/x", r#"[{"model": "a"}]"#, None),
            ("/x", "", None),
            (
                "/x?model=d%2Fe%3AQ8&x=1",
                r#"{"model": "a"}"#,
                Some("d/e:Q8"),
            ),
        ] {
            assert_eq!(
                model(path, json, body).await.as_deref(),
                expected,
                "{path} {body}"
            );
        }
        let form = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\nname=\"model\"\r\n\r\nx\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nf\r\n--B--\r\n";
        assert_eq!(
            model("/x", "multipart/form-data; boundary=B", form)
                .await
                .as_deref(),
            Some("f")
        );
        assert_eq!(
            model("/x", "multipart/form-data; boundary=B", "--B\r\nbroken").await,
            None
        );
    }

    #[tokio::test]
    async fn loading_and_keeping() {
        let named = read(
            "/x?autoload=0",
            "application/json",
            r#"{"keep_alive": "5m"}"#,
        )
        .await
        .unwrap();
        assert_eq!(named.autoload, Some(false));
        assert_eq!(
            named.keep_alive.unwrap().positive(),
            Some(std::time::Duration::from_secs(300))
        );
        let named = read("/x", "application/json", r#"{"keep_alive": -1}"#)
            .await
            .unwrap();
        assert_eq!(named.keep_alive.unwrap().keep_alive(), None);
        let refused = read("/x", "application/json", r#"{"keep_alive": "soon"}"#)
            .await
            .unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.param.as_deref()),
            (400, Some("keep_alive"))
        );
        let refused = read("/x", "application/json", r#"{"model": "#)
            .await
            .unwrap_err();
        assert_eq!(refused.status, 400);
    }
}
