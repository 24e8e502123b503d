//! What there is to choose from, and what a picture was made with.

use crate::image_io;
use crate::parameters::Parameters;
use crate::sampling::{Sampler, Schedule};
use crate::server::App;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::{ApiError, JsonBody};
use worker::serve::Model;

/// Lists that are empty here.
pub(super) async fn nothing() -> Json<[u8; 0]> {
    Json([])
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

pub(super) async fn sd_models(Model(app): Model<App>) -> Json<Value> {
    let name = &app.queue().info().name;
    Json(json!([{
        "title": name, "model_name": name, "hash": null, "sha256": null, "filename": name, "config": null,
    }]))
}

pub(super) async fn loras(Model(app): Model<App>) -> Json<Value> {
    let list = app.options().loras.list();
    let list = list.iter().map(|(name, path)| {
        let file = path.file_name().map(|f| f.to_string_lossy().into_owned());
        json!({"name": name, "alias": name, "path": file, "metadata": {}})
    });
    Json(list.collect())
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "PngInfoFields")]
pub(super) struct PngInfoBody {
    image: String,
}

pub(super) async fn png_info(
    Model(app): Model<App>,
    JsonBody(body): JsonBody<PngInfoBody>,
) -> Result<Json<Value>, ApiError> {
    let limits = app.options().limits.decode;
    let field = |e: worker::Error| ApiError::field("image", e.to_string());
    let bytes = image_io::from_base64(&body.image, &limits).map_err(field)?;
    let text = image_io::parameters_of(&bytes)
        .map_err(field)?
        .unwrap_or_default();
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
