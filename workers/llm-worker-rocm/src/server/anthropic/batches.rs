//! Anthropic's batches of messages: `/v1/messages/batches`, on those of `/v1/batches`.

use super::error::AnthropicError;
use crate::batch::line::{hash_of, Item};
use crate::server::app::App;
use crate::server::batches::{Kind, Record, Status, MAX_LINE_BYTES};
use crate::server::error::blocking;
use crate::server::files::Part;
use crate::server::slots::OrEmpty;
use crate::server::Shared;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::Json;
use chrono::{DateTime, SecondsFormat};
use futures_util::stream::try_unfold;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Map, Value};
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;
use worker::http::{base_url, ApiError, Caller, JsonBody};

/// How long a batch has, as with Anthropic.
const TIME: Duration = Duration::from_secs(24 * 3600);
/// Bytes of results that are gathered before they are sent.
const PART_BYTES: usize = 64 << 10;

/// The body of `POST /v1/messages/batches`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct BatchFields {
    /// Messages to be answered.
    pub requests: Vec<BatchRequest>,
}

/// A message to be answered.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct BatchRequest {
    /// What the client calls it.
    pub custom_id: String,
    /// The fields of `POST /v1/messages`.
    #[schemars(with = "Map<String, Value>")]
    pub params: Box<RawValue>,
}

/// `POST /v1/messages/batches`
pub(in crate::server) async fn create(
    State(app): Shared,
    caller: Caller,
    headers: HeaderMap,
    body: Result<JsonBody<BatchFields>, ApiError>,
) -> Result<Json<Value>, AnthropicError> {
    let JsonBody(fields) = body?;
    let url = url_of(&app, &headers);
    let started = app.clone();
    let record = blocking(move || {
        let app = started;
        let input = write_input(&app, &fields)?;
        let record = Record::new(Kind::Anthropic, caller, "/v1/messages", input, TIME);
        app.batches.start(&app, record)
    })
    .await?;
    Ok(Json(to_json(&record, &url)))
}

/// Writes the lines of a batch; gives their id.
fn write_input(app: &App, fields: &BatchFields) -> Result<String, ApiError> {
    let most = Kind::Anthropic.max_requests();
    let count = fields.requests.len();
    if count == 0 || count as u64 > most {
        let reason = format!("requests: {count} of them; 1 to {most} are possible");
        return Err(ApiError::field("requests", reason));
    }
    let mut upload = app.files().begin()?;
    let (mut seen, mut text) = (HashSet::new(), Vec::new());
    for (index, request) in fields.requests.iter().enumerate() {
        let id = &request.custom_id;
        let refuse = |reason: &str| {
            let name = format!("requests.{index}");
            ApiError::field(&name, format!("{name}: {reason}"))
        };
        // Raw JSON may have line ends.
        let params: Value =
            serde_json::from_str(request.params.get()).map_err(|e| refuse(&e.to_string()))?;
        let line =
            json!({"custom_id": id, "method": "POST", "url": "/v1/messages", "body": params});
        let mut line = line.to_string().into_bytes();
        if line.len() > MAX_LINE_BYTES {
            return Err(refuse(&format!("more than {MAX_LINE_BYTES} bytes")));
        }
        Item::read(0, line.clone(), None).map_err(|fault| refuse(&fault.message))?;
        if !seen.insert(hash_of(id)) {
            return Err(refuse("an earlier request has this custom_id"));
        }
        line.push(b'\n');
        text.append(&mut line);
        if text.len() >= PART_BYTES || index + 1 == count {
            let part = upload.take(std::mem::take(&mut text))?;
            let file = part.write()?;
            upload.wrote(file);
        }
    }
    upload.complete()?;
    Ok(upload.id().to_string())
}

/// `GET /v1/messages/batches`
pub(in crate::server) async fn list(
    State(app): Shared,
    caller: Caller,
    headers: HeaderMap,
    Query(part): Query<Part>,
) -> Result<Json<Value>, AnthropicError> {
    let url = url_of(&app, &headers);
    let all = app.batches.all(Kind::Anthropic, caller);
    let mut list = part.of(all, |batch| &batch.id, |batch| to_json(batch, &url))?;
    if let Some(fields) = list.as_object_mut() {
        fields.remove("object");
    }
    Ok(Json(list))
}

/// `GET /v1/messages/batches/{id}`
pub(in crate::server) async fn show(
    State(app): Shared,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<Value>, AnthropicError> {
    let record = app.batches.find(Kind::Anthropic, caller, &id)?;
    Ok(Json(to_json(&record, &url_of(&app, &headers))))
}

/// `POST /v1/messages/batches/{id}/cancel`
pub(in crate::server) async fn cancel(
    State(app): Shared,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
    body: Result<JsonBody<OrEmpty<crate::server::batches::CancelFields>>, ApiError>,
) -> Result<Json<Value>, AnthropicError> {
    body?;
    let record = app.batches.cancel(&app, Kind::Anthropic, caller, &id)?;
    Ok(Json(to_json(&record, &url_of(&app, &headers))))
}

/// `DELETE /v1/messages/batches/{id}`
pub(in crate::server) async fn delete(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, AnthropicError> {
    let record = app.batches.forget(&app, Kind::Anthropic, caller, &id)?;
    for content in [&record.input_file_id, &record.output_id, &record.error_id] {
        // Gone already, or gone at the next start.
        let _ = std::fs::remove_file(app.files().path(content)?);
    }
    Ok(Json(json!({"id": id, "type": "message_batch_deleted"})))
}

/// `GET /v1/messages/batches/{id}/results`
pub(in crate::server) async fn results(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, AnthropicError> {
    let record = app.batches.find(Kind::Anthropic, caller, &id)?;
    if !record.status.is_end() {
        let reason = format!("batch {id} has not ended; its results come then");
        return Err(ApiError::invalid(reason).into());
    }
    let paths = [
        app.files().path(&record.output_id)?,
        app.files().path(&record.error_id)?,
    ];
    let files = blocking(move || {
        let open = paths.iter().filter_map(|path| File::open(path).ok());
        Ok(open.map(BufReader::new).collect::<VecDeque<_>>())
    });
    let next = |mut files: VecDeque<BufReader<File>>| async move {
        let part = blocking(move || Ok((next_part(&mut files)?, files))).await;
        match part {
            Ok((part, _)) if part.is_empty() => Ok(None),
            Ok((part, files)) => Ok(Some((Bytes::from(part), files))),
            Err(error) => Err(error.message),
        }
    };
    let body = Body::from_stream(try_unfold(files.await?, next));
    Ok(([(CONTENT_TYPE, "application/x-jsonl")], body).into_response())
}

/// Some more results; nothing at their end.
fn next_part(files: &mut VecDeque<BufReader<File>>) -> Result<Vec<u8>, ApiError> {
    let failed = |e: std::io::Error| ApiError::internal(format!("the results cannot be read: {e}"));
    let mut part = Vec::new();
    while let Some(file) = files.front_mut() {
        let mut line = Vec::new();
        if file.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            files.pop_front();
            continue;
        }
        let result: Value = serde_json::from_slice(&line)
            .map_err(|e| ApiError::internal(format!("the results cannot be read: {e}")))?;
        part.extend(result_of(&result).to_string().into_bytes());
        part.push(b'\n');
        if part.len() >= PART_BYTES {
            break;
        }
    }
    Ok(part)
}

/// A line of results in Anthropic's form.
fn result_of(line: &Value) -> Value {
    let response = &line["response"];
    let result = match (
        response["status_code"].as_u64(),
        line["error"]["code"].as_str(),
    ) {
        (Some(200), _) => json!({"type": "succeeded", "message": response["body"]}),
        (Some(_), _) => json!({"type": "errored", "error": response["body"]}),
        (None, Some("batch_expired")) => json!({"type": "expired"}),
        (None, Some("batch_cancelled")) => json!({"type": "canceled"}),
        (None, _) => json!({"type": "errored", "error": {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": line["error"]["message"]},
        }}),
    };
    json!({"custom_id": line["custom_id"], "result": result})
}

fn url_of(app: &Arc<App>, headers: &HeaderMap) -> String {
    base_url(headers, app.frame.identity.port)
}

/// A batch in Anthropic's form.
fn to_json(record: &Record, url: &str) -> Value {
    let time = |seconds: i64| {
        let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        time.to_rfc3339_opts(SecondsFormat::Secs, true)
    };
    let has_ended = record.status.is_end();
    let status = match record.status {
        Status::Cancelling => "canceling",
        _ if has_ended => "ended",
        _ => "in_progress",
    };
    let unasked = |status: Status| match record.status == status {
        true => record.unasked,
        false => 0,
    };
    let done = record.completed + record.failed;
    let results = || format!("{url}/v1/messages/batches/{}/results", record.id);
    json!({
        "id": record.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": record.total.saturating_sub(done),
            "succeeded": record.completed,
            "errored": record.failed.saturating_sub(record.unasked),
            "canceled": unasked(Status::Cancelled),
            "expired": unasked(Status::Expired),
        },
        "created_at": time(record.created_at),
        "expires_at": time(record.expires_at),
        "ended_at": record.ended_at().map(time),
        "cancel_initiated_at": record.cancelling_at().map(time),
        "archived_at": null,
        "results_url": has_ended.then(results),
    })
}
