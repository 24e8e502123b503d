//! A communicator of RCCL and its end: destroyed in order, or aborted.

use candle_rocm::sys::rccl::{Rccl, RcclComm, RcclResult, IN_PROGRESS, SUCCESS};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long an abort waits for calls that are under way.
const LEAVING: Duration = Duration::from_secs(1);

/// A communicator of RCCL.
#[derive(Debug)]
pub struct Comm {
    library: &'static Rccl,
    /// Null after an abort.
    raw: AtomicPtr<c_void>,
    /// Calls that may be using it.
    inside: AtomicUsize,
}

impl Comm {
    /// Takes a communicator that nobody else has.
    pub fn new(library: &'static Rccl, raw: RcclComm) -> Self {
        Self {
            library,
            raw: AtomicPtr::new(raw),
            inside: AtomicUsize::new(0),
        }
    }

    /// Makes calls with the communicator, which is not freed meanwhile; `None` after an abort, or what went wrong and
    /// RCCL's words for it.
    pub fn call(
        &self,
        run: impl FnOnce(&Rccl, RcclComm) -> RcclResult,
    ) -> Option<Result<(), (RcclResult, String)>> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let raw = self.raw.load(Ordering::SeqCst);
        let done = (!raw.is_null()).then(|| match run(self.library, raw) {
            SUCCESS | IN_PROGRESS => Ok(()),
            // SAFETY: the communicator is alive as long as this call is counted.
            result => Err((result, unsafe { self.library.describe(result, raw) })),
        });
        self.inside.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// What went wrong since the last call, and RCCL's words for it.
    pub fn asynchronous_error(&self) -> Option<(RcclResult, String)> {
        let mut found = SUCCESS;
        let asked = self.call(|library, raw| {
            // SAFETY: the communicator is alive, and the number is written to.
            unsafe { (library.ncclCommGetAsyncError)(raw, &mut found) }
        })?;
        match (asked, found) {
            (Ok(()), SUCCESS | IN_PROGRESS) => None,
            (Ok(()), result) => {
                // SAFETY: without a communicator.
                Some((result, unsafe {
                    self.library.describe(result, ptr::null_mut())
                }))
            }
            (Err(error), _) => Some(error),
        }
    }

    /// Ends everything that waits on the GPU for other ranks. Does nothing the second time.
    pub fn abort(&self) {
        let raw = self.raw.swap(ptr::null_mut(), Ordering::SeqCst);
        if raw.is_null() {
            return;
        }
        // A call that enqueues is done in no time. One that does not come back waits for another rank: only the abort
        // itself ends it.
        let begun = Instant::now();
        while self.inside.load(Ordering::SeqCst) > 0 && begun.elapsed() < LEAVING {
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the communicator was alive until now, and no call begins with it any more.
        unsafe { (self.library.ncclCommAbort)(raw) };
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        let raw = *self.raw.get_mut();
        if !raw.is_null() {
            // SAFETY: nobody else has it.
            unsafe { (self.library.ncclCommDestroy)(raw) };
        }
    }
}
