//! `/API/…`: the basic calls of SwarmUI.
//!
//! | Module   | Gives                                                                                   |
//! |----------|-----------------------------------------------------------------------------------------|
//! | `params` | the parameters of a picture                                                             |
//! | `socket` | `GenerateText2ImageWS`                                                                  |

mod params;
mod socket;

use super::{pictures, App, ImageWorker};
use crate::image_io::Format;
use crate::jobs::{Outcome, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use params::Asked;
use serde_json::{json, Map, Value};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use worker::http::json::Object;
use worker::http::{ApiError, JsonBody};
use worker::serve::{Model, Route};

/// Sessions that are remembered.
const MOST_SESSIONS: usize = 1024;
/// Jobs of a session that are remembered.
const MOST_JOBS: usize = 64;
/// The version whose API this is.
const VERSION: &str = "0.9.7.0";

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    let params = "The parameters that requests may have";
    vec![
        Route::post("/API/GetNewSession", "Opens a session", open),
        Route::post("/API/GenerateText2Image", "Makes pictures", generate),
        Route::get(
            "/API/GenerateText2ImageWS",
            "Makes pictures and tells how far they are, as a WebSocket",
            socket::generate,
        ),
        Route::post("/API/ListT2IParams", params, list),
        Route::post("/API/TriggerRefresh", params, list),
        Route::post("/API/ListModels", "The model, or the LoRAs", models),
        Route::post("/API/ListLoadedModels", "The model", loaded),
        Route::post("/API/GetCurrentStatus", "How much waits", status),
        Route::post(
            "/API/InterruptAll",
            "Cancels the session's pictures, or all",
            interrupt,
        ),
    ]
}

/// The sessions, and the jobs that they have begun.
#[derive(Default)]
pub(super) struct Swarm(Mutex<VecDeque<Session>>);

struct Session {
    id: String,
    jobs: VecDeque<String>,
}

impl Swarm {
    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<Session>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn open(&self) -> String {
        let id = worker::ids::uuid().simple().to_string().to_uppercase();
        self.with(|sessions| {
            sessions.push_back(Session {
                id: id.clone(),
                jobs: VecDeque::new(),
            });
            if sessions.len() > MOST_SESSIONS {
                sessions.pop_front();
            }
        });
        id
    }

    fn knows(&self, id: &str) -> bool {
        self.with(|sessions| sessions.iter().any(|session| session.id == id))
    }

    fn note(&self, id: &str, job: &str) {
        self.with(|sessions| {
            if let Some(session) = sessions.iter_mut().find(|session| session.id == id) {
                session.jobs.push_back(job.to_string());
                if session.jobs.len() > MOST_JOBS {
                    session.jobs.pop_front();
                }
            }
        });
    }

    /// The jobs of a session, or of all.
    fn jobs(&self, id: Option<&str>) -> Vec<String> {
        self.with(|sessions| {
            let sessions = sessions
                .iter()
                .filter(|session| id.is_none_or(|id| session.id == id));
            sessions
                .flat_map(|session| session.jobs.iter().cloned())
                .collect()
        })
    }
}

/// An error in the form of SwarmUI.
#[derive(Debug)]
pub(super) struct Refusal {
    error: ApiError,
    id: &'static str,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let id = "";
        Self { error, id }
    }
}

impl Refusal {
    fn body(&self) -> Value {
        let mut body = json!({"error": self.error.message, "param": self.error.param, "code": self.error.code});
        if !self.id.is_empty() {
            body["error_id"] = json!(self.id);
        }
        body
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.error.status, Json(self.body())).into_response()
    }
}

impl App {
    /// The session of a request.
    fn session(&self, body: &Map<String, Value>) -> Result<String, Refusal> {
        let id = body
            .get("session_id")
            .and_then(Value::as_str)
            .unwrap_or_default();
        match self.swarm().knows(id) {
            true => Ok(id.to_string()),
            false => Err(Refusal {
                error: ApiError::new(
                    StatusCode::UNAUTHORIZED,
                    "INVALID_SESSION",
                    "Invalid session ID: call /API/GetNewSession and try again",
                ),
                id: "invalid_session_id",
            }),
        }
    }

    /// How much waits, as `GetCurrentStatus` tells it.
    fn swarm_status(&self) -> Value {
        let running = self.queue().all_running().len();
        let waiting = self.queue().waiting();
        json!({
            "status": {"waiting_gens": waiting + running, "loading_models": 0, "waiting_backends": 0, "live_gens": running},
            "backend_status": {"status": "running", "class": "", "message": "", "any_loading": false},
            "supported_features": ["sd-worker-rocm"],
        })
    }
}

/// The addresses of a job's pictures, relative to the server's.
fn addresses(outcome: &Outcome) -> Vec<String> {
    let paths = outcome
        .pictures
        .iter()
        .map(|picture| pictures::path(picture, Format::Png, 90));
    paths
        .map(|path| path.trim_start_matches('/').to_string())
        .collect()
}

async fn open(Model(app): Model<App>) -> Json<Value> {
    Json(json!({
        "session_id": app.swarm().open(),
        "user_id": "local",
        "output_append_user": false,
        "version": VERSION,
        "server_id": app.queue().info().name,
        "permissions": ["fundamental_generate_tab_access", "fundamental_model_access", "basic_image_generation"],
    }))
}

async fn generate(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, Refusal> {
    let session = app.session(&body)?;
    let request = Asked(&body).request(&app).await?;
    let waiting = app.submit_waiting(request)?;
    app.swarm().note(&session, &waiting.id);
    let outcome = app.outcome(&waiting).await?;
    Ok(Json(json!({"images": addresses(&outcome)})))
}

async fn list(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, Refusal> {
    app.session(&body)?;
    Ok(Json(params::list(&app)))
}

/// A model as it is listed.
fn described(app: &App, name: &str) -> Value {
    json!({
        "name": name, "title": name, "author": "", "description": "", "preview_image": "", "loaded": true,
        "architecture": format!("{:?}", app.queue().info().family), "class": "", "compat_class": "",
        "standard_width": app.queue().info().defaults.width, "standard_height": app.queue().info().defaults.height,
        "is_supported_model_format": true, "local": true,
    })
}

async fn models(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, Refusal> {
    app.session(&body)?;
    let of = body
        .get("subtype")
        .and_then(Value::as_str)
        .unwrap_or("Stable-Diffusion");
    let names: Vec<String> = match of {
        "Stable-Diffusion" => vec![app.queue().info().name.clone()],
        "LoRA" => app
            .options()
            .loras
            .list()
            .into_iter()
            .map(|(name, _)| name)
            .collect(),
        "ControlNet" => app
            .options()
            .controls
            .list()
            .into_iter()
            .map(|(name, _)| name)
            .collect(),
        _ => Vec::new(),
    };
    let files: Vec<Value> = names.iter().map(|name| described(&app, name)).collect();
    Ok(Json(json!({"folders": [], "files": files})))
}

async fn loaded(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, Refusal> {
    app.session(&body)?;
    Ok(Json(
        json!({"models": [described(&app, &app.queue().info().name)]}),
    ))
}

async fn status(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, Refusal> {
    app.session(&body)?;
    Ok(Json(app.swarm_status()))
}

async fn interrupt(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, Refusal> {
    let session = app.session(&body)?;
    let all = body
        .get("other_sessions")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    for job in app.swarm().jobs(Some(session.as_str()).filter(|_| !all)) {
        let open = app
            .queue()
            .job(&job)
            .is_some_and(|job| matches!(job.state, State::Queued | State::Running));
        if open {
            app.queue().cancel(&job);
        }
    }
    Ok(Json(json!({"success": true})))
}
