//! `/sdcpp/v1/…`: the API of stable-diffusion.cpp's server. Jobs are those of the queue.
//!
//! | Module         | Gives                                                                             |
//! |----------------|-----------------------------------------------------------------------------------|
//! | `body`         | the fields of a request                                                           |
//! | `capabilities` | what there is to choose from                                                      |

mod body;
mod capabilities;

use super::answer::{encode_with, outcome_of};
use super::{App, ImageWorker};
use crate::image_io::{to_base64, Format};
use crate::jobs::{Job, State};
use crate::video::VideoFormat;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use body::{Body, Written};
use serde_json::{json, Value};
use worker::http::{ApiError, JsonBody};
use worker::serve::{Model, Route};
use worker::time::unix_seconds;

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    vec![
        Route::get(
            "/sdcpp/v1/capabilities",
            "What requests may ask for",
            capabilities::show,
        ),
        Route::post("/sdcpp/v1/img_gen", "Puts pictures in line", pictures).takes::<Body>(),
        Route::post("/sdcpp/v1/vid_gen", "Puts a video in line", video).takes::<Body>(),
        Route::get(
            "/sdcpp/v1/jobs/{id}",
            "A job at this moment, with its pictures once it has ended",
            show,
        ),
        Route::post("/sdcpp/v1/jobs/{id}/cancel", "Cancels a job", cancel),
    ]
}

/// An error in the form of that server.
struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({"error": self.0.message, "code": self.0.code, "param": self.0.param});
        let status = self.0.status;
        let mut answer = (status, Json(body)).into_response();
        if let Some(after) = self.0.retry_after {
            answer
                .headers_mut()
                .insert("retry-after", after.as_secs().into());
        }
        answer
    }
}

/// A job's id says how its result is written: nothing has to be kept for that.
struct Id {
    job: String,
    written: Written,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.written {
            Written::Pictures {
                format,
                quality,
                said,
            } => write!(
                f,
                "job_{}_{}_{quality}_{}",
                self.job,
                format.extension(),
                u8::from(said)
            ),
            Written::Video(format) => write!(f, "job_{}_{}", self.job, format.extension()),
        }
    }
}

impl Id {
    fn read(id: &str) -> Option<Self> {
        let parts: Vec<&str> = id.split('_').collect();
        let (job, written) = match parts[..] {
            ["job", job, format, quality, said] => (
                job,
                Written::Pictures {
                    format: Format::from_name(format).ok()?,
                    quality: quality
                        .parse()
                        .ok()
                        .filter(|quality| (1..=100).contains(quality))?,
                    said: said == "1",
                },
            ),
            ["job", job, format] => (job, Written::Video(VideoFormat::from_name(format).ok()?)),
            _ => return None,
        };
        Some(Self {
            job: job.to_string(),
            written,
        })
    }

    fn kind(&self) -> &'static str {
        match self.written {
            Written::Pictures { .. } => "img_gen",
            Written::Video(_) => "vid_gen",
        }
    }
}

async fn pictures(
    Model(app): Model<App>,
    JsonBody(body): JsonBody<Body>,
) -> Result<Response, Refusal> {
    let written = body.pictures()?;
    let request = body.picture_request(&app).await?;
    let job = app.submit(request)?;
    accepted(&app, Id { job, written })
}

async fn video(
    Model(app): Model<App>,
    JsonBody(body): JsonBody<Body>,
) -> Result<Response, Refusal> {
    let written = body.video()?;
    let Written::Video(format) = written else {
        return Err(ApiError::internal("a video is written as pictures").into());
    };
    let request = body.video_request(&app, format).await?;
    let job = app.submit(request)?;
    accepted(&app, Id { job, written })
}

fn accepted(app: &App, id: Id) -> Result<Response, Refusal> {
    let job = app.queue().job(&id.job).ok_or_else(unknown)?;
    let body = json!({
        "id": id.to_string(),
        "kind": id.kind(),
        "status": "queued",
        "created": unix_seconds(job.created) as u64,
        "poll_url": format!("/sdcpp/v1/jobs/{id}"),
    });
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

fn unknown() -> ApiError {
    ApiError::not_found(
        "there is no job with this id; finished ones are kept for a while only (--keep)",
    )
}

fn found(app: &App, id: &str) -> Result<(Id, Job), ApiError> {
    let id = Id::read(id).ok_or_else(unknown)?;
    let job = app.queue().job(&id.job).ok_or_else(unknown)?;
    Ok((id, job))
}

async fn show(Model(app): Model<App>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    let (id, job) = found(&app, &id)?;
    Ok(Json(described(&id, job).await?))
}

async fn cancel(Model(app): Model<App>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    let (id, job) = found(&app, &id)?;
    if job.state.is_final() {
        let reason = "the job has ended already";
        return Err(ApiError::new(StatusCode::CONFLICT, "ENDED", reason).into());
    }
    let job = app.queue().cancel(&id.job).ok_or_else(unknown)?;
    Ok(Json(described(&id, job).await?))
}

async fn described(id: &Id, job: Job) -> Result<Value, ApiError> {
    let status = match job.state {
        State::Queued => "queued",
        State::Running => "generating",
        State::Completed => "completed",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
    };
    let error = match (&job.failure, job.state) {
        (Some(failure), _) => {
            json!({"code": failure.code.to_lowercase(), "message": failure.message})
        }
        (None, State::Cancelled) => {
            json!({"code": "cancelled", "message": "job cancelled by client"})
        }
        (None, _) => Value::Null,
    };
    let seconds = |time: Option<std::time::SystemTime>| time.map(|time| unix_seconds(time) as u64);
    let mut told = json!({
        "id": id.to_string(),
        "kind": id.kind(),
        "status": status,
        "created": seconds(Some(job.created)),
        "started": seconds(job.started),
        "completed": seconds(job.finished),
        "queue_position": job.position,
        "progress": job.progress(),
        "result": null,
        "error": error,
    });
    if job.state == State::Completed {
        told["result"] = result(id, job).await?;
    }
    Ok(told)
}

async fn result(id: &Id, job: Job) -> Result<Value, ApiError> {
    let outcome = outcome_of(job)?;
    match id.written {
        Written::Pictures {
            format,
            quality,
            said,
        } => {
            let files = encode_with(outcome, format, quality, said).await?;
            let images = files.iter().enumerate();
            let images =
                images.map(|(index, file)| json!({"index": index, "b64_json": to_base64(file)}));
            Ok(
                json!({"output_format": format.extension(), "images": images.collect::<Vec<Value>>()}),
            )
        }
        Written::Video(_) => {
            let video = outcome
                .pictures
                .first()
                .and_then(|picture| picture.video.as_ref());
            let (bytes, format) =
                video.ok_or_else(|| ApiError::internal("the job made no video"))?;
            Ok(json!({
                "output_format": format.extension(),
                "mime_type": format.media_type(),
                "b64_json": to_base64(bytes),
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_how_results_are_written() {
        let pictures = Written::Pictures {
            format: Format::Jpeg,
            quality: 80,
            said: false,
        };
        for written in [pictures, Written::Video(VideoFormat::default())] {
            let job = "abc".to_string();
            let text = Id { job, written }.to_string();
            let read = Id::read(&text).unwrap();
            assert_eq!((read.job.as_str(), read.written), ("abc", written));
        }
        for bad in [
            "",
            "abc",
            "job_abc",
            "job_a_tiff",
            "job_a_png_0_1",
            "job_a_png_x_1",
            "job_a_b_c_d_e",
        ] {
            assert!(Id::read(bad).is_none(), "{bad}");
        }
    }
}
