//! Several models in one server: what this worker's routes need of it. As in AUTOMATIC1111's web UI there is always a
//! model that answers requests that name none: the first, or the one that was chosen last.

use super::devices::host_memory;
use super::sdapi::lists::described;
use super::sdapi::refusal::Refusal;
use super::sdapi::state::plain_name;
use super::ImageWorker;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Map, Value};
use worker::http::json::Object;
use worker::http::{ApiError, JsonBody};
use worker::serve::fleet::{Fleet, FleetServer, FleetWorker, ModelFiles};
use worker::serve::{Model, Route};

/// Routes whose answers are the same for all models.
const ALONE: [&str; 23] = [
    "/sdapi/v1/samplers",
    "/sdapi/v1/schedulers",
    "/sdapi/v1/latent-upscale-modes",
    "/sdapi/v1/face-restorers",
    "/sdapi/v1/hypernetworks",
    "/sdapi/v1/artists",
    "/sdapi/v1/artist-categories",
    "/sdapi/v1/scripts",
    "/sdapi/v1/script-info",
    "/sdapi/v1/extensions",
    "/sdapi/v1/refresh-vae",
    "/sdapi/v1/refresh-loras",
    "/sdapi/v1/refresh-embeddings",
    "/sdapi/v1/interrogate",
    "/sdapi/v1/create/embedding",
    "/sdapi/v1/create/hypernetwork",
    "/sdapi/v1/train/embedding",
    "/sdapi/v1/train/hypernetwork",
    "/sdapi/v1/server-kill",
    "/sdapi/v1/server-restart",
    "/sdapi/v1/server-stop",
    "/internal/ping",
    "/controlnet/version",
];

impl FleetWorker for ImageWorker {
    const MODEL_FILES: ModelFiles = ModelFiles {
        endings: &["safetensors"],
        folder_marks: &["model_index.json"],
    };
    const FIRST_IS_DEFAULT: bool = true;

    fn fleet_routes() -> Vec<Route<FleetServer<Self>>> {
        let cancel = "Cancels the running jobs";
        let of_each = "Of the model that was chosen last, then of the others that are loaded: models says whose each is";
        let no_sockets = "Not implemented, and says so";
        vec![
            Route::get("/v1/jobs", "The jobs that are known, of all models that are loaded", jobs),
            Route::get("/sdapi/v1/sd-models", "The models", sd_models),
            Route::get("/sdapi/v1/options", "How the model is set that was chosen last", options),
            Route::post(
                "/sdapi/v1/options",
                "Chooses a model by sd_model_checkpoint, and loads it; takes what changes nothing here, refuses the rest by name",
                set_options,
            ),
            Route::get("/sdapi/v1/progress", "How far the running job is, whichever model's", progress),
            Route::get("/sdapi/v1/loras", of_each, loras),
            Route::get("/sdapi/v1/sd-vae", of_each, vaes),
            Route::get("/sdapi/v1/sd-modules", of_each, vaes),
            Route::get("/internal/pending-tasks", "The requests that wait, of all models that are loaded", pending),
            Route::post("/internal/progress", "How far one request is, whichever model's", task_progress),
            Route::get("/sdapi/v1/memory", "Memory of the host, and of the devices of each model that is loaded", memory),
            Route::get("/ws", no_sockets, sockets),
            Route::get("/api/ws", no_sockets, sockets),
            Route::get("/API/GenerateText2ImageWS", no_sockets, sockets),
            Route::post("/sdapi/v1/interrupt", cancel, interrupt),
            Route::post("/sdapi/v1/skip", cancel, interrupt),
            Route::post("/sdapi/v1/refresh-checkpoints", "Looks for the models anew", refresh),
            Route::post("/sdapi/v1/unload-checkpoint", "Unloads the model that was chosen last", unload),
            Route::post("/sdapi/v1/reload-checkpoint", "Loads the model that was chosen last", reload),
        ]
    }

    fn answers_alone(path: &str) -> bool {
        ALONE.contains(&path) || path.starts_with("/page/")
    }

    fn plain_name(name: &str) -> &str {
        plain_name(name)
    }

    fn refusal(path: &str, error: ApiError) -> Response {
        match path.starts_with("/sdapi/") {
            true => Refusal(error).into_response(),
            false => error.into_response(),
        }
    }
}

async fn jobs(Model(fleet): Model<Fleet>) -> Json<Value> {
    let mut all = Vec::new();
    let mut kept = Value::Null;
    for (_, answer) in fleet.ask_loaded("GET", "/v1/jobs").await {
        // All models are started with the same options.
        kept = answer["kept"].clone();
        if let Some(Value::Array(jobs)) = answer.get("jobs") {
            all.extend(jobs.iter().cloned());
        }
    }
    let mut list = json!({"jobs": all});
    if !kept.is_null() {
        list["kept"] = kept;
    }
    Json(list)
}

async fn sd_models(Model(fleet): Model<Fleet>) -> Json<Value> {
    let all = fleet.list();
    let list = all.iter().map(|view| described(&view.name));
    Json(list.collect())
}

/// The name of the model that was chosen last.
fn current(fleet: &Fleet) -> Result<String, ApiError> {
    let name = fleet.default_name();
    name.ok_or_else(|| ApiError::field("sd_model_checkpoint", "there is no model"))
}

async fn options(Model(fleet): Model<Fleet>) -> Result<Json<Value>, ApiError> {
    let name = current(&fleet)?;
    let loaded = fleet.ask_loaded("GET", "/sdapi/v1/options").await;
    let known = loaded.into_iter().find(|(model, _)| *model == name);
    // One that is not loaded has no other word than its name.
    let settings = known.map_or_else(
        || json!({"sd_model_checkpoint": name}),
        |(_, settings)| settings,
    );
    Ok(Json(settings))
}

async fn set_options(
    Model(fleet): Model<Fleet>,
    JsonBody(Object(mut body)): JsonBody<Object>,
) -> Result<Json<Value>, ApiError> {
    let chosen = match body.remove("sd_model_checkpoint") {
        None | Some(Value::Null) => current(&fleet)?,
        Some(Value::String(name)) => {
            let known = fleet.state(&name).is_ok();
            if known {
                name
            } else {
                plain_name(&name).to_string()
            }
        }
        Some(_) => {
            let reason = "sd_model_checkpoint is the name of a model";
            return Err(ApiError::field("sd_model_checkpoint", reason));
        }
    };
    // What cannot be set is refused before the model is changed.
    if !body.is_empty() {
        let body = Value::Object(body);
        let (status, answer) = fleet.ask(&chosen, "/sdapi/v1/options", &body).await?;
        if status != 200 {
            return Err(refused(&answer));
        }
    }
    fleet.load_and_wait(&chosen).await?;
    fleet.set_default(&chosen)?;
    Ok(Json(Value::Object(Map::new())))
}

/// What a model has refused, as our own word.
fn refused(answer: &Value) -> ApiError {
    let error = &answer["error"];
    let message = error["message"].as_str().unwrap_or("the model refused it");
    match error["param"].as_str() {
        Some(param) => ApiError::field(param, message),
        None => ApiError::invalid(message),
    }
}

async fn progress(Model(fleet): Model<Fleet>, request: Request) -> Json<Value> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/sdapi/v1/progress", |path| path.as_str());
    let all = fleet.ask_loaded("GET", path).await;
    let works = |answer: &Value| {
        answer["state"]["job_count"]
            .as_u64()
            .is_some_and(|count| count > 0)
    };
    let (running, idle): (Vec<_>, Vec<_>) =
        all.into_iter().map(|(_, answer)| answer).partition(works);
    let found = running.into_iter().chain(idle).next();
    Json(found.unwrap_or_else(|| {
        json!({
            "progress": 0.0,
            "eta_relative": 0.0,
            "state": {
                "skipped": false, "interrupted": false, "job": "", "job_count": 0, "job_no": 0,
                "sampling_step": 0, "sampling_steps": 0,
            },
            "current_image": null,
            "textinfo": null,
        })
    }))
}

/// A list of the model that was chosen last, which is loaded for that, then what others that are loaded have besides; each
/// entry with the models whose it is.
async fn of_each(fleet: &Fleet, path: &str) -> Result<Json<Value>, ApiError> {
    let name = current(fleet)?;
    fleet.load_and_wait(&name).await?;
    let mut answers = fleet.ask_loaded("GET", path).await;
    answers.sort_by_key(|(model, _)| *model != name);
    let mut all: Vec<(Value, Vec<String>)> = Vec::new();
    for (model, answer) in answers {
        for entry in answer.as_array().into_iter().flatten() {
            match all.iter_mut().find(|(known, _)| known == entry) {
                Some((_, models)) => models.push(model.clone()),
                None => all.push((entry.clone(), vec![model.clone()])),
            }
        }
    }
    let list = all.into_iter().map(|(mut entry, models)| {
        entry["models"] = json!(models);
        entry
    });
    Ok(Json(list.collect()))
}

async fn loras(Model(fleet): Model<Fleet>) -> Result<Json<Value>, ApiError> {
    of_each(&fleet, "/sdapi/v1/loras").await
}

async fn vaes(Model(fleet): Model<Fleet>) -> Result<Json<Value>, ApiError> {
    of_each(&fleet, "/sdapi/v1/sd-vae").await
}

async fn pending(Model(fleet): Model<Fleet>) -> Json<Value> {
    let mut all = Vec::new();
    for (_, answer) in fleet.ask_loaded("GET", "/internal/pending-tasks").await {
        all.extend(answer["tasks"].as_array().into_iter().flatten().cloned());
    }
    Json(json!({"size": all.len(), "tasks": all}))
}

/// That of the model which knows the request; of the last one that was asked where none does.
async fn task_progress(
    Model(fleet): Model<Fleet>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, ApiError> {
    let body = Value::Object(body);
    let loaded = fleet.ask_loaded("GET", "/internal/pending-tasks").await;
    let mut last = json!({"active": false, "queued": false, "completed": false, "progress": null, "eta": null,
        "live_preview": null, "id_live_preview": 0, "textinfo": "Waiting..."});
    for (model, _) in loaded {
        let (status, answer) = fleet.ask(&model, "/internal/progress", &body).await?;
        if status != 200 {
            return Err(refused(&answer));
        }
        let known = ["active", "queued", "completed"];
        let knows = known.iter().any(|state| answer[*state] == json!(true));
        last = answer;
        if knows {
            break;
        }
    }
    Ok(Json(last))
}

async fn memory(Model(fleet): Model<Fleet>) -> Json<Value> {
    let mut first = None;
    let mut devices = Vec::new();
    for (model, mut answer) in fleet.ask_loaded("GET", "/sdapi/v1/memory").await {
        if let Some(Value::Array(list)) = answer.get_mut("devices").map(Value::take) {
            devices.extend(list.into_iter().map(|mut device| {
                device["model"] = json!(model);
                device
            }));
        }
        first.get_or_insert(answer["cuda"].take());
    }
    Json(json!({
        "ram": host_memory(),
        "cuda": first.unwrap_or_else(|| json!({"error": "unavailable"})),
        "devices": devices,
    }))
}

/// Answers are passed on from models' processes, sockets are not.
async fn sockets() -> ApiError {
    ApiError::new(
        StatusCode::NOT_IMPLEMENTED,
        "NOT_IMPLEMENTED",
        "a server of several models has no WebSockets; ask /history/ID or /API/GenerateText2Image instead, or start a server of one model",
    )
}

async fn interrupt(Model(fleet): Model<Fleet>) -> Json<Value> {
    fleet.ask_loaded("POST", "/sdapi/v1/interrupt").await;
    Json(json!({}))
}

async fn refresh(Model(fleet): Model<Fleet>) -> Result<Json<Value>, ApiError> {
    let again = fleet.clone();
    worker::http::try_blocking(move || again.reread()).await?;
    Ok(Json(Value::Null))
}

async fn unload(Model(fleet): Model<Fleet>) -> Result<Json<Value>, ApiError> {
    let name = current(&fleet)?;
    if fleet.state(&name)? != "unloaded" {
        fleet.unload(&name)?;
    }
    Ok(Json(json!({})))
}

async fn reload(Model(fleet): Model<Fleet>) -> Result<Json<Value>, ApiError> {
    fleet.load_and_wait(&current(&fleet)?).await?;
    Ok(Json(json!({})))
}
