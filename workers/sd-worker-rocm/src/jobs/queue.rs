//! Submit, watch, cancel.

use super::shelf::{Counters, Entry, QueueOptions, Shared};
use super::state::{Job, State};
use super::work::work;
use super::Generate;
use crate::pipeline::ModelInfo;
use crate::request::ValidRequest;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use worker::observe::RequestScope;
use worker::{Error, Result};

/// Why a job is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Full {
        /// Its capacity.
        capacity: usize,
    },
    /// The server is about to stop.
    Stopping,
    /// The device is gone, for this reason.
    Lost(String),
}

/// The queue and the thread that works it. Clones are handles to the same.
#[derive(Clone)]
pub struct JobQueue {
    shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl JobQueue {
    /// Starts the thread that owns the model.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the system gives no thread.
    pub fn start(generator: Box<dyn Generate>, options: QueueOptions) -> Result<Self> {
        let shared = Arc::new(Shared::new(options, generator.info().clone()));
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("images".to_string())
            .spawn(move || work(&theirs, generator))
            .map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))?;
        Ok(Self {
            shared,
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// Sums since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Jobs waiting.
    pub fn waiting(&self) -> usize {
        self.shared.shelf().waiting.len()
    }

    /// Why the device is gone, if it is.
    pub fn lost(&self) -> Option<String> {
        self.shared.shelf().lost.clone()
    }

    /// The job that is being worked on.
    pub fn running(&self) -> Option<Job> {
        let shelf = self.shared.shelf();
        let running = shelf.running.as_ref()?;
        let job = running.snapshot.borrow().clone();
        Some(job)
    }

    /// Puts a request in line and gives the job's id.
    ///
    /// # Errors
    /// [`Refusal`] if the queue is full or about to stop, or the device is gone.
    pub fn submit(&self, request: ValidRequest) -> std::result::Result<String, Refusal> {
        let mut shelf = self.shared.shelf();
        self.shared.forget_old(&mut shelf);
        if let Some(reason) = &shelf.lost {
            return Err(Refusal::Lost(reason.clone()));
        }
        if shelf.closed {
            return Err(Refusal::Stopping);
        }
        let capacity = self.shared.options.capacity;
        // A job that an idle worker is about to pick up does not wait.
        let idle = usize::from(shelf.running.is_none());
        if shelf.waiting.len() >= capacity + idle {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::Full { capacity });
        }
        let id = worker::ids::uuid().simple().to_string();
        let job = Job {
            id: id.clone(),
            state: State::Queued,
            position: 0,
            stage: None,
            step: 0,
            total: request.steps,
            batch: request.batch,
            created: SystemTime::now(),
            started: None,
            finished: None,
            preview: None,
            outcome: None,
            failure: None,
        };
        let entry = Arc::new(Entry {
            cancel: AtomicBool::new(false),
            snapshot: watch::Sender::new(job),
            request: Mutex::new(Some(request)),
            scope: RequestScope::current(),
        });
        RequestScope::note(|figures| {
            figures.job = Some(id.clone());
            figures.model = Some(self.shared.info.name.clone());
        });
        shelf.jobs.insert(id.clone(), entry.clone());
        shelf.waiting.push_back(entry);
        shelf.number();
        self.shared
            .counters
            .submitted
            .fetch_add(1, Ordering::Relaxed);
        self.shared.wake.notify_one();
        Ok(id)
    }

    /// A job as it is now; `None` if there is none of this id, or no longer.
    pub fn job(&self, id: &str) -> Option<Job> {
        let receiver = self.watch(id)?;
        let job = receiver.borrow().clone();
        Some(job)
    }

    /// A job now and whenever it changes.
    pub fn watch(&self, id: &str) -> Option<watch::Receiver<Job>> {
        let mut shelf = self.shared.shelf();
        self.shared.forget_old(&mut shelf);
        shelf.jobs.get(id).map(|entry| entry.snapshot.subscribe())
    }

    /// All jobs that are known, oldest first.
    pub fn jobs(&self) -> Vec<Job> {
        let mut shelf = self.shared.shelf();
        self.shared.forget_old(&mut shelf);
        let mut jobs: Vec<Job> = shelf
            .jobs
            .values()
            .map(|entry| entry.snapshot.borrow().clone())
            .collect();
        jobs.sort_by_key(|job| job.created);
        jobs
    }

    /// Cancels a job: at once if it waits, within a step if it runs. Gives the job, `None` if there is none of this id.
    pub fn cancel(&self, id: &str) -> Option<Job> {
        let mut shelf = self.shared.shelf();
        let entry = shelf.jobs.get(id)?.clone();
        entry.cancel.store(true, Ordering::Relaxed);
        if let Some(at) = shelf.waiting.iter().position(|e| Arc::ptr_eq(e, &entry)) {
            shelf.waiting.remove(at);
            shelf.number();
            self.shared.finish(&entry, State::Cancelled, |_| {});
        }
        let job = entry.snapshot.borrow().clone();
        Some(job)
    }

    /// Waits until a job has ended and gives it; `None` if there is none of this id.
    pub async fn finished(&self, id: &str) -> Option<Job> {
        let mut receiver = self.watch(id)?;
        // The sender lives as long as the job is known; a forgotten job has ended.
        let _ = receiver.wait_for(|job| job.state.is_final()).await;
        let job = receiver.borrow().clone();
        Some(job)
    }

    /// Takes no more jobs; those in line are still worked on.
    pub fn close(&self) {
        self.shared.shelf().closed = true;
    }

    /// Waits until nothing runs or waits any more, for `limit` at most.
    pub fn wait_idle(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut shelf = self.shared.shelf();
        while shelf.running.is_some() || !shelf.waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.idle.wait_timeout(shelf, left);
            shelf = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Cancels all jobs.
    pub fn cancel_all(&self) {
        let mut shelf = self.shared.shelf();
        for entry in std::mem::take(&mut shelf.waiting) {
            self.shared.finish(&entry, State::Cancelled, |_| {});
        }
        if let Some(running) = &shelf.running {
            running.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Takes no more jobs, cancels all and waits for the thread, at most one step of the model.
    pub fn stop(&self) {
        {
            let mut shelf = self.shared.shelf();
            shelf.closed = true;
            shelf.stopping = true;
        }
        self.cancel_all();
        self.shared.wake.notify_all();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // The thread catches the model's panics; there is nothing to learn from its end.
            let _ = thread.join();
        }
    }
}
