//! Submit, watch, cancel.

use super::crew::{DeviceState, Replica};
use super::shelf::{Counters, Entry, QueueOptions, Shared, Shelf};
use super::state::{Job, State};
use super::work::{watch, work};
use super::Generate;
use crate::pipeline::ModelInfo;
use crate::prompt::TokenCounter;
use crate::request::ValidRequest;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// The queue and the threads that work it. Clones are handles to the same.
#[derive(Clone)]
pub struct JobQueue {
    shared: Arc<Shared>,
    /// One for each model.
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl JobQueue {
    /// Starts the thread that owns the model.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the system gives no thread.
    pub fn start(generator: Box<dyn Generate>, options: QueueOptions) -> Result<Self> {
        let only = Replica {
            device: String::new(),
            kind: String::new(),
            generator,
        };
        Self::over(vec![only], options)
    }

    /// Starts a thread for each of several models, which are the same one on devices of their own.
    ///
    /// # Errors
    /// [`Error::Usage`] without a model, [`Error::Runtime`] if the system gives no thread.
    pub fn over(replicas: Vec<Replica>, options: QueueOptions) -> Result<Self> {
        let Some(first) = replicas.first() else {
            return Err(Error::Usage(
                "there is no model to make pictures".to_string(),
            ));
        };
        let info = first.generator.info().clone();
        let count = replicas.len();
        let shared = Arc::new(Shared::new(options, info, replicas));
        let started = |result: std::io::Result<JoinHandle<()>>| {
            result.map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))
        };
        let queue = Self {
            shared: shared.clone(),
            threads: Arc::default(),
        };
        for own in 0..count {
            let theirs = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("images {own}"))
                .spawn(move || work(&theirs, own));
            match started(thread) {
                Ok(thread) => queue.threads().push(thread),
                Err(error) => {
                    queue.stop();
                    return Err(error);
                }
            }
        }
        if let Some(limit) = options.silence {
            let theirs = Arc::downgrade(&shared);
            let watching = std::thread::Builder::new()
                .name("images' watch".to_string())
                .spawn(move || watch(&theirs, limit));
            // It ends with the queue.
            started(watching).inspect_err(|_| queue.stop())?;
        }
        Ok(queue)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// What counts a prompt's tokens, if the model tells.
    pub fn counter(&self) -> Option<&TokenCounter> {
        self.shared.counter.as_ref()
    }

    /// Sums since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Jobs waiting.
    pub fn waiting(&self) -> usize {
        self.shared.shelf().waiting.len()
    }

    /// Why all devices are gone, if they are.
    pub fn lost(&self) -> Option<String> {
        self.shared.shelf().lost.clone()
    }

    /// The job that has been worked on the longest.
    pub fn running(&self) -> Option<Job> {
        self.all_running().into_iter().next()
    }

    /// The jobs that are worked on, in the order in which they began.
    pub fn all_running(&self) -> Vec<Job> {
        let shelf = self.shared.shelf();
        let running = shelf.running.iter();
        running
            .map(|entry| entry.snapshot.borrow().clone())
            .collect()
    }

    /// Whether a job that came now would have to wait for others.
    pub fn is_busy(&self) -> bool {
        let shelf = self.shared.shelf();
        shelf.free_models() <= shelf.tasks.len() + shelf.waiting.len()
    }

    /// The devices of each model, and what was done there.
    pub fn devices(&self) -> Vec<DeviceState> {
        let shelf = self.shared.shelf();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let slots = shelf.slots.iter().zip(&self.shared.meters);
        slots
            .map(|(slot, meter)| DeviceState {
                device: slot.device.clone(),
                kind: slot.kind.clone(),
                is_busy: slot.lost.is_none() && slot.generator.is_none(),
                lost: slot.lost.clone(),
                pictures: read(&meter.pictures),
                steps: read(&meter.steps),
                busy: Duration::from_micros(read(&meter.busy_micros)),
            })
            .collect()
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
        // Jobs that idle models are about to pick up do not wait.
        let idle = shelf.free_models().saturating_sub(shelf.tasks.len());
        if shelf.waiting.len() >= capacity + idle {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::Full { capacity });
        }
        let id = worker::ids::uuid().simple().to_string();
        let entry = Entry::new(&id, SystemTime::now(), request);
        RequestScope::note(|figures| {
            figures.job = Some(id.clone());
            figures.model = Some(self.shared.info.name.clone());
        });
        self.put_in_line(&mut shelf, entry);
        Ok(id)
    }

    fn put_in_line(&self, shelf: &mut Shelf, entry: Arc<Entry>) {
        let id = entry.snapshot.borrow().id.clone();
        shelf.jobs.insert(id, entry.clone());
        shelf.waiting.push_back(entry);
        shelf.number();
        self.shared
            .counters
            .submitted
            .fetch_add(1, Ordering::Relaxed);
        self.shared.wake.notify_all();
    }

    /// Puts a job in line that a former server had taken, under the id that it had there, however many wait.
    pub fn resume(&self, id: &str, created: SystemTime, request: ValidRequest) {
        let entry = Entry::new(id, created, request);
        self.put_in_line(&mut self.shared.shelf(), entry);
    }

    /// Adds a job that has ended, as a former server knew it.
    pub fn shelve(&self, job: Job) {
        if job.state.is_final() {
            let id = job.id.clone();
            let entry = Entry::ended(job);
            self.shared.shelf().jobs.insert(id, entry);
        }
    }

    /// Whether no more jobs are taken.
    pub fn is_closed(&self) -> bool {
        self.shared.shelf().closed
    }

    /// How much waits and how much is kept.
    pub fn options(&self) -> QueueOptions {
        self.shared.options
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
            self.shared
                .finish(&mut shelf, &entry, State::Cancelled, |_| {});
        } else if shelf.running.iter().any(|e| Arc::ptr_eq(e, &entry)) {
            self.shared.drop_tasks(&mut shelf, &entry);
        }
        let job = entry.snapshot.borrow().clone();
        Some(job)
    }

    /// Puts a waiting job at a place among those that wait, 0 the next one; places behind the last are the last. Gives
    /// the ids of all that wait, in their order; `None` if no job of this id waits.
    pub fn reorder(&self, id: &str, place: usize) -> Option<Vec<String>> {
        let mut shelf = self.shared.shelf();
        let entry = shelf.jobs.get(id)?.clone();
        let at = shelf.waiting.iter().position(|e| Arc::ptr_eq(e, &entry))?;
        shelf.waiting.remove(at);
        let place = place.min(shelf.waiting.len());
        shelf.waiting.insert(place, entry);
        shelf.number();
        let waiting = shelf.waiting.iter();
        Some(waiting.map(|e| e.snapshot.borrow().id.clone()).collect())
    }

    /// Forgets a job that has ended, with its pictures. Gives whether it had; `None` if there is none of this id.
    pub fn forget(&self, id: &str) -> Option<bool> {
        let mut shelf = self.shared.shelf();
        let is_over = shelf.jobs.get(id)?.is_over();
        if is_over {
            shelf.jobs.remove(id);
        }
        Some(is_over)
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
        while !shelf.is_idle() {
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
            self.shared
                .finish(&mut shelf, &entry, State::Cancelled, |_| {});
        }
        for entry in shelf.running.clone() {
            entry.cancel.store(true, Ordering::Relaxed);
            self.shared.drop_tasks(&mut shelf, &entry);
        }
    }

    /// Takes no more jobs, cancels all and waits for the threads, at most one step of the model; not for those that
    /// hang.
    pub fn stop(&self) {
        let hanging: Vec<bool> = {
            let mut shelf = self.shared.shelf();
            shelf.closed = true;
            shelf.stopping = true;
            shelf.slots.iter().map(|slot| slot.hangs).collect()
        };
        self.cancel_all();
        self.shared.wake.notify_all();
        let threads = std::mem::take(&mut *self.threads());
        for (thread, hangs) in threads.into_iter().zip(hanging) {
            if !hangs {
                // The thread catches the model's panics; there is nothing to learn from its end.
                let _ = thread.join();
            }
        }
    }
}
