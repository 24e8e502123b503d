//! What is known of the models, and how lists show it.

use super::child::{Child, End};
use super::config::ModelSettings;
use super::lease::Lease;
use super::schedule::{Id, Phase, Schedule};
use crate::http::error::{CANCELLED, RESTARTING};
use crate::http::ApiError;
use crate::serve::supervise::crashes::Crashes;
use serde_json::{json, Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Code of a request whose model could not be loaded.
const LOAD_FAILED: &str = "MODEL_LOAD_FAILED";
/// Names that an error lists.
const LISTED: usize = 20;

/// All that is known.
pub(super) struct State {
    pub(super) schedule: Schedule,
    pub(super) models: Vec<Model>,
    /// Every name and alias.
    pub(super) names: HashMap<String, Id>,
    pub(super) default: Option<Id>,
    pub(super) stopping: bool,
    pub(super) tickets: u64,
}

/// A request that waits: its number, and who waits for what becomes of it.
pub(super) type Waiter = (u64, oneshot::Sender<std::result::Result<Lease, ApiError>>);

pub(super) struct Model {
    pub(super) settings: ModelSettings,
    pub(super) child: Option<Arc<Child>>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) crashes: Crashes,
    pub(super) failure: Option<End>,
    pub(super) progress: (f64, String),
    /// What its process says of it in `/v1/models`.
    pub(super) info: Vec<Value>,
    /// Whether it is no longer in any list: it ends once nobody uses it.
    pub(super) gone: bool,
    /// Since when it is in one, in seconds since 1970.
    pub(super) created: i64,
}

/// A model as lists show it.
#[derive(Debug, Clone)]
pub struct ModelView {
    /// Its name.
    pub name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// `unloaded`, `loading`, `loaded` or `sleeping`.
    pub state: &'static str,
    /// Where it lies.
    pub source: String,
    /// Bytes that its process takes; what it is thought to need while it has none.
    pub bytes: u64,
    /// When the server began to know of it, in seconds since 1970.
    pub created: i64,
    /// All of that and more, as JSON.
    pub json: Value,
}

pub(super) fn stopping() -> ApiError {
    ApiError::unavailable(CANCELLED, "the server is stopping")
}

pub(super) fn load_failed(name: &str, end: &End, rest: Option<Duration>) -> ApiError {
    ApiError {
        retry_after: rest,
        ..ApiError::unavailable(
            LOAD_FAILED,
            format!("model {name:?} cannot be loaded: {}", end.message),
        )
    }
}

impl State {
    /// Why a model takes no requests now, if so.
    pub(super) fn check_taken(&self, id: Id) -> std::result::Result<(), ApiError> {
        if self.stopping {
            return Err(stopping());
        }
        let model = &self.models[id];
        let slot = &self.schedule.slots[id];
        let rest = slot
            .not_before
            .and_then(|due| due.checked_duration_since(Instant::now()));
        let (Some(rest), Some(end), Phase::Unloaded) = (
            rest.filter(|rest| !rest.is_zero()),
            &model.failure,
            slot.phase,
        ) else {
            return Ok(());
        };
        let name = &model.settings.name;
        if !end.crashed {
            return Err(load_failed(name, end, Some(rest)));
        }
        if !model.crashes.is_too_many() {
            return Ok(());
        }
        let reason = format!(
            "the process of model {name:?} crashed {} times, the last time: {}",
            model.crashes.recent(),
            end.message
        );
        Err(ApiError {
            retry_after: Some(rest),
            ..ApiError::unavailable(RESTARTING, reason)
        })
    }

    /// Notes that a model's process went wrong, and gives the time for which it rests.
    pub(super) fn rest(&mut self, id: Id, now: Instant) -> Duration {
        let crashes = &mut self.models[id].crashes;
        crashes.add(now).unwrap_or(crashes.window())
    }

    /// Takes all who wait for a model out of the queue.
    pub(super) fn dismiss(&mut self, id: Id) -> Vec<Waiter> {
        self.schedule.clear(id);
        std::mem::take(&mut self.models[id].waiters)
    }

    /// The names that there are, in words.
    pub(super) fn listing(&self) -> String {
        let mut names: Vec<&str> = self
            .models
            .iter()
            .filter(|model| !model.gone)
            .map(|model| model.settings.name.as_str())
            .collect();
        let more = names.len().saturating_sub(LISTED);
        names.truncate(LISTED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        format!("there are {}{more}", names.join(", "))
    }

    pub(super) fn views(&self) -> impl Iterator<Item = ModelView> + '_ {
        let ids = (0..self.models.len()).filter(|&id| !self.models[id].gone);
        ids.map(|id| self.view(id))
    }

    pub(super) fn view(&self, id: Id) -> ModelView {
        let model = &self.models[id];
        let slot = &self.schedule.slots[id];
        let settings = &model.settings;
        let state = match slot.phase {
            Phase::Unloaded => "unloaded",
            Phase::Loading | Phase::Waking => "loading",
            Phase::Loaded | Phase::FallingAsleep => "loaded",
            Phase::Sleeping => "sleeping",
            Phase::Unloading => "unloading",
        };
        let mut status = Map::from_iter([
            ("value".to_string(), json!(state)),
            ("args".to_string(), json!(settings.arguments)),
        ]);
        let mut add = |key: &str, value: Value| drop(status.insert(key.to_string(), value));
        if slot.phase == Phase::Loading {
            let (progress, stage) = &model.progress;
            add("progress", json!({"value": progress, "stage": stage}));
        }
        if let (Some(end), Phase::Unloaded) = (&model.failure, slot.phase) {
            add("failed", json!(true));
            add("exit_code", json!(end.code));
            add("error", json!(end.message));
        }
        add("answers", json!(slot.answers()));
        add("waiting", json!(slot.waiters()));
        let bytes = if slot.phase.is_running() {
            slot.takes
        } else {
            slot.needs
        };
        let json = json!({
            "id": settings.name,
            "object": "model",
            "created": model.created,
            "owned_by": "candle-rocm",
            "aliases": settings.aliases,
            "status": status,
            "source": settings.origin.name(),
            "path": settings.source,
            "pinned": settings.pinned,
            "device": slot.place.to_string(),
            "memory_bytes": bytes,
            "can_remove": false,
        });
        ModelView {
            name: settings.name.clone(),
            aliases: settings.aliases.clone(),
            state,
            source: settings.source.clone(),
            bytes,
            created: model.created,
            json,
        }
    }
}
