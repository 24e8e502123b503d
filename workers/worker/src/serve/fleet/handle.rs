//! The models of a server: their processes, and the requests that wait for them.

use super::child::{Child, Spawner};
use super::config::Catalogue;
use super::memory;
use super::options::Span;
use super::proxy;
use super::schedule::{Entry, Id, Limits, Patience, Phase, Schedule, Slot, Step};
use super::state::{stopping, Model, ModelView, State};
use crate::http::error::{CANCELLED, QUEUE_FULL};
use crate::http::ApiError;
use crate::serve::supervise::crashes::Crashes;
use crate::text::beginning;
use crate::{Error, Result};
use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode};
use serde_json::{json, Value};
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, oneshot, Notify};

/// Code of a request for a model that is not there.
const NOT_FOUND: &str = "model_not_found";
/// Code of a request for a model that is not loaded, where it is not to be.
const NOT_LOADED: &str = "model_not_loaded";
/// Code of a request that waited too long for its model.
const NO_ROOM: &str = "MODEL_NOT_READY";
/// How long a process may take for an answer about itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// What a client should wait that found the queue full, or the wait too long.
const RETRY: Duration = Duration::from_secs(5);
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

/// A place at a model for one answer, until it is dropped.
pub(super) struct Lease {
    fleet: Fleet,
    id: Id,
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

    /// Takes the models of a catalogue in place of those that there were.
    fn take(&self, catalogue: Catalogue, at_start: bool) {
        let now = Instant::now();
        let (most, window) = self.0.options.crashes;
        let mut steps = Vec::new();
        let mut state = self.lock();
        let mut kept: Vec<Id> = Vec::new();
        for settings in catalogue.models {
            let known = state
                .models
                .iter()
                .position(|model| model.settings.name == settings.name);
            let id = match known {
                Some(id) => {
                    // What runs in another way than it is to ends; the next request starts it anew.
                    if state.models[id].settings.arguments != settings.arguments {
                        steps.extend(state.schedule.unload(id));
                    }
                    id
                }
                None => {
                    state
                        .schedule
                        .slots
                        .push(Slot::new(settings.place, settings.needs, now));
                    state.models.push(Model {
                        settings: settings.clone(),
                        child: None,
                        waiters: Vec::new(),
                        crashes: Crashes::new(most, window),
                        failure: None,
                        progress: (0.0, String::new()),
                        info: Vec::new(),
                        gone: false,
                        created: crate::time::unix(),
                    });
                    state.models.len() - 1
                }
            };
            let slot = &mut state.schedule.slots[id];
            slot.pinned = settings.pinned;
            slot.can_sleep = settings.can_sleep;
            slot.patience = settings.patience;
            slot.place = settings.place;
            let load = settings.load && at_start;
            state.models[id].settings = settings;
            state.models[id].gone = false;
            if load {
                state.schedule.want(id);
            }
            kept.push(id);
        }
        for id in 0..state.models.len() {
            if !kept.contains(&id) && !state.models[id].gone {
                state.models[id].gone = true;
                steps.extend(state.schedule.unload(id));
            }
        }
        let mut names = HashMap::new();
        for (id, model) in state
            .models
            .iter()
            .enumerate()
            .filter(|(_, model)| !model.gone)
        {
            let own = std::iter::once(&model.settings.name).chain(&model.settings.aliases);
            names.extend(own.map(|name| (name.clone(), id)));
        }
        let first = kept.first().copied();
        let single = first.filter(|_| kept.len() == 1 || self.0.options.first_is_default);
        let default = catalogue
            .default
            .as_ref()
            .and_then(|name| names.get(name).copied());
        state.default = default.or(single);
        state.names = names;
        drop(state);
        self.run(steps);
    }

    /// Reads anew which models there are.
    ///
    /// # Errors
    /// 500 that says what is wrong with files or folders; everything stays as it is then.
    pub fn reread(&self) -> std::result::Result<(), ApiError> {
        let catalogue = (self.0.options.reread)().map_err(|e| ApiError::internal(e.to_string()))?;
        self.take(catalogue, false);
        self.tell("*", "models_reload", &Value::Null);
        self.go_on();
        Ok(())
    }

    /// The model of a name or an alias; a tag `:latest` counts as none, and what follows a model's name and a colon is
    /// for the model to know.
    ///
    /// # Errors
    /// 404 with the names that there are.
    pub(super) fn find(&self, name: &str) -> std::result::Result<Id, ApiError> {
        let state = self.lock();
        let known = |name: &str| state.names.get(name).copied();
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let before_colon = || name.rsplit_once(':').and_then(|(model, _)| known(model));
        known(name)
            .or_else(|| known(plain))
            .or_else(before_colon)
            .ok_or_else(|| ApiError {
                code: NOT_FOUND,
                param: Some("model".to_string()),
                ..ApiError::not_found(format!(
                    "there is no model {:?} here; {}",
                    beginning(name, 200),
                    state.listing()
                ))
            })
    }

    /// The model of requests that name none.
    ///
    /// # Errors
    /// 400 with the names that there are.
    pub(super) fn default_model(&self) -> std::result::Result<Id, ApiError> {
        let state = self.lock();
        state.default.ok_or_else(|| {
            let reason = format!("the request names no model; {}", state.listing());
            ApiError::field("model", reason)
        })
    }

    /// Makes a model the one of requests that name none.
    ///
    /// # Errors
    /// 404 for a name that is none's.
    pub fn set_default(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        self.lock().default = Some(id);
        Ok(())
    }

    /// The name of the model of requests that name none, if there is one.
    pub fn default_name(&self) -> Option<String> {
        let state = self.lock();
        state
            .default
            .map(|id| state.models[id].settings.name.clone())
    }

    /// All models.
    pub fn list(&self) -> Vec<ModelView> {
        self.lock().views().collect()
    }

    /// A model's name.
    pub(super) fn name(&self, id: Id) -> String {
        self.lock().models[id].settings.name.clone()
    }

    /// What a model's process said of it in `/v1/models`: an entry for it, and one for each of its adapters.
    pub(super) fn details(&self) -> Vec<(ModelView, Vec<Value>)> {
        let state = self.lock();
        let of_running = |id: Id| {
            let running = matches!(
                state.schedule.slots[id].phase,
                Phase::Loaded | Phase::Sleeping
            );
            state.models[id]
                .info
                .iter()
                .filter(|_| running)
                .cloned()
                .collect()
        };
        let ids = (0..state.models.len()).filter(|&id| !state.models[id].gone);
        ids.map(|id| (state.view(id), of_running(id))).collect()
    }

    /// The processes of all models that are loaded or asleep.
    pub(super) fn running(&self) -> Vec<Arc<Child>> {
        let state = self.lock();
        let phases = state.schedule.slots.iter().map(|slot| slot.phase);
        let running = state.models.iter().zip(phases).filter(|(_, phase)| {
            matches!(
                phase,
                Phase::Loaded | Phase::Sleeping | Phase::Waking | Phase::FallingAsleep
            )
        });
        running
            .filter_map(|(model, _)| model.child.clone())
            .collect()
    }

    /// What happens from now on, as JSON.
    pub(super) fn events(&self) -> broadcast::Receiver<Value> {
        self.0.events.subscribe()
    }

    /// Whether the server is about to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

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

    /// Has a model loaded, or woken up; whether it is told by its state.
    ///
    /// # Errors
    /// 400 if it is there already, 404 if there is none, 503 if the server ends.
    pub fn load(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        {
            let mut state = self.lock();
            if state.stopping {
                return Err(stopping());
            }
            let phase = state.schedule.slots[id].phase;
            if !matches!(phase, Phase::Unloaded | Phase::Unloading | Phase::Sleeping) {
                return Err(ApiError::field(
                    "model",
                    "the model is loaded or loading already",
                ));
            }
            state.schedule.want(id);
        }
        self.go_on();
        Ok(())
    }

    /// Has a model loaded and waits for that.
    ///
    /// # Errors
    /// As those of requests for it.
    pub async fn load_and_wait(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        self.lease(id, Some(true), None).await.map(drop)
    }

    /// Asks a model something small with a JSON body, on the server's own account: status and JSON. It is loaded for that.
    ///
    /// # Errors
    /// As those of requests for it, and 503 if its process goes away.
    pub async fn ask(
        &self,
        name: &str,
        path: &str,
        body: &Value,
    ) -> std::result::Result<(u16, Value), ApiError> {
        let id = self.find(name)?;
        let lease = self.lease(id, None, None).await?;
        let mut request = post(path);
        *request.body_mut() = Bytes::from(body.to_string());
        let answer = proxy::ask(&lease.child, request, PATIENCE).await;
        let (status, body) = answer.map_err(|trouble| trouble.error(name))?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Asks all models that are loaded, on the server's own account: names and JSON of those that answer 200.
    pub async fn ask_loaded(&self, method: &str, path: &str) -> Vec<(String, Value)> {
        let mut answers = Vec::new();
        for child in self.running() {
            let request = if method == "POST" {
                post(path)
            } else {
                get(path)
            };
            if let Ok((200, body)) = proxy::ask(&child, request, PATIENCE).await {
                let json = serde_json::from_slice(&body).unwrap_or_default();
                answers.push((child.name.clone(), json));
            }
        }
        answers
    }

    /// Has a model unloaded: what it answers now has the server's grace to end.
    ///
    /// # Errors
    /// 400 if it is not there, 404 if there is none.
    pub fn unload(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        let mut state = self.lock();
        let is_loading = state.schedule.slots[id].phase == Phase::Loading;
        let Some(step) = state.schedule.unload(id) else {
            return Err(ApiError::field("model", "the model is not loaded"));
        };
        // Who waits for a load that is not to be waits for nothing.
        let waiters = match is_loading {
            true => state.dismiss(id),
            false => Vec::new(),
        };
        drop(state);
        for (_, waiter) in waiters {
            let reason = "the model was unloaded before it was there";
            let _ = waiter.send(Err(ApiError::unavailable(CANCELLED, reason)));
        }
        self.run(vec![step]);
        self.go_on();
        Ok(())
    }

    /// A model's state, as in its [`ModelView`].
    ///
    /// # Errors
    /// 404 if there is none.
    pub fn state(&self, name: &str) -> std::result::Result<&'static str, ApiError> {
        let id = self.find(name)?;
        Ok(self.lock().view(id).state)
    }

    /// Has an idle model put to sleep and waits for that; whether it sleeps then.
    ///
    /// # Errors
    /// 404 if there is none.
    pub async fn sleep(&self, name: &str) -> std::result::Result<bool, ApiError> {
        let id = self.find(name)?;
        let step = self.lock().schedule.sleep(id);
        if let Some(Step::Sleep(id)) = step {
            self.fall_asleep(id).await;
        }
        Ok(self.lock().schedule.slots[id].phase == Phase::Sleeping)
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
