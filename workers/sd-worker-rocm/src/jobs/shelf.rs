//! The jobs that are known, with what the queue's handles and its thread share.

use super::state::{Failure, Job, State};
use crate::pipeline::ModelInfo;
use crate::request::ValidRequest;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use worker::fault::DeviceFault;
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
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            capacity: 16,
            keep: Duration::from_secs(600),
            keep_count: 64,
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

/// A job with what the queue and its thread tell each other about it.
pub(super) struct Entry {
    pub cancel: AtomicBool,
    pub snapshot: watch::Sender<Job>,
    /// Taken by the worker.
    pub request: Mutex<Option<ValidRequest>>,
    /// The HTTP request that it came with.
    pub scope: Option<RequestScope>,
}

/// The jobs that are known.
#[derive(Default)]
pub(super) struct Shelf {
    pub waiting: VecDeque<Arc<Entry>>,
    pub running: Option<Arc<Entry>>,
    pub jobs: HashMap<String, Arc<Entry>>,
    /// No more jobs are taken.
    pub closed: bool,
    /// The thread is to end.
    pub stopping: bool,
    /// Why the device is gone.
    pub lost: Option<String>,
}

/// What the queue's handles and its thread share.
pub(super) struct Shared {
    shelf: Mutex<Shelf>,
    /// Told when a job comes, and when all is to end.
    pub wake: Condvar,
    /// Told when nothing runs or waits any more.
    pub idle: Condvar,
    pub options: QueueOptions,
    pub counters: Counters,
    pub info: ModelInfo,
}

impl Shelf {
    /// Tells each waiting job its place.
    pub fn number(&mut self) {
        let ahead = usize::from(self.running.is_some());
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
    pub fn new(options: QueueOptions, info: ModelInfo) -> Self {
        Self {
            shelf: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
            options,
            counters: Counters::default(),
            info,
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
    pub fn finish(&self, entry: &Entry, state: State, change: impl FnOnce(&mut Job)) {
        let counter = match state {
            State::Completed => &self.counters.completed,
            State::Failed => &self.counters.failed,
            _ => &self.counters.cancelled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        entry.snapshot.send_modify(|job| {
            job.state = state;
            job.position = 0;
            job.stage = None;
            job.preview = None;
            job.finished = Some(SystemTime::now());
            change(job);
        });
    }

    /// The device is gone: nothing more is taken, and what waits fails.
    pub fn lose(&self, reason: &str) {
        let mut shelf = self.shelf();
        shelf.lost = Some(reason.to_string());
        for entry in std::mem::take(&mut shelf.waiting) {
            let failure = Failure::of_device(DeviceFault::Lost(reason.to_string()));
            self.finish(&entry, State::Failed, |job| job.failure = Some(failure));
        }
    }

    /// The next job, `None` when it is time to stop.
    pub fn next(&self) -> Option<Arc<Entry>> {
        let mut shelf = self.shelf();
        shelf.running = None;
        loop {
            if shelf.waiting.is_empty() {
                self.idle.notify_all();
            }
            if shelf.stopping {
                return None;
            }
            if let Some(entry) = shelf.waiting.pop_front() {
                shelf.running = Some(entry.clone());
                shelf.number();
                return Some(entry);
            }
            shelf = self
                .wake
                .wait(shelf)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
