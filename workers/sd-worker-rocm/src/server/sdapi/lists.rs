//! What there is to choose from, and what a picture was made with.

use super::refusal::{not_implemented, Refusal, Ui, UiBody};
use crate::image_io;
use crate::parameters::Parameters;
use crate::sampling::{Sampler, Schedule};
use crate::server::App;
use crate::textual_inversion::Concept;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::{blocking, ApiError};

/// Lists that are empty here.
pub(super) async fn nothing() -> Json<[u8; 0]> {
    Json([])
}

/// Routes that ask to look anew at what is looked at each time.
pub(super) async fn done() -> Json<Value> {
    Json(Value::Null)
}

pub(super) async fn samplers() -> Json<Value> {
    let list = Sampler::ALL.iter().map(|sampler| {
        json!({
            "name": sampler.label(),
            "aliases": sampler.aliases(),
            "options": {"scheduler": sampler.default_schedule().label()},
        })
    });
    Json(list.collect())
}

pub(super) async fn schedulers() -> Json<Value> {
    let automatic = json!({
        "name": "automatic", "label": "Automatic", "aliases": null, "default_rho": -1, "need_inner_model": false,
    });
    let own = Schedule::ALL.iter().map(|schedule| {
        let rho = if *schedule == Schedule::Karras { 7 } else { -1 };
        json!({
            "name": schedule.aliases()[0],
            "label": schedule.label(),
            "aliases": schedule.aliases(),
            "default_rho": rho,
            "need_inner_model": false,
        })
    });
    Json(std::iter::once(automatic).chain(own).collect())
}

/// A model as the web UI lists it.
pub(in crate::server) fn described(name: &str) -> Value {
    json!({
        "title": name, "model_name": name, "hash": null, "sha256": null, "filename": name, "config": null,
    })
}

pub(super) async fn sd_models(Ui(app): Ui) -> Json<Value> {
    Json(json!([described(&app.queue().info().name)]))
}

pub(super) async fn sd_vae(Ui(app): Ui) -> Json<Value> {
    let vae = app.options().vae.as_ref();
    let name = vae.and_then(|path| path.file_name());
    let list = name.map(|name| {
        let name = name.to_string_lossy();
        json!({"model_name": name, "filename": name})
    });
    Json(list.into_iter().collect())
}

pub(super) async fn loras(Ui(app): Ui) -> Json<Value> {
    let list = app.options().loras.list();
    let list = list.iter().map(|(name, path)| {
        let file = path.file_name().map(|f| f.to_string_lossy().into_owned());
        json!({"name": name, "alias": name, "path": file, "metadata": {}})
    });
    Json(list.collect())
}

pub(super) async fn styles(Ui(app): Ui) -> Json<Value> {
    let list = app.options().library.styles.list().iter();
    let list = list.map(|style| {
        json!({"name": style.name, "prompt": style.prompt, "negative_prompt": style.negative_prompt})
    });
    Json(list.collect())
}

/// The textual inversions, which are read anew: the model was loaded with all of them.
pub(super) async fn embeddings(Ui(app): Ui) -> Result<Json<Value>, Refusal> {
    let paths = app.options().embeddings.clone();
    let concepts = blocking(move || Concept::open_all(&paths)).await?;
    let concepts = concepts.map_err(|e| ApiError::internal(e.to_string()))?;
    let loaded = concepts.iter().map(|concept| {
        let (vectors, width) = concept
            .vectors
            .first()
            .and_then(|vectors| vectors.dims2().ok())
            .unwrap_or_default();
        let told = json!({
            "step": null, "sd_checkpoint": null, "sd_checkpoint_name": null, "shape": width, "vectors": vectors,
        });
        (concept.word.clone(), told)
    });
    let loaded: Map<String, Value> = loaded.collect();
    Ok(Json(json!({"loaded": loaded, "skipped": {}})))
}

/// What front ends look for among scripts and extensions.
const CONTROLNET: &str = "controlnet";

pub(super) async fn scripts() -> Json<Value> {
    Json(json!({"txt2img": [CONTROLNET], "img2img": [CONTROLNET]}))
}

pub(super) async fn script_info() -> Json<Value> {
    let of = |is_img2img| json!({"name": CONTROLNET, "is_alwayson": true, "is_img2img": is_img2img, "args": []});
    Json(json!([of(false), of(true)]))
}

pub(super) async fn extensions() -> Json<Value> {
    Json(json!([{
        "name": "sd-webui-controlnet", "remote": "", "branch": "", "commit_hash": "", "commit_date": 0,
        "version": "", "enabled": true,
    }]))
}

/// What of the web UI's command line has a meaning here.
pub(super) async fn cmd_flags(Ui(app): Ui) -> Json<Value> {
    Json(json!({
        "api": true, "nowebui": true, "port": app.port(), "api_server_stop": false,
        "lowvram": false, "medvram": false, "no_half": app.queue().info().precision == "f32",
    }))
}

pub(super) async fn app_id(Ui(app): Ui) -> Json<Value> {
    Json(json!({"app_id": app.queue().info().name}))
}

/// Of the machine only what `/info` tells, too.
pub(super) async fn system(Ui(app): Ui) -> Json<Value> {
    Json(json!({
        "Platform": std::env::consts::OS,
        "Machine": std::env::consts::ARCH,
        "Version": concat!("sd-worker-rocm ", env!("CARGO_PKG_VERSION")),
        "Checkpoint": app.queue().info().name,
        "Precision": app.queue().info().precision,
        "Devices": app.describe_devices(),
    }))
}

pub(super) async fn ping() -> Json<Value> {
    Json(json!({}))
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "PngInfoFields")]
pub(super) struct PngInfoBody {
    image: String,
}

pub(super) async fn png_info(
    Ui(app): Ui,
    UiBody(body): UiBody<PngInfoBody>,
) -> Result<Json<Value>, Refusal> {
    let text = parameters_of(&app, &body.image)?;
    let read = Parameters::parse(&text);
    let mut parameters = Map::new();
    if !text.is_empty() {
        parameters.insert("Prompt".to_string(), json!(read.prompt));
        parameters.insert("Negative prompt".to_string(), json!(read.negative_prompt));
        for (name, value) in read.settings {
            parameters.insert(name, json!(value));
        }
    }
    Ok(Json(
        json!({"info": text, "items": {"parameters": text}, "parameters": parameters}),
    ))
}

/// What a picture says it was made with; empty if nothing.
fn parameters_of(app: &App, image: &str) -> Result<String, ApiError> {
    let limits = app.options().limits.decode;
    let field = |e: worker::Error| ApiError::field("image", e.to_string());
    let bytes = image_io::from_base64(image, &limits).map_err(field)?;
    Ok(image_io::parameters_of(&bytes)
        .map_err(field)?
        .unwrap_or_default())
}

pub(super) async fn interrogate() -> Refusal {
    not_implemented(
        "no model here describes pictures (interrogate); ask a vision model of the language worker",
    )
}

pub(super) async fn training() -> Refusal {
    not_implemented(
        "embeddings and hypernetworks are neither made nor trained here; --embeddings takes embeddings that are made",
    )
}

pub(super) async fn unload() -> Refusal {
    not_implemented(
        "a server of one model keeps it; start it with --models to unload models and to load others",
    )
}

/// The model is there.
pub(super) async fn reload(Ui(_): Ui) -> Json<Value> {
    Json(json!({}))
}

pub(super) async fn server_stop() -> Refusal {
    not_implemented(
        "clients do not end this server (server-kill, server-restart, server-stop); its operator does, with a signal",
    )
}
