//! `/v1/recall`: what a picture, or a text of parameters, says that a picture was made with, as fields of a job.

use super::{App, ImageWorker};
use crate::faces::{FaceFolders, RestoreFaces};
use crate::image_io;
use crate::lora::Lora;
use crate::parameters::Parameters;
use crate::recall::{Networks, Recalled};
use crate::request::{HighresFields, MicroConditions, RegionPrompt, RequestFields};
use crate::rng::RngKind;
use crate::upscale::{Method, UpscalerFolders};
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::{blocking, ApiError, JsonBody};
use worker::serve::{Model, Route};

/// The server's folders of networks.
pub(super) struct Folders {
    upscalers: UpscalerFolders,
    faces: FaceFolders,
}

impl Networks for Folders {
    fn upscaler(&self, name: &str) -> Result<Method, worker::Error> {
        self.upscalers.find(name)
    }

    fn faces(&self, name: &str) -> Result<RestoreFaces, worker::Error> {
        self.faces.find(name)
    }
}

impl App {
    /// Where networks are found that a picture's text names.
    pub(super) fn networks(&self) -> Folders {
        let options = self.options();
        Folders {
            upscalers: options.upscalers.clone(),
            faces: options.faces.clone(),
        }
    }
}

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    vec![Route::post(
        "/v1/recall",
        "What a picture was made with, as fields of a job",
        recall,
    )
    .takes::<Body>()]
}

/// A picture or a text; the picture counts more.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RecallFields")]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    /// In base64.
    picture: Option<String>,
    /// Parameters as web UIs write them.
    parameters: Option<String>,
    /// One model or several: where it is asked.
    #[serde(rename = "model")]
    _model: Option<String>,
}

async fn recall(
    Model(app): Model<App>,
    JsonBody(body): JsonBody<Body>,
) -> Result<Json<Value>, ApiError> {
    let limits = app.options().limits.decode;
    let networks = app.networks();
    let field = match body.picture {
        Some(_) => "picture",
        None => "parameters",
    };
    let read = move || {
        let Some(picture) = body.picture else {
            let text = body.parameters.unwrap_or_default();
            let recalled = Recalled::of_text(&text, &networks);
            return Ok((text, recalled));
        };
        let bytes = image_io::from_base64(&picture, &limits)?;
        let text = image_io::parameters_of(&bytes)?.unwrap_or_default();
        Ok((text, Recalled::of(&bytes, &networks)?))
    };
    let wrong = |e: worker::Error| ApiError::field(field, e.to_string());
    let (text, recalled) = blocking(read).await?.map_err(wrong)?;
    let recalled = recalled.fitting(app.queue().info());
    let settings = Parameters::parse(&text).settings;
    let settings = settings
        .into_iter()
        .map(|(name, value)| json!([name, value]));
    Ok(Json(json!({
        "parameters": text,
        "settings": settings.collect::<Vec<_>>(),
        "fields": told(&recalled.fields),
        "left_out": recalled.left_out,
    })))
}

/// Fields of a job, without those that are open.
fn told(fields: &RequestFields) -> Value {
    let noise = &fields.noise;
    let (micro, usual) = (&fields.micro, MicroConditions::default());
    // Lists and switches that are left empty are its usual state.
    let tuning = serde_json::to_value(&fields.tuning).unwrap_or_default();
    let mut all = json!({
        "prompt": fields.prompt,
        "negative_prompt": fields.negative_prompt,
        "width": fields.width,
        "height": fields.height,
        "steps": fields.steps,
        "guidance_scale": fields.guidance,
        "true_cfg_scale": fields.true_guidance,
        "guidance_rescale": fields.guidance_rescale,
        "sampler": fields.sampler,
        "schedule": fields.schedule,
        "seed": fields.seed,
        "rng": fields.rng.map(RngKind::name),
        "clip_skip": fields.clip_skip,
        "eta": fields.eta,
        "variation_seed": noise.variation_seed,
        "variation": (noise.variation != 0.0).then_some(noise.variation),
        "seed_size": noise.from_size,
        "step_seed_delta": (noise.step_seed_delta != 0).then_some(noise.step_seed_delta),
        "highres": fields.highres.as_ref().map(second_pass),
        "restore_faces": fields.restore_faces.as_ref().map(faces),
        "noise_multiplier": noise.multiplier,
        "prompt_weights": fields.prompt_weights,
        "scheduled_prompts": fields.wording.scheduled,
        "regions": (!fields.wording.regions.is_empty())
            .then(|| fields.wording.regions.iter().map(region).collect::<Vec<_>>()),
        "original_size": micro.original_size,
        "target_size": micro.target_size,
        "crop": (micro.crop != usual.crop).then_some(micro.crop),
        "aesthetic_score": (micro.aesthetic_score != usual.aesthetic_score)
            .then_some(micro.aesthetic_score),
        "negative_aesthetic_score": (micro.negative_aesthetic_score
            != usual.negative_aesthetic_score)
            .then_some(micro.negative_aesthetic_score),
        "refiner_start": fields.refiner_start,
        "frames": fields.video.frames,
        "fps": fields.video.fps,
        "late_guidance": fields.video.late_guidance,
        "frame_noise": fields.video.frame_noise,
        "decode_timestep": fields.video.decode_timestep,
        "decode_noise": fields.video.decode_noise,
        "loras": (!fields.loras.is_empty()).then(|| fields.loras.iter().map(lora).collect::<Vec<_>>()),
    });
    if let (Value::Object(all), Value::Object(tuning)) = (&mut all, tuning) {
        let is_usual = |value: &Value| *value == json!([]) || *value == json!(false);
        all.extend(tuning.into_iter().filter(|(_, value)| !is_usual(value)));
    }
    without_open(all)
}

fn second_pass(highres: &HighresFields) -> Value {
    without_open(json!({
        "scale": highres.scale,
        "width": highres.width,
        "height": highres.height,
        "upscaler": highres.method.as_ref().map(|method| method.label()),
        "strength": highres.strength,
        "steps": highres.steps,
        "seed": highres.seed,
        "sampler": highres.sampler,
        "schedule": highres.schedule,
        "guidance_scale": highres.guidance,
        "prompt": highres.prompt,
        "negative_prompt": highres.negative_prompt,
    }))
}

fn faces(faces: &RestoreFaces) -> Value {
    json!({
        "model": faces.label(),
        "weight": faces.weight,
        "visibility": faces.visibility,
        "only_center": faces.only_center,
    })
}

fn region(region: &RegionPrompt) -> Value {
    json!({
        "prompt": region.prompt,
        "left": region.left,
        "top": region.top,
        "width": region.width,
        "height": region.height,
        "strength": region.strength,
    })
}

fn lora(lora: &Lora) -> Value {
    let blocks: Map<String, Value> = lora
        .blocks
        .iter()
        .map(|(block, factor)| (block.clone(), json!(factor)))
        .collect();
    without_open(json!({
        "path": lora.name,
        "strength": lora.strength,
        "text_strength": lora.text_strength,
        "blocks": (!blocks.is_empty()).then_some(blocks),
        "start": (lora.start != 0.0).then_some(lora.start),
        "end": (lora.end != 1.0).then_some(lora.end),
    }))
}

fn without_open(fields: Value) -> Value {
    match fields {
        Value::Object(mut fields) => {
            fields.retain(|_, value| !value.is_null());
            Value::Object(fields)
        }
        other => other,
    }
}
