//! Jobs whose stream nobody has taken yet.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use worker::http::sse::Frames;
use worker::http::ApiError;

/// Jobs that may wait at once.
pub(super) const MAX_JOBS: usize = 256;

/// The frames of a stream in the making.
pub(super) type Stream = Pin<Box<dyn Future<Output = Result<(), ApiError>> + Send>>;
/// What makes a stream's frames once somebody takes it. Dropping it gives the job up.
pub(super) type Job = Box<dyn FnOnce(Frames) -> Stream + Send>;

/// Jobs whose stream nobody has taken yet, by their ids.
pub(super) struct Jobs {
    waiting: Mutex<HashMap<String, (Job, Place)>>,
    places: Arc<Semaphore>,
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
    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Job, Place)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a job that is about to be made; `None` if as many wait as may.
    pub(super) fn reserve(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Keeps a job until its stream is taken.
    pub(super) fn put(&self, id: String, job: Job, place: Place) {
        self.lock().insert(id, (job, place));
    }

    /// Takes a job out.
    pub(super) fn take(&self, id: &str) -> Option<Job> {
        self.lock().remove(id).map(|(job, _)| job)
    }

    /// Gives all of them up.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}
