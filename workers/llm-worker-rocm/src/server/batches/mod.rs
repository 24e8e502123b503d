//! `/v1/batches`: the requests of a file, answered beside those that somebody waits for.
//!
//! | Module   | Gives                                                          |
//! |----------|----------------------------------------------------------------|
//! | `record` | what is known of a batch, on disk and in OpenAI's form         |
//! | `store`  | the batches, each for those with its key only                  |
//! | `work`   | a batch from its file to its results                           |
//! | `share`  | how much of the engine batches may have                        |

mod record;
mod share;
mod store;
mod work;

pub(super) use record::{Kind, Record, Status};
pub(super) use store::Batches;

use super::error::blocking;
use super::files::Part;
use super::slots::OrEmpty;
use super::Shared;
use crate::batch::line;
use axum::extract::{Path, Query, State};
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;
use worker::http::{json, ApiError, Caller, JsonBody};

/// Longest line in bytes.
pub(super) const MAX_LINE_BYTES: usize = 16 << 20;
/// Most entries of a batch's metadata, and the longest key and value, as with OpenAI.
const METADATA: (usize, usize, usize) = (16, 64, 512);
/// How long a batch may have.
const WINDOWS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);

/// The body of `POST /v1/batches`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct BatchFields {
    /// A file of the purpose `batch`: a request in each line.
    pub input_file_id: String,
    /// The route of all its requests.
    pub endpoint: String,
    /// How long the batch has: a number and `s`, `m`, `h` or `d`, at most `30d`. Usually `24h`.
    pub completion_window: String,
    /// At most 16 texts by their names, kept and told.
    #[serde(default, deserialize_with = "json::optional_map")]
    pub metadata: Option<Map<String, Value>>,
    /// Not supported: when results go by themselves.
    #[serde(default, deserialize_with = "json::value")]
    pub output_expires_after: Option<Value>,
}

/// The body of `POST /v1/batches/{id}/cancel`, which has no fields and may be empty.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct CancelFields {}

/// A time as `24h`.
fn window(text: &str) -> Result<Duration, ApiError> {
    let (digits, unit) = text.split_at(text.len().saturating_sub(1).min(text.len()));
    let unit = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(24 * 3600),
        _ => None,
    };
    let count = digits.parse::<u64>().ok();
    let seconds = unit
        .zip(count)
        .and_then(|(unit, count)| count.checked_mul(unit));
    let time = seconds.map(Duration::from_secs);
    time.filter(|time| WINDOWS.contains(time)).ok_or_else(|| {
        let reason = format!("completion_window {text:?} is no time such as 24h, from 1s to 30d");
        ApiError::field("completion_window", reason)
    })
}

impl BatchFields {
    fn check(&self) -> Result<Duration, ApiError> {
        let time = match self.completion_window.is_ascii() {
            true => window(&self.completion_window)?,
            false => window("")?,
        };
        if !line::urls().any(|url| url == self.endpoint) {
            let all: Vec<&str> = line::urls().collect();
            let reason = format!("endpoint {:?} is none of {}", self.endpoint, all.join(", "));
            return Err(ApiError::field("endpoint", reason));
        }
        if self.output_expires_after.is_some() {
            let reason = "output_expires_after: results stay until they are deleted";
            return Err(ApiError::field("output_expires_after", reason.to_string()));
        }
        let (most, longest_key, longest) = METADATA;
        let metadata = self.metadata.iter().flatten();
        let is_fine = |(key, value): (&String, &Value)| {
            let value = value.as_str().map(|value| value.chars().count());
            key.chars().count() <= longest_key && value.is_some_and(|length| length <= longest)
        };
        let too_many = self.metadata.as_ref().is_some_and(|map| map.len() > most);
        if too_many || !metadata.into_iter().all(is_fine) {
            let reason = format!(
                "metadata: at most {most} texts of {longest} characters by names of {longest_key}"
            );
            return Err(ApiError::field("metadata", reason));
        }
        Ok(time)
    }
}

/// `POST /v1/batches`
pub(super) async fn create(
    State(app): Shared,
    caller: Caller,
    JsonBody(fields): JsonBody<BatchFields>,
) -> Result<Json<Value>, ApiError> {
    let time = fields.check()?;
    let input = (app.files().find(caller, &fields.input_file_id)).map_err(|error| ApiError {
        param: Some("input_file_id".to_string()),
        ..error
    })?;
    if input.purpose != "batch" {
        let reason = format!(
            "input_file_id: the file is for {}, not for batch",
            input.purpose
        );
        return Err(ApiError::field("input_file_id", reason));
    }
    let record = Record::new(Kind::OpenAi, caller, &fields.endpoint, input.id, time);
    let record = Record {
        completion_window: fields.completion_window,
        metadata: fields.metadata,
        ..record
    };
    let started = app.clone();
    let record = blocking(move || started.batches.start(&started, record)).await?;
    Ok(Json(record.to_json()))
}

/// `GET /v1/batches`
pub(super) async fn list(
    State(app): Shared,
    caller: Caller,
    Query(part): Query<Part>,
) -> Result<Json<Value>, ApiError> {
    let all = app.batches.all(Kind::OpenAi, caller);
    part.of(all, |batch| &batch.id, Record::to_json).map(Json)
}

/// `GET /v1/batches/{id}`
pub(super) async fn show(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let record = app.batches.find(Kind::OpenAi, caller, &id)?;
    Ok(Json(record.to_json()))
}

/// `POST /v1/batches/{id}/cancel`
pub(super) async fn cancel(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
    _: JsonBody<OrEmpty<CancelFields>>,
) -> Result<Json<Value>, ApiError> {
    let record = app.batches.cancel(&app, Kind::OpenAi, caller, &id)?;
    Ok(Json(record.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(window("24h").unwrap(), Duration::from_secs(86400));
        assert_eq!(window("1s").unwrap(), Duration::from_secs(1));
        for bad in [
            "",
            "h",
            "24",
            "0s",
            "31d",
            "-1h",
            "1w",
            "99999999999999999999d",
            "h24",
        ] {
            assert_eq!(window(bad).unwrap_err().status, 400, "{bad}");
        }
    }

    #[test]
    fn fields_are_checked() {
        let fields = |change: &dyn Fn(&mut BatchFields)| {
            let mut fields = BatchFields {
                input_file_id: "file-1".to_string(),
                endpoint: "/v1/embeddings".to_string(),
                completion_window: "24h".to_string(),
                metadata: None,
                output_expires_after: None,
            };
            change(&mut fields);
            fields
                .check()
                .map_err(|error| error.param.unwrap_or_default())
        };
        assert!(fields(&|_| {}).is_ok());
        let refused = |change: &dyn Fn(&mut BatchFields)| fields(change).unwrap_err();
        assert_eq!(
            refused(&|f| f.endpoint = "/v1/files".to_string()),
            "endpoint"
        );
        assert_eq!(
            refused(&|f| f.completion_window = "24µ".to_string()),
            "completion_window"
        );
        assert_eq!(
            refused(&|f| f.output_expires_after = Some(1.into())),
            "output_expires_after"
        );
        let map = |key: &str, value: Value| Some(Map::from_iter([(key.to_string(), value)]));
        assert!(fields(&|f| f.metadata = map("a", "b".into())).is_ok());
        assert_eq!(refused(&|f| f.metadata = map("a", 1.into())), "metadata");
        assert_eq!(
            refused(&|f| f.metadata = map(&"k".repeat(65), "b".into())),
            "metadata"
        );
        assert_eq!(
            refused(&|f| f.metadata = map("a", "b".repeat(513).into())),
            "metadata"
        );
        let many = (0..17).map(|i| (i.to_string(), Value::from("")));
        assert_eq!(
            refused(&|f| f.metadata = Some(many.clone().collect())),
            "metadata"
        );
    }
}
