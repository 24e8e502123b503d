//! What clients look at before they send a graph.

use super::nodes::{all, described, find, names, Names};
use crate::server::App;
use crate::textual_inversion::Concept;
use axum::extract::Path;
use axum::Json;
use serde_json::{json, Map, Value};
use worker::http::{blocking, ApiError};
use worker::serve::Model;

/// The version of ComfyUI whose API this is.
const VERSION: &str = "0.3.62";
/// Its folders of files, and what is in them here.
const FOLDERS: [(&str, Names); 9] = [
    ("checkpoints", Names::Models),
    ("diffusion_models", Names::Models),
    ("unet", Names::Models),
    ("text_encoders", Names::Encoders),
    ("clip", Names::Encoders),
    ("vae", Names::Vaes),
    ("loras", Names::Loras),
    ("controlnet", Names::Controls),
    ("upscale_models", Names::Upscalers),
];

/// `GET /object_info`.
pub(super) async fn all_nodes(Model(app): Model<App>) -> Result<Json<Value>, ApiError> {
    blocking(move || Json(all(&app))).await
}

/// `GET /object_info/{class}`: empty for a class that is not known, as ComfyUI answers.
pub(super) async fn node(
    Model(app): Model<App>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    blocking(move || {
        let found = find(&name).map(|class| (name, described(&app, class)));
        Json(Value::Object(found.into_iter().collect::<Map<_, _>>()))
    })
    .await
}

/// `GET /models`.
pub(super) async fn folders() -> Json<Value> {
    Json(FOLDERS.iter().map(|(name, _)| *name).collect())
}

/// `GET /models/{folder}`.
pub(super) async fn folder(
    Model(app): Model<App>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let found = FOLDERS.iter().find(|(known, _)| *known == name);
    let missing =
        || ApiError::not_found(format!("there is no folder {name:?}; /models lists them"));
    let of = found.ok_or_else(missing)?.1;
    blocking(move || Json(json!(names(&app, of)))).await
}

/// `GET /embeddings`.
pub(super) async fn embeddings(Model(app): Model<App>) -> Result<Json<Value>, ApiError> {
    let paths = app.options().embeddings.clone();
    let concepts = blocking(move || Concept::open_all(&paths)).await?;
    let concepts = concepts.map_err(|e| ApiError::internal(e.to_string()))?;
    Ok(Json(
        concepts
            .iter()
            .map(|concept| concept.word.clone())
            .collect(),
    ))
}

/// Lists that are empty here.
pub(super) async fn nothing() -> Json<[u8; 0]> {
    Json([])
}

/// `GET /features`.
pub(super) async fn features(Model(app): Model<App>) -> Json<Value> {
    Json(
        json!({"supports_preview_metadata": false, "max_upload_size": app.options().limits.decode.max_bytes}),
    )
}

/// `GET /system_stats`.
pub(super) async fn stats(Model(app): Model<App>) -> Result<Json<Value>, ApiError> {
    blocking(move || Json(told(&app))).await
}

fn told(app: &App) -> Value {
    let memory = app.memory();
    let number = |value: &Value, name: &str| {
        value.get("system").unwrap_or(value)[name]
            .as_u64()
            .unwrap_or(0)
    };
    let devices = memory["devices"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate();
    let devices = devices.map(|(index, device)| {
        let (total, free) = (number(device, "total"), number(device, "free"));
        json!({
            "name": device["name"], "type": if total > 0 { "cuda" } else { "cpu" }, "index": index,
            "vram_total": total, "vram_free": free, "torch_vram_total": total, "torch_vram_free": free,
        })
    });
    let ram = &memory["ram"];
    json!({
        "system": {
            "os": std::env::consts::OS,
            "ram_total": ram["total"],
            "ram_free": ram["free"],
            "comfyui_version": VERSION,
            "python_version": "",
            "pytorch_version": "",
            "embedded_python": false,
            "argv": [concat!("sd-worker-rocm ", env!("CARGO_PKG_VERSION"))],
        },
        "devices": devices.collect::<Vec<Value>>(),
    })
}
