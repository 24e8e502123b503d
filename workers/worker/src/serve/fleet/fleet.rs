//! The models of a server: their processes, and the requests that wait for them.

use super::child::{Child, End, Launch, Spawner};
use super::config::{Catalogue, ModelSettings};
use super::memory;
use super::options::Span;
use super::proxy::{self, Trouble};
use super::schedule::{Entry, Id, Limits, Patience, Phase, Place, Schedule, Slot, Step};
use crate::http::error::{CANCELLED, QUEUE_FULL, RESTARTING};
use crate::http::ApiError;
use crate::serve::supervise::crashes::Crashes;
use crate::text::beginning;
use crate::{Error, Result};
use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode};
use serde_json::{json, Map, Value};
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
/// Code of a request whose model could not be loaded.
const LOAD_FAILED: &str = "MODEL_LOAD_FAILED";
/// Code of a request that waited too long for its model.
const NO_ROOM: &str = "MODEL_NOT_READY";
/// How often a process that loads is asked how far it is, at first and at last.
const ASK_OFTEN: Duration = Duration::from_millis(20);
const ASK_RARELY: Duration = Duration::from_millis(500);
/// How long a process may take for an answer about itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to fall asleep, or to wake up.
const SLEEP_PATIENCE: Duration = Duration::from_secs(600);
/// What a process that was told to end gets beyond the grace of its answers.
const STOP_MARGIN: Duration = Duration::from_secs(10);
/// What a client should wait that found the queue full, or the wait too long.
const RETRY: Duration = Duration::from_secs(5);
/// Events that wait for a slow reader; it misses older ones.
const EVENTS: usize = 256;
/// Names that an error lists.
const LISTED: usize = 20;

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
    /// How many keys the server knows.
    pub(super) keys: usize,
    pub(super) worker_id: String,
    pub(super) grace: Duration,
    pub(super) core_files: bool,
    /// Crashes after which a model rests, and within which time.
    pub(super) crashes: (usize, Duration),
    pub(super) reread: Box<dyn Fn() -> Result<Catalogue> + Send + Sync>,
}

/// The models of a server. Clones are handles to the same.
#[derive(Clone)]
pub struct Fleet(Arc<Inner>);

struct Inner {
    options: Options,
    state: Mutex<State>,
    /// Timers are to be looked at anew.
    changed: Notify,
    /// A process has ended.
    ended: Notify,
    events: broadcast::Sender<Value>,
    spawner: Spawner,
    runtime: Handle,
    counts: Counts,
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

struct State {
    schedule: Schedule,
    models: Vec<Model>,
    /// Every name and alias.
    names: HashMap<String, Id>,
    default: Option<Id>,
    stopping: bool,
    tickets: u64,
}

/// A request that waits: its number, and who waits for what becomes of it.
type Waiter = (u64, oneshot::Sender<std::result::Result<Lease, ApiError>>);

struct Model {
    settings: ModelSettings,
    child: Option<Arc<Child>>,
    waiters: Vec<Waiter>,
    crashes: Crashes,
    failure: Option<End>,
    progress: (f64, String),
    /// What its process says of it in `/v1/models`.
    info: Vec<Value>,
    /// Whether it is no longer in any list: it ends once nobody uses it.
    gone: bool,
    /// Since when it is in one, in seconds since 1970.
    created: i64,
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

    fn lock(&self) -> MutexGuard<'_, State> {
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
    fn go_on(&self) {
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

    fn run(&self, steps: Vec<Step>) {
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

    /// The life of a model's process, from its start to its end.
    async fn live(&self, id: Id) {
        let name = self.name(id);
        self.0.counts.loads.fetch_add(1, Ordering::Relaxed);
        self.report(id);
        tracing::info!("loading model {name:?}");
        let begun = Instant::now();
        let launch = {
            let state = self.lock();
            let model = &state.models[id];
            Launch {
                name: name.clone(),
                arguments: model.settings.arguments.clone(),
                hidden: self.0.options.hidden.clone(),
                keys: self.0.options.keys,
                worker_id: self.0.options.worker_id.clone(),
                restarts: model.crashes.total(),
                reason: model
                    .failure
                    .as_ref()
                    .filter(|end| end.crashed)
                    .map(|end| end.message.clone()),
                core_files: self.0.options.core_files,
            }
        };
        let child = match Child::start(&self.0.spawner, launch).await {
            Ok(child) => child,
            Err(error) => {
                let end = End {
                    message: format!("its process cannot be started: {error}"),
                    memory: false,
                    code: 1,
                    crashed: false,
                };
                return self.failed(id, end);
            }
        };
        let is_wanted = {
            let mut state = self.lock();
            state.models[id].child = Some(child.clone());
            state.models[id].progress = (0.0, String::new());
            !state.stopping && state.schedule.slots[id].phase == Phase::Loading
        };
        if !is_wanted {
            child.kill();
        }
        if let Err(end) = self.until_ready(id, &child).await {
            return self.failed(id, end);
        }
        let info = self.ask_about(&child).await;
        let takes = self.measure(id, &child).await;
        {
            let mut state = self.lock();
            state.models[id].info = info;
            state.models[id].failure = None;
            state.schedule.loaded(id, takes, Instant::now());
        }
        let seconds = begun.elapsed().as_secs_f32();
        tracing::info!(
            "model {name:?} is loaded, in {seconds:.1} s; it takes {} MB",
            takes >> 20
        );
        self.report(id);
        self.0.changed.notify_one();
        self.go_on();
        let end = child.end().await;
        self.ended(id, end);
    }

    /// Waits until a process answers that it is ready.
    async fn until_ready(&self, id: Id, child: &Child) -> std::result::Result<(), End> {
        let mut pause = ASK_OFTEN;
        loop {
            let asked = async {
                tokio::time::sleep(pause).await;
                proxy::ask(child, get("/health"), PATIENCE).await
            };
            let answer = tokio::select! {
                answer = asked => answer,
                end = child.end() => return Err(end),
            };
            pause = (pause * 5 / 4).min(ASK_RARELY);
            match answer {
                Ok((200, _)) => return Ok(()),
                Ok((_, body)) => {
                    let health: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let progress = health["progress"].as_f64().unwrap_or(0.0);
                    let stage = health["stage"].as_str().unwrap_or_default().to_string();
                    let mut state = self.lock();
                    let known = &mut state.models[id].progress;
                    let is_new = (known.0 - progress).abs() > 0.01 || known.1 != stage;
                    *known = (progress, stage);
                    drop(state);
                    if is_new {
                        self.report(id);
                    }
                }
                // It is not there yet, or no more: the next round tells.
                Err(_) => {}
            }
        }
    }

    /// The models that a process has.
    async fn ask_about(&self, child: &Child) -> Vec<Value> {
        let asked = proxy::ask(child, get("/v1/models"), PATIENCE).await;
        let Ok((200, body)) = asked else {
            return Vec::new();
        };
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        list["data"].as_array().cloned().unwrap_or_default()
    }

    /// Bytes that a process takes of its place.
    async fn measure(&self, id: Id, child: &Child) -> u64 {
        let (place, needs) = {
            let state = self.lock();
            let slot = &state.schedule.slots[id];
            (slot.place, slot.needs)
        };
        match place {
            Place::Cpu => child.host_bytes().max(needs),
            Place::Rocm(_) => {
                let asked = proxy::ask(child, get("/metrics"), PATIENCE).await;
                let text = asked.map(|(_, body)| String::from_utf8_lossy(&body).into_owned());
                let used = text.ok().and_then(|text| memory::used_by(&text));
                used.unwrap_or(needs)
            }
        }
    }

    /// A process was not there in time, or not at all.
    fn failed(&self, id: Id, end: End) {
        let name = self.name(id);
        let now = Instant::now();
        let mut state = self.lock();
        let was_told = state.schedule.slots[id].phase == Phase::Unloading;
        state.models[id].child = None;
        let again = !was_told && end.memory && state.schedule.cramped(id);
        let rest = match was_told || again {
            true => None,
            false => Some(state.rest(id, now)),
        };
        state.schedule.ended(id, rest.map(|rest| now + rest));
        if !was_told {
            state.models[id].failure = Some(end.clone());
        }
        let waiters = match rest {
            Some(_) => state.dismiss(id),
            None => Vec::new(),
        };
        drop(state);
        if again {
            tracing::warn!(
                "model {name:?} found no room ({}); another one makes some",
                end.message
            );
        } else if !was_told {
            self.0.counts.failures.fetch_add(1, Ordering::Relaxed);
            tracing::error!("model {name:?} cannot be loaded: {}", end.message);
        }
        let error = load_failed(&name, &end, rest);
        for (_, waiter) in waiters {
            let _ = waiter.send(Err(error.clone()));
        }
        self.after_end(id);
    }

    /// The process of a loaded model has ended.
    fn ended(&self, id: Id, end: End) {
        let now = Instant::now();
        let mut state = self.lock();
        let model = &mut state.models[id];
        model.child = None;
        let name = model.settings.name.clone();
        let was_told = state.schedule.slots[id].phase == Phase::Unloading || state.stopping;
        let rest = (!was_told).then(|| state.rest(id, now));
        if let Some(rest) = rest {
            state.models[id].failure = Some(end.clone());
            tracing::error!(
                "the process of model {name:?} ended: {}; it may be started anew in {} s",
                end.message,
                rest.as_secs_f32()
            );
            self.0.counts.crashes.fetch_add(1, Ordering::Relaxed);
        } else {
            tracing::info!("model {name:?} is unloaded");
            self.0.counts.unloads.fetch_add(1, Ordering::Relaxed);
        }
        state.schedule.ended(id, rest.map(|rest| now + rest));
        drop(state);
        self.after_end(id);
    }

    fn after_end(&self, id: Id) {
        self.report(id);
        self.0.ended.notify_waiters();
        self.0.changed.notify_one();
        self.go_on();
    }

    /// Ends a model's process.
    async fn end(&self, id: Id) {
        self.report(id);
        let child = self.lock().models[id].child.clone();
        let Some(child) = child else {
            // Its start will see that it is not wanted.
            return;
        };
        child.terminate();
        let grace = self.0.options.grace + STOP_MARGIN;
        if tokio::time::timeout(grace, child.end()).await.is_err() {
            tracing::warn!(
                "the process of model {:?} does not end; it is killed",
                child.name
            );
            child.kill();
        }
    }

    async fn fall_asleep(&self, id: Id) {
        let child = self.lock().models[id].child.clone();
        let takes = match child {
            Some(child) => match proxy::ask(&child, post("/sleep"), SLEEP_PATIENCE).await {
                Ok((200, _)) => Some(match self.lock().schedule.slots[id].place {
                    Place::Cpu => child.host_bytes(),
                    // What its runtime keeps is not known, and little beside a model.
                    Place::Rocm(_) => 0,
                }),
                _ => None,
            },
            None => None,
        };
        self.lock().schedule.slept(id, takes);
        if takes.is_some() {
            self.0.counts.sleeps.fetch_add(1, Ordering::Relaxed);
            tracing::info!("model {:?} sleeps", self.name(id));
        }
        self.report(id);
        self.0.changed.notify_one();
        self.go_on();
    }

    async fn wake(&self, id: Id) {
        self.report(id);
        let child = self.lock().models[id].child.clone();
        let Some(child) = child else {
            return;
        };
        match proxy::ask(&child, post("/wake_up"), SLEEP_PATIENCE).await {
            Ok((200, _)) => {
                let takes = self.measure(id, &child).await;
                self.lock().schedule.loaded(id, takes, Instant::now());
                self.report(id);
                self.0.changed.notify_one();
                self.go_on();
            }
            // A process that does not wake up is of no use: the next one is started for those who wait.
            answer => {
                let reason = match answer {
                    Ok((status, body)) => format!("{status}: {}", String::from_utf8_lossy(&body)),
                    Err(Trouble::Lost(reason) | Trouble::Unreached(reason)) => reason,
                };
                tracing::warn!(
                    "model {:?} does not wake up ({reason}); it is loaded anew",
                    child.name
                );
                let mut state = self.lock();
                // It may have ended, and another may be there in its place.
                let is_it = state.models[id]
                    .child
                    .as_ref()
                    .is_some_and(|own| Arc::ptr_eq(own, &child));
                let step = if is_it {
                    state.schedule.unload(id)
                } else {
                    None
                };
                drop(state);
                self.run(step.into_iter().collect());
            }
        }
    }

    /// Takes nothing new, gives what runs `grace`, and returns when all processes have ended.
    pub(super) async fn stop(&self, grace: Duration) {
        let (children, waiters) = {
            let mut state = self.lock();
            state.stopping = true;
            let waiters: Vec<Waiter> = state
                .models
                .iter_mut()
                .flat_map(|model| std::mem::take(&mut model.waiters))
                .collect();
            let children: Vec<Arc<Child>> = state
                .models
                .iter()
                .filter_map(|model| model.child.clone())
                .collect();
            (children, waiters)
        };
        for (_, waiter) in waiters {
            let _ = waiter.send(Err(stopping()));
        }
        self.tell("*", "server_stopping", &Value::Null);
        self.0.changed.notify_one();
        for child in &children {
            child.terminate();
        }
        let deadline = tokio::time::Instant::now() + grace + STOP_MARGIN;
        for child in &children {
            if tokio::time::timeout_at(deadline, child.end())
                .await
                .is_err()
            {
                tracing::warn!(
                    "the process of model {:?} does not stop; it is killed",
                    child.name
                );
                child.kill();
            }
        }
    }

    /// Tells those who listen how a model is.
    fn report(&self, id: Id) {
        let view = self.lock().view(id);
        let mut data = json!({"status": view.state});
        for key in ["progress", "exit_code", "failed", "error"] {
            if let Some(value) = view.json["status"].get(key) {
                data[key] = value.clone();
            }
        }
        self.tell(&view.name, "model_status", &data);
    }

    fn tell(&self, model: &str, event: &str, data: &Value) {
        let mut told = json!({"model": model, "event": event});
        if !data.is_null() {
            told["data"] = data.clone();
        }
        // Nobody may be listening.
        let _ = self.0.events.send(told);
    }
}

fn get(path: &str) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}

fn post(path: &str) -> Request<Bytes> {
    let mut request = get(path);
    *request.method_mut() = Method::POST;
    request
}

fn stopping() -> ApiError {
    ApiError::unavailable(CANCELLED, "the server is stopping")
}

fn load_failed(name: &str, end: &End, rest: Option<Duration>) -> ApiError {
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
    fn check_taken(&self, id: Id) -> std::result::Result<(), ApiError> {
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
    fn rest(&mut self, id: Id, now: Instant) -> Duration {
        let crashes = &mut self.models[id].crashes;
        crashes.add(now).unwrap_or(crashes.window())
    }

    /// Takes all who wait for a model out of the queue.
    fn dismiss(&mut self, id: Id) -> Vec<Waiter> {
        self.schedule.clear(id);
        std::mem::take(&mut self.models[id].waiters)
    }

    /// The names that there are, in words.
    fn listing(&self) -> String {
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

    fn views(&self) -> impl Iterator<Item = ModelView> + '_ {
        let ids = (0..self.models.len()).filter(|&id| !self.models[id].gone);
        ids.map(|id| self.view(id))
    }

    fn view(&self, id: Id) -> ModelView {
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
