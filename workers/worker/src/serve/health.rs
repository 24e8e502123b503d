//! `/health` `/ready` `/info`, and the sign of life for orchestrators: rbee's contract.

use super::{Served, Unready, Worker};
use crate::time::timestamp;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Value};
use std::sync::Arc;

/// `GET /health`: whether the worker can do its work.
pub(super) async fn health<W: Worker>(State(worker): State<Arc<W>>) -> Response {
    let frame = worker.frame();
    let mut body = json!({
        "status": "healthy",
        "timestamp": timestamp(),
        "model": worker.model(),
        "device": frame.identity.device,
        "switched_off": candle_rocm::verify::switched_off(),
    });
    if let Some(supervisor) = (frame.identity.supervisor.as_ref()).filter(|s| s.restarts > 0) {
        body["restarts"] = json!({
            "count": supervisor.restarts,
            "reason": supervisor.reason,
        });
    }
    let unready = match frame.ready() {
        Err(unready) => unready,
        Ok(loaded) => {
            let degraded = loaded.status().degraded;
            if !degraded.is_empty() {
                body["degraded"] = json!(degraded);
            }
            return Json(body).into_response();
        }
    };
    body["status"] = json!(match &unready {
        Unready::Loading { .. } => "loading",
        Unready::Stopping => "stopping",
        Unready::Lost(_) => "lost",
    });
    body["message"] = json!(unready.to_string());
    if let Unready::Loading { progress, stage } = unready {
        body["progress"] = json!(progress);
        body["stage"] = json!(Some(stage).filter(|stage| !stage.is_empty()));
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// `GET /ready`: whether requests are taken.
pub(super) async fn ready<W: Worker>(State(worker): State<Arc<W>>) -> Response {
    match worker.frame().ready() {
        Ok(_) => Json(json!({"ready": true, "timestamp": timestamp()})).into_response(),
        Err(unready) => {
            let body = json!({
                "ready": false,
                "reason": unready.to_string(),
                "timestamp": timestamp(),
            });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

/// `GET /info`
pub(super) async fn info<W: Worker>(State(worker): State<Arc<W>>) -> Json<Value> {
    Json(worker_info(&*worker))
}

/// What an orchestrator knows a worker by.
pub fn worker_info<W: Worker>(worker: &W) -> Value {
    let frame = worker.frame();
    let status = match frame.ready() {
        Err(Unready::Loading { .. }) => "starting",
        Err(_) => "stopped",
        Ok(loaded) if loaded.status().busy => "busy",
        Ok(_) => "ready",
    };
    let mut info = json!({
        "id": frame.identity.worker_id,
        "model_id": worker.model(),
        "device": frame.identity.device.name,
        "port": frame.identity.port,
        "status": status,
        "implementation": W::NAME,
        "version": W::VERSION,
    });
    if let (Ok(loaded), Some(fields)) = (frame.loaded(), info.as_object_mut()) {
        fields.extend(loaded.info());
    }
    info
}

/// The body of a sign of life.
pub fn heartbeat<W: Worker>(worker: &W) -> Value {
    json!({"worker": worker_info(worker), "timestamp": timestamp()})
}
