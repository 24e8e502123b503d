//! The contract of rbee's workers: a job is created, then its stream is taken, once.

use super::app::App;
use super::error::{blocking, CANCELLED, INFERENCE_FAILED, QUEUE_FULL, TIMEOUT, VRAM_OOM};
use super::generation::{Answers, End, PlainText, Prompt, SamplingFields, Writer};
use super::jobs::{Job, MAX_JOBS};
use crate::completion::{StopReason, TextToken};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;
use worker::http::error::INVALID_REQUEST;
use worker::http::sse::{self, Encoding, Frame, Protocol};
use worker::http::{ApiError, Both, Caller, JsonBody};
use worker::observe::RequestScope;
use worker::time::timestamp;

/// A job whose stream nobody takes is given up after this time.
const JOB_LIFETIME: Duration = Duration::from_secs(60);
/// Longest prompt in characters.
const MAX_PROMPT_CHARS: usize = 32_768;

/// Errors are frames of a type of their own, with one of five codes.
pub(super) const PROTOCOL: Protocol = Protocol {
    encoding: Encoding::Events,
    failure: error_frame,
    done: Some("[DONE]"),
};

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

/// `POST /v1/jobs`
pub(super) async fn create(
    app: State<Arc<App>>,
    caller: Caller,
    body: JsonBody<Both<JobFields, SamplingFields>>,
) -> Result<Json<Value>, ApiError> {
    create_under("/v1/jobs", app, caller, body).await
}

/// `POST /v1/inference`
pub(super) async fn create_inference(
    app: State<Arc<App>>,
    caller: Caller,
    body: JsonBody<Both<JobFields, SamplingFields>>,
) -> Result<Json<Value>, ApiError> {
    create_under("/v1/inference", app, caller, body).await
}

async fn create_under(
    path: &str,
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(Both(fields, sampling)): JsonBody<Both<JobFields, SamplingFields>>,
) -> Result<Json<Value>, ApiError> {
    fields.check()?;
    if sampling.n.is_some_and(|n| n != 1) {
        return Err(ApiError::field("n", "n: a job has one answer"));
    }
    let model = app.text()?;
    // Before anything takes time: requests that come meanwhile find the place taken.
    let place = app.jobs.reserve().ok_or_else(|| {
        let reason = format!("{MAX_JOBS} jobs wait for their stream to be taken; try again soon");
        let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, QUEUE_FULL, reason);
        error.retry_after = Some(Duration::from_secs(1));
        error
    })?;
    let id = Uuid::new_v4().to_string();
    RequestScope::note(|figures| figures.job = Some(id.clone()));
    let of_prompt = model.clone();
    let (prompt, sampling) = blocking(move || {
        let tokens = of_prompt.tokenizer.encode(&fields.prompt, true);
        let tokens = tokens.map_err(|e| ApiError::field("prompt", e.to_string()))?;
        Ok((Prompt::plain(tokens, &sampling)?, sampling))
    })
    .await?;
    let prompts = vec![(prompt, PlainText)];
    let answers = Answers::submit(&app, &model, sampling, prompts, caller).await?;
    let writer = JobWriter {
        id: id.clone(),
        model: app.options.model.clone(),
        memory: model.backend.status().device_bytes_used,
        count: 0,
    };
    let job = stream_of(answers, writer);
    app.jobs.put(id.clone(), job, place);
    let (late, expired) = (app.clone(), id.clone());
    tokio::spawn(async move {
        tokio::time::sleep(JOB_LIFETIME).await;
        drop(late.jobs.take(&expired));
    });
    Ok(Json(
        json!({"job_id": id, "sse_url": format!("{path}/{id}/stream")}),
    ))
}

fn stream_of(answers: Answers<PlainText>, writer: JobWriter) -> Job {
    Box::new(move |frames| {
        Box::pin(async move {
            // One answer, and so one writer.
            answers.stream(&frames, |_| writer.clone()).await?;
            Ok(())
        })
    })
}

/// `GET /v1/jobs/{id}/stream`
pub(super) async fn stream(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let job = app.jobs.take(&id).ok_or_else(|| {
        ApiError::not_found(format!(
            "there is no job {id:?}, or its stream was taken, or nobody took it for {} s",
            JOB_LIFETIME.as_secs()
        ))
    })?;
    Ok(sse::stream(PROTOCOL, job))
}

/// Writes the frames of a job.
#[derive(Clone)]
struct JobWriter {
    id: String,
    model: String,
    /// Device memory in use; it does not change while a model serves.
    memory: Option<u64>,
    /// Tokens that were written.
    count: usize,
}

impl Writer<PlainText> for JobWriter {
    fn start(&mut self) -> Vec<Frame> {
        vec![sse::data(&json!({
            "type": "started",
            "job_id": self.id,
            "model": self.model,
            "started_at": timestamp(),
        }))]
    }

    fn part(&mut self, part: String, _tokens: &[TextToken]) -> Vec<Frame> {
        if part.is_empty() {
            return Vec::new();
        }
        let token = json!({"type": "token", "t": part, "i": self.count});
        self.count += 1;
        vec![sse::data(&token)]
    }

    fn end(&mut self, end: &End, _tokens: &[TextToken]) -> Vec<Frame> {
        let finish = &end.finish;
        let metrics = json!({
            "type": "metrics",
            "tokens_per_sec": finish.timings.decode_per_second(&finish.usage),
            "vram_bytes": self.memory.unwrap_or(0),
        });
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
        vec![sse::data(&metrics), sse::data(&end)]
    }
}

fn error_frame(error: &ApiError) -> Frame {
    let code = match error.code {
        VRAM_OOM | CANCELLED | TIMEOUT => error.code,
        _ if error.status.is_client_error() => INVALID_REQUEST,
        _ => INFERENCE_FAILED,
    };
    sse::data(&json!({"type": "error", "code": code, "message": error.message}))
}
