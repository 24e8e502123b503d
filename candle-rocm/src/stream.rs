//! Streams: queues of work that a device carries out in order.

use crate::gpu::Gpu;
use crate::sys::hip::{self, HipStream};
use crate::{Error, Result};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue of work on one device. Destroyed when dropped, unless it came from outside.
#[derive(Debug)]
pub struct Stream {
    gpu: &'static Gpu,
    raw: HipStream,
    owned: bool,
    capturing: AtomicBool,
}

// SAFETY: HIP streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: HIP serialises calls on a stream.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the legacy default stream.
    pub(crate) fn new(gpu: &'static Gpu) -> Result<Self> {
        gpu.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` receives the handle.
        let status =
            unsafe { (gpu.hip.hipStreamCreateWithFlags)(&mut raw, hip::STREAM_NON_BLOCKING) };
        gpu.check("hipStreamCreateWithFlags", status)?;
        Ok(Stream {
            gpu,
            raw,
            owned: true,
            capturing: AtomicBool::new(false),
        })
    }

    /// A stream that somebody else owns.
    ///
    /// # Safety
    /// `raw` is a stream of the device, or null for its default stream, and outlives the result.
    pub(crate) unsafe fn borrowed(gpu: &'static Gpu, raw: *mut c_void) -> Self {
        Stream {
            gpu,
            raw,
            owned: false,
            capturing: AtomicBool::new(false),
        }
    }

    /// The `hipStream_t`, for use with other libraries.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw
    }

    /// Waits until all work enqueued so far is done.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while a graph is captured, which HIP would spoil; HIP's, including those of earlier
    /// asynchronous work.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.enter()?;
        self.wait_idle()
    }

    /// `synchronize` for code that must not meet deferred errors.
    pub(crate) fn wait_idle(&self) -> Result<()> {
        self.check_not_capturing("synchronize")?;
        self.gpu.bind()?;
        // SAFETY: the stream is alive.
        let status = unsafe { (self.gpu.hip.hipStreamSynchronize)(self.raw) };
        self.gpu.check("hipStreamSynchronize", status)
    }

    /// Whether all work enqueued so far is done.
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        self.gpu.enter()?;
        self.check_not_capturing("query")?;
        // SAFETY: the stream is alive.
        match unsafe { (self.gpu.hip.hipStreamQuery)(self.raw) } {
            hip::ERROR_NOT_READY => Ok(false),
            status => self.gpu.check("hipStreamQuery", status).map(|()| true),
        }
    }

    /// To be told where a capture begins and ends.
    pub(crate) fn set_capturing(&self, on: bool) {
        self.capturing.store(on, Ordering::Release);
    }

    /// Asking HIP during a capture would spoil it.
    fn check_not_capturing(&self, op: &'static str) -> Result<()> {
        if !self.capturing.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            op,
            reason:
                "a graph is being captured on this stream: nothing runs that could be waited for"
                    .to_string(),
        })
    }

    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.gpu
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            let destroyed = self.gpu.bind().and_then(|()| {
                // SAFETY: the stream is ours and not used after this.
                let status = unsafe { (self.gpu.hip.hipStreamDestroy)(self.raw) };
                self.gpu.check("hipStreamDestroy", status)
            });
            self.gpu.defer(destroyed);
        }
    }
}
