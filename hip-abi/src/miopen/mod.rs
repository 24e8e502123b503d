//! MIOpen: handles, descriptors, and convolutions in immediate mode, which the [`Library`](crate::Library)'s
//! [`Backend`] computes. Functions refuse what AMD's library was seen to refuse (3.4 and 3.5, by calling it). What it
//! accepts and computes wrongly is refused, too, and reported.
#![allow(
    missing_docs,
    non_snake_case,
    non_camel_case_types,
    clippy::too_many_arguments
)]

mod backend;
mod descriptor;
mod forward;
mod problem;
mod solution;

pub use backend::{Addresses, Backend};
pub use descriptor::*;
pub use forward::*;
pub use problem::{Problem, Type};
pub use solution::{miopenConvAlgoPerf_t, miopenConvSolution_t};

use crate::library::library;
use crate::Registry;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

pub type miopenHandle_t = *mut c_void;
pub type miopenStatus_t = c_int;

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Failure {
    InvalidValue = 2,
    BadParameter = 3,
    InternalError = 5,
    NotImplemented = 6,
    UnknownError = 7,
}

const NAMES: &[&CStr] = &[
    c"miopenStatusSuccess",
    c"miopenStatusNotInitialized",
    c"miopenStatusInvalidValue",
    c"miopenStatusBadParm",
    c"miopenStatusAllocFailed",
    c"miopenStatusInternalError",
    c"miopenStatusNotImplemented",
    c"miopenStatusUnknownError",
    c"miopenStatusUnsupportedOp",
    c"miopenStatusGpuOperationsSkipped",
    c"miopenStatusVersionMismatch",
];

pub type Outcome<T = ()> = Result<T, Failure>;

/// Runs the body of a function, unless the library fails the call.
fn api(name: &'static str, body: impl FnOnce() -> Outcome) -> miopenStatus_t {
    if let Some(status) = library().miopen_called(name) {
        return status;
    }
    match body() {
        Ok(()) => 0,
        Err(failure) => failure as miopenStatus_t,
    }
}

/// Reports wrong use that the real library does not notice, or dies of.
pub fn misused(function: &str, what: impl std::fmt::Display) -> Failure {
    library().miopen_misused(format!("MIOpen: {function}: {what}"));
    Failure::BadParameter
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `pointer` is null or writable.
unsafe fn put<T>(pointer: *mut T, value: T) -> Outcome {
    if pointer.is_null() {
        return Err(Failure::BadParameter);
    }
    // SAFETY: not null; the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The lock, also after a panic of who held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// What a handle stands for.
type Handle = Box<dyn Backend>;

fn handles() -> &'static Registry<Handle> {
    static HANDLES: OnceLock<Registry<Handle>> = OnceLock::new();
    HANDLES.get_or_init(Registry::default)
}

unsafe fn create(out: *mut miopenHandle_t, stream: *mut c_void) -> Outcome {
    let handle: Handle = library().convolutions(stream)?;
    // SAFETY: the caller's pointer.
    unsafe { put(out, handles().insert(Arc::new(handle))) }
}

#[no_mangle]
pub unsafe extern "C" fn miopenCreate(out: *mut miopenHandle_t) -> miopenStatus_t {
    // SAFETY: passed on to the caller.
    api("miopenCreate", || unsafe {
        create(out, std::ptr::null_mut())
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenCreateWithStream(
    out: *mut miopenHandle_t,
    stream: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: passed on to the caller.
    api("miopenCreateWithStream", || unsafe { create(out, stream) })
}

#[no_mangle]
pub extern "C" fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t {
    api("miopenDestroy", || {
        let removed = handles().remove(handle);
        (removed.map(|_| ())).ok_or_else(|| misused("miopenDestroy", "unknown handle"))
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenGetVersion(
    major: *mut usize,
    minor: *mut usize,
    patch: *mut usize,
) -> miopenStatus_t {
    for (out, value) in [(major, 3), (minor, 5), (patch, 1)] {
        if !out.is_null() {
            // SAFETY: not null; the caller's pointer.
            unsafe { *out = value };
        }
    }
    0
}

#[no_mangle]
pub extern "C" fn miopenGetErrorString(status: miopenStatus_t) -> *const c_char {
    let name = usize::try_from(status)
        .ok()
        .and_then(|i| NAMES.get(i))
        .copied();
    name.unwrap_or(c"Unknown error status").as_ptr()
}
