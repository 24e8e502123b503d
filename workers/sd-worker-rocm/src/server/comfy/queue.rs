//! The graphs that wait and those that are done.

use super::state::Record;
use super::Sent;
use crate::jobs::State;
use crate::server::App;
use axum::body::Bytes;
use axum::extract::{Path, Query};
use axum::Json;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::ApiError;
use worker::serve::Model;

/// `GET /prompt`.
pub(super) async fn count(Model(app): Model<App>) -> Json<Value> {
    Json(json!({"exec_info": {"queue_remaining": app.comfy().remaining()}}))
}

/// `GET /queue`.
pub(super) async fn list(Model(app): Model<App>) -> Json<Value> {
    let (mut running, mut pending) = (Vec::new(), Vec::new());
    for (record, job) in app.open_graphs() {
        match job.is_some_and(|job| job.state == State::Queued) {
            true => pending.push(record.row()),
            false => running.push(record.row()),
        }
    }
    Json(json!({"queue_running": running, "queue_pending": pending}))
}

/// Which graphs.
struct Chosen {
    all: bool,
    ids: Vec<String>,
}

impl Chosen {
    fn read(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let wrong =
            |field: &'static str, what: &str| ApiError::field(field, format!("{field} is {what}"));
        let all = match body.get("clear") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(all)) => *all,
            Some(_) => return Err(wrong("clear", "true or false")),
        };
        let ids = match body.get("delete") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(ids)) => {
                let texts = ids.iter().map(|id| id.as_str().map(String::from));
                let texts: Option<Vec<String>> = texts.collect();
                texts.ok_or_else(|| wrong("delete", "a list of graphs' ids"))?
            }
            Some(_) => return Err(wrong("delete", "a list of graphs' ids")),
        };
        match body
            .keys()
            .find(|name| !["clear", "delete"].contains(&name.as_str()))
        {
            Some(other) => Err(ApiError::field(
                other,
                format!("{other} is not a field here"),
            )),
            None => Ok(Self { all, ids }),
        }
    }
}

/// `POST /queue`: what waits is taken out; what runs is left, as ComfyUI has it.
pub(super) async fn change(
    Model(app): Model<App>,
    Sent(body): Sent,
) -> Result<Json<Value>, ApiError> {
    let chosen = Chosen::read(&body)?;
    for (record, job) in app.open_graphs() {
        let waits = job.is_some_and(|job| job.state == State::Queued);
        if waits && (chosen.all || chosen.ids.contains(&record.id)) {
            app.queue().cancel(&record.job);
        }
    }
    Ok(Json(json!({})))
}

#[derive(Deserialize)]
pub(super) struct Most {
    max_items: Option<usize>,
}

fn told(records: Vec<Record>) -> Json<Value> {
    let all = records.iter().filter(|record| record.done.is_some());
    Json(Value::Object(
        all.map(|record| (record.id.clone(), record.history()))
            .collect(),
    ))
}

/// `GET /history`.
pub(super) async fn history(
    Model(app): Model<App>,
    Query(Most { max_items }): Query<Most>,
) -> Json<Value> {
    let mut all = app.comfy().all();
    all.retain(|record| record.done.is_some());
    let most = max_items.unwrap_or(usize::MAX);
    let first = all.len().saturating_sub(most);
    told(all.split_off(first))
}

/// `GET /history/{id}`: empty until the graph is done.
pub(super) async fn one(Model(app): Model<App>, Path(id): Path<String>) -> Json<Value> {
    told(app.comfy().get(&id).into_iter().collect())
}

/// `POST /history`.
pub(super) async fn forget(
    Model(app): Model<App>,
    Sent(body): Sent,
) -> Result<Json<Value>, ApiError> {
    let chosen = Chosen::read(&body)?;
    if chosen.all {
        app.comfy().clear();
    }
    for id in &chosen.ids {
        if app
            .comfy()
            .get(id)
            .is_some_and(|record| record.done.is_some())
        {
            app.comfy().forget(id);
        }
    }
    Ok(Json(json!({})))
}

/// `POST /interrupt`: the graphs that are worked on, or one of them by its `prompt_id`.
pub(super) async fn interrupt(Model(app): Model<App>, body: Bytes) -> Json<Value> {
    // Clients send no body, or one of any type.
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let one = body.get("prompt_id").and_then(Value::as_str);
    for (record, job) in app.open_graphs() {
        let runs = job.is_some_and(|job| job.state == State::Running);
        if runs && one.is_none_or(|one| one == record.id) {
            app.queue().cancel(&record.job);
        }
    }
    Json(json!({}))
}

/// `POST /free`.
pub(super) async fn free() -> Json<Value> {
    Json(json!({}))
}
