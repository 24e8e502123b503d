//! What is known of a job at a moment.

use crate::pipeline::{Stage, Timings};
use crate::video::VideoFormat;
use image::RgbImage;
use serde::Serialize;
use std::sync::Arc;
use std::time::SystemTime;
use worker::fault::DeviceFault;
use worker::http::error::{DEVICE_LOST, INVALID_REQUEST, VRAM_OOM};
use worker::ids::Token;

/// Code of a job that failed although request and device were right.
const GENERATION_FAILED: &str = "GENERATION_FAILED";

/// The stations of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its turn.
    Queued,
    /// Is being worked on.
    Running,
    /// Its pictures are there.
    Completed,
    /// It ended with an error.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl State {
    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// `INVALID_REQUEST`, `VRAM_OOM`, `DEVICE_LOST` or `GENERATION_FAILED`.
    pub code: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

impl Failure {
    /// What is wrong with a request.
    pub fn invalid(message: String) -> Self {
        let code = INVALID_REQUEST;
        Self { code, message }
    }

    /// Whether the request is to blame.
    pub fn is_of_request(&self) -> bool {
        self.code == INVALID_REQUEST
    }

    /// What went wrong although the request was right.
    pub fn internal(message: String) -> Self {
        let code = GENERATION_FAILED;
        Self { code, message }
    }

    /// A failure that was written down; a code that is none stands for what went wrong although the request was right.
    pub fn saved(code: &str, message: String) -> Self {
        let known = [INVALID_REQUEST, VRAM_OOM, DEVICE_LOST];
        let code = known.into_iter().find(|known| *known == code);
        Self {
            code: code.unwrap_or(GENERATION_FAILED),
            message,
        }
    }

    /// What is wrong with the device.
    pub fn of_device(fault: DeviceFault) -> Self {
        let (code, message) = match fault {
            DeviceFault::Memory(message) => (VRAM_OOM, message),
            DeviceFault::Lost(reason) => (DEVICE_LOST, format!("the device is lost: {reason}")),
            DeviceFault::Other(message) => (GENERATION_FAILED, message),
        };
        Self { code, message }
    }
}

/// A finished picture.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The pixels; of a video those of its first frame.
    pub image: RgbImage,
    /// The file of a video, and its format.
    pub video: Option<(Arc<Vec<u8>>, VideoFormat)>,
    /// Its seed.
    pub seed: u64,
    /// The text that goes into its file.
    pub parameters: String,
    /// Opens it to whoever has its address.
    pub token: Token,
}

/// What a job gave.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The pictures.
    pub pictures: Vec<Picture>,
    /// Where the time went.
    pub timings: Timings,
}

/// A snapshot of a job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name: 32 hexadecimal digits.
    pub id: String,
    /// Its station.
    pub state: State,
    /// What is to be seen; of the first picture, where each has its own.
    pub prompt: Arc<str>,
    /// Jobs before it, the running one included; 0 once it runs.
    pub position: usize,
    /// What is being done.
    pub stage: Option<Stage>,
    /// Steps done.
    pub step: usize,
    /// Steps in all.
    pub total: usize,
    /// Number of pictures asked for.
    pub batch: usize,
    /// When it was submitted.
    pub created: SystemTime,
    /// When its turn came.
    pub started: Option<SystemTime>,
    /// When it ended.
    pub finished: Option<SystemTime>,
    /// The last preview as PNG.
    pub preview: Option<Arc<Vec<u8>>>,
    /// The pictures of a completed job.
    pub outcome: Option<Arc<Outcome>>,
    /// The reason of a failed job.
    pub failure: Option<Failure>,
}

impl Job {
    /// A job that failed before it began.
    pub fn failed(id: &str, created: SystemTime, failure: Failure) -> Self {
        Self {
            id: id.to_string(),
            state: State::Failed,
            prompt: Arc::default(),
            position: 0,
            stage: None,
            step: 0,
            total: 0,
            batch: 0,
            created,
            started: None,
            finished: Some(SystemTime::now()),
            preview: None,
            outcome: None,
            failure: Some(failure),
        }
    }

    /// Share that is done, 0 to 1.
    pub fn progress(&self) -> f64 {
        /// What the steps are of the whole; decoding follows them.
        const STEPS_SHARE: f64 = 0.98;
        match self.state {
            State::Completed => 1.0,
            _ if self.total == 0 => 0.0,
            _ => (self.step as f64 / self.total as f64).min(1.0) * STEPS_SHARE,
        }
    }

    /// Seconds left by the pace so far, `None` before the first step.
    pub fn seconds_left(&self) -> Option<f64> {
        let started = self.started?;
        if self.state != State::Running || self.step == 0 {
            return None;
        }
        let spent = started.elapsed().ok()?.as_secs_f64();
        Some(spent / self.step as f64 * self.total.saturating_sub(self.step) as f64)
    }
}
