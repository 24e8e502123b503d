//! Waiting for a job and encoding what it gave.

use super::App;
use crate::image_io::{self, Format};
use crate::jobs::{Failure, Job, JobQueue, Outcome, Refusal, State};
use crate::request::ValidRequest;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use worker::http::error::{CANCELLED, DEVICE_LOST, INVALID_REQUEST, QUEUE_FULL, VRAM_OOM};
use worker::http::{blocking, ApiError};
use worker::serve::Unready;

/// When a client of a full queue may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Cancels a job when the client that waits for it goes away.
pub(super) struct Waiting {
    queue: JobQueue,
    pub(super) id: String,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Nothing happens to a job that has ended.
        self.queue.cancel(&self.id);
    }
}

impl App {
    /// Puts a request into the queue.
    pub(super) fn submit(&self, request: ValidRequest) -> Result<String, ApiError> {
        self.queue()
            .submit(request)
            .map_err(|refusal| match refusal {
                Refusal::Full { capacity } => ApiError {
                    retry_after: Some(RETRY_AFTER),
                    ..ApiError::new(
                        StatusCode::TOO_MANY_REQUESTS,
                        QUEUE_FULL,
                        format!("{capacity} requests are in the queue already; try again later"),
                    )
                },
                Refusal::Stopping => ApiError::unavailable("STOPPING", "the server is stopping"),
                Refusal::Lost(reason) => Unready::Lost(reason).into(),
            })
    }

    /// As [`Self::submit`], for a client that waits for the pictures.
    pub(super) fn submit_waiting(&self, request: ValidRequest) -> Result<Waiting, ApiError> {
        Ok(Waiting {
            id: self.submit(request)?,
            queue: self.queue().clone(),
        })
    }

    /// Makes pictures for a client that waits for them; when it goes away, the job is cancelled.
    pub(super) async fn generate(&self, request: ValidRequest) -> Result<Arc<Outcome>, ApiError> {
        let waiting = self.submit_waiting(request)?;
        self.outcome(&waiting).await
    }

    /// What a job gave that is waited for.
    pub(super) async fn outcome(&self, waiting: &Waiting) -> Result<Arc<Outcome>, ApiError> {
        let job = self.queue().finished(&waiting.id).await;
        outcome_of(job.ok_or_else(|| ApiError::internal("the job was forgotten"))?)
    }
}

/// The pictures of a job that has ended, or its failure.
pub(super) fn outcome_of(job: Job) -> Result<Arc<Outcome>, ApiError> {
    match (job.state, job.outcome, job.failure) {
        (State::Completed, Some(outcome), _) => Ok(outcome),
        (State::Failed, _, Some(failure)) => Err(failed(&failure)),
        (State::Cancelled, ..) => Err(ApiError::new(
            StatusCode::CONFLICT,
            CANCELLED,
            "the job was cancelled",
        )),
        _ => Err(ApiError::internal("the job has not ended")),
    }
}

fn failed(failure: &Failure) -> ApiError {
    let status = match failure.code {
        INVALID_REQUEST => StatusCode::BAD_REQUEST,
        VRAM_OOM => StatusCode::INSUFFICIENT_STORAGE,
        DEVICE_LOST => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, failure.code, failure.message.clone())
}

/// All pictures as files, off the threads that serve.
pub(super) async fn encode_all(
    outcome: Arc<Outcome>,
    format: Format,
    quality: u8,
) -> Result<Vec<Vec<u8>>, ApiError> {
    encode_with(outcome, format, quality, true).await
}

/// The same; whether they say what they were made with.
pub(super) async fn encode_with(
    outcome: Arc<Outcome>,
    format: Format,
    quality: u8,
    said: bool,
) -> Result<Vec<Vec<u8>>, ApiError> {
    blocking(move || {
        outcome
            .pictures
            .iter()
            .map(|p| {
                let text = Some(p.parameters.as_str()).filter(|_| said);
                image_io::encode(&p.image, format, quality, text)
            })
            .collect::<worker::Result<Vec<_>>>()
    })
    .await?
    .map_err(|e| ApiError::internal(e.to_string()))
}

/// One picture as a file.
pub(super) async fn encode_one(
    outcome: Arc<Outcome>,
    index: usize,
    format: Format,
    quality: u8,
) -> Result<Vec<u8>, ApiError> {
    if index >= outcome.pictures.len() {
        return Err(ApiError::not_found(format!(
            "the job has {} pictures",
            outcome.pictures.len()
        )));
    }
    blocking(move || {
        let picture = &outcome.pictures[index];
        image_io::encode(&picture.image, format, quality, Some(&picture.parameters))
    })
    .await?
    .map_err(|e| ApiError::internal(e.to_string()))
}
