//! Events: marks in a stream that can be waited for and timed.

use crate::gpu::Gpu;
use crate::sys::hip::{self, HipEvent};
use crate::{Result, Stream};
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::time::Duration;

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    gpu: &'static Gpu,
    raw: HipEvent,
}

// SAFETY: HIP events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: HIP serialises calls on an event.
unsafe impl Sync for Event {}

impl Event {
    /// An event that can be waited for and timed.
    pub(crate) fn timed(gpu: &'static Gpu) -> Result<Self> {
        Self::with_flags(gpu, hip::EVENT_DEFAULT)
    }

    /// An event for ordering only, which costs the device less.
    pub(crate) fn untimed(gpu: &'static Gpu) -> Result<Self> {
        Self::with_flags(gpu, hip::EVENT_DISABLE_TIMING)
    }

    fn with_flags(gpu: &'static Gpu, flags: c_uint) -> Result<Self> {
        gpu.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` receives the handle.
        let status = unsafe { (gpu.hip.hipEventCreateWithFlags)(&mut raw, flags) };
        gpu.check("hipEventCreateWithFlags", status)?;
        Ok(Event { gpu, raw })
    }

    /// The `hipEvent_t`, for use with other libraries.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw
    }

    /// Places the mark behind all work enqueued on the stream so far, moving it if it was placed before.
    ///
    /// # Errors
    /// HIP's.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: event and stream are alive.
        let status = unsafe { (self.gpu.hip.hipEventRecord)(self.raw, stream.as_raw()) };
        self.gpu.check("hipEventRecord", status)
    }

    /// Whether the device has passed the mark. An event never recorded counts as passed.
    ///
    /// # Errors
    /// HIP's.
    pub fn is_done(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: the event is alive.
        match unsafe { (self.gpu.hip.hipEventQuery)(self.raw) } {
            hip::ERROR_NOT_READY => Ok(false),
            status => self.gpu.check("hipEventQuery", status).map(|()| true),
        }
    }

    /// Waits until the device has passed the mark.
    ///
    /// # Errors
    /// HIP's, including those of earlier asynchronous work.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the event is alive.
        let status = unsafe { (self.gpu.hip.hipEventSynchronize)(self.raw) };
        self.gpu.check("hipEventSynchronize", status)
    }

    /// Device time between an earlier event and this one; both must have been passed.
    ///
    /// # Errors
    /// HIP's, for example if one of them was not recorded or not reached yet.
    pub fn elapsed_since(&self, earlier: &Event) -> Result<Duration> {
        self.gpu.bind()?;
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive and `milliseconds` receives the time.
        let status =
            unsafe { (self.gpu.hip.hipEventElapsedTime)(&mut milliseconds, earlier.raw, self.raw) };
        self.gpu.check("hipEventElapsedTime", status)?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds.max(0.0)) / 1e3,
        ))
    }
}

impl Stream {
    /// Makes work enqueued from now on wait for an event, on the device; the host does not wait.
    ///
    /// # Errors
    /// HIP's.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.gpu().enter()?;
        // SAFETY: stream and event are alive.
        let status = unsafe { (self.gpu().hip.hipStreamWaitEvent)(self.as_raw(), event.raw, 0) };
        self.gpu().check("hipStreamWaitEvent", status)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroyed = self.gpu.bind().and_then(|()| {
            // SAFETY: the event is ours and not used after this.
            let status = unsafe { (self.gpu.hip.hipEventDestroy)(self.raw) };
            self.gpu.check("hipEventDestroy", status)
        });
        self.gpu.defer(destroyed);
    }
}
