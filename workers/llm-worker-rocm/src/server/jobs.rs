//! Jobs whose stream nobody has taken yet.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use worker::http::sse::Frames;
use worker::http::ApiError;

/// Jobs that may wait at once.
pub(super) const MAX_JOBS: usize = 256;

/// How long a job is safe from [`Jobs::give_up_oldest`]: clients take their stream at once.
const SAFE: Duration = Duration::from_secs(1);

/// The frames of a stream in the making.
pub(super) type Stream = Pin<Box<dyn Future<Output = Result<(), ApiError>> + Send>>;
/// What makes a stream's frames once somebody takes it. Dropping it gives the job up.
pub(super) type Job = Box<dyn FnOnce(Frames) -> Stream + Send>;

/// Jobs whose stream nobody has taken yet, by their ids.
pub(super) struct Jobs {
    waiting: Mutex<HashMap<String, Waiting>>,
    places: Arc<Semaphore>,
}

struct Waiting {
    job: Job,
    since: Instant,
    /// Free again with the job.
    _place: Place,
}

/// A job's place among the [`MAX_JOBS`], free again once it is dropped.
pub(super) type Place = OwnedSemaphorePermit;

impl Default for Jobs {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_JOBS)),
        }
    }
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a job that is about to be made; `None` if as many wait as may.
    pub(super) fn reserve(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Keeps a job until its stream is taken.
    pub(super) fn put(&self, id: String, job: Job, place: Place) {
        let waiting = Waiting {
            job,
            since: Instant::now(),
            _place: place,
        };
        self.lock().insert(id, waiting);
    }

    /// Takes a job out.
    pub(super) fn take(&self, id: &str) -> Option<Job> {
        self.lock().remove(id).map(|waiting| waiting.job)
    }

    /// Makes room for requests whose answers somebody waits for: gives up the job that has waited longest, unless that is
    /// less than a second. Whether there was one.
    pub(super) fn give_up_oldest(&self) -> bool {
        let mut waiting = self.lock();
        let oldest = waiting.iter().min_by_key(|(_, job)| job.since);
        let late = oldest.filter(|(_, job)| job.since.elapsed() >= SAFE);
        let given_up = late
            .map(|(id, _)| id.clone())
            .and_then(|id| waiting.remove(&id));
        drop(waiting);
        given_up.is_some()
    }

    /// Gives all of them up.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}
