//! Handles and what is set for the calls on them.

use crate::hip::stream::hipStream_t;
use crate::sim::sim;
use hip_abi::rocblas::{
    rocblas_handle, rocblas_status, INTERNAL_ERROR, INVALID_HANDLE, INVALID_POINTER, INVALID_VALUE,
    SUCCESS,
};
use hip_abi::Registry;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};

pub(super) const POINTER_MODE_DEVICE: c_int = 1;

#[derive(Default)]
pub(super) struct Settings {
    pub stream: usize,
    pub pointer_mode: c_int,
    atomics_mode: c_int,
}

pub(super) type Handle = Mutex<Settings>;

pub(super) fn handles() -> &'static Registry<Handle> {
    static HANDLES: OnceLock<Registry<Handle>> = OnceLock::new();
    HANDLES.get_or_init(Registry::default)
}

/// Runs `f` on the settings of a handle.
fn with(handle: rocblas_handle, f: impl FnOnce(&mut Settings) -> rocblas_status) -> rocblas_status {
    match handles().get(handle) {
        Some(settings) => f(&mut settings.lock().unwrap_or_else(|e| e.into_inner())),
        None => INVALID_HANDLE,
    }
}

/// Runs `f` on the settings of a handle and writes its answer.
///
/// # Safety
/// `out` is null or writable.
unsafe fn get<T>(
    handle: rocblas_handle,
    out: *mut T,
    f: impl FnOnce(&Settings) -> T,
) -> rocblas_status {
    with(handle, |settings| {
        if out.is_null() {
            return INVALID_POINTER;
        }
        // SAFETY: not null; the caller's promise.
        unsafe { out.write(f(settings)) };
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_create_handle(out: *mut rocblas_handle) -> rocblas_status {
    if out.is_null() {
        return INVALID_HANDLE;
    }
    if sim().gate().is_err() {
        return INTERNAL_ERROR;
    }
    // SAFETY: not null; the caller's pointer.
    unsafe { *out = handles().insert(Arc::default()) };
    SUCCESS
}

#[no_mangle]
pub extern "C" fn rocblas_destroy_handle(handle: rocblas_handle) -> rocblas_status {
    handles().remove(handle).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[no_mangle]
pub extern "C" fn rocblas_set_stream(
    handle: rocblas_handle,
    stream: hipStream_t,
) -> rocblas_status {
    with(handle, |settings| {
        settings.stream = stream as usize;
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_stream(
    handle: rocblas_handle,
    out: *mut hipStream_t,
) -> rocblas_status {
    // SAFETY: the caller's pointer.
    unsafe { get(handle, out, |s| s.stream as hipStream_t) }
}

#[no_mangle]
pub extern "C" fn rocblas_set_pointer_mode(handle: rocblas_handle, mode: c_int) -> rocblas_status {
    with(handle, |settings| {
        settings.pointer_mode = mode;
        if matches!(mode, 0 | POINTER_MODE_DEVICE) {
            SUCCESS
        } else {
            INVALID_VALUE
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_pointer_mode(
    handle: rocblas_handle,
    out: *mut c_int,
) -> rocblas_status {
    // SAFETY: the caller's pointer.
    unsafe { get(handle, out, |s| s.pointer_mode) }
}

#[no_mangle]
pub extern "C" fn rocblas_set_atomics_mode(handle: rocblas_handle, mode: c_int) -> rocblas_status {
    with(handle, |settings| {
        settings.atomics_mode = mode;
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_atomics_mode(
    handle: rocblas_handle,
    out: *mut c_int,
) -> rocblas_status {
    // SAFETY: the caller's pointer.
    unsafe { get(handle, out, |s| s.atomics_mode) }
}

/// Accepts a workspace, which the simulator does not need; it has to be device memory.
#[no_mangle]
pub extern "C" fn rocblas_set_workspace(
    handle: rocblas_handle,
    address: *mut c_void,
    bytes: usize,
) -> rocblas_status {
    with(handle, |_| {
        match address.is_null() || sim().memory.holds(address as usize, bytes) {
            true => SUCCESS,
            false => INVALID_POINTER,
        }
    })
}
