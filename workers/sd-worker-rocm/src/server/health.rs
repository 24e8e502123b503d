//! Signs of life, and numbers for monitoring.

use super::App;
use crate::jobs::queue::Counters;
use axum::extract::State;
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{json, Value};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Routes that need no key.
pub(super) fn open_routes() -> Router<App> {
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
}

/// Routes that need a key.
pub(super) fn closed_routes() -> Router<App> {
    Router::new().route(
        "/info",
        get(|State(app): State<App>| async move { Json(app.worker_info()) }),
    )
}

/// Seconds since 1970.
pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

async fn health(State(app): State<App>) -> Json<Value> {
    let options = app.options();
    Json(json!({
        "status": "healthy",
        "timestamp": unix_seconds(SystemTime::now()) as u64,
        "device": options.device,
        "device_fallback": options.device_fallback,
        "model": app.queue().info().name,
    }))
}

async fn ready(State(app): State<App>) -> Response {
    let timestamp = unix_seconds(SystemTime::now()) as u64;
    if app.queue().is_open() {
        Json(json!({"ready": true, "timestamp": timestamp})).into_response()
    } else {
        let body = json!({"ready": false, "reason": "the server is about to stop", "timestamp": timestamp});
        (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
    }
}

impl App {
    /// The body of a sign of life.
    pub fn heartbeat(&self) -> Value {
        json!({
            "worker": self.worker_info(),
            "timestamp": unix_seconds(SystemTime::now()) as u64,
        })
    }

    /// What an orchestrator is told about this worker.
    pub fn worker_info(&self) -> Value {
        let options = self.options();
        let info = self.queue().info();
        let status = match (self.queue().is_open(), self.queue().running()) {
            (false, _) => "stopped",
            (true, Some(_)) => "busy",
            (true, None) => "ready",
        };
        json!({
            "id": options.worker_id,
            "model_id": info.name,
            "device": options.device,
            "port": options.port,
            "status": status,
            "implementation": "sd-worker-rocm",
            "version": env!("CARGO_PKG_VERSION"),
            "precision": info.precision,
            "defaults": {
                "width": info.defaults.width,
                "height": info.defaults.height,
                "steps": info.defaults.steps,
                "guidance_scale": info.defaults.guidance,
                "sampler": info.defaults.sampler.label(),
                "schedule": info.defaults.schedule().label(),
            },
            "size_multiple": info.size_multiple,
            "inpainting": info.inpainting,
        })
    }
}

/// Prometheus' text format.
async fn metrics(State(app): State<App>) -> Response {
    let Counters {
        submitted,
        refused,
        completed,
        failed,
        cancelled,
        pictures,
        steps,
        busy_micros,
    } = app.queue().counters();
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: f64| {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# HELP sd_worker_{name} {help}\n# TYPE sd_worker_{name} {kind}\nsd_worker_{name} {value}"
        );
    };
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let counters = [
        ("jobs_submitted_total", "Jobs taken.", submitted),
        (
            "jobs_refused_total",
            "Jobs not taken, the queue being full.",
            refused,
        ),
        (
            "jobs_completed_total",
            "Jobs that gave pictures.",
            completed,
        ),
        (
            "jobs_failed_total",
            "Jobs that ended with an error.",
            failed,
        ),
        ("jobs_cancelled_total", "Jobs cancelled.", cancelled),
        ("pictures_total", "Pictures made.", pictures),
        ("steps_total", "Sampler steps done.", steps),
    ];
    for (name, help, counter) in counters {
        metric(name, "counter", help, read(counter));
    }
    metric(
        "busy_seconds_total",
        "counter",
        "Time spent on jobs.",
        read(busy_micros) / 1e6,
    );
    metric(
        "queue_length",
        "gauge",
        "Jobs waiting.",
        app.queue().waiting() as f64,
    );
    let running = f64::from(u8::from(app.queue().running().is_some()));
    metric("jobs_running", "gauge", "Jobs being worked on.", running);
    let uptime = app.started().elapsed().as_secs_f64();
    metric("uptime_seconds", "gauge", "Time since the start.", uptime);
    let media_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, media_type)], text).into_response()
}
