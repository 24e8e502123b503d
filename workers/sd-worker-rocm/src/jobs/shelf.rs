//! The jobs that are known, with what the queue's handles and its threads share.

use super::crew::{Meter, Replica, Slot};
use super::state::{Job, State};
use super::work::{Task, Work};
use crate::pipeline::ModelInfo;
use crate::prompt::TokenCounter;
use crate::request::ValidRequest;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use worker::observe::RequestScope;

/// How much waits and how much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// Jobs that may wait, the running one not counted.
    pub capacity: usize,
    /// How long a finished job and its pictures are kept.
    pub keep: Duration,
    /// Finished jobs that are kept at most; the oldest go first.
    pub keep_count: usize,
    /// Whether two models on devices of one kind make one picture together when nothing else is to be done.
    pub together: bool,
    /// How long a model may tell nothing of its progress before its devices are given up; `None` is for ever.
    pub silence: Option<Duration>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            capacity: 16,
            keep: Duration::from_secs(600),
            keep_count: 64,
            together: false,
            silence: None,
        }
    }
}

/// Sums since the start, for `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Jobs taken.
    pub submitted: AtomicU64,
    /// Jobs not taken because the queue was full.
    pub refused: AtomicU64,
    /// Jobs that gave pictures.
    pub completed: AtomicU64,
    /// Jobs that ended with an error.
    pub failed: AtomicU64,
    /// Jobs that were cancelled.
    pub cancelled: AtomicU64,
    /// Pictures made.
    pub pictures: AtomicU64,
    /// Sampler steps done.
    pub steps: AtomicU64,
    /// Microseconds of work.
    pub busy_micros: AtomicU64,
}

/// A job with what the queue and its threads tell each other about it.
pub(super) struct Entry {
    pub cancel: AtomicBool,
    pub snapshot: watch::Sender<Job>,
    /// Given up with the job's end.
    pub request: Mutex<Option<Arc<ValidRequest>>>,
    /// Its parts. Locked after the shelf.
    pub work: Mutex<Work>,
    /// The HTTP request that it came with.
    pub scope: Option<RequestScope>,
}

/// The jobs that are known.
#[derive(Default)]
pub(super) struct Shelf {
    pub waiting: VecDeque<Arc<Entry>>,
    /// In the order in which they began.
    pub running: Vec<Arc<Entry>>,
    /// Parts of running jobs that no model has begun.
    pub tasks: VecDeque<Task>,
    pub slots: Vec<Slot>,
    pub jobs: HashMap<String, Arc<Entry>>,
    /// No more jobs are taken.
    pub closed: bool,
    /// The threads are to end.
    pub stopping: bool,
    /// Why all devices are gone.
    pub lost: Option<String>,
}

/// What the queue's handles and its threads share.
pub(super) struct Shared {
    shelf: Mutex<Shelf>,
    /// Told when a job comes, when a model is given back, and when all is to end.
    pub wake: Condvar,
    /// Told when nothing runs or waits any more.
    pub idle: Condvar,
    pub options: QueueOptions,
    pub counters: Counters,
    /// One for each slot.
    pub meters: Vec<Meter>,
    pub start: Instant,
    pub info: ModelInfo,
    pub counter: Option<TokenCounter>,
}

impl Entry {
    /// A job that waits, of the HTTP request that is answered now.
    pub fn new(id: &str, created: SystemTime, request: ValidRequest) -> Arc<Self> {
        let job = Job {
            id: id.to_string(),
            state: State::Queued,
            prompt: request.prompt.as_str().into(),
            position: 0,
            stage: None,
            step: 0,
            total: request.steps,
            batch: request.batch,
            created,
            started: None,
            finished: None,
            preview: None,
            outcome: None,
            failure: None,
        };
        Arc::new(Self {
            request: Mutex::new(Some(Arc::new(request))),
            scope: RequestScope::current(),
            ..Self::of(job)
        })
    }

    /// A job that has ended.
    pub fn ended(job: Job) -> Arc<Self> {
        Arc::new(Self::of(job))
    }

    fn of(job: Job) -> Self {
        Self {
            cancel: AtomicBool::new(false),
            snapshot: watch::Sender::new(job),
            request: Mutex::new(None),
            work: Mutex::new(Work::default()),
            scope: None,
        }
    }

    /// Does work in the name of the request that the job came with.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.scope {
            Some(scope) => scope.enter(work),
            None => work(),
        }
    }

    /// Whether nothing more will happen to the job.
    pub fn is_over(&self) -> bool {
        self.snapshot.borrow().state.is_final()
    }

    pub fn work(&self) -> MutexGuard<'_, Work> {
        // Whole between any two statements that change it.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is asked for; `None` once the job is over.
    pub fn request(&self) -> Option<Arc<ValidRequest>> {
        let request = self.request.lock();
        request.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Shelf {
    /// Whether nothing runs or waits, and all models are back.
    pub fn is_idle(&self) -> bool {
        let works = |slot: &Slot| slot.lost.is_none() && slot.generator.is_none();
        self.running.is_empty() && self.waiting.is_empty() && !self.slots.iter().any(works)
    }

    /// Models that wait for work.
    pub fn free_models(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_free()).count()
    }

    /// Tells each waiting job its place.
    pub fn number(&mut self) {
        let ahead = self.running.len();
        for (i, entry) in self.waiting.iter().enumerate() {
            entry.snapshot.send_if_modified(|job| {
                let changed = job.position != i + ahead;
                job.position = i + ahead;
                changed
            });
        }
    }
}

impl Shared {
    /// Nothing waits, nothing runs.
    pub fn new(options: QueueOptions, info: ModelInfo, replicas: Vec<Replica>) -> Self {
        let counter = replicas.first().and_then(|one| one.generator.counter());
        Self {
            meters: replicas.iter().map(|_| Meter::default()).collect(),
            start: Instant::now(),
            shelf: Mutex::new(Shelf {
                slots: replicas.into_iter().map(Slot::new).collect(),
                ..Shelf::default()
            }),
            wake: Condvar::new(),
            idle: Condvar::new(),
            options,
            counters: Counters::default(),
            info,
            counter,
        }
    }

    pub fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // The shelf is whole between any two statements that change it.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops finished jobs that are too old or too many.
    pub fn forget_old(&self, shelf: &mut Shelf) {
        let mut finished: Vec<(SystemTime, String)> = shelf
            .jobs
            .iter()
            .filter_map(|(id, entry)| Some((entry.snapshot.borrow().finished?, id.clone())))
            .collect();
        finished.sort();
        let surplus = finished.len().saturating_sub(self.options.keep_count);
        for (i, (when, id)) in finished.iter().enumerate() {
            let age = when.elapsed().unwrap_or_default();
            if i < surplus || age > self.options.keep {
                shelf.jobs.remove(id);
            }
        }
    }

    /// A job has ended.
    pub fn finish(
        &self,
        shelf: &mut Shelf,
        entry: &Arc<Entry>,
        state: State,
        change: impl FnOnce(&mut Job),
    ) {
        let counter = match state {
            State::Completed => &self.counters.completed,
            State::Failed => &self.counters.failed,
            _ => &self.counters.cancelled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        shelf.running.retain(|other| !Arc::ptr_eq(other, entry));
        shelf.tasks.retain(|task| !Arc::ptr_eq(&task.entry, entry));
        let request = entry.request.lock();
        *request.unwrap_or_else(PoisonError::into_inner) = None;
        entry.snapshot.send_modify(|job| {
            job.state = state;
            job.position = 0;
            job.stage = None;
            job.preview = None;
            job.finished = Some(SystemTime::now());
            change(job);
        });
        shelf.number();
    }
}
