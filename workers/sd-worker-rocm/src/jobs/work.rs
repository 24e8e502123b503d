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
use worker::observe::Part;
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
        let mut work = || work_on(shared, &mut *generator, &entry, &request);
        match &entry.scope {
            Some(scope) => scope.enter(work),
            None => work(),
        }
    }
}

/// Works on one job, to its end.
fn work_on(shared: &Shared, generator: &mut dyn Generate, entry: &Entry, request: &ValidRequest) {
    entry.snapshot.send_modify(|job| {
        job.state = State::Running;
        job.position = 0;
        job.started = Some(SystemTime::now());
    });
    let job = entry.snapshot.borrow().id.clone();
    tracing::debug!(job, "its turn has come");
    let start = Instant::now();
    // A panic of the model is this job's failure, not the end of the server.
    let result = catch_unwind(AssertUnwindSafe(|| {
        generator.generate(request, &mut |progress| report(shared, entry, progress))
    }));
    let micros = start.elapsed().as_micros() as u64;
    shared
        .counters
        .busy_micros
        .fetch_add(micros, Ordering::Relaxed);
    let failure = match result {
        Ok(Ok(generated)) if generated.cancelled => {
            tracing::debug!(job, "it is cancelled");
            trace(entry, shared, start, None, Some(("cancelled", "cancelled")));
            return shared.finish(entry, State::Cancelled, |_| {});
        }
        Ok(Ok(generated)) => {
            let outcome = outcome(generated, request, &shared.info);
            let count = outcome.pictures.len() as u64;
            shared.counters.pictures.fetch_add(count, Ordering::Relaxed);
            tracing::debug!(job, pictures = count, "it is done");
            trace(entry, shared, start, Some(&outcome), None);
            return shared.finish(entry, State::Completed, |job| {
                job.step = job.total;
                job.outcome = Some(Arc::new(outcome));
            });
        }
        Ok(Err(error)) => failed(shared, generator, &error),
        Err(panic) => panicked(&*panic),
    };
    tracing::warn!(job, code = failure.code, "job failed: {}", failure.message);
    let reason = Some((failure.code, failure.message.as_str()));
    trace(entry, shared, start, None, reason);
    shared.finish(entry, State::Failed, |job| job.failure = Some(failure));
}

/// Adds a job that has ended to the trace of its request, where that is wanted.
fn trace(
    entry: &Entry,
    shared: &Shared,
    start: Instant,
    outcome: Option<&Outcome>,
    failure: Option<(&'static str, &str)>,
) {
    let Some(scope) = entry.scope.as_ref().filter(|scope| scope.is_traced()) else {
        return;
    };
    let (job, end) = (entry.snapshot.borrow().clone(), SystemTime::now());
    let model = &shared.info.name;
    let started = job.started.unwrap_or(end);
    let mut part = Part::between(format!("generate_content {model}"), job.created, end)
        .with("gen_ai.operation.name", "generate_content")
        .with("gen_ai.provider.name", "candle-rocm")
        .with("gen_ai.output.type", "image")
        .with("gen_ai.request.model", model.clone())
        .with("gen_ai.response.model", model.clone())
        .with("candle_rocm.job", job.id)
        .with("candle_rocm.steps", job.total as i64)
        .with("candle_rocm.pictures", job.batch as i64)
        .part(Part::between("queue", job.created, started));
    // One behind the other, as the pipeline makes them.
    let mut at = start;
    if let Some(Outcome { timings, .. }) = outcome {
        for (name, time) in [
            ("loras", timings.lora),
            ("encode", timings.encode),
            ("denoise", timings.denoise),
            ("decode", timings.decode),
        ] {
            if !time.is_zero() {
                part = part.part(Part::new(name, at, at + time));
                at += time;
            }
        }
    }
    scope.trace(match failure {
        Some((code, reason)) => part.failed(code, reason),
        None => part,
    });
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
