//! Points that a GPU passes: signals that stand at one until then.

use crate::sync::lock;
use candle_kfd::{Gpu, Signal};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

/// A signal that is one until the GPU has passed the place in its queue that sets it to zero.
pub(crate) struct Mark {
    signal: ManuallyDrop<Signal>,
    pool: Arc<Pool>,
}

/// A [`Mark`] that several may wait for.
pub(crate) type Point = Arc<Mark>;

impl Mark {
    /// The signal, for packets that set it or wait for it. Whoever enqueues one keeps the point until the GPU has
    /// passed it: a signal that nobody holds is used again.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Lets another GPU wait for the point.
    ///
    /// # Errors
    /// If it cannot see the signal's memory.
    pub fn show(&self, other: &Arc<Gpu>) -> candle_kfd::Result<()> {
        match Arc::ptr_eq(&self.pool.gpu, other) {
            true => Ok(()),
            false => self.signal.share(std::slice::from_ref(other)),
        }
    }

    /// Whether the GPU has passed the point.
    pub fn is_passed(&self) -> bool {
        self.signal.load() < 1
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let signal = unsafe { ManuallyDrop::take(&mut self.signal) };
        if signal.load() < 1 {
            lock(&self.pool.free).push(signal);
        } else {
            // The queue that was to set it is lost, and may set it yet: its memory stays.
            std::mem::forget(signal);
        }
    }
}

/// Signals that are made at a time, as many as a page holds.
const TOGETHER: usize = 64;

/// Signals of a GPU that are used again and again.
pub(crate) struct Pool {
    gpu: Arc<Gpu>,
    free: Mutex<Vec<Signal>>,
}

impl Pool {
    pub fn new(gpu: &Arc<Gpu>) -> Arc<Self> {
        Arc::new(Pool {
            gpu: gpu.clone(),
            free: Mutex::default(),
        })
    }

    /// Makes signals, of which all but one are kept for later.
    fn make(&self) -> candle_kfd::Result<Signal> {
        let mut made = Signal::several(&self.gpu, TOGETHER, 0)?;
        let signal = match made.pop() {
            Some(signal) => signal,
            None => Signal::new(&self.gpu, 0)?,
        };
        lock(&self.free).append(&mut made);
        Ok(signal)
    }

    /// A point that is not passed yet.
    pub fn point(self: &Arc<Self>) -> candle_kfd::Result<Point> {
        let recycled = lock(&self.free).pop();
        let signal = recycled.map_or_else(|| self.make(), Ok)?;
        signal.store(1);
        Ok(Arc::new(Mark {
            signal: ManuallyDrop::new(signal),
            pool: self.clone(),
        }))
    }
}
