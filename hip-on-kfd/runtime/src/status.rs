//! Statuses: what a call answers, and what a thread's last error was.

use crate::runtime::{runtime, Runtime};
use hip_abi::error::{hipError_t, HipError, HipResult};
use std::cell::Cell;

thread_local! {
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static LAST_ERROR: Cell<hipError_t> = const { Cell::new(0) };
}

/// Ordinal of the calling thread's device.
pub(crate) fn ordinal() -> usize {
    DEVICE.get()
}

/// Sets the calling thread's device.
pub(crate) fn set_ordinal(ordinal: usize) {
    DEVICE.set(ordinal);
}

/// The thread's last error; success from now on.
pub(crate) fn take_last_error() -> hipError_t {
    LAST_ERROR.replace(0)
}

/// Runs the body of a function that needs a device.
pub(crate) fn call(body: impl FnOnce(&'static Runtime) -> HipResult) -> hipError_t {
    status(runtime().and_then(body))
}

/// The status of a result; a failure is the thread's last error. "Not ready" is an answer, and no error.
pub(crate) fn status(result: HipResult) -> hipError_t {
    match result {
        Ok(()) => 0,
        Err(error) => {
            if error != HipError::NotReady {
                LAST_ERROR.set(error as hipError_t);
            }
            error as hipError_t
        }
    }
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `pointer` is null or writable.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) -> HipResult {
    if pointer.is_null() {
        return Err(HipError::InvalidValue);
    }
    // SAFETY: not null; the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The status of an error of candle-kfd, whose words go to stderr: HIP has but numbers.
pub(crate) fn told(error: candle_kfd::Error) -> HipError {
    use candle_kfd::Error;
    let status = match error {
        // Callers that keep a cache ask again.
        Error::OutOfMemory { .. } | Error::Reserve { .. } => return HipError::OutOfMemory,
        Error::CodeObject { .. } => HipError::InvalidImage,
        Error::Target { .. } => HipError::NoBinaryForGpu,
        Error::NoKernel { .. } => HipError::NotFound,
        Error::Launch { .. } => HipError::InvalidConfiguration,
        _ if lost_gpu(&error).is_some() => HipError::LaunchFailure,
        _ => HipError::Unknown,
    };
    eprintln!("hip-on-kfd: {error}");
    status
}

/// The PCI address of the GPU of which nothing can be expected after an error.
pub(crate) fn lost_gpu(error: &candle_kfd::Error) -> Option<&str> {
    use candle_kfd::Error;
    match error {
        Error::Lost { gpu, .. }
        | Error::Queue { gpu, .. }
        | Error::Stalled { gpu, .. }
        | Error::SdmaTimeout { gpu, .. }
        | Error::SdmaClosed { gpu } => Some(gpu),
        _ => None,
    }
}
