//! The part of MIOpen's C ABI that tells whether the library works: handles, version, status texts.
#![allow(
    missing_docs,
    non_snake_case,
    non_camel_case_types,
    clippy::missing_safety_doc
)]

use crate::hip::stream::hipStream_t;
use crate::registry::Registry;
use crate::sim::sim;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::{Arc, OnceLock};

pub type miopenHandle_t = *mut c_void;
pub type miopenStatus_t = c_int;

const SUCCESS: miopenStatus_t = 0;
const BAD_PARAMETER: miopenStatus_t = 3;
const UNKNOWN_ERROR: miopenStatus_t = 7;

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

fn handles() -> &'static Registry<()> {
    static HANDLES: OnceLock<Registry<()>> = OnceLock::new();
    HANDLES.get_or_init(Registry::default)
}

#[no_mangle]
pub unsafe extern "C" fn miopenCreate(out: *mut miopenHandle_t) -> miopenStatus_t {
    if sim().gate().is_err() {
        return UNKNOWN_ERROR;
    }
    if out.is_null() {
        return BAD_PARAMETER;
    }
    // SAFETY: not null; the caller's pointer.
    unsafe { *out = handles().insert(Arc::new(())) };
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn miopenCreateWithStream(
    out: *mut miopenHandle_t,
    _stream: hipStream_t,
) -> miopenStatus_t {
    // SAFETY: passed on to the caller.
    unsafe { miopenCreate(out) }
}

#[no_mangle]
pub extern "C" fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t {
    handles().remove(handle).map_or(BAD_PARAMETER, |_| SUCCESS)
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
    SUCCESS
}

#[no_mangle]
pub extern "C" fn miopenGetErrorString(status: miopenStatus_t) -> *const c_char {
    let name = usize::try_from(status)
        .ok()
        .and_then(|i| NAMES.get(i))
        .copied();
    name.unwrap_or(c"Unknown error status").as_ptr()
}
