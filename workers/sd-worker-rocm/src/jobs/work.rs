//! The thread that owns the model and works the queue in order.

use super::shelf::{Entry, Shared};
use super::state::{Failure, Outcome, Picture, State};
use super::Generate;
use crate::parameters::Parameters;
use crate::pipeline::{Generated, ModelInfo, Progress};
use crate::png;
use crate::request::ValidRequest;
use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Instant, SystemTime};
use worker::fault::DeviceFault;
use worker::http::blocking::panic_text;
use worker::ids::Token;
use worker::Error;

/// Works until it is time to stop.
pub(super) fn work(shared: &Shared, mut generator: Box<dyn Generate>) {
    while let Some(entry) = shared.next() {
        let request = entry
            .request
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(request) = request else { continue };
        entry.snapshot.send_modify(|job| {
            job.state = State::Running;
            job.position = 0;
            job.started = Some(SystemTime::now());
        });
        let start = Instant::now();
        // A panic of the model is this job's failure, not the end of the server.
        let result = catch_unwind(AssertUnwindSafe(|| {
            generator.generate(&request, &mut |progress| report(shared, &entry, progress))
        }));
        let micros = start.elapsed().as_micros() as u64;
        shared
            .counters
            .busy_micros
            .fetch_add(micros, Ordering::Relaxed);
        let failure = match result {
            Ok(Ok(generated)) if generated.cancelled => {
                shared.finish(&entry, State::Cancelled, |_| {});
                continue;
            }
            Ok(Ok(generated)) => {
                let outcome = outcome(generated, &request, &shared.info);
                let count = outcome.pictures.len() as u64;
                shared.counters.pictures.fetch_add(count, Ordering::Relaxed);
                shared.finish(&entry, State::Completed, |job| {
                    job.step = job.total;
                    job.outcome = Some(Arc::new(outcome));
                });
                continue;
            }
            Ok(Err(error)) => failed(shared, &*generator, &error),
            Err(panic) => panicked(&*panic),
        };
        tracing::warn!(code = failure.code, "job failed: {}", failure.message);
        shared.finish(&entry, State::Failed, |job| job.failure = Some(failure));
    }
}

/// What an error of the model means; a lost device ends all that waits.
fn failed(shared: &Shared, generator: &dyn Generate, error: &Error) -> Failure {
    if matches!(error, Error::Usage(_) | Error::BadModel { .. }) {
        return Failure::invalid(error.to_string());
    }
    let fault = generator.diagnose(error);
    if let DeviceFault::Lost(reason) = &fault {
        shared.lose(reason);
    }
    Failure::of_device(fault)
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    tracing::error!("the model panicked: {}", panic_text(panic));
    Failure::internal(
        "internal error: the model panicked over this request; the server's log says where"
            .to_string(),
    )
}

fn report(shared: &Shared, entry: &Entry, progress: Progress) -> ControlFlow<()> {
    let preview = progress
        .preview
        .and_then(|picture| png::encode(&picture, None).ok())
        .map(Arc::new);
    entry.snapshot.send_modify(|job| {
        let new_steps = progress.step.saturating_sub(job.step) as u64;
        shared
            .counters
            .steps
            .fetch_add(new_steps, Ordering::Relaxed);
        job.stage = Some(progress.stage);
        job.step = progress.step;
        job.total = progress.total;
        if preview.is_some() {
            job.preview = preview;
        }
    });
    if entry.cancel.load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

fn outcome(generated: Generated, request: &ValidRequest, info: &ModelInfo) -> Outcome {
    let pictures = generated
        .images
        .into_iter()
        .zip(generated.seeds)
        .map(|(image, seed)| Picture {
            parameters: Parameters::of(request, seed, info).to_string(),
            image,
            seed,
            token: Token::new(),
        })
        .collect();
    Outcome {
        pictures,
        timings: generated.timings,
    }
}
