//! Slots, their files, and sleep, in the manner of llama.cpp's and vLLM's servers.

use super::error::{blocking, from_failure, not_supported};
use super::Shared;
use crate::engine::api::{SlotAction, SlotStatus};
use axum::extract::{Path, Query, State};
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::path::PathBuf;
use std::time::Instant;
use worker::http::json::FromJson;
use worker::http::{ApiError, Caller, JsonBody};

/// Longest name of a file.
const LONGEST_NAME: usize = 200;

/// `GET /slots`: the sequences that run at once.
pub(super) async fn list(State(app): Shared) -> Result<Json<Value>, ApiError> {
    if !app.options.slots {
        return Err(not_supported(
            "this worker does not tell what runs: it was started with --no-slots",
        ));
    }
    let model = app.text()?;
    let slots = blocking(move || model.backend.slots().map_err(|e| from_failure(&e))).await?;
    let slot = |slot: &SlotStatus| {
        json!({
            "id": slot.id,
            "id_task": slot.request,
            "is_processing": slot.request.is_some(),
            "n_ctx": slot.context,
            "n_tokens": slot.tokens,
            "n_prompt_tokens": slot.prompt,
            "n_computed": slot.computed,
            "n_decoded": slot.generated,
        })
    };
    Ok(Json(slots.iter().map(slot).collect()))
}

/// What to do with a slot.
#[derive(Debug, Clone, Deserialize)]
pub struct SlotQuery {
    action: Option<String>,
}

/// The body of `POST /slots/{id}`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct SlotFields {
    /// Name of the file in the folder of `--slot-save-path`, for `save` and `restore`.
    pub filename: Option<String>,
}

/// `POST /slots/{id}?action=save|restore|erase`
pub(super) async fn act(
    State(app): Shared,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<SlotQuery>,
    JsonBody(OrEmpty(fields)): JsonBody<OrEmpty<SlotFields>>,
) -> Result<Json<Value>, ApiError> {
    let model = app.text()?;
    let id: usize = (id.parse())
        .map_err(|_| ApiError::field("id", format!("{id:?} is not the number of a slot")))?;
    let file = || -> Result<(String, PathBuf), ApiError> {
        let folder = model.slot_save_path.as_ref().ok_or_else(|| {
            ApiError::invalid("this worker saves no slots; start it with --slot-save-path FOLDER")
        })?;
        let name = fields.filename.clone().unwrap_or_default();
        check_name(&name).map_err(|reason| ApiError::field("filename", reason))?;
        Ok((name.clone(), folder.join(name)))
    };
    let (name, action) = match query.action.as_deref() {
        Some("save") => file().map(|(name, path)| (name, SlotAction::Save(path)))?,
        Some("restore") => file().map(|(name, path)| (name, SlotAction::Restore(path)))?,
        Some("erase") => (String::new(), SlotAction::Erase),
        other => {
            let reason = format!("{other:?} is not one of save, restore, erase");
            return Err(ApiError::field("action", reason));
        }
    };
    let start = Instant::now();
    let asked = action.clone();
    let done = blocking(move || {
        (model.backend.slot(id, caller.0, asked)).map_err(|failure| from_failure(&failure))
    })
    .await?;
    let milliseconds = start.elapsed().as_secs_f64() * 1000.0;
    Ok(Json(match action {
        SlotAction::Save(_) => json!({
            "id_slot": id, "filename": name, "n_saved": done.tokens, "n_written": done.bytes,
            "timings": {"save_ms": milliseconds},
        }),
        SlotAction::Restore(_) => json!({
            "id_slot": id, "filename": name, "n_restored": done.tokens, "n_read": done.bytes,
            "timings": {"restore_ms": milliseconds},
        }),
        SlotAction::Erase => json!({"id_slot": id, "n_erased": done.tokens}),
    }))
}

/// Refuses whatever is not the plain name of a file in a folder.
fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_alphanumeric() || "._- ".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME {
        return Err(format!("a name of 1 to {LONGEST_NAME} bytes is needed"));
    }
    if name.starts_with(['.', ' ']) || !name.chars().all(plain) {
        return Err(
            "it takes letters, digits, and . _ - and spaces behind the first character: the name of a file, no path"
                .to_string(),
        );
    }
    Ok(())
}

/// The body of `POST /sleep` and `POST /wake_up`, which has no fields and may be empty.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct SleepFields {}

/// `POST /sleep`: gives weights and cache back until the next request.
pub(super) async fn sleep(
    State(app): Shared,
    _: JsonBody<OrEmpty<SleepFields>>,
) -> Result<Json<Value>, ApiError> {
    let model = app.text()?;
    blocking(move || model.backend.sleep().map_err(|e| from_failure(&e))).await?;
    Ok(Json(json!({"is_sleeping": true})))
}

/// `POST /wake_up`: loads the model again.
pub(super) async fn wake_up(
    State(app): Shared,
    _: JsonBody<OrEmpty<SleepFields>>,
) -> Result<Json<Value>, ApiError> {
    let model = app.text()?;
    blocking(move || model.backend.wake_up().map_err(|e| from_failure(&e))).await?;
    Ok(Json(json!({"is_sleeping": false})))
}

/// `GET /is_sleeping`
pub(super) async fn is_sleeping(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let asleep = app.text()?.backend.status().asleep;
    Ok(Json(json!({"is_sleeping": asleep})))
}

/// A body that may be empty.
#[derive(Debug, Clone)]
pub struct OrEmpty<T>(pub T);

impl<T: FromJson + Default> FromJson for OrEmpty<T> {
    fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        match bytes {
            [] => Ok(Self(T::default())),
            _ => T::from_json(bytes).map(Self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_are_no_paths() {
        for name in ["a", "chat 1.bin", "Übung-2_b.slot"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let long = "a".repeat(201);
        for name in [
            "", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a\0b", "a\nb", "C:a", " a", &long,
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
