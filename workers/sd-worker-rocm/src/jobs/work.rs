//! The threads that own the models and work the queue in order, part by part.

use super::crew::{shares, Slot};
use super::shelf::{Entry, Shared, Shelf};
use super::state::{Failure, Outcome, Picture, State};
use super::Generate;
use crate::parameters::Parameters;
use crate::pipeline::{Generated, ModelInfo, Progress, Stage, Timings};
use crate::png;
use crate::request::ValidRequest;
use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};
use worker::fault::DeviceFault;
use worker::http::blocking::panic_text;
use worker::ids::Token;
use worker::observe::Part as Traced;
use worker::Error;

/// How often is looked for models that tell nothing of their progress.
const LOOK: Duration = Duration::from_millis(500);
/// Models whose devices a part of a job may lose before the job fails: what ends one device may end all.
const MOST_LOSSES: usize = 2;

/// Some pictures of a job, for one model.
#[derive(Clone)]
pub(super) struct Task {
    pub entry: Arc<Entry>,
    /// The number of the part.
    part: usize,
    /// The job's pictures: the first, and how many.
    first: usize,
    count: usize,
    /// Devices that were lost over it, and how.
    losses: Vec<String>,
}

/// How far a job is.
#[derive(Default)]
pub(super) struct Work {
    begun: Option<Instant>,
    parts: Vec<PartState>,
}

/// How far a part of a job is.
#[derive(Default)]
struct PartState {
    stage: Option<Stage>,
    step: usize,
    total: usize,
    /// Nobody works on it, and nobody will.
    is_over: bool,
    done: Option<Generated>,
}

/// A task with what works on it.
pub(super) struct Turn {
    task: Task,
    request: ValidRequest,
    generator: Box<dyn Generate>,
    /// Another's model that works with it.
    other: Option<(usize, Box<dyn Generate>)>,
}

/// How a task has ended.
enum End {
    /// With pictures.
    Done(Generated),
    /// By the progress function.
    Stopped,
    /// It cannot be done.
    Failed(Failure),
    /// The thread's own devices are gone, or those of the other model, or both.
    Lost([Option<String>; 2]),
}

/// Works until it is time to stop, or the devices are lost.
pub(super) fn work(shared: &Shared, own: usize) {
    while let Some(turn) = shared.next(own) {
        let entry = turn.task.entry.clone();
        if !entry.within(|| work_on(shared, own, turn)) {
            return;
        }
    }
}

impl Shared {
    /// The next task for a model, `None` when it is time to stop.
    fn next(&self, own: usize) -> Option<Turn> {
        let mut shelf = self.shelf();
        loop {
            if shelf.is_idle() {
                self.idle.notify_all();
            }
            if shelf.stopping || shelf.slots[own].lost.is_some() {
                return None;
            }
            if shelf.slots[own].is_free() {
                if let Some(turn) = self.take(&mut shelf, own) {
                    return Some(turn);
                }
            }
            let woken = self.wake.wait(shelf);
            shelf = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A task of the jobs that run, or the first of the next job.
    fn take(&self, shelf: &mut Shelf, own: usize) -> Option<Turn> {
        loop {
            let task = match shelf.tasks.pop_front() {
                Some(task) => task,
                None => {
                    let entry = shelf.waiting.pop_front()?;
                    self.begin(shelf, entry);
                    continue;
                }
            };
            let Some(request) = task.entry.request() else {
                continue;
            };
            let request = request.pictures(task.first, task.count);
            let Some(generator) = shelf.slots[own].generator.take() else {
                shelf.tasks.push_front(task);
                return None;
            };
            let other = match self.options.together && generator.divides(&request) {
                true => borrowable(shelf, own),
                false => None,
            };
            let other = other.and_then(|other| Some((other, shelf.slots[other].generator.take()?)));
            let slot = &mut shelf.slots[own];
            slot.task = Some(task.clone());
            slot.borrowed = other.as_ref().map(|(other, _)| *other);
            self.meters[own].beat(self.start);
            return Some(Turn {
                task,
                request,
                generator,
                other,
            });
        }
    }

    /// A job's turn has come: it is cut into parts.
    fn begin(&self, shelf: &mut Shelf, entry: Arc<Entry>) {
        let Some(request) = entry.request() else {
            return;
        };
        let alive = shelf.slots.iter().filter(|slot| slot.lost.is_none());
        let kinds: Vec<&str> = alive.map(|slot| slot.kind.as_str()).collect();
        let shares = shares(request.batch, &kinds);
        *entry.work() = Work {
            begun: Some(Instant::now()),
            parts: shares.iter().map(|_| PartState::default()).collect(),
        };
        for (part, (first, count)) in shares.into_iter().enumerate() {
            shelf.tasks.push_back(Task {
                entry: entry.clone(),
                part,
                first,
                count,
                losses: Vec::new(),
            });
        }
        entry.snapshot.send_modify(|job| {
            job.state = State::Running;
            job.position = 0;
            job.started = Some(SystemTime::now());
        });
        entry.within(|| tracing::debug!(job = entry.snapshot.borrow().id, "its turn has come"));
        shelf.running.push(entry);
        shelf.number();
        // The others take their parts.
        self.wake.notify_all();
    }

    /// A running job is to end: what nobody has begun of it is not begun any more.
    pub(super) fn drop_tasks(&self, shelf: &mut Shelf, entry: &Arc<Entry>) {
        let mut work = entry.work();
        shelf.tasks.retain(|task| {
            let is_its = Arc::ptr_eq(&task.entry, entry);
            if is_its {
                work.parts[task.part].is_over = true;
            }
            !is_its
        });
        drop(work);
        self.settle(shelf, entry);
    }

    /// Ends a job all of whose parts are over.
    fn settle(&self, shelf: &mut Shelf, entry: &Arc<Entry>) {
        let mut work = entry.work();
        if entry.is_over() || work.parts.iter().any(|part| !part.is_over) {
            return;
        }
        let begun = work.begun.unwrap_or_else(Instant::now);
        let done: Option<Vec<Generated>> = (work.parts.iter_mut())
            .map(|part| part.done.take())
            .collect();
        drop(work);
        let (Some(done), Some(request)) = (done, entry.request()) else {
            trace(entry, self, begun, None, Some(("cancelled", "cancelled")));
            tracing::debug!(job = entry.snapshot.borrow().id, "it is cancelled");
            return self.finish(shelf, entry, State::Cancelled, |_| {});
        };
        let outcome = outcome(done, &request, &self.info);
        let count = outcome.pictures.len() as u64;
        self.counters.pictures.fetch_add(count, Ordering::Relaxed);
        tracing::debug!(
            job = entry.snapshot.borrow().id,
            pictures = count,
            "it is done"
        );
        trace(entry, self, begun, Some(&outcome), None);
        self.finish(shelf, entry, State::Completed, |job| {
            job.step = job.total;
            job.outcome = Some(Arc::new(outcome));
        });
    }

    /// A job has failed: its other parts are left at their next step.
    fn fail(&self, shelf: &mut Shelf, entry: &Arc<Entry>, failure: Failure) {
        if entry.is_over() {
            return;
        }
        let job = entry.snapshot.borrow().id.clone();
        tracing::warn!(job, code = failure.code, "job failed: {}", failure.message);
        let begun = entry.work().begun.unwrap_or_else(Instant::now);
        let reason = Some((failure.code, failure.message.as_str()));
        trace(entry, self, begun, None, reason);
        self.finish(shelf, entry, State::Failed, |job| {
            job.failure = Some(failure)
        });
    }

    /// Devices are gone. What was worked on there goes to another model, unless that has happened before.
    fn lost(&self, shelf: &mut Shelf, mut task: Task, gone: &[(usize, String)]) {
        for (slot, reason) in gone {
            let slot = &mut shelf.slots[*slot];
            tracing::error!("{} is lost: {reason}", slot.device);
            slot.lost = Some(reason.clone());
            slot.generator = None;
            slot.task = None;
            task.losses.push(named(slot, reason));
        }
        if shelf.slots.iter().all(|slot| slot.lost.is_some()) {
            let all = shelf.slots.iter().filter_map(|slot| {
                let reason = slot.lost.as_ref()?;
                Some(named(slot, reason))
            });
            let all = all.collect::<Vec<_>>().join("; ");
            self.all_lost(shelf, all);
        } else if task.losses.len() < MOST_LOSSES || task.entry.is_over() {
            let left = shelf.slots.iter().filter(|slot| slot.lost.is_none());
            let left: Vec<&str> = left.map(|slot| slot.device.as_str()).collect();
            tracing::warn!("its pictures are made anew on {}", left.join(", "));
            if let Some(part) = task.entry.work().parts.get_mut(task.part) {
                *part = PartState::default();
            }
            if !task.entry.is_over() {
                shelf.tasks.push_front(task);
            }
        } else {
            let failure = Failure::of_device(DeviceFault::Lost(task.losses.join("; ")));
            let entry = task.entry.clone();
            self.fail(shelf, &entry, failure);
        }
        self.wake.notify_all();
        if shelf.is_idle() {
            self.idle.notify_all();
        }
    }
}

impl Shared {
    /// All devices are gone: nothing more is taken, and what waits or runs fails.
    fn all_lost(&self, shelf: &mut Shelf, reason: String) {
        let jobs = std::mem::take(&mut shelf.waiting).into_iter();
        for entry in jobs.chain(shelf.running.clone()) {
            let failure = Failure::of_device(DeviceFault::Lost(reason.clone()));
            self.fail(shelf, &entry, failure);
        }
        shelf.lost = Some(reason);
    }
}

/// Its reason, with its name where it has one.
fn named(slot: &Slot, reason: &str) -> String {
    match slot.device.as_str() {
        "" => reason.to_string(),
        device => format!("{device}: {reason}"),
    }
}

/// A model of the same kind that nothing else waits for.
fn borrowable(shelf: &Shelf, own: usize) -> Option<usize> {
    let kind = &shelf.slots[own].kind;
    let free = |(slot, state): &(usize, &Slot)| *slot != own && state.is_free();
    let others = shelf.slots.iter().enumerate().filter(free);
    if others.clone().count() <= shelf.tasks.len() + shelf.waiting.len() {
        return None;
    }
    let mut equal = others.filter(|(_, other)| other.kind == *kind);
    equal.next().map(|(slot, _)| slot)
}

/// Gives up devices of which nothing was heard for `limit`, as long as the queue is there.
pub(super) fn watch(shared: &Weak<Shared>, limit: Duration) {
    loop {
        std::thread::sleep(LOOK.min(limit));
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let mut shelf = shared.shelf();
        if shelf.stopping {
            return;
        }
        for own in 0..shelf.slots.len() {
            let silence = shared.meters[own].silence(shared.start);
            if silence <= limit {
                continue;
            }
            let Some(task) = shelf.slots[own].task.take() else {
                continue;
            };
            let reason = format!(
                "it hangs: no step was done for {:.0} seconds",
                silence.as_secs_f64()
            );
            // Which of two hangs that work together cannot be told.
            let other = shelf.slots[own].borrowed;
            let gone: Vec<_> = std::iter::once(own)
                .chain(other)
                .map(|slot| (slot, reason.clone()))
                .collect();
            shelf.slots[own].hangs = true;
            shared.lost(&mut shelf, task, &gone);
        }
    }
}

/// Works on one task, to its end; whether the thread is still wanted.
fn work_on(shared: &Shared, own: usize, mut turn: Turn) -> bool {
    let start = Instant::now();
    let end = run(shared, own, &mut turn);
    let micros = start.elapsed().as_micros() as u64;
    let busy = &shared.counters.busy_micros;
    busy.fetch_add(micros, Ordering::Relaxed);
    let meter = &shared.meters[own];
    meter.busy_micros.fetch_add(micros, Ordering::Relaxed);

    let Turn {
        task,
        generator,
        other,
        ..
    } = turn;
    let mut shelf = shared.shelf();
    let slot = &mut shelf.slots[own];
    if slot.lost.is_some() {
        // It was given up meanwhile, and its work is another's.
        return false;
    }
    slot.task = None;
    slot.borrowed = None;
    slot.generator = Some(generator);
    let other = other.map(|(other, generator)| {
        shelf.slots[other].generator = Some(generator);
        other
    });
    let entry = task.entry.clone();
    match end {
        End::Lost([here, there]) => {
            let gone = [(Some(own), here), (other, there)].into_iter();
            let gone: Vec<_> = gone.filter_map(|(slot, reason)| slot.zip(reason)).collect();
            shared.lost(&mut shelf, task, &gone);
        }
        End::Failed(failure) => shared.fail(&mut shelf, &entry, failure),
        End::Stopped | End::Done(_) => {
            let done = match end {
                End::Done(generated) => Some(generated),
                _ => None,
            };
            if let Some(done) = &done {
                let count = done.images.len() as u64;
                meter.pictures.fetch_add(count, Ordering::Relaxed);
            }
            if let Some(part) = entry.work().parts.get_mut(task.part) {
                part.is_over = true;
                part.done = done;
            }
            shared.settle(&mut shelf, &entry);
        }
    }
    // A model that was lent, or a job that waits for several.
    shared.wake.notify_all();
    shelf.slots[own].lost.is_none()
}

/// Makes the pictures of a task.
fn run(shared: &Shared, own: usize, turn: &mut Turn) -> End {
    let Turn {
        task,
        request,
        generator,
        other,
    } = turn;
    // A panic of the model is this job's failure, not the end of the server.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut told = |progress| report(shared, own, task, progress);
        match other {
            Some((_, other)) => generator.generate_with(&mut **other, request, &mut told),
            None => generator.generate(request, &mut told),
        }
    }));
    let error = match result {
        Ok(Ok(generated)) if generated.cancelled => return End::Stopped,
        Ok(Ok(generated)) => return End::Done(generated),
        Ok(Err(error)) => error,
        Err(panic) => return End::Failed(panicked(&*panic)),
    };
    if matches!(error, Error::Usage(_) | Error::BadModel { .. }) {
        return End::Failed(Failure::invalid(error.to_string()));
    }
    let here = generator.diagnose(&error);
    let there = other.as_ref().map(|(_, other)| other.diagnose(&error));
    match (here, there) {
        (DeviceFault::Lost(here), Some(DeviceFault::Lost(there))) => {
            End::Lost([Some(here), Some(there)])
        }
        (DeviceFault::Lost(here), _) => End::Lost([Some(here), None]),
        (_, Some(DeviceFault::Lost(there))) => End::Lost([None, Some(there)]),
        (fault, _) => End::Failed(Failure::of_device(fault)),
    }
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
    let mut part = Traced::between(format!("generate_content {model}"), job.created, end)
        .with("gen_ai.operation.name", "generate_content")
        .with("gen_ai.provider.name", "candle-rocm")
        .with("gen_ai.output.type", "image")
        .with("gen_ai.request.model", model.clone())
        .with("gen_ai.response.model", model.clone())
        .with("candle_rocm.job", job.id)
        .with("candle_rocm.steps", job.total as i64)
        .with("candle_rocm.pictures", job.batch as i64)
        .part(Traced::between("queue", job.created, started));
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
                part = part.part(Traced::new(name, at, at + time));
                at += time;
            }
        }
    }
    scope.trace(match failure {
        Some((code, reason)) => part.failed(code, reason),
        None => part,
    });
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    tracing::error!("the model panicked: {}", panic_text(panic));
    Failure::internal(
        "internal error: the model panicked over this request; the server's log says where"
            .to_string(),
    )
}

fn report(shared: &Shared, own: usize, task: &Task, progress: Progress) -> ControlFlow<()> {
    let meter = &shared.meters[own];
    meter.beat(shared.start);
    // What is shown is the job's first picture.
    let preview = progress
        .preview
        .filter(|_| task.first == 0)
        .and_then(|picture| png::encode(&picture, None).ok())
        .map(Arc::new);
    let entry = &task.entry;
    let mut work = entry.work();
    let Some(part) = work.parts.get_mut(task.part) else {
        return ControlFlow::Break(());
    };
    let new_steps = progress.step.saturating_sub(part.step) as u64;
    let steps = &shared.counters.steps;
    steps.fetch_add(new_steps, Ordering::Relaxed);
    meter.steps.fetch_add(new_steps, Ordering::Relaxed);
    part.stage = Some(progress.stage);
    part.step = progress.step;
    part.total = progress.total;
    let parts = &work.parts;
    // Of those that are worked on the one that is behind; the mean of the steps.
    let stage = parts.iter().filter(|part| !part.is_over);
    let stage = stage.filter_map(|part| part.stage).min();
    let step = parts.iter().map(|part| part.step).sum::<usize>() / parts.len();
    let mut over = false;
    entry.snapshot.send_if_modified(|job| {
        over = job.state.is_final();
        if over {
            return false;
        }
        job.stage = stage;
        job.step = step;
        job.total = progress.total;
        if preview.is_some() {
            job.preview = preview;
        }
        true
    });
    if over || entry.cancel.load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// The pictures of all parts, in their order.
fn outcome(parts: Vec<Generated>, request: &ValidRequest, info: &ModelInfo) -> Outcome {
    let timings = parts.iter().map(|part| part.timings);
    let timings = timings.reduce(Timings::beside).unwrap_or_default();
    let format = request
        .video
        .as_ref()
        .map_or_else(Default::default, |video| video.format);
    let pictures = parts
        .into_iter()
        .flat_map(|part| {
            let videos = part.videos.into_iter().map(Some);
            let videos = videos.chain(std::iter::repeat(None));
            part.images.into_iter().zip(part.seeds).zip(videos)
        })
        .enumerate()
        .map(|(i, ((image, seed), video))| Picture {
            video: video.map(|file| (Arc::new(file), format)),
            parameters: Parameters::of(request, i, info).to_string(),
            image,
            seed,
            token: Token::new(),
        })
        .collect();
    Outcome { pictures, timings }
}
