//! `/v1/files`: files that batches are made of, and their results.
//!
//! | Module  | Gives                                                     |
//! |---------|-----------------------------------------------------------|
//! | `store` | the files in a folder, each for those with its key only   |
//! | `upload` | a file as it comes in                                    |

mod store;
mod upload;

pub(super) use store::{entries, new_id, Meta, MAX_RECORD_BYTES};
pub use store::{FileOptions, Store};
pub use upload::FileFields;

use super::error::blocking;
use super::Shared;
use axum::body::{Body, Bytes};
use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, Path, Query, State};
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::Json;
use futures_util::stream::try_unfold;
use serde::Deserialize;
use serde_json::{json, Value};
use std::fs::File;
use std::io::Read;
use worker::http::{ApiError, Caller};

/// Bytes of a file that are read at once.
const PART_BYTES: usize = 256 << 10;
/// Entries of a list, unless asked for fewer or more; the most.
const USUAL_LIMIT: usize = 20;
const MOST_LISTED: usize = 1000;

/// Which part of a list.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Part {
    limit: Option<String>,
    /// The id behind which it begins.
    after: Option<String>,
    /// The id before which it ends, of Anthropic's lists.
    before_id: Option<String>,
    /// Anthropic's word for `after`.
    after_id: Option<String>,
    /// `desc` (the latest first) or `asc`.
    order: Option<String>,
    /// Of files: their purpose.
    purpose: Option<String>,
}

impl Part {
    /// A list of what has been made, the latest first unless asked otherwise.
    ///
    /// # Errors
    /// 400 for what makes no sense.
    pub fn of<T>(
        &self,
        mut all: Vec<T>,
        id: impl Fn(&T) -> &str,
        to_json: impl Fn(&T) -> Value,
    ) -> Result<Value, ApiError> {
        let limit = match self.limit.as_deref() {
            None => USUAL_LIMIT,
            Some(text) => {
                let limit = text.parse().ok();
                let limit = limit.filter(|limit| (1..=MOST_LISTED).contains(limit));
                limit.ok_or_else(|| {
                    let reason = format!("limit {text:?} is not from 1 to {MOST_LISTED}");
                    ApiError::field("limit", reason)
                })?
            }
        };
        match self.order.as_deref() {
            None | Some("desc") => all.reverse(),
            Some("asc") => {}
            Some(other) => {
                let reason = format!("order {other:?} is neither asc nor desc");
                return Err(ApiError::field("order", reason));
            }
        }
        let place = |name: &str, wanted: &str| {
            let place = all.iter().position(|one| id(one) == wanted);
            let reason =
                || ApiError::field(name, format!("{name}: there is no {wanted:?} in the list"));
            place.ok_or_else(reason)
        };
        let mut start = 0;
        let mut end = all.len();
        if let Some(after) = self.after.as_ref().or(self.after_id.as_ref()) {
            start = place("after", after)? + 1;
        }
        if let Some(before) = &self.before_id {
            end = place("before_id", before)?;
            start = start.max(end.saturating_sub(limit)).min(end);
        }
        let data = &all[start..end];
        let has_more = data.len() > limit;
        let data = &data[..limit.min(data.len())];
        Ok(json!({
            "object": "list",
            "data": data.iter().map(to_json).collect::<Vec<_>>(),
            "first_id": data.first().map(&id),
            "last_id": data.last().map(&id),
            "has_more": has_more,
        }))
    }
}

/// `POST /v1/files`
pub(super) async fn create(
    State(app): Shared,
    caller: Caller,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, ApiError> {
    let form = form.map_err(|e| ApiError::invalid(format!("a form with a file is needed: {e}")))?;
    let meta = upload::read(&app, caller, form).await?;
    Ok(Json(meta.to_json()))
}

/// `GET /v1/files`
pub(super) async fn list(
    State(app): Shared,
    caller: Caller,
    Query(part): Query<Part>,
) -> Result<Json<Value>, ApiError> {
    let mut files = app.files().all(caller)?;
    if let Some(purpose) = &part.purpose {
        files.retain(|file| file.purpose == *purpose);
    }
    part.of(files, |file| &file.id, Meta::to_json).map(Json)
}

/// `GET /v1/files/{id}`
pub(super) async fn show(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(app.files().find(caller, &id)?.to_json()))
}

/// `DELETE /v1/files/{id}`
pub(super) async fn delete(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let meta = app.files().find(caller, &id)?;
    if let Some(batch) = app.batches.that_reads(&meta.id) {
        let reason = format!("file {id} is read by {batch}: cancel that first");
        return Err(ApiError::field("id", reason));
    }
    app.files().remove(&meta.id)?;
    Ok(Json(
        json!({"id": meta.id, "object": "file", "deleted": true}),
    ))
}

/// `GET /v1/files/{id}/content`
pub(super) async fn content(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let meta = app.files().find(caller, &id)?;
    let path = app.files().path(&meta.id)?;
    let opened = blocking(move || {
        File::open(path).map_err(|e| ApiError::internal(format!("the file cannot be read: {e}")))
    });
    let file = opened.await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_string()),
        (CONTENT_LENGTH, meta.bytes.to_string()),
        // Nothing that a browser would show as a page of this server.
        (CONTENT_DISPOSITION, "attachment".to_string()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_string()),
    ];
    Ok((headers, body_of(file, meta.bytes)).into_response())
}

/// A file's first `length` bytes as they are asked for.
pub(super) fn body_of(file: File, length: u64) -> Body {
    let next = |(mut file, left): (File, u64)| async move {
        if left == 0 {
            return Ok(None);
        }
        blocking(move || {
            let wanted = usize::try_from(left).map_or(PART_BYTES, |left| left.min(PART_BYTES));
            let mut part = vec![0; wanted];
            file.read_exact(&mut part)
                .map_err(|e| ApiError::internal(format!("the file cannot be read: {e}")))?;
            Ok(Some((Bytes::from(part), (file, left - wanted as u64))))
        })
        .await
        .map_err(|error| error.message)
    };
    Body::from_stream(try_unfold((file, length), next))
}
