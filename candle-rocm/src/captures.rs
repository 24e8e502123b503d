//! Which threads are capturing a graph on a GPU.

use crate::sync::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// The threads that capture on a GPU. Some calls wait for the whole device, which spoils the captures of all streams:
/// they wait until there is none, and captures that would begin wait for them.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    open: Mutex<Vec<ThreadId>>,
    closed: Condvar,
}

impl Captures {
    /// Makes a call that waits for the whole device. A thread that captures itself does not wait for its own end: it is
    /// told what HIP says.
    pub fn exclude<T>(&self, call: impl FnOnce() -> T) -> T {
        let mut open = lock(&self.open);
        while open.iter().any(|id| *id != thread::current().id()) {
            open = (self.closed.wait(open)).unwrap_or_else(PoisonError::into_inner);
        }
        call()
    }
}

/// A thread's entry among the captures.
#[derive(Debug)]
pub(crate) struct Entry {
    captures: &'static Captures,
    thread: ThreadId,
}

impl Entry {
    pub fn new(captures: &'static Captures) -> Self {
        let thread = thread::current().id();
        lock(&captures.open).push(thread);
        Self { captures, thread }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut open = lock(&self.captures.open);
        if let Some(index) = open.iter().position(|id| *id == self.thread) {
            open.swap_remove(index);
        }
        self.captures.closed.notify_all();
    }
}
