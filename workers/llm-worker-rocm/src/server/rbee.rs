//! The contract of rbee's workers: a job is created, then its stream is taken, once.

use super::app::timestamp;
use super::error::{
    blocking, from_failure, CANCELLED, INFERENCE_FAILED, QUEUE_FULL, TIMEOUT, VRAM_OOM,
};
use super::generation::{Generation, Prepared};
use super::openai::SamplingFields;
use super::Shared;
use crate::completion::{Finish, Output, StopReason, TextOptions};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::Response;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uuid::Uuid;
use worker::http::error::INVALID_REQUEST;
use worker::http::sse::{self, Frames, Protocol};
use worker::http::{ApiError, JsonBody};

/// Jobs whose stream nobody has taken yet.
const MAX_JOBS: usize = 256;
/// A job whose stream nobody takes is given up after this time.
const JOB_LIFETIME: Duration = Duration::from_secs(60);
/// Longest prompt in characters.
const MAX_PROMPT_CHARS: usize = 32_768;

/// Errors are frames of a type of their own, with one of five codes.
const PROTOCOL: Protocol = Protocol {
    failure: error_frame,
    done: Some("[DONE]"),
};

/// Jobs whose stream nobody has taken yet.
#[derive(Default)]
pub struct Jobs(Mutex<HashMap<String, Generation>>);

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Generation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, id: &str) -> Option<Generation> {
        self.lock().remove(id)
    }

    /// Gives all of them up.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}

/// The body of a job.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct JobFields {
    /// `infer`.
    pub operation: Option<String>,
    /// What to go on from, 1 to 32768 characters.
    pub prompt: String,
    /// Most tokens to generate, at least 1.
    pub max_tokens: Option<i64>,
    /// From 0 to 2.
    pub temperature: Option<f32>,
}

impl JobFields {
    fn check(&self) -> Result<(), ApiError> {
        let refuse = |field: &str, reason: String| Err(ApiError::field(field, reason));
        match self.operation.as_deref() {
            None | Some("infer") => {}
            Some(other) => {
                return refuse(
                    "operation",
                    format!("operation {other:?} is unknown; this worker does \"infer\""),
                )
            }
        }
        let characters = self.prompt.chars().count();
        if !(1..=MAX_PROMPT_CHARS).contains(&characters) {
            let reason =
                format!("prompt: {characters} characters; 1 to {MAX_PROMPT_CHARS} are possible");
            return refuse("prompt", reason);
        }
        if let Some(most) = self.max_tokens.filter(|&most| most < 1) {
            return refuse("max_tokens", format!("max_tokens {most} is not at least 1"));
        }
        if let Some(temperature) = self.temperature.filter(|t| !(0.0..=2.0).contains(t)) {
            let reason = format!("temperature {temperature} is not from 0 to 2");
            return refuse("temperature", reason);
        }
        Ok(())
    }
}

/// `GET /info`
pub(super) async fn info(State(app): Shared) -> Json<Value> {
    Json(app.worker_info())
}

/// `POST /v1/jobs`
pub(super) async fn create(app: Shared, body: JsonBody<Value>) -> Result<Json<Value>, ApiError> {
    create_under("/v1/jobs", app, body).await
}

/// `POST /v1/inference`
pub(super) async fn create_inference(
    app: Shared,
    body: JsonBody<Value>,
) -> Result<Json<Value>, ApiError> {
    create_under("/v1/inference", app, body).await
}

async fn create_under(
    path: &str,
    State(app): Shared,
    JsonBody(body): JsonBody<Value>,
) -> Result<Json<Value>, ApiError> {
    let fields: JobFields = worker::http::json::from_value(&body)?;
    let sampling: SamplingFields = worker::http::json::from_value(&body)?;
    fields.check()?;
    let model = app.text()?;
    if app.jobs.lock().len() >= MAX_JOBS {
        let reason = format!("{MAX_JOBS} jobs wait for their stream to be taken; try again soon");
        let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, QUEUE_FULL, reason);
        error.retry_after = Some(Duration::from_secs(1));
        return Err(error);
    }
    let submitted = app.clone();
    let generation = blocking(move || {
        let app = submitted;
        let prompt = model
            .tokenizer
            .encode(&fields.prompt, true)
            .map_err(|e| ApiError::field("prompt", e.to_string()))?;
        let prepared = Prepared {
            prompt,
            sampling: sampling.sampling(&app.options.sampling)?,
            max_tokens: sampling.max_tokens()?,
            top_logprobs: None,
            ignore_end: false,
            constraint: None,
            timeout: sampling.timeout(&app.options),
            text: TextOptions {
                stop: sampling.stops()?,
                ..TextOptions::default()
            },
        };
        Generation::submit(&app, &model, prepared)
    })
    .await?;
    let id = Uuid::new_v4().to_string();
    app.jobs.lock().insert(id.clone(), generation);
    let (late, expired) = (app.clone(), id.clone());
    tokio::spawn(async move {
        tokio::time::sleep(JOB_LIFETIME).await;
        drop(late.jobs.take(&expired));
    });
    Ok(Json(
        json!({"job_id": id, "sse_url": format!("{path}/{id}/stream")}),
    ))
}

/// `GET /v1/jobs/{id}/stream`
pub(super) async fn stream(
    State(app): Shared,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let generation = app.jobs.take(&id).ok_or_else(|| {
        ApiError::not_found(format!(
            "there is no job {id:?}, or its stream was taken, or nobody took it for {} s",
            JOB_LIFETIME.as_secs()
        ))
    })?;
    let job = Job {
        id,
        model: app.options.model.clone(),
        memory: app.text()?.backend.status().device_bytes_used,
        generation,
    };
    Ok(sse::stream(PROTOCOL, |frames| job.run(frames)))
}

struct Job {
    id: String,
    model: String,
    /// Device memory in use; it does not change while a model serves.
    memory: Option<u64>,
    generation: Generation,
}

impl Job {
    async fn run(mut self, frames: Frames) -> Result<(), ApiError> {
        let started = json!({
            "type": "started",
            "job_id": self.id,
            "model": self.model,
            "started_at": timestamp(),
        });
        frames.send(sse::data(&started)).await;
        let mut count = 0;
        loop {
            match self.generation.next().await {
                Some(Output::Started) => {}
                Some(Output::Delta(delta)) => {
                    if !delta.text.is_empty() {
                        let token = json!({"type": "token", "t": delta.text, "i": count});
                        frames.send(sse::data(&token)).await;
                        count += 1;
                    }
                }
                Some(Output::Finished(finish)) => {
                    self.end(&finish, &frames).await;
                    return Ok(());
                }
                Some(Output::Failed(failure)) => return Err(from_failure(&failure)),
                None => return Err(ApiError::internal("the answer went on after its end")),
            }
        }
    }

    async fn end(&self, finish: &Finish, frames: &Frames) {
        let metrics = json!({
            "type": "metrics",
            "tokens_per_sec": finish.timings.decode_per_second(&finish.usage),
            "vram_bytes": self.memory.unwrap_or(0),
        });
        frames.send(sse::data(&metrics)).await;
        let stop_reason = match finish.reason {
            StopReason::End => "EOS",
            StopReason::StopString(_) => "STOP_SEQUENCE",
            StopReason::Length | StopReason::Context => "MAX_TOKENS",
        };
        let end = json!({
            "type": "end",
            "tokens_out": finish.usage.completion_tokens,
            "decode_time_ms": finish.timings.decode.as_millis() as u64,
            "stop_reason": stop_reason,
        });
        frames.send(sse::data(&end)).await;
    }
}

fn error_frame(error: &ApiError) -> Event {
    let code = match error.code {
        VRAM_OOM | CANCELLED | TIMEOUT => error.code,
        _ if error.status.is_client_error() => INVALID_REQUEST,
        _ => INFERENCE_FAILED,
    };
    sse::data(&json!({"type": "error", "code": code, "message": error.message}))
}
