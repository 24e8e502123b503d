//! The models of a server: what the rules say is done, and told.

use super::child::Spawner;
use super::config::Catalogue;
use super::lease::{Lease, NO_ROOM, RETRY};
use super::memory;
use super::schedule::{Id, Limits, Schedule, Step};
use super::state::State;
use crate::http::ApiError;
use crate::{Error, Result};
use axum::body::Bytes;
use axum::http::{Method, Request};
use serde_json::{json, Value};
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, Notify};

/// How long a process may take for an answer about itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Events that wait for a slow reader; it misses older ones.
const EVENTS: usize = 256;

/// How a fleet is run.
pub(super) struct Options {
    pub(super) limits: Limits,
    /// How long a request waits for its model.
    pub(super) wait: Option<Duration>,
    /// Whether requests load models.
    pub(super) autoload: bool,
    /// Whether the first model answers where none is named.
    pub(super) first_is_default: bool,
    /// Variables that the processes must not see.
    pub(super) hidden: Arc<[OsString]>,
    /// For each caller of the server the key by which the processes know it.
    pub(super) keys: Arc<[(u64, String)]>,
    pub(super) worker_id: String,
    pub(super) grace: Duration,
    pub(super) core_files: bool,
    /// Crashes after which a model rests, and within which time.
    pub(super) crashes: (usize, Duration),
    pub(super) reread: Box<dyn Fn() -> Result<Catalogue> + Send + Sync>,
}

/// The models of a server. Clones are handles to the same.
#[derive(Clone)]
pub struct Fleet(pub(super) Arc<Inner>);

/// What handles are to.
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) state: Mutex<State>,
    /// Timers are to be looked at anew.
    pub(super) changed: Notify,
    /// A process has ended.
    pub(super) ended: Notify,
    pub(super) events: broadcast::Sender<Value>,
    pub(super) spawner: Spawner,
    pub(super) runtime: Handle,
    pub(super) counts: Counts,
}

/// What has happened so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) loads: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) crashes: AtomicU64,
    pub(super) unloads: AtomicU64,
    pub(super) sleeps: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Fleet {
    /// Takes the models, none of which is loaded yet, and begins with those that are to be loaded at the start.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the system refuses a thread.
    pub(super) fn open(options: Options, catalogue: Catalogue, runtime: Handle) -> Result<Self> {
        let failed = |e: std::io::Error| Error::Runtime(format!("cannot start a thread: {e}"));
        let fleet = Self(Arc::new(Inner {
            state: Mutex::new(State {
                schedule: Schedule::new(options.limits),
                models: Vec::new(),
                names: HashMap::new(),
                default: None,
                stopping: false,
                tickets: 0,
            }),
            options,
            changed: Notify::new(),
            ended: Notify::new(),
            events: broadcast::channel(EVENTS).0,
            spawner: Spawner::start().map_err(failed)?,
            runtime,
            counts: Counts::default(),
        }));
        fleet.take(catalogue, true);
        let timers = fleet.clone();
        fleet
            .0
            .runtime
            .spawn(async move { timers.keep_time().await });
        fleet.go_on();
        Ok(fleet)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // What is in it stays right whatever panics elsewhere.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    /// Requests that wait for models, and models in each state.
    pub(super) fn tally(&self) -> (usize, HashMap<&'static str, usize>) {
        let state = self.lock();
        let mut tally = HashMap::new();
        for view in state.views() {
            *tally.entry(view.state).or_insert(0) += 1;
        }
        (state.schedule.waiting(), tally)
    }

    /// What happens from now on, as JSON.
    pub(super) fn events(&self) -> broadcast::Receiver<Value> {
        self.0.events.subscribe()
    }

    /// Whether the server is about to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Does what is to be done now.
    pub(super) fn go_on(&self) {
        let mut leftovers = Vec::new();
        let mut refused = Vec::new();
        let mut todo = Vec::new();
        {
            let mut state = self.lock();
            if state.stopping {
                return;
            }
            let steps = state.schedule.steps(Instant::now(), &memory::free);
            for step in steps {
                match step {
                    Step::Admit(id) => {
                        let model = &mut state.models[id];
                        let waiters = std::mem::take(&mut model.waiters);
                        let Some(child) = model.child.clone() else {
                            continue;
                        };
                        for (_, waiter) in waiters {
                            let fleet = self.clone();
                            let child = child.clone();
                            // Whoever left in this moment leaves a place that is given back below, without the lock.
                            leftovers.extend(waiter.send(Ok(Lease { fleet, id, child })).err());
                        }
                    }
                    Step::Refuse(id, reason) => {
                        let waiters = std::mem::take(&mut state.models[id].waiters);
                        refused.push((state.models[id].settings.name.clone(), reason, waiters));
                    }
                    step => todo.push(step),
                }
            }
        }
        drop(leftovers);
        for (name, reason, waiters) in refused {
            tracing::warn!("model {name:?} is not loaded: {reason}");
            self.0
                .counts
                .refused
                .fetch_add(waiters.len() as u64, Ordering::Relaxed);
            let error = ApiError {
                retry_after: Some(RETRY),
                ..ApiError::unavailable(
                    NO_ROOM,
                    format!("there is no room for model {name:?}: {reason}"),
                )
            };
            for (_, waiter) in waiters {
                let _ = waiter.send(Err(error.clone()));
            }
        }
        self.run(todo);
    }

    pub(super) fn run(&self, steps: Vec<Step>) {
        for step in steps {
            let fleet = self.clone();
            match step {
                Step::Load(id) => drop(self.0.runtime.spawn(async move { fleet.live(id).await })),
                Step::Wake(id) => drop(self.0.runtime.spawn(async move { fleet.wake(id).await })),
                Step::Sleep(id) => drop(
                    self.0
                        .runtime
                        .spawn(async move { fleet.fall_asleep(id).await }),
                ),
                Step::Unload(id) => drop(self.0.runtime.spawn(async move { fleet.end(id).await })),
                Step::Admit(_) | Step::Refuse(..) => {}
            }
            // Who keeps the time is among those that come here, and is not to be woken up for nothing.
            self.0.changed.notify_one();
        }
    }

    /// Gives up idle models in time, and starts crashed ones anew.
    async fn keep_time(&self) {
        loop {
            let (steps, next) = {
                let mut state = self.lock();
                if state.stopping {
                    return;
                }
                state.schedule.overdue(Instant::now())
            };
            self.run(steps);
            self.go_on();
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.0.changed.notified() => {}
            }
        }
    }

    /// Tells those who listen how a model is.
    pub(super) fn report(&self, id: Id) {
        let view = self.lock().view(id);
        let mut data = json!({"status": view.state});
        for key in ["progress", "exit_code", "failed", "error"] {
            if let Some(value) = view.json["status"].get(key) {
                data[key] = value.clone();
            }
        }
        self.tell(&view.name, "model_status", &data);
    }

    pub(super) fn tell(&self, model: &str, event: &str, data: &Value) {
        let mut told = json!({"model": model, "event": event});
        if !data.is_null() {
            told["data"] = data.clone();
        }
        // Nobody may be listening.
        let _ = self.0.events.send(told);
    }
}

pub(super) fn get(path: &str) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}

pub(super) fn post(path: &str) -> Request<Bytes> {
    let mut request = get(path);
    *request.method_mut() = Method::POST;
    request
}
