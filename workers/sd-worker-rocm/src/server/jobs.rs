//! `/v1/jobs`: rbee's operations as jobs, with what people need to follow them.

use super::answer::{encode_one, outcome_of};
use super::controls::ControlBody;
use super::editing::EditingBody;
use super::faces::FacesBody;
use super::highres::HighresBody;
use super::ip_adapters::IpAdapterBody;
use super::request::Upload;
use super::wording::WordingBody;
use super::{pictures, App, ImageWorker};
use crate::image_io::{self, to_base64, Format};
use crate::jobs::{Job, State as JobState};
use crate::lora::Lora;
use crate::pipeline::Stage;
use crate::recall::Recalled;
use crate::request::limits::KEY_FRAMES;
use crate::request::seed::given_seed;
use crate::request::{
    InitFields, InterfaceDefaults, Limits, MicroConditions, RequestFields, Tuning, ValidRequest,
    VideoFields,
};
use crate::rng::RngKind;
use crate::video::VideoFormat;
use axum::extract::{Path, Query};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use worker::http::json::{self, Object};
use worker::http::sse::{self, Encoding, Frames, Protocol};
use worker::http::{blocking, ApiError, JsonBody};
use worker::serve::{Model, Route};
use worker::time::unix_seconds;

/// rbee's most guidance.
const MAX_GUIDANCE: f64 = 20.0;

/// Code of what cannot be done to a job in the state that it has.
const NOT_NOW: &str = "CONFLICT";

/// rbee's streams: events by name, an error is one of them.
const RBEE: Protocol = Protocol {
    encoding: Encoding::Events,
    failure: |error| {
        sse::named(
            "error",
            &json!({"message": error.message, "code": error.code}),
        )
    },
    done: None,
};

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    let stop = "Cancels a job: at once if it waits, within a step if it runs";
    vec![
        Route::post("/v1/jobs", "Puts a job in line", submit).takes::<Body>(),
        Route::get("/v1/jobs", "The jobs that are known", list),
        Route::get("/v1/jobs/{id}", "A job at this moment", status),
        Route::delete("/v1/jobs/{id}", stop, cancel),
        Route::post("/v1/jobs/{id}/cancel", stop, cancel),
        Route::post(
            "/v1/jobs/{id}/move",
            "Puts a waiting job at another place in line",
            reorder,
        )
        .takes::<MoveBody>(),
        Route::post(
            "/v1/jobs/{id}/forget",
            "Forgets a job that has ended, with its pictures",
            forget,
        ),
        Route::get(
            "/v1/jobs/{id}/stream",
            "The course of a job, as server-sent events",
            stream,
        ),
        Route::get(
            "/v1/jobs/{id}/images/{index}",
            "A picture of a job that has ended",
            picture,
        ),
    ]
}

/// A frame of a video that is given.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeyFrameBody {
    /// Its number, counted from 0.
    frame: usize,
    /// In base64.
    image: String,
}

/// What is asked for. The fields after `worker_id` are this worker's own.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "JobFields")]
pub(super) struct Body {
    operation: String,
    // One model, one hive: these say where the request was sent, which is here.
    #[serde(rename = "hive_id")]
    _hive_id: Option<String>,
    #[serde(rename = "model")]
    _model: Option<String>,
    #[serde(rename = "worker_id")]
    _worker_id: Option<String>,
    prompt: String,
    /// A picture in base64 of which is asked what it says that it was made with; other fields count more.
    from_picture: Option<String>,
    negative_prompt: Option<String>,
    prompt_weights: Option<bool>,
    steps: Option<usize>,
    guidance_scale: Option<f64>,
    seed: Option<i64>,
    width: Option<usize>,
    height: Option<usize>,
    #[serde(default)]
    loras: Vec<LoraBody>,
    input_image: Option<String>,
    init_image: Option<String>,
    mask_image: Option<String>,
    /// Which latents are painted, if not those of the mask: in base64, white is painted.
    latent_mask: Option<String>,
    strength: Option<f64>,

    sampler: Option<String>,
    schedule: Option<String>,
    rng: Option<String>,
    batch: Option<usize>,
    clip_skip: Option<usize>,
    eta: Option<f64>,
    #[serde(flatten)]
    tuning: Tuning,
    true_cfg_scale: Option<f64>,
    guidance_rescale: Option<f64>,
    mask_blur: Option<f64>,
    mask_invert: Option<bool>,
    #[serde(flatten)]
    editing: EditingBody,
    highres: Option<HighresBody>,
    restore_faces: Option<FacesBody>,
    image_guidance: Option<f64>,
    depth_image: Option<String>,
    original_size: Option<(usize, usize)>,
    crop: Option<(usize, usize)>,
    target_size: Option<(usize, usize)>,
    aesthetic_score: Option<f64>,
    negative_aesthetic_score: Option<f64>,
    refiner_start: Option<f64>,
    preview_every: Option<usize>,
    frames: Option<usize>,
    fps: Option<usize>,
    first_frame: Option<String>,
    last_frame: Option<String>,
    #[serde(default)]
    key_frames: Vec<KeyFrameBody>,
    frame_noise: Option<f64>,
    late_guidance: Option<f64>,
    decode_timestep: Option<f64>,
    decode_noise: Option<f64>,
    video_format: Option<String>,
    #[serde(default)]
    controls: Vec<ControlBody>,
    #[serde(flatten)]
    wording: WordingBody,
    #[serde(default)]
    ip_adapters: Vec<IpAdapterBody>,
    /// Pictures in base64 that the prompt speaks of.
    #[serde(default)]
    references: Vec<String>,
    #[serde(default)]
    keep_reference_size: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct LoraBody {
    path: String,
    /// On the denoiser, and on the text encoders where text_strength is left out.
    #[serde(default = "one")]
    strength: f64,
    text_strength: Option<f64>,
    /// Factors of the strength by blocks of the denoiser: the beginnings of tensors' names, or IN04, MID, OUT03, BASE.
    #[serde(default)]
    blocks: BTreeMap<String, f64>,
    /// Shares of the steps, 0 to 1, between which it acts on the denoiser.
    #[serde(default)]
    start: f64,
    #[serde(default = "one")]
    end: f64,
}

impl From<LoraBody> for Lora {
    fn from(body: LoraBody) -> Self {
        Self {
            text_strength: body.text_strength,
            blocks: body.blocks.into_iter().collect(),
            start: body.start,
            end: body.end,
            ..Self::new(body.path, body.strength)
        }
    }
}

fn one() -> f64 {
    1.0
}

impl Body {
    /// The pictures that the operation starts from, each with the name of its field.
    fn pictures(&mut self) -> Result<Option<Pictures>, ApiError> {
        let operation = self.operation.clone();
        let taken = |field: &'static str, picture: Option<String>| {
            let missing = || {
                ApiError::field(
                    field,
                    format!("{operation} needs {field}, a picture in base64"),
                )
            };
            Ok::<_, ApiError>((field, picture.ok_or_else(missing)?))
        };
        match operation.as_str() {
            "image_generation" => Ok(None),
            "image_transform" => {
                let image = taken("input_image", self.input_image.take())?;
                Ok(Some((image, None)))
            }
            "image_inpaint" => {
                let image = taken("init_image", self.init_image.take())?;
                let mask = taken("mask_image", self.mask_image.take())?;
                Ok(Some((image, Some(mask))))
            }
            other => Err(ApiError::field(
                "operation",
                format!("{other:?} is not an operation of this worker; it has image_generation, image_transform and image_inpaint"),
            )),
        }
    }
}

/// A picture and a mask in base64.
type Pictures = ((&'static str, String), Option<(&'static str, String)>);

impl App {
    /// The request of a job's fields, and what a picture says besides that is not taken over.
    ///
    /// # Errors
    /// 400 that names the field that is wrong.
    pub(super) async fn job_request(
        &self,
        mut body: Body,
    ) -> Result<(ValidRequest, Vec<String>), ApiError> {
        let recalled = match body.from_picture.take() {
            Some(picture) => Some(self.recall(picture).await?),
            None => None,
        };
        let latent_mask = match body.latent_mask.take() {
            Some(mask) => Some(self.mask("latent_mask", mask).await?),
            None => None,
        };
        let init = match body.pictures()? {
            Some((image, mask)) => Some(InitFields {
                strength: body.strength,
                mask_blur: body.mask_blur,
                mask_invert: body.mask_invert.unwrap_or(false),
                latent_mask,
                mask_from_alpha: body.editing.mask_from_alpha,
                editing: body.editing.read()?,
                ..self.init(image, mask).await?
            }),
            None if latent_mask.is_some() => {
                let reason = "latent_mask goes with a picture and a mask (image_inpaint)";
                return Err(ApiError::field("latent_mask", reason));
            }
            None => None,
        };
        let depth = match body.depth_image {
            Some(depth) => Some(self.decode("depth_image", Upload::Base64(depth)).await?),
            None => None,
        };
        if body.key_frames.len() > KEY_FRAMES {
            let message = format!("key_frames: up to {KEY_FRAMES} are possible");
            return Err(ApiError::field("key_frames", message));
        }
        let mut key_frames = Vec::new();
        for KeyFrameBody { frame, image } in body.key_frames {
            let picture = self.decode("key_frames", Upload::Base64(image)).await?;
            key_frames.push((frame, image_io::to_rgb(&picture)));
        }
        let upscalers = &self.options().upscalers;
        let highres = body.highres.map(|highres| highres.read(upscalers));
        let faces = body.restore_faces;
        let faces = faces.map(|faces| faces.read(&self.options().faces));
        let usual = MicroConditions::default();
        let format = body.video_format.as_deref();
        let format = format.map(VideoFormat::from_name).transpose();
        let rng = body.rng.as_deref().map(RngKind::from_name).transpose();
        let fields = RequestFields {
            prompt: body.prompt,
            noise: body.wording.noise(),
            wording: self.wording(body.wording).await?,
            negative_prompt: body.negative_prompt,
            prompt_weights: body.prompt_weights,
            width: body.width,
            height: body.height,
            steps: body.steps,
            guidance: body.guidance_scale,
            true_guidance: body.true_cfg_scale,
            guidance_rescale: body.guidance_rescale,
            sampler: body.sampler,
            schedule: body.schedule,
            seed: given_seed(body.seed),
            rng: rng.map_err(|e| ApiError::field("rng", e.to_string()))?,
            batch: body.batch,
            clip_skip: body.clip_skip,
            eta: body.eta,
            tuning: body.tuning,
            init,
            highres: highres.transpose()?,
            restore_faces: faces.transpose()?,
            references: self.references(body.references).await?,
            keep_reference_size: body.keep_reference_size,
            image_guidance: body.image_guidance,
            depth: depth.as_ref().map(image_io::to_rgb),
            micro: MicroConditions {
                original_size: body.original_size,
                crop: body.crop.unwrap_or(usual.crop),
                target_size: body.target_size,
                aesthetic_score: body.aesthetic_score.unwrap_or(usual.aesthetic_score),
                negative_aesthetic_score: (body.negative_aesthetic_score)
                    .unwrap_or(usual.negative_aesthetic_score),
            },
            refiner_start: body.refiner_start,
            video: VideoFields {
                frames: body.frames,
                fps: body.fps,
                first: self.frame("first_frame", body.first_frame).await?,
                last: self.frame("last_frame", body.last_frame).await?,
                key_frames,
                frame_noise: body.frame_noise,
                late_guidance: body.late_guidance,
                decode_timestep: body.decode_timestep,
                decode_noise: body.decode_noise,
                format: format.map_err(|e| ApiError::field("video_format", e.to_string()))?,
            },
            loras: body.loras.into_iter().map(Lora::from).collect(),
            controls: self.controls(body.controls).await?,
            ip_adapters: self.ip_adapters(body.ip_adapters).await?,
            preview_every: body.preview_every,
        };
        let limits = self.options().limits;
        let limits = Limits {
            max_guidance: limits.max_guidance.min(MAX_GUIDANCE),
            ..limits
        };
        let (fields, left_out) = match recalled {
            Some(recalled) => {
                let recalled = recalled.fitting(self.queue().info());
                (fields.over(recalled.fields), recalled.left_out)
            }
            None => (fields, Vec::new()),
        };
        let request = self.valid(fields, &InterfaceDefaults::OWN, &limits)?;
        Ok((request, left_out))
    }

    /// What a picture in base64 says that it was made with.
    async fn recall(&self, picture: String) -> Result<Recalled, ApiError> {
        let limits = self.options().limits.decode;
        let networks = self.networks();
        let read = move || {
            let bytes = image_io::from_base64(&picture, &limits)?;
            Recalled::of(&bytes, &networks)
        };
        let field = |e: worker::Error| ApiError::field("from_picture", e.to_string());
        blocking(read).await?.map_err(field)
    }
}

async fn submit(
    Model(app): Model<App>,
    JsonBody(Object(mut fields)): JsonBody<Object>,
) -> Result<Response, ApiError> {
    let fields_of = |map| json::from_value::<Body>(&Value::Object(map));
    let (body, saved) = match app.keeper() {
        Some(keeper) => (fields_of(fields.clone())?, Some(keeper)),
        None => (fields_of(std::mem::take(&mut fields))?, None),
    };
    let (request, left_out) = app.job_request(body).await?;
    let seed = request.seed;
    let id = app.submit(request)?;
    if let Some(keeper) = saved {
        // With the seed that it has now, so that it makes the same pictures after a restart.
        fields.insert("seed".to_string(), json!(seed));
        keeper.keep(&app, &id, fields).await?;
    }
    let mut body = json!({"job_id": id, "sse_url": format!("/v1/jobs/{id}/stream")});
    if !left_out.is_empty() {
        body["left_out"] = json!(left_out);
    }
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

fn unknown() -> ApiError {
    ApiError::not_found(
        "there is no job with this id; finished jobs are kept for a while only (--keep)",
    )
}

fn describe(job: &Job, model: &str) -> Value {
    let pictures = job.outcome.as_ref().map(|outcome| {
        let pictures = outcome.pictures.iter();
        pictures
            .map(|picture| {
                json!({
                    "url": pictures::path(picture, Format::Png, 0),
                    "video_url": pictures::video_path(picture),
                    "seed": picture.seed,
                    "parameters": picture.parameters,
                })
            })
            .collect::<Vec<_>>()
    });
    json!({
        "id": job.id,
        "model": model,
        "state": job.state,
        "prompt": (!job.prompt.is_empty()).then_some(&*job.prompt),
        "position": job.position,
        "stage": job.stage.map(stage_name),
        "step": job.step,
        "total": job.total,
        "progress": job.progress(),
        "seconds_left": job.seconds_left(),
        "created": unix_seconds(job.created),
        "started": job.started.map(unix_seconds),
        "finished": job.finished.map(unix_seconds),
        "error": job.failure,
        "images": pictures,
    })
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Encode => "encode",
        Stage::Denoise => "denoise",
        Stage::Decode => "decode",
    }
}

async fn list(Model(app): Model<App>) -> Json<Value> {
    let model = &app.queue().info().name;
    let jobs = app.queue().jobs();
    let jobs: Vec<_> = jobs.iter().map(|job| describe(job, model)).collect();
    let options = app.queue().options();
    let kept = json!({
        "seconds": options.keep.as_secs(),
        "count": options.keep_count,
        "on_disk": app.keeper().is_some(),
    });
    Json(json!({"jobs": jobs, "kept": kept}))
}

async fn status(Model(app): Model<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let job = app.queue().job(&id).ok_or_else(unknown)?;
    Ok(Json(describe(&job, &app.queue().info().name)))
}

async fn cancel(Model(app): Model<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let job = app.queue().cancel(&id).ok_or_else(unknown)?;
    Ok(Json(describe(&job, &app.queue().info().name)))
}

/// Where a job is to wait.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MoveBody {
    /// Jobs that wait before it, those that run not counted; more than there are is the end of the line.
    place: usize,
}

async fn reorder(
    Model(app): Model<App>,
    Path(id): Path<String>,
    JsonBody(MoveBody { place }): JsonBody<MoveBody>,
) -> Result<Json<Value>, ApiError> {
    let job = app.queue().job(&id).ok_or_else(unknown)?;
    let Some(order) = app.queue().reorder(&id, place) else {
        let reason = format!("the job does not wait: it is {:?}", job.state).to_lowercase();
        return Err(ApiError::new(StatusCode::CONFLICT, NOT_NOW, reason));
    };
    if let Some(keeper) = app.keeper() {
        keeper.reorder(order).await?;
    }
    status(Model(app), Path(id)).await
}

async fn forget(Model(app): Model<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    if !app.queue().forget(&id).ok_or_else(unknown)? {
        let reason = "the job has not ended; cancel it first";
        return Err(ApiError::new(StatusCode::CONFLICT, NOT_NOW, reason));
    }
    if let Some(keeper) = app.keeper() {
        keeper.remove(id.clone()).await?;
    }
    Ok(Json(json!({"id": id, "forgotten": true})))
}

async fn stream(Model(app): Model<App>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let mut receiver = app.queue().watch(&id).ok_or_else(unknown)?;
    Ok(sse::stream(RBEE, |frames| async move {
        let mut told = Told::default();
        loop {
            let job = receiver.borrow_and_update().clone();
            told.tell(&job, &frames).await;
            if job.state.is_final() {
                return complete(job, &app, &frames).await;
            }
            if receiver.changed().await.is_err() {
                return Err(unknown());
            }
        }
    }))
}

/// What a stream has told already.
#[derive(Default)]
struct Told {
    step: Option<usize>,
    position: Option<usize>,
    preview: Option<std::sync::Arc<Vec<u8>>>,
}

impl Told {
    async fn tell(&mut self, job: &Job, frames: &Frames) {
        if job.state == JobState::Queued && self.position != Some(job.position) {
            self.position = Some(job.position);
            frames
                .send(sse::named("queued", &json!({"position": job.position})))
                .await;
        }
        if job.started.is_some() && self.step != Some(job.step) {
            self.step = Some(job.step);
            let percent = 100.0 * job.step as f64 / job.total.max(1) as f64;
            let progress = json!({"step": job.step, "total": job.total, "percent": percent});
            frames.send(sse::named("progress", &progress)).await;
        }
        let preview = job.preview.as_ref().filter(|new| {
            let old = self.preview.as_ref();
            !old.is_some_and(|old| std::sync::Arc::ptr_eq(old, new))
        });
        if let Some(preview) = preview {
            self.preview = Some(preview.clone());
            let image = to_base64(preview);
            let preview = json!({"step": job.step, "total": job.total, "image": image});
            frames.send(sse::named("preview", &preview)).await;
        }
    }
}

async fn complete(job: Job, app: &App, frames: &Frames) -> Result<(), ApiError> {
    let description = describe(&job, &app.queue().info().name);
    let outcome = outcome_of(job)?;
    let png = encode_one(outcome.clone(), 0, Format::Png, 0).await?;
    let body = json!({
        "image": to_base64(&png),
        "format": "png",
        "seed": outcome.pictures[0].seed,
        "images": description["images"],
    });
    frames.send(sse::named("complete", &body)).await;
    Ok(())
}

#[derive(Deserialize)]
struct PictureQuery {
    format: Option<String>,
    quality: Option<u8>,
}

async fn picture(
    Model(app): Model<App>,
    Path((id, index)): Path<(String, usize)>,
    Query(query): Query<PictureQuery>,
) -> Result<Response, ApiError> {
    let job = app.queue().job(&id).ok_or_else(unknown)?;
    let format = Format::from_name(query.format.as_deref().unwrap_or("png"))
        .map_err(|e| ApiError::field("format", e.to_string()))?;
    let bytes = encode_one(outcome_of(job)?, index, format, query.quality.unwrap_or(90)).await?;
    Ok(([(header::CONTENT_TYPE, format.media_type())], bytes).into_response())
}
