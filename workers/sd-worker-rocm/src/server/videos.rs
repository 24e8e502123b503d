//! `/v1/videos` as OpenAI's API has it: a job is made, asked about, and its file fetched. This worker's own settings are
//! further fields; `/v1/jobs` has all of them.

use super::answer::outcome_of;
use super::request::Upload;
use super::{App, ImageWorker};
use crate::image_io;
use crate::jobs::{Job, State as JobState};
use crate::request::seed::given_seed;
use crate::request::{InterfaceDefaults, RequestFields, VideoFields};
use crate::video::VideoFormat;
use axum::extract::{FromRequest, Multipart, Path, Request};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::Json;
use image::RgbImage;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::{ApiError, JsonBody};
use worker::serve::{Model, Route};
use worker::time::unix_seconds;

/// What is in front of a job's id.
const PREFIX: &str = "video_";
/// Seconds of a video that is asked for by its length.
const SECONDS: std::ops::RangeInclusive<f64> = 0.0..=3600.0;
/// Parts of a form that are files.
const FILES: [&str; 3] = ["input_reference", "first_frame", "last_frame"];

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    vec![
        Route::post("/v1/videos", "Puts a video in line", create).takes_form::<Body>(),
        Route::get("/v1/videos", "The videos that are known", list),
        Route::get("/v1/videos/{id}", "A video at this moment", status),
        Route::delete(
            "/v1/videos/{id}",
            "Cancels a video that is not finished",
            cancel,
        ),
        Route::get(
            "/v1/videos/{id}/content",
            "The file of a finished video",
            content,
        ),
    ]
}

/// What is asked for: OpenAI's fields first, this worker's own behind them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "VideoFields")]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    #[serde(rename = "model")]
    _model: Option<String>,
    /// `WIDTHxHEIGHT`.
    size: Option<String>,
    /// The length, as a number or as text.
    seconds: Option<Number>,
    /// The first frame: a file of the form, or in base64.
    input_reference: Option<String>,

    negative_prompt: Option<String>,
    steps: Option<Number>,
    guidance_scale: Option<Number>,
    late_guidance: Option<Number>,
    seed: Option<Number>,
    sampler: Option<String>,
    frames: Option<Number>,
    fps: Option<Number>,
    first_frame: Option<String>,
    last_frame: Option<String>,
    video_format: Option<String>,
}

/// A number, which forms and some clients write as text.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Number {
    Is(f64),
    Said(String),
}

impl Number {
    fn value(&self, field: &'static str) -> Result<f64, ApiError> {
        let value = match self {
            Self::Is(value) => Some(*value),
            Self::Said(text) => text.trim().parse().ok(),
        };
        value
            .filter(|value: &f64| value.is_finite())
            .ok_or_else(|| ApiError::field(field, format!("{field} is not a number")))
    }
}

fn number(field: &'static str, given: &Option<Number>) -> Result<Option<f64>, ApiError> {
    given.as_ref().map(|number| number.value(field)).transpose()
}

fn whole(field: &'static str, given: &Option<Number>) -> Result<Option<usize>, ApiError> {
    let Some(value) = number(field, given)? else {
        return Ok(None);
    };
    match value >= 0.0 && value.fract() == 0.0 && value < 9e15 {
        true => Ok(Some(value as usize)),
        false => Err(ApiError::field(
            field,
            format!("{field} is not a whole number from 0"),
        )),
    }
}

/// The body, JSON or a form, and the files of the form.
async fn body(request: Request) -> Result<(Body, Vec<(String, Vec<u8>)>), ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("multipart/form-data") {
        let JsonBody(body) = JsonBody::<Body>::from_request(request, &()).await?;
        return Ok((body, Vec::new()));
    }
    let failed = |e: axum::extract::multipart::MultipartError| {
        ApiError::new(e.status(), "INVALID_REQUEST", e.body_text())
    };
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|e| ApiError::new(e.status(), "INVALID_REQUEST", e.body_text()))?;
    let (mut fields, mut files) = (Map::new(), Vec::new());
    while let Some(field) = form.next_field().await.map_err(failed)? {
        let name = field.name().unwrap_or_default().to_string();
        match FILES.contains(&name.as_str()) && field.file_name().is_some() {
            true if files.len() == FILES.len() => {
                return Err(ApiError::field("input_reference", "too many files"))
            }
            true => files.push((name, field.bytes().await.map_err(failed)?.to_vec())),
            false => {
                fields.insert(name, Value::String(field.text().await.map_err(failed)?));
            }
        }
    }
    let body = serde_json::from_value(Value::Object(fields));
    let body = body.map_err(|e| ApiError::field("form", e.to_string()))?;
    Ok((body, files))
}

async fn create(Model(app): Model<App>, request: Request) -> Result<Response, ApiError> {
    let (body, files) = body(request).await?;
    let Some(model) = app.queue().info().defaults.video else {
        return Err(ApiError::field(
            "model",
            "the model makes pictures, not videos",
        ));
    };
    let (width, height) = match body.size.as_deref() {
        None => (None, None),
        Some(size) => {
            let sides = size.split_once('x');
            let sides = sides.and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
            let (width, height) = sides.ok_or_else(|| {
                ApiError::field("size", format!("{size:?} is not a size, such as 832x480"))
            })?;
            (Some(width), Some(height))
        }
    };
    let fps = whole("fps", &body.fps)?;
    let frames = match (
        whole("frames", &body.frames)?,
        number("seconds", &body.seconds)?,
    ) {
        (Some(_), Some(_)) => {
            let reason = "seconds and frames are both the length; give one of them";
            return Err(ApiError::field("seconds", reason));
        }
        (None, Some(seconds)) if SECONDS.contains(&seconds) => {
            // The number of frames that the model takes which is nearest.
            let frames = seconds * fps.unwrap_or(model.fps) as f64 / model.time_factor as f64;
            Some((frames.round() as usize).max(1) * model.time_factor + 1)
        }
        (None, Some(_)) => {
            return Err(ApiError::field("seconds", "seconds must be from 0 to 3600"))
        }
        (frames, None) => frames,
    };
    let format = body.video_format.as_deref().map(VideoFormat::from_name);
    let format = format.transpose();
    let seed = number("seed", &body.seed)?.map(|seed| seed as i64);
    let first = app
        .end("first_frame", body.first_frame, &files)
        .await?
        .or(app
            .end("input_reference", body.input_reference, &files)
            .await?);
    let fields = RequestFields {
        prompt: body.prompt,
        negative_prompt: body.negative_prompt,
        width,
        height,
        steps: whole("steps", &body.steps)?,
        guidance: number("guidance_scale", &body.guidance_scale)?,
        sampler: body.sampler,
        seed: given_seed(seed),
        video: VideoFields {
            frames,
            fps,
            first,
            last: app.end("last_frame", body.last_frame, &files).await?,
            late_guidance: number("late_guidance", &body.late_guidance)?,
            format: format.map_err(|e| ApiError::field("video_format", e.to_string()))?,
            ..VideoFields::default()
        },
        ..RequestFields::default()
    };
    let request = app.valid(fields, &InterfaceDefaults::OWN, &app.options().limits)?;
    let asked = json!({
        "size": format!("{}x{}", request.width, request.height),
        "seconds": request.video.as_ref().map(|v| seconds(v.frames, v.fps)),
    });
    let id = app.submit(request)?;
    let job = app.queue().job(&id).ok_or_else(unknown)?;
    let mut described = describe(&app, &job);
    described["size"] = asked["size"].clone();
    described["seconds"] = asked["seconds"].clone();
    Ok(Json(described).into_response())
}

/// A length as OpenAI writes it: text.
fn seconds(frames: usize, fps: usize) -> String {
    let tenths = (10.0 * frames as f64 / fps.max(1) as f64).round() / 10.0;
    tenths.to_string()
}

impl App {
    /// A picture that a video starts or ends with: a file of the form, or in base64, also as a data URL.
    async fn end(
        &self,
        field: &'static str,
        text: Option<String>,
        files: &[(String, Vec<u8>)],
    ) -> Result<Option<RgbImage>, ApiError> {
        let file = files.iter().find(|(name, _)| name == field);
        let source = match (file, text) {
            (Some((_, bytes)), _) => Upload::Bytes(bytes.clone()),
            (None, Some(text)) => Upload::Base64(text),
            (None, None) => return Ok(None),
        };
        let picture = self.decode(field, source).await?;
        Ok(Some(image_io::to_rgb(&picture)))
    }

    /// A job by a video's id.
    fn video_job(&self, id: &str) -> Result<Job, ApiError> {
        let job = id.strip_prefix(PREFIX).and_then(|id| self.queue().job(id));
        job.ok_or_else(unknown)
    }
}

fn unknown() -> ApiError {
    ApiError::not_found(
        "there is no video with this id; finished ones are kept for a while only (--keep)",
    )
}

/// A job as OpenAI describes a video.
fn describe(app: &App, job: &Job) -> Value {
    let status = match job.state {
        JobState::Queued => "queued",
        JobState::Running => "in_progress",
        JobState::Completed => "completed",
        JobState::Failed | JobState::Cancelled => "failed",
    };
    let error = match (&job.failure, job.state) {
        (Some(failure), _) => json!({"code": failure.code, "message": failure.message}),
        (None, JobState::Cancelled) => {
            json!({"code": "CANCELLED", "message": "the video was cancelled"})
        }
        (None, _) => Value::Null,
    };
    json!({
        "id": format!("{PREFIX}{}", job.id),
        "object": "video",
        "model": app.queue().info().name,
        "status": status,
        "progress": (100.0 * job.progress()).round(),
        "created_at": unix_seconds(job.created),
        "completed_at": job.finished.map(unix_seconds),
        "error": error,
    })
}

async fn list(Model(app): Model<App>) -> Json<Value> {
    let jobs = app.queue().jobs();
    let data: Vec<Value> = jobs.iter().map(|job| describe(&app, job)).collect();
    Json(json!({"object": "list", "data": data, "has_more": false}))
}

async fn status(Model(app): Model<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    Ok(Json(describe(&app, &app.video_job(&id)?)))
}

async fn cancel(Model(app): Model<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let job = app.video_job(&id)?;
    let job = app.queue().cancel(&job.id).ok_or_else(unknown)?;
    let deleted = job.state == JobState::Cancelled;
    Ok(Json(
        json!({"id": id, "object": "video.deleted", "deleted": deleted}),
    ))
}

async fn content(Model(app): Model<App>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let job = app.video_job(&id)?;
    if !job.state.is_final() {
        return Err(ApiError::not_found("the video is not finished yet"));
    }
    let outcome = outcome_of(job)?;
    let video = outcome.pictures.first().and_then(|p| p.video.as_ref());
    let (bytes, format) = video
        .ok_or_else(|| ApiError::not_found("this job made a picture; /v1/jobs has its address"))?;
    Ok((
        [(header::CONTENT_TYPE, format.media_type())],
        bytes.to_vec(),
    )
        .into_response())
}
