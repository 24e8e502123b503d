//! What goes on: progress, interruption, settings.

use super::body::Body;
use super::refusal::{Refusal, Ui, UiBody};
use super::settings::Settings;
use crate::image_io::to_base64;
use crate::jobs::{Job, State as JobState};
use crate::server::App;
use axum::extract::Query;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, RwLock};
use worker::http::json::Object;
use worker::http::{blocking, ApiError};

/// Names of requests that are remembered.
const MAX_TASKS: usize = 256;
/// Longest of them.
const MAX_TASK_NAME: usize = 256;

/// What the web UI's routes remember.
pub(in crate::server) struct WebUi {
    settings: RwLock<Settings>,
    pub(super) tasks: Tasks,
}

impl WebUi {
    /// What is set at the server's start.
    pub(in crate::server) fn new(preview_every: usize) -> Self {
        Self {
            settings: RwLock::new(Settings::new(preview_every)),
            tasks: Tasks::default(),
        }
    }

    fn settings(&self) -> Settings {
        let settings = self.settings.read();
        settings.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, settings: Settings) {
        *self
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner) = settings;
    }
}

/// Names that clients gave their requests, and the jobs that these are now.
#[derive(Default)]
pub(super) struct Tasks(Mutex<VecDeque<(String, String)>>);

impl Tasks {
    /// A request of this name is a job now.
    pub(super) fn name(&self, task: &str, job: &str) {
        if task.len() > MAX_TASK_NAME {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(name, _)| name != task);
        known.push_back((task.to_string(), job.to_string()));
        if known.len() > MAX_TASKS {
            known.pop_front();
        }
    }

    /// The job of a request, by its name or the job's own.
    fn job(&self, task: &str) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(name, _)| name == task);
        found.map_or_else(|| task.to_string(), |(_, job)| job.clone())
    }

    /// What a job's request is called.
    fn of(&self, job: &str) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(_, known)| known == job);
        found.map_or_else(|| job.to_string(), |(name, _)| name.clone())
    }
}

#[derive(Deserialize)]
pub(super) struct ProgressQuery {
    /// A boolean as Python prints it, or as JSON has it.
    #[serde(default)]
    skip_current_image: String,
}

pub(super) async fn progress(
    Ui(app): Ui,
    query: Result<Query<ProgressQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Value>, Refusal> {
    let Query(query) = query.map_err(|e| ApiError::invalid(e.body_text()))?;
    let running = app.queue().all_running();
    let job = running.first().filter(|job| !job.state.is_final());
    let preview = job.and_then(|job| job.preview.as_ref());
    let image = preview
        .filter(|_| {
            !["true", "1", "yes", "on"].contains(&query.skip_current_image.to_lowercase().as_str())
        })
        .map(|preview| to_base64(preview));
    let task = job.map(|job| app.web_ui().tasks.of(&job.id));
    Ok(Json(json!({
        "progress": job.map_or(0.0, Job::progress),
        "eta_relative": job.and_then(Job::seconds_left).unwrap_or(0.0),
        "state": {
            "skipped": false,
            "interrupted": false,
            "stopping_generation": false,
            "job": job.map_or("", |job| job.id.as_str()),
            "job_count": job.map_or(0, |_| running.len() + app.queue().waiting()),
            "job_no": 0,
            "sampling_step": job.map_or(0, |job| job.step),
            "sampling_steps": job.map_or(0, |job| job.total),
        },
        "current_image": image,
        "current_task": task,
        "textinfo": null,
    })))
}

/// Which request's progress.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "TaskFields")]
pub(super) struct TaskBody {
    /// The `force_task_id` of a request, or a job's id.
    #[serde(default)]
    id_task: Option<String>,
    /// Whether a preview is wanted.
    #[serde(default = "yes")]
    live_preview: bool,
}

fn yes() -> bool {
    true
}

/// How far one request is, as the web UI's own page asks.
pub(super) async fn task_progress(
    Ui(app): Ui,
    UiBody(body): UiBody<TaskBody>,
) -> Result<Json<Value>, Refusal> {
    let task = body.id_task.unwrap_or_default();
    let job = app.queue().job(&app.web_ui().tasks.job(&task));
    let is = |state| job.as_ref().is_some_and(|job| job.state == state);
    let preview = job.as_ref().and_then(|job| job.preview.as_ref());
    let preview = preview.filter(|_| body.live_preview);
    let queued = is(JobState::Queued);
    Ok(Json(json!({
        "active": is(JobState::Running),
        "queued": queued,
        "completed": job.as_ref().is_some_and(|job| job.state.is_final()),
        "progress": job.as_ref().map(Job::progress),
        "eta": job.as_ref().and_then(Job::seconds_left),
        "live_preview": preview.map(|png| format!("data:image/png;base64,{}", to_base64(png))),
        "id_live_preview": job.as_ref().map_or(0, |job| job.step),
        "textinfo": match (&job, queued) {
            (Some(job), true) => format!("In queue: {}/{}", job.position + 1, app.queue().waiting()),
            _ => "Waiting...".to_string(),
        },
    })))
}

/// The requests that wait, by their names.
pub(super) async fn pending_tasks(Ui(app): Ui) -> Json<Value> {
    let jobs = app.queue().jobs().into_iter();
    let waiting = jobs.filter(|job| job.state == JobState::Queued);
    let tasks: Vec<String> = waiting.map(|job| app.web_ui().tasks.of(&job.id)).collect();
    Json(json!({"size": tasks.len(), "tasks": tasks}))
}

/// Cancels the running jobs; their clients get an error that says so.
pub(super) async fn interrupt(Ui(app): Ui) -> Json<Value> {
    for job in app.queue().all_running() {
        app.queue().cancel(&job.id);
    }
    Json(json!({}))
}

/// The host's memory and the devices'.
pub(super) async fn memory(Ui(app): Ui) -> Result<Json<Value>, Refusal> {
    Ok(blocking(move || app.memory()).await.map(Json)?)
}

pub(super) async fn options(Ui(app): Ui) -> Json<Value> {
    let mut all = app.web_ui().settings().list();
    let model = json!(app.queue().info().name);
    all.insert("sd_model_checkpoint".to_string(), model);
    Json(Value::Object(all))
}

/// Changes settings for good: all of them, or none where one cannot be.
pub(super) async fn set_options(
    Ui(app): Ui,
    UiBody(Object(body)): UiBody<Object>,
) -> Result<Json<Value>, Refusal> {
    let mut settings = app.web_ui().settings();
    for (name, value) in &body {
        match (name.as_str(), value.as_str()) {
            ("sd_model_checkpoint", Some(model)) => app.same_model(model)?,
            ("sd_model_checkpoint", None) if value.is_null() => {}
            _ => settings.set(name, name, value)?,
        }
    }
    app.web_ui().set(settings);
    Ok(Json(json!({})))
}

/// A model's name without the hash and the ending that web UIs add.
pub(in crate::server) fn plain_name(name: &str) -> &str {
    let stem = name.split(" [").next().unwrap_or(name);
    stem.strip_suffix(".safetensors").unwrap_or(stem)
}

impl App {
    /// The settings of a request. They stay for those after it if it says so.
    pub(super) fn settings_for(&self, body: &Body) -> Result<Settings, ApiError> {
        let mut settings = self.web_ui().settings();
        for (name, value) in &body.override_settings {
            match (name.as_str(), value.as_str()) {
                ("sd_model_checkpoint", Some(model)) => self.same_model(model)?,
                ("sd_model_checkpoint", None) if value.is_null() => {}
                _ => settings.set("override_settings", name, value)?,
            }
        }
        if body.override_settings_restore_afterwards == Some(false) {
            self.web_ui().set(settings.clone());
        }
        Ok(settings)
    }

    /// Refuses the name of a model that is not loaded.
    pub(in crate::server) fn same_model(&self, name: &str) -> Result<(), ApiError> {
        let ours = &self.queue().info().name;
        let names = [name, plain_name(name)];
        if names
            .iter()
            .any(|name| name == ours || self.options().aliases.iter().any(|alias| alias == name))
        {
            return Ok(());
        }
        Err(ApiError::field(
            "sd_model_checkpoint",
            format!("this server has one model, {ours}; start it with --models to change it, or another server for {name}"),
        ))
    }
}
