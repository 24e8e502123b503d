//! The C ABI of the HIP runtime. Functions have the names and signatures of AMD's library.

pub mod device;
pub mod event;
pub mod graph;
pub mod memory;
pub mod module;
pub mod stream;

pub use device::*;
pub use event::*;
pub use graph::*;
pub use hip_abi::error::{hipGetErrorName, hipGetErrorString};
pub use memory::*;
pub use module::*;
pub use stream::*;

use crate::error::{hipError_t, HipError, HipResult};
use crate::sim::{sim, Counters, Sim};
use std::cell::Cell;

thread_local! {
    static CURRENT_DEVICE: Cell<usize> = const { Cell::new(0) };
    static LAST_ERROR: Cell<hipError_t> = const { Cell::new(0) };
}

/// The calling thread's device.
pub(crate) fn current_device() -> usize {
    CURRENT_DEVICE.with(Cell::get)
}

/// Runs the body of an API function that needs a device.
fn api(body: impl FnOnce(&'static Sim) -> HipResult) -> hipError_t {
    let sim = sim();
    Counters::count(&sim.counters.calls);
    status(sim.gate().and_then(|()| body(sim)))
}

/// Turns a result into a status and remembers a failure for `hipGetLastError`.
fn status(result: HipResult) -> hipError_t {
    match result {
        Ok(()) => 0,
        Err(error) => {
            // "Not ready" is an answer, and no error.
            if error != HipError::NotReady {
                LAST_ERROR.with(|last| last.set(error as hipError_t));
            }
            error as hipError_t
        }
    }
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `pointer` is null or writable.
unsafe fn put<T>(pointer: *mut T, value: T) -> HipResult {
    if pointer.is_null() {
        return Err(HipError::InvalidValue);
    }
    // SAFETY: not null; the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}
