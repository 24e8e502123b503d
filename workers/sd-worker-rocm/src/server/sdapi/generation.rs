//! Pictures of text and of pictures.

use super::body::Body;
use super::refusal::{Refusal, Ui, UiBody};
use super::settings::Settings;
use crate::faces::RestoreFaces;
use crate::image_io::{self, to_base64};
use crate::jobs::Picture;
use crate::request::{InitFields, InterfaceDefaults, RequestFields, ValidRequest};
use crate::server::App;
use axum::Json;
use serde_json::{json, Map, Value};
use std::path::Path;
use worker::http::error::CANCELLED;
use worker::http::json::Object;
use worker::http::{blocking, ApiError};

/// Fields of a request that are pictures.
const PICTURES: [&str; 4] = ["init_images", "mask", "latent_mask", "image"];

pub(super) async fn txt2img(
    Ui(app): Ui,
    UiBody(Object(given)): UiBody<Object>,
) -> Result<Json<Value>, Refusal> {
    let mut body = Body::read(&given)?;
    let settings = app.settings_for(&body)?;
    let mut fields = body.fields(&app, &settings)?;
    fields.highres = body.highres(&app)?;
    let (mut fields, left_out) = body.recall(fields, &app);
    let scripts = std::mem::take(&mut body.alwayson_scripts);
    fields.controls = app.units(scripts, size(&fields, &app), None).await?;
    answer(&app, fields, body, (given, left_out), settings).await
}

pub(super) async fn img2img(
    Ui(app): Ui,
    UiBody(Object(given)): UiBody<Object>,
) -> Result<Json<Value>, Refusal> {
    let mut body = Body::read(&given)?;
    let settings = app.settings_for(&body)?;
    let fields = body.fields(&app, &settings)?;
    let (mut fields, mut left_out) = body.recall(fields, &app);
    if fields.highres.take().is_some() {
        left_out.push("Hires upscale".to_string());
    }
    let multiplier = Some(settings.noise_multiplier).filter(|factor| *factor != 1.0);
    fields.noise.multiplier = fields.noise.multiplier.or(multiplier);
    if body.init_images.len() != 1 {
        return Err(ApiError::field("init_images", "there must be exactly one picture").into());
    }
    let editing = body.editing()?;
    let image = ("init_images", body.init_images.remove(0));
    let latent_mask = match body.latent_mask.take().filter(|mask| !mask.is_empty()) {
        Some(mask) => Some(app.mask("latent_mask", mask).await?),
        None => None,
    };
    let mask = body.mask.take().map(|mask| ("mask", mask));
    let init = InitFields {
        strength: body.denoising_strength,
        mask_blur: body.mask_blur()?,
        mask_invert: body.inpainting_mask_invert != 0,
        latent_mask,
        editing,
        ..app.init(image, mask).await?
    };
    let scripts = std::mem::take(&mut body.alwayson_scripts);
    fields.controls = app
        .units(scripts, size(&fields, &app), Some(&init.image))
        .await?;
    // Models that look at pictures, such as those that edit, need one to look at.
    if *app.queue().info().references.start() > 0 {
        fields.references = vec![init.image.clone()];
    }
    let looks = !fields.references.is_empty() && init.mask.is_none();
    fields.init = Some(init).filter(|_| !looks);
    answer(&app, fields, body, (given, left_out), settings).await
}

/// Width and height of the picture that is asked for.
fn size(fields: &RequestFields, app: &App) -> (usize, usize) {
    let defaults = &app.queue().info().defaults;
    (
        fields.width.unwrap_or(defaults.width),
        fields.height.unwrap_or(defaults.height),
    )
}

async fn answer(
    app: &App,
    fields: RequestFields,
    body: Body,
    (given, left_out): (Map<String, Value>, Vec<String>),
    settings: Settings,
) -> Result<Json<Value>, Refusal> {
    let repeats = body.repeats(app)?;
    // As the client wrote it, LoRAs included.
    let prompt = fields.prompt.clone();
    let asked = app.valid(fields, &InterfaceDefaults::WEB_UI, &app.options().limits)?;
    let made = made(app, &asked, repeats, &body, &settings).await?;
    let info = info(app, &prompt, &asked, &made);
    let mut parameters = given;
    for picture in PICTURES {
        if !body.include_init_images && parameters.contains_key(picture) {
            parameters.insert(picture.to_string(), Value::Null);
        }
    }
    let effective = json!({
        "prompt": prompt,
        "negative_prompt": asked.negative_prompt,
        "steps": asked.steps,
        "cfg_scale": asked.guidance,
        "width": asked.width,
        "height": asked.height,
        "sampler_name": asked.sampler.label(),
        "scheduler": asked.schedule().label(),
        "batch_size": asked.batch,
        "n_iter": repeats,
        "seed": asked.seed,
    });
    if let Value::Object(effective) = effective {
        parameters.extend(effective);
    }
    if !left_out.is_empty() {
        parameters.insert("infotext_left_out".to_string(), json!(left_out));
    }
    Ok(Json(json!({
        "images": made.files,
        "parameters": parameters,
        // Text within JSON, as the web UI has it.
        "info": info.to_string(),
    })))
}

/// The pictures of a request.
#[derive(Default)]
struct Made {
    seeds: Vec<u64>,
    texts: Vec<String>,
    /// In base64; none if the client wants none.
    files: Vec<String>,
}

/// Makes batch after batch. Where one is cancelled, those before it are the answer.
async fn made(
    app: &App,
    asked: &ValidRequest,
    repeats: usize,
    body: &Body,
    settings: &Settings,
) -> Result<Made, ApiError> {
    let mut made = Made::default();
    for repeat in 0..repeats {
        let part = asked.pictures(repeat * asked.batch, asked.batch);
        let waiting = app.submit_waiting(part)?;
        if let Some(task) = &body.force_task_id {
            app.web_ui().tasks.name(task, &waiting.id);
        }
        let outcome = match app.outcome(&waiting).await {
            Err(error) if error.code == CANCELLED && !made.seeds.is_empty() => break,
            outcome => outcome?,
        };
        for picture in &outcome.pictures {
            made.seeds.push(picture.seed);
            made.texts.push(picture.parameters.clone());
        }
        let folder = app.options().save_dir.clone().filter(|_| body.saves());
        let sends = body.send_images.unwrap_or(true);
        if sends || folder.is_some() {
            let (settings, id) = (settings.clone(), waiting.id.clone());
            let files = blocking(move || {
                let files = outcome.pictures.iter().map(|p| file(p, &settings));
                let files = files.collect::<worker::Result<Vec<Vec<u8>>>>()?;
                if let Some(folder) = folder {
                    for (number, (file, picture)) in files.iter().zip(&outcome.pictures).enumerate()
                    {
                        let ending = settings.format.extension();
                        let name = format!("{id}-{number}-{}.{ending}", picture.seed);
                        save(&folder.join(name), file)?;
                    }
                }
                worker::Result::Ok(files)
            });
            let files = files.await?;
            let files = files.map_err(|e| ApiError::internal(e.to_string()))?;
            let texts = files.iter().filter(|_| sends);
            made.files.extend(texts.map(|file| to_base64(file)));
        }
    }
    Ok(made)
}

/// Writes a picture's file; there is all of it or nothing.
fn save(path: &Path, file: &[u8]) -> worker::Result<()> {
    worker::file::replace(path, file)
        .map_err(|e| worker::Error::Runtime(format!("cannot save a picture (--save-dir): {e}")))
}

/// A picture's file.
fn file(picture: &Picture, settings: &Settings) -> worker::Result<Vec<u8>> {
    let parameters = Some(picture.parameters.as_str()).filter(|_| settings.parameters);
    image_io::encode(
        &picture.image,
        settings.format,
        settings.quality,
        parameters,
    )
}

fn info(app: &App, prompt: &str, asked: &ValidRequest, made: &Made) -> Value {
    let count = made.seeds.len();
    json!({
        "prompt": prompt,
        "all_prompts": vec![prompt; count],
        "negative_prompt": asked.negative_prompt,
        "all_negative_prompts": vec![&asked.negative_prompt; count],
        "seed": made.seeds.first(),
        "all_seeds": made.seeds,
        "subseed": asked.seeds_of(0).1,
        "all_subseeds": (0..count).map(|picture| asked.seeds_of(picture).1).collect::<Vec<_>>(),
        "subseed_strength": asked.noise.variation,
        "width": asked.width,
        "height": asked.height,
        "sampler_name": asked.sampler.label(),
        "cfg_scale": asked.guidance,
        "steps": asked.steps,
        "batch_size": asked.batch,
        "restore_faces": asked.restore_faces.is_some(),
        "face_restoration_model": asked.restore_faces.as_ref().map(RestoreFaces::label),
        "denoising_strength": asked.init.as_ref().map(|init| init.strength),
        "clip_skip": asked.clip_skip,
        "sd_model_name": app.queue().info().name,
        "sd_model_hash": null,
        "sd_vae_name": null,
        "sd_vae_hash": null,
        "extra_generation_params": {},
        "styles": [],
        "is_using_inpainting_conditioning": app.queue().info().inpainting,
        "infotexts": made.texts,
        "index_of_first_image": 0,
        "version": concat!("sd-worker-rocm ", env!("CARGO_PKG_VERSION")),
    })
}
