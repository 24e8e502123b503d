//! `/v1/choices`: what a client that lets people choose has to know of a model, in one answer.

use super::{App, ImageWorker};
use crate::editing::{Fill, Fit};
use crate::info::{Family, Purpose};
use crate::preprocess::Kind;
use crate::prompt::TokenCount;
use crate::request::limits::KEY_FRAMES;
use crate::request::ControlMode;
use crate::sampling::{Sampler, Schedule};
use crate::textual_inversion::Concept;
use crate::upscale::Method;
use crate::video::VideoFormat;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use worker::http::{blocking, ApiError, JsonBody};
use worker::serve::{Model, Route};

/// Most prompts whose tokens are counted at once.
const MAX_COUNTED: usize = 16;

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    vec![
        Route::get(
            "/v1/choices",
            "The model's defaults and limits, and what requests may name",
            choices,
        ),
        Route::post("/v1/tokens", "How many tokens prompts have", tokens).takes::<Prompts>(),
    ]
}

/// Prompts of which the tokens are counted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Prompts {
    prompts: Vec<String>,
    /// One model or several: where it is asked.
    #[serde(rename = "model")]
    _model: Option<String>,
}

/// Tokens of each prompt, and of the chunks that prompts are cut into; null from models that read prompts whole.
async fn tokens(
    Model(app): Model<App>,
    JsonBody(asked): JsonBody<Prompts>,
) -> Result<Json<Value>, ApiError> {
    if asked.prompts.len() > MAX_COUNTED {
        let reason = format!("there are more than {MAX_COUNTED} prompts");
        return Err(ApiError::field("prompts", reason));
    }
    let Some(counter) = app.queue().counter().cloned() else {
        return Ok(Json(json!({"tokens": null, "chunk": null})));
    };
    let count = move || {
        let counts = asked.prompts.iter().map(|prompt| counter.count(prompt));
        counts.collect::<worker::Result<Vec<TokenCount>>>()
    };
    let wrong = |e: worker::Error| ApiError::field("prompts", e.to_string());
    let counts = blocking(count).await?.map_err(wrong)?;
    let tokens: Vec<usize> = counts.iter().map(|count| count.tokens).collect();
    let chunk = counts.first().map(|count| count.chunk);
    Ok(Json(json!({"tokens": tokens, "chunk": chunk})))
}

async fn choices(Model(app): Model<App>) -> Result<Json<Value>, ApiError> {
    let lists = app.clone();
    // Folders are read.
    let read = move || (lists.lists(), lists.options().preprocessors.kinds());
    let (mut all, kinds) = blocking(read).await?;
    for part in [app.model_facts(), app.most(), names(&kinds)] {
        if let (Value::Object(all), Value::Object(part)) = (&mut all, part) {
            all.extend(part);
        }
    }
    Ok(Json(all))
}

/// Names that are the same for all models; of preprocessors those that can be had.
fn names(kinds: &[Kind]) -> Value {
    let samplers = Sampler::ALL.iter().map(
        |sampler| json!({"name": sampler.label(), "schedule": sampler.default_schedule().label()}),
    );
    let schedules = Schedule::ALL.iter().map(|schedule| schedule.label());
    let preprocessors = kinds.iter().map(|kind| {
        let thresholds = kind.thresholds().iter();
        let thresholds = thresholds.map(|(name, usual, least, most)| {
            json!({"name": name, "value": usual, "min": least, "max": most})
        });
        json!({"name": kind.name(), "thresholds": thresholds.collect::<Vec<_>>()})
    });
    json!({
        "samplers": samplers.collect::<Vec<_>>(),
        "schedules": schedules.collect::<Vec<_>>(),
        "preprocessors": preprocessors.collect::<Vec<_>>(),
        "resize_modes": Fit::names().collect::<Vec<_>>(),
        "mask_fills": Fill::names().collect::<Vec<_>>(),
        "control_modes": ControlMode::names().collect::<Vec<_>>(),
        "latent_upscalers": Method::latent_names().collect::<Vec<_>>(),
        "video_formats": VideoFormat::ALL.map(VideoFormat::extension),
    })
}

impl App {
    /// What the model is, takes and does if nothing is said.
    fn model_facts(&self) -> Value {
        let info = self.queue().info();
        let defaults = &info.defaults;
        let family = info.family;
        let video = defaults.video.map(|video| {
            json!({
                "time_factor": video.time_factor, "frames": video.frames, "fps": video.fps,
                "first": video.first.label(), "last": video.last.label(), "late": video.late,
                "key_frames": video.key_frames, "frame_noise": video.frame_noise,
                "denoising_decoder": video.denoising_decoder,
            })
        });
        json!({
            "model": info.name,
            "defaults": {
                "width": defaults.width,
                "height": defaults.height,
                "steps": defaults.steps,
                "guidance_scale": defaults.guidance,
                "sampler": defaults.sampler.label(),
                "schedule": defaults.schedule().label(),
                "strength": defaults.strength,
            },
            "video": video,
            "references": [info.references.start(), info.references.end()],
            "inpainting": info.inpainting,
            "takes": {
                "token_count": self.queue().counter().is_some(),
                "picture": video.is_none(),
                "text_alone": info.purpose != Purpose::Instructions,
                "instructions": info.purpose == Purpose::Instructions,
                "depth": info.purpose == Purpose::Depth,
                "controls": family.is_steered(),
                "ip_adapters": family.takes_ip_adapters(),
                "true_guidance": family.has_true_guidance(),
                "attention_guidance": family.has_attention_guidance(),
                "layer_guidance": family == Family::Sd3,
                "told_sizes": family == Family::Sdxl,
                "refiner": info.refined,
                "highres": video.is_none(),
            },
        })
    }

    /// What is too much.
    fn most(&self) -> Value {
        let limits = &self.options().limits;
        let (least, multiple) = limits.least_side(self.queue().info());
        json!({"limits": {
            "side": [least, limits.max_side],
            "side_multiple": multiple,
            "pixels": limits.max_pixels,
            "steps": limits.max_steps,
            "batch": limits.max_batch,
            "guidance": limits.max_guidance,
            "loras": limits.max_loras,
            "controls": limits.max_controls,
            "frames": limits.max_frames,
            "key_frames": KEY_FRAMES,
        }})
    }

    /// What the operator's folders and files have.
    fn lists(&self) -> Value {
        let options = self.options();
        let firsts = |list: Vec<(String, std::path::PathBuf)>| -> Vec<String> {
            list.into_iter().map(|(name, _)| name).collect()
        };
        let styles = options.library.styles.list().iter().map(|style| {
            json!({"name": style.name, "prompt": style.prompt, "negative_prompt": style.negative_prompt})
        });
        // A file that went away since the start is no reason to tell nothing else.
        let embeddings = Concept::open_all(&options.embeddings).unwrap_or_default();
        let words = embeddings.into_iter().map(|concept| concept.word);
        let networks = firsts(options.upscalers.list());
        json!({
            "loras": firsts(options.loras.list()),
            "controls": firsts(options.controls.list()),
            "upscalers": Method::pixel_names().map(String::from).chain(networks).collect::<Vec<_>>(),
            "face_restorers": options.faces.restorers(),
            "styles": styles.collect::<Vec<_>>(),
            "wildcards": options.library.wildcards.list(),
            "embeddings": words.collect::<Vec<_>>(),
        })
    }
}
