//! A model that writes speech down, and what it is doing.

use super::error::{from_worker, CANCELLED, TIMEOUT};
use crate::audio::{decode, SoundError, SoundLimits};
use crate::whisper::{Progress, Segment, TranscribeOptions, Transcript, Whisper, RATE};
use axum::http::StatusCode;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;
use worker::http::ApiError;
use worker::serve::Figure;

/// What recordings may be: an hour takes 230 MB as samples.
const LIMITS: SoundLimits = SoundLimits {
    max_seconds: 4.0 * 3600.0,
    ..SoundLimits::DEFAULT
};

/// A model, and figures of what it does.
pub struct Transcriber {
    model: Whisper,
    waiting: AtomicU64,
    running: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    /// Thousandths of seconds of sound that were written down.
    heard: AtomicU64,
    stopping: AtomicBool,
}

/// A recording that waits or runs.
pub(super) struct Recording {
    pub(super) file: Vec<u8>,
    pub(super) options: TranscribeOptions,
    /// When it has taken too long.
    pub(super) deadline: Option<Instant>,
    /// Raised once nobody waits for it any more.
    pub(super) given_up: Arc<AtomicBool>,
}

/// One more in a number, as long as it lives.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(number: &'a AtomicU64) -> Self {
        number.fetch_add(1, Ordering::Relaxed);
        Self(number)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place in the queue.
pub(super) struct Waiting(Arc<Transcriber>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transcriber {
    /// Around a model.
    pub fn new(model: Whisper) -> Self {
        Self {
            model,
            waiting: AtomicU64::new(0),
            running: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// The model.
    pub fn model(&self) -> &Whisper {
        &self.model
    }

    /// Whether a recording that came now would have to wait.
    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) + self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Ends what runs, and takes nothing new.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Counts a recording as waiting until the place is dropped.
    pub(super) fn queue(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self.clone())
    }

    /// Writes a recording down. `begun` is called once its file turned out to be sound, then `segment` with each
    /// stretch of speech.
    ///
    /// # Errors
    /// 400 for a file that is not read or options that the model cannot follow, 504 after the deadline, 503 if it was
    /// given up, 500 if the device fails.
    pub(super) fn run(
        &self,
        recording: &Recording,
        begun: impl FnOnce(),
        mut segment: impl FnMut(&Segment),
    ) -> Result<Transcript, ApiError> {
        let _counted = Counted::new(&self.running);
        let result = self.try_run(recording, begun, &mut segment);
        let number = match &result {
            Ok(transcript) => {
                let heard = (transcript.duration * 1000.0) as u64;
                self.heard.fetch_add(heard, Ordering::Relaxed);
                &self.finished
            }
            Err(error) if error.code == CANCELLED => &self.cancelled,
            Err(_) => &self.failed,
        };
        number.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn try_run(
        &self,
        recording: &Recording,
        begun: impl FnOnce(),
        segment: &mut dyn FnMut(&Segment),
    ) -> Result<Transcript, ApiError> {
        let is_late = || recording.deadline.is_some_and(|at| Instant::now() > at);
        let is_over =
            || self.stopping.load(Ordering::Relaxed) || recording.given_up.load(Ordering::Relaxed);
        let ended = || {
            match is_late() {
            true => ApiError::new(
                StatusCode::GATEWAY_TIMEOUT,
                TIMEOUT,
                "the recording took longer than a request may; send parts of it, or serve with a larger --timeout",
            ),
            false => ApiError::unavailable(CANCELLED, "the recording was given up"),
        }
        };
        if is_late() || is_over() {
            return Err(ended());
        }
        let samples = decode(&recording.file, RATE, &LIMITS);
        let samples = samples.map_err(|e: SoundError| ApiError::field("file", e.to_string()))?;
        begun();
        let mut listener = |progress: Progress| {
            if let Progress::Segment(found) = progress {
                segment(found);
            }
            match is_late() || is_over() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let options = &recording.options;
        let transcript = self.model.transcribe(samples, options, &mut listener);
        transcript.map_err(|e| from_worker(&e))?.ok_or_else(ended)
    }

    /// Its figures.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        vec![
            Figure::level(
                "transcriptions_running",
                "Recordings that are written down",
                read(&self.running),
            ),
            Figure::level(
                "transcriptions_waiting",
                "Recordings in the queue",
                read(&self.waiting),
            ),
            Figure::counter(
                "transcriptions_finished",
                "Recordings that were written down",
                read(&self.finished),
            ),
            Figure::counter(
                "transcriptions_failed",
                "Recordings that were not",
                read(&self.failed),
            ),
            Figure::counter(
                "transcriptions_cancelled",
                "Recordings whose client went away",
                read(&self.cancelled),
            ),
            Figure::seconds(
                "transcribed_seconds",
                "Time of the sound that was written down",
                read(&self.heard) as f64 / 1000.0,
            ),
        ]
    }
}
