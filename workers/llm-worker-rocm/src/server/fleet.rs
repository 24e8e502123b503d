//! Several models in one server: what this worker's routes need of it.

use super::anthropic;
use super::app::App;
use super::native;
use super::ollama;
use super::rbee;
use super::responses;
use super::slots::{OrEmpty, SleepFields};
use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::Deserialize;
use serde_json::{json, Value};
use worker::http::sse::{Protocol, OPENAI};
use worker::http::{ApiError, JsonBody};
use worker::serve::fleet::{Fleet, FleetServer, FleetWorker, ModelFiles, ModelView};
use worker::serve::{Model, Route};

impl FleetWorker for App {
    const MODEL_FILES: ModelFiles = ModelFiles {
        endings: &["gguf"],
        folder_marks: &["config.json"],
    };

    fn fleet_routes() -> Vec<Route<FleetServer<Self>>> {
        vec![
            Route::get(
                "/api/tags",
                "The models in a list, as Ollama tells it",
                tags,
            ),
            Route::get(
                "/api/ps",
                "The models that are loaded, as Ollama tells it",
                running,
            ),
            Route::post(
                "/sleep",
                "Puts the model of ?model=NAME to sleep, if it is idle",
                sleep,
            )
            .takes::<SleepFields>(),
            Route::post(
                "/wake_up",
                "Loads the model of ?model=NAME, or wakes it up",
                wake_up,
            )
            .takes::<SleepFields>(),
            Route::get(
                "/is_sleeping",
                "Whether the model of ?model=NAME sleeps",
                is_sleeping,
            ),
        ]
    }

    fn answers_alone(path: &str) -> bool {
        matches!(path, "/api/version" | "/version") || path.starts_with("/page/")
    }

    fn refusal(path: &str, error: ApiError) -> Response {
        match path {
            _ if path.starts_with("/api/") => ollama::refusal(error),
            _ if path.starts_with("/v1/messages") => anthropic::refusal(error),
            _ => error.into_response(),
        }
    }

    fn protocol(path: &str) -> Protocol {
        match path {
            _ if path.starts_with("/api/") => ollama::LINES,
            _ if path.starts_with("/v1/messages") => anthropic::EVENTS,
            _ if path.starts_with("/v1/responses") => responses::EVENTS,
            _ if path.starts_with("/v1/jobs") || path.starts_with("/v1/inference") => {
                rbee::PROTOCOL
            }
            "/completion" | "/completions" | "/infill" => native::PROTOCOL,
            _ => OPENAI,
        }
    }
}

fn entry(view: &ModelView) -> Value {
    ollama::entry(&view.name, view.bytes, view.created)
}

async fn tags(Model(fleet): Model<Fleet>) -> Json<Value> {
    let all = fleet.list();
    Json(json!({"models": all.iter().map(entry).collect::<Vec<_>>()}))
}

async fn running(Model(fleet): Model<Fleet>) -> Json<Value> {
    let all = fleet.list();
    let loaded = all.iter().filter(|view| view.state == "loaded");
    Json(json!({"models": loaded.map(entry).collect::<Vec<_>>()}))
}

/// Which model is meant.
#[derive(Debug, Deserialize)]
struct Which {
    model: Option<String>,
}

impl Which {
    fn name(self, fleet: &Fleet) -> Result<String, ApiError> {
        let given = self.model.or_else(|| fleet.default_name());
        given.ok_or_else(|| ApiError::field("model", "say which model: ?model=NAME"))
    }
}

async fn sleep(
    Model(fleet): Model<Fleet>,
    Query(which): Query<Which>,
    _: JsonBody<OrEmpty<SleepFields>>,
) -> Result<Json<Value>, ApiError> {
    let name = which.name(&fleet)?;
    match fleet.sleep(&name).await? {
        true => Ok(Json(json!({"is_sleeping": true}))),
        false => Err(ApiError::field(
            "model",
            format!("model {name:?} does not sleep: it is not loaded, it answers, or it cannot"),
        )),
    }
}

async fn wake_up(
    Model(fleet): Model<Fleet>,
    Query(which): Query<Which>,
    _: JsonBody<OrEmpty<SleepFields>>,
) -> Result<Json<Value>, ApiError> {
    fleet.load_and_wait(&which.name(&fleet)?).await?;
    Ok(Json(json!({"is_sleeping": false})))
}

async fn is_sleeping(
    Model(fleet): Model<Fleet>,
    Query(which): Query<Which>,
) -> Result<Json<Value>, ApiError> {
    let name = which.name(&fleet)?;
    let asleep = fleet.state(&name)? == "sleeping";
    Ok(Json(json!({"is_sleeping": asleep})))
}
