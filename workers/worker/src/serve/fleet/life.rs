//! From the start of a model's process to its end.

use super::child::{Child, End, Launch};
use super::handle::{get, post, Fleet, PATIENCE};
use super::memory;
use super::proxy::{self, Trouble};
use super::schedule::{Id, Phase, Place};
use super::state::{load_failed, stopping, Waiter};
use serde_json::Value;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a process that loads is asked how far it is, at first and at last.
const ASK_OFTEN: Duration = Duration::from_millis(20);
const ASK_RARELY: Duration = Duration::from_millis(500);
/// How long it may take to fall asleep, or to wake up.
const SLEEP_PATIENCE: Duration = Duration::from_secs(600);
/// What a process that was told to end gets beyond the grace of its answers.
const STOP_MARGIN: Duration = Duration::from_secs(10);

impl Fleet {
    /// The life of a model's process, from its start to its end.
    pub(super) async fn live(&self, id: Id) {
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
                keys: self.0.options.keys.clone(),
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
    pub(super) async fn end(&self, id: Id) {
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

    pub(super) async fn fall_asleep(&self, id: Id) {
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

    pub(super) async fn wake(&self, id: Id) {
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
}
