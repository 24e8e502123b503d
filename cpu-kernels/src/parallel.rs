//! Work that threads share.

use crate::lanes::Level;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Elements from which on dividing pays.
const LEAST: usize = 1 << 14;

/// Threads that share work: the caller's own, so that one pool does not keep cores from another.
pub trait Threads: Sync {
    /// How many there are, this one included.
    fn count(&self) -> usize;
    /// Calls `task` once with every number below `tasks`, on any of the threads, and waits.
    fn share(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// The threads of rayon's pool.
#[derive(Debug, Clone, Copy)]
pub struct Rayon;

impl Threads for Rayon {
    fn count(&self) -> usize {
        rayon::current_num_threads()
    }

    fn share(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).into_par_iter().for_each(task);
    }
}

/// Where a layer is computed.
#[derive(Clone, Copy)]
pub(crate) struct On<'a> {
    /// By which instructions.
    pub(crate) level: Level,
    pub(crate) threads: &'a dyn Threads,
}

impl<'a> On<'a> {
    /// The best instructions of this processor.
    pub(crate) fn best(threads: &'a dyn Threads) -> Self {
        Self {
            level: Level::detect(),
            threads,
        }
    }

    /// Calls `task` with every number below `count`, by all threads if there are this many elements to work on.
    pub(crate) fn for_each(self, count: usize, elements: usize, task: impl Fn(usize) + Sync) {
        if count < 2 || elements < LEAST || self.threads.count() == 1 {
            (0..count).for_each(task);
        } else {
            self.threads.share(count, &task);
        }
    }
}

/// A place that threads write to side by side, each to its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared(*mut f32);

// SAFETY: every task writes to a part of its own only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(to: *mut f32) -> Self {
        Self(to)
    }

    /// The place that lies `count` numbers before: what is written there is counted from further on.
    pub(crate) fn back(self, count: usize) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    pub(crate) fn pointer(self) -> *mut f32 {
        self.0
    }
}

/// `count` numbers, which `write` writes: what is written anyway need not be zeros before.
///
/// # Safety
/// `write` writes all of them.
pub(crate) unsafe fn written(count: usize, write: impl FnOnce(Shared)) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(count);
    write(Shared(numbers.as_mut_ptr()));
    numbers.set_len(count);
    numbers
}
