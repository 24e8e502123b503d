//! `/sdapi/v1/…` as AUTOMATIC1111's web UI answers, so that tools made for it work.
//!
//! Options that would change the picture and are not implemented are refused by name; those that change nothing here
//! are ignored.
//!
//! | Module    | Gives                                                                                   |
//! |-----------|-----------------------------------------------------------------------------------------|
//! | `body`    | the bodies of `txt2img` and `img2img`                                                   |
//! | `lenient` | what asks for nothing: numbers as text, scripts that are switched off                    |
//! | `state`   | progress, interruption, options                                                         |
//! | `lists`   | samplers, schedulers, models, LoRAs; what a picture was made with                       |

mod body;
mod lenient;
mod lists;
pub(super) mod state;

use super::answer::encode_all;
use super::{App, ImageWorker};
use crate::image_io::{to_base64, Format};
use crate::request::{InitFields, InterfaceDefaults, RequestFields};
use axum::Json;
use body::Body;
use lists::{loras, nothing, png_info, samplers, schedulers, sd_models, PngInfoBody};
use serde_json::{json, Value};
use state::{interrupt, memory, options, progress, set_options};
use worker::http::json::Object;
use worker::http::{ApiError, JsonBody};
use worker::serve::{Model, Route};

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    let empty = "An empty list";
    vec![
        Route::post("/sdapi/v1/txt2img", "Text to pictures", txt2img).takes::<Body>(),
        Route::post("/sdapi/v1/img2img", "Pictures to pictures", img2img).takes::<Body>(),
        Route::get("/sdapi/v1/progress", "How far the running job is", progress),
        Route::post("/sdapi/v1/interrupt", "Cancels the running jobs", interrupt),
        Route::post("/sdapi/v1/skip", "Cancels the running jobs", interrupt),
        Route::get(
            "/sdapi/v1/memory",
            "Memory of the host and of each device",
            memory,
        ),
        Route::get("/sdapi/v1/options", "How the worker is set", options),
        Route::post(
            "/sdapi/v1/options",
            "Takes what changes nothing here, refuses the rest by name",
            set_options,
        ),
        Route::get("/sdapi/v1/samplers", "The samplers", samplers),
        Route::get("/sdapi/v1/schedulers", "The noise schedules", schedulers),
        Route::get("/sdapi/v1/sd-models", "The model, in a list", sd_models),
        Route::get("/sdapi/v1/loras", "The LoRAs that prompts may name", loras),
        Route::post(
            "/sdapi/v1/png-info",
            "What a picture was made with",
            png_info,
        )
        .takes::<PngInfoBody>(),
        Route::get("/sdapi/v1/upscalers", empty, nothing),
        Route::get("/sdapi/v1/prompt-styles", empty, nothing),
        Route::get("/sdapi/v1/hypernetworks", empty, nothing),
        Route::get("/sdapi/v1/sd-vae", empty, nothing),
    ]
}

async fn txt2img(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::read(body)?;
    let mut fields = body.fields(&app)?;
    let scripts = std::mem::take(&mut body.alwayson_scripts);
    fields.controls = app.units(scripts, size(&fields, &app), None).await?;
    answer(&app, fields, body.send_images.unwrap_or(true)).await
}

async fn img2img(
    Model(app): Model<App>,
    JsonBody(Object(body)): JsonBody<Object>,
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
