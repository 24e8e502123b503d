//! `/sdapi/v1/…` as AUTOMATIC1111's web UI answers, so that tools made for it work.
//!
//! Options that would change the picture and are not implemented are refused by name; those that change nothing here are ignored.
//!
//! | Module    | Gives                                                                                   |
//! |-----------|-----------------------------------------------------------------------------------------|
//! | `body`    | the bodies of `txt2img` and `img2img`                                                   |
//! | `state`   | progress, interruption, options                                                         |
//! | `lists`   | samplers, schedulers, models, LoRAs; what a picture was made with                       |

mod body;
mod lists;
mod state;

use super::answer::encode_all;
use super::App;
use crate::image_io::{to_base64, Format};
use crate::request::{InitFields, InterfaceDefaults, RequestFields};
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use body::Body;
use lists::{loras, nothing, png_info, samplers, schedulers, sd_models};
use serde_json::{json, Map, Value};
use state::{interrupt, options, progress, set_options};
use worker::http::{ApiError, JsonBody};

/// The routes.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sdapi/v1/txt2img", post(txt2img))
        .route("/sdapi/v1/img2img", post(img2img))
        .route("/sdapi/v1/progress", get(progress))
        .route("/sdapi/v1/interrupt", post(interrupt))
        .route("/sdapi/v1/skip", post(interrupt))
        .route("/sdapi/v1/options", get(options).post(set_options))
        .route("/sdapi/v1/samplers", get(samplers))
        .route("/sdapi/v1/schedulers", get(schedulers))
        .route("/sdapi/v1/sd-models", get(sd_models))
        .route("/sdapi/v1/loras", get(loras))
        .route("/sdapi/v1/png-info", post(png_info))
        .route("/sdapi/v1/upscalers", get(nothing))
        .route("/sdapi/v1/prompt-styles", get(nothing))
        .route("/sdapi/v1/hypernetworks", get(nothing))
        .route("/sdapi/v1/sd-vae", get(nothing))
}

async fn txt2img(
    State(app): State<App>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::read(body)?;
    let mut fields = body.fields(&app)?;
    let scripts = std::mem::take(&mut body.alwayson_scripts);
    fields.controls = app.units(scripts, size(&fields, &app), None).await?;
    answer(&app, fields, body.send_images.unwrap_or(true)).await
}

async fn img2img(
    State(app): State<App>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::read(body)?;
    let mut fields = body.fields(&app)?;
    if body.init_images.len() != 1 {
        return Err(ApiError::field(
            "init_images",
            "there must be exactly one picture",
        ));
    }
    let image = ("init_images", body.init_images.remove(0));
    let mask = body.mask.take().map(|mask| ("mask", mask));
    let init = InitFields {
        strength: body.denoising_strength,
        mask_blur: body.mask_blur()?,
        mask_invert: body.inpainting_mask_invert != 0,
        ..app.init(image, mask).await?
    };
    let scripts = std::mem::take(&mut body.alwayson_scripts);
    fields.controls = app
        .units(scripts, size(&fields, &app), Some(&init.image))
        .await?;
    fields.init = Some(init);
    answer(&app, fields, body.send_images.unwrap_or(true)).await
}

/// Width and height of the picture that is asked for.
fn size(fields: &RequestFields, app: &App) -> (usize, usize) {
    let defaults = &app.queue().info().defaults;
    (
        fields.width.unwrap_or(defaults.width),
        fields.height.unwrap_or(defaults.height),
    )
}

async fn answer(app: &App, fields: RequestFields, send: bool) -> Result<Json<Value>, ApiError> {
    // As the client wrote it, LoRAs included.
    let prompt = fields.prompt.clone();
    let asked = app.valid(fields, &InterfaceDefaults::WEB_UI, &app.options().limits)?;
    let outcome = app.generate(asked.clone()).await?;
    let images: Vec<String> = if send {
        let files = encode_all(outcome.clone(), Format::Png, 0).await?;
        files.iter().map(|file| to_base64(file)).collect()
    } else {
        Vec::new()
    };
    let seeds: Vec<u64> = outcome.pictures.iter().map(|p| p.seed).collect();
    let texts: Vec<&str> = outcome
        .pictures
        .iter()
        .map(|p| p.parameters.as_str())
        .collect();
    let info = json!({
        "prompt": prompt,
        "all_prompts": vec![&prompt; seeds.len()],
        "negative_prompt": asked.negative_prompt,
        "all_negative_prompts": vec![&asked.negative_prompt; seeds.len()],
        "seed": seeds.first(),
        "all_seeds": seeds,
        "width": asked.width,
        "height": asked.height,
        "sampler_name": asked.sampler.label(),
        "cfg_scale": asked.guidance,
        "steps": asked.steps,
        "batch_size": asked.batch,
        "denoising_strength": asked.init.as_ref().map(|init| init.strength),
        "clip_skip": asked.clip_skip,
        "sd_model_name": app.queue().info().name,
        "infotexts": texts,
        "index_of_first_image": 0,
    });
    Ok(Json(json!({
        "images": images,
        "parameters": {
            "prompt": prompt,
            "negative_prompt": asked.negative_prompt,
            "steps": asked.steps,
            "cfg_scale": asked.guidance,
            "width": asked.width,
            "height": asked.height,
            "sampler_name": asked.sampler.label(),
            "scheduler": asked.schedule().label(),
            "batch_size": asked.batch,
            "seed": asked.seed,
        },
        // Text within JSON, as the web UI has it.
        "info": info.to_string(),
    })))
}
