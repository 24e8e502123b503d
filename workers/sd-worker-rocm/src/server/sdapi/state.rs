//! What goes on: progress, interruption, options.

use crate::image_io::to_base64;
use crate::server::App;
use axum::extract::Query;
use axum::Json;
use serde::Deserialize;
use serde_json::{json, Value};
use worker::http::json::Object;
use worker::http::{blocking, ApiError, JsonBody};
use worker::serve::Model;

#[derive(Deserialize)]
pub(super) struct ProgressQuery {
    /// A boolean as Python prints it, or as JSON has it.
    #[serde(default)]
    skip_current_image: String,
}

pub(super) async fn progress(
    Model(app): Model<App>,
    Query(query): Query<ProgressQuery>,
) -> Json<Value> {
    let running = app.queue().all_running();
    let job = running.first().filter(|job| !job.state.is_final());
    let preview = job.and_then(|job| job.preview.as_ref());
    let image = preview
        .filter(|_| {
            !["true", "1", "yes", "on"].contains(&query.skip_current_image.to_lowercase().as_str())
        })
        .map(|preview| to_base64(preview));
    Json(json!({
        "progress": job.map_or(0.0, |job| job.progress()),
        "eta_relative": job.and_then(|job| job.seconds_left()).unwrap_or(0.0),
        "state": {
            "skipped": false,
            "interrupted": false,
            "job": job.map_or("", |job| job.id.as_str()),
            "job_count": job.map_or(0, |_| running.len() + app.queue().waiting()),
            "job_no": 0,
            "sampling_step": job.map_or(0, |job| job.step),
            "sampling_steps": job.map_or(0, |job| job.total),
        },
        "current_image": image,
        "textinfo": null,
    }))
}

/// Cancels the running jobs; their clients get an error that says so.
pub(super) async fn interrupt(Model(app): Model<App>) -> Json<Value> {
    for job in app.queue().all_running() {
        app.queue().cancel(&job.id);
    }
    Json(json!({}))
}

/// The host's memory and the devices'.
pub(super) async fn memory(Model(app): Model<App>) -> Result<Json<Value>, ApiError> {
    blocking(move || app.memory()).await.map(Json)
}

pub(super) async fn options(Model(app): Model<App>) -> Json<Value> {
    Json(settings(&app))
}

fn settings(app: &App) -> Value {
    let info = app.queue().info();
    json!({
        "sd_model_checkpoint": info.name,
        "sd_checkpoint_hash": null,
        "samples_format": "png",
        "randn_source": "NV",
        "CLIP_stop_at_last_layers": 1,
        "show_progress_every_n_steps": app.options().preview_every,
    })
}

/// Settings are fixed at the start of the server; the model that is loaded may be named, and clients may post back what
/// they have read.
pub(super) async fn set_options(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, ApiError> {
    let settings = settings(&app);
    for (name, value) in &body {
        if settings.get(name) == Some(value) {
            continue;
        }
        match (name.as_str(), value.as_str()) {
            ("sd_model_checkpoint", Some(model)) => app.same_model(model)?,
            _ => {
                return Err(ApiError::field(
                    name,
                    format!("{name} cannot be changed while the server runs; send it with a request in override_settings, or start the server with it"),
                ))
            }
        }
    }
    Ok(Json(json!({})))
}

/// A model's name without the hash and the ending that web UIs add.
pub(in crate::server) fn plain_name(name: &str) -> &str {
    let stem = name.split(" [").next().unwrap_or(name);
    stem.strip_suffix(".safetensors").unwrap_or(stem)
}

impl App {
    /// Refuses the name of a model that is not loaded.
    pub(super) fn same_model(&self, name: &str) -> Result<(), ApiError> {
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
            format!("this server has one model, {ours}; start another server for {name}"),
        ))
    }
}
