//! Captures and graphs: work that is recorded in the order of its calls, and enqueued in this order by each launch.

use crate::sync::lock;
use crate::work::Work;
use hip_abi::error::{HipError, HipResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// A capture under way. Streams that wait for an event of it take part.
#[derive(Default)]
pub(crate) struct Capture {
    /// Handle of the stream in which it began.
    pub origin: usize,
    is_spoiled: AtomicBool,
    has_ended: AtomicBool,
    works: Mutex<Vec<Work>>,
}

impl Capture {
    /// A capture that begins in a stream.
    pub fn new(origin: usize) -> Self {
        Capture {
            origin,
            ..Capture::default()
        }
    }

    /// Keeps work.
    pub fn record(&self, work: Work) -> HipResult {
        if self.is_spoiled.load(Ordering::SeqCst) {
            return Err(HipError::StreamCaptureInvalidated);
        }
        lock(&self.works).push(work);
        Ok(())
    }

    /// Makes the capture end without a graph.
    pub fn spoil(&self) {
        self.is_spoiled.store(true, Ordering::SeqCst);
    }

    /// Whether it goes on.
    pub fn is_under_way(&self) -> bool {
        !self.has_ended.load(Ordering::SeqCst)
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`HipError::StreamCaptureInvalidated`] if it was spoiled.
    pub fn end(&self) -> HipResult<Graph> {
        self.has_ended.store(true, Ordering::SeqCst);
        if self.is_spoiled.load(Ordering::SeqCst) {
            return Err(HipError::StreamCaptureInvalidated);
        }
        let works = std::mem::take(&mut *lock(&self.works));
        Ok(Graph { works })
    }
}

/// Recorded work.
pub(crate) struct Graph {
    pub works: Vec<Work>,
}
