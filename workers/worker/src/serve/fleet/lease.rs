//! Places of requests at models, and how they are waited for.

use super::child::Child;
use super::handle::Fleet;
use super::options::Span;
use super::schedule::{Entry, Id, Patience, Phase};
use super::state::{stopping, Model, State};
use crate::http::error::QUEUE_FULL;
use crate::http::ApiError;
use axum::http::StatusCode;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Code of a request for a model that is not loaded, where it is not to be.
const NOT_LOADED: &str = "model_not_loaded";
/// Code of a request that waited too long for its model.
pub(super) const NO_ROOM: &str = "MODEL_NOT_READY";
/// What a client should wait that found the queue full, or the wait too long.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// A place at a model for one answer, until it is dropped.
pub(super) struct Lease {
    pub(super) fleet: Fleet,
    pub(super) id: Id,
    pub(super) child: Arc<Child>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.fleet.lock().schedule.answered(self.id, Instant::now());
        self.fleet.0.changed.notify_one();
        self.fleet.go_on();
    }
}

/// A request that waits; it leaves the queue when it is dropped.
struct Waiting {
    fleet: Fleet,
    id: Id,
    ticket: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.fleet.lock();
        let waiters = &mut state.models[self.id].waiters;
        let before = waiters.len();
        waiters.retain(|(ticket, _)| *ticket != self.ticket);
        if waiters.len() == before {
            return;
        }
        state.schedule.give_up(self.id);
        drop(state);
        self.fleet.go_on();
    }
}

impl Fleet {
    /// A place at a model, which is loaded if it is not there.
    ///
    /// # Errors
    /// 503 with the time to come again: too many wait, the wait is too long, the model cannot be loaded, the server
    /// ends; 400 if it is not loaded and not to be.
    pub(super) async fn lease(
        &self,
        id: Id,
        autoload: Option<bool>,
        keep: Option<Span>,
    ) -> std::result::Result<Lease, ApiError> {
        let keep = |state: &State| {
            keep.map(|span| Patience {
                unload: span.keep_alive(),
                ..state.models[id].settings.patience
            })
        };
        let (waiting, result) = {
            let mut state = self.lock();
            state.check_taken(id)?;
            let loads = autoload.unwrap_or(self.0.options.autoload);
            let phase = state.schedule.slots[id].phase;
            if !loads && matches!(phase, Phase::Unloaded | Phase::Unloading) {
                return Err(ApiError {
                    param: Some("model".to_string()),
                    ..ApiError::new(
                        StatusCode::BAD_REQUEST,
                        NOT_LOADED,
                        format!(
                            "model {:?} is not loaded; POST /models/load loads it",
                            state.models[id].settings.name
                        ),
                    )
                });
            }
            let keep = keep(&state);
            match state.schedule.enter(id, keep) {
                Entry::Admitted => match state.models[id].child.clone() {
                    Some(child) => {
                        let fleet = self.clone();
                        return Ok(Lease { fleet, id, child });
                    }
                    None => {
                        state.schedule.answered(id, Instant::now());
                        return Err(ApiError::internal("a loaded model has no process"));
                    }
                },
                Entry::Waits => {}
                Entry::Full => {
                    self.0.counts.refused.fetch_add(1, Ordering::Relaxed);
                    let reason = "too many requests wait for models; --models-queue allows more";
                    return Err(ApiError {
                        retry_after: Some(RETRY),
                        ..ApiError::unavailable(QUEUE_FULL, reason)
                    });
                }
            }
            state.tickets += 1;
            let ticket = state.tickets;
            let (sender, receiver) = oneshot::channel();
            state.models[id].waiters.push((ticket, sender));
            let fleet = self.clone();
            (Waiting { fleet, id, ticket }, receiver)
        };
        self.0.changed.notify_one();
        self.go_on();
        let granted = match self.0.options.wait {
            Some(wait) => tokio::time::timeout(wait, result).await,
            None => Ok(result.await),
        };
        drop(waiting);
        match granted {
            Ok(Ok(granted)) => granted,
            Ok(Err(_)) => Err(stopping()),
            Err(_) => {
                self.0.counts.refused.fetch_add(1, Ordering::Relaxed);
                let view = self.lock().view(id);
                Err(ApiError {
                    retry_after: Some(RETRY),
                    ..ApiError::unavailable(
                        NO_ROOM,
                        format!(
                            "model {:?} is {} still; --models-wait allows a longer wait",
                            view.name, view.state
                        ),
                    )
                })
            }
        }
    }

    /// A place at a model only if that is loaded.
    pub(super) fn lease_now(&self, child: &Arc<Child>) -> Option<Lease> {
        let mut state = self.lock();
        let is_it = |model: &Model| {
            model
                .child
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, child))
        };
        let id = state.models.iter().position(is_it)?;
        let slot = &state.schedule.slots[id];
        if state.stopping || slot.phase != Phase::Loaded || slot.waiters() > 0 {
            return None;
        }
        (state.schedule.enter(id, None) == Entry::Admitted).then(|| Lease {
            fleet: self.clone(),
            id,
            child: child.clone(),
        })
    }
}
