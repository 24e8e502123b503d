//! The library as a whole: its start and its version.

use super::{rocblas_status, INVALID_POINTER, INVALID_SIZE, SUCCESS};
use std::ffi::{c_char, CStr};

const VERSION: &CStr = c"5.2.0.hip-sim";

#[no_mangle]
pub extern "C" fn rocblas_initialize() {}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_version_string_size(bytes: *mut usize) -> rocblas_status {
    if bytes.is_null() {
        return INVALID_POINTER;
    }
    // SAFETY: not null; the caller's pointer.
    unsafe { *bytes = VERSION.to_bytes_with_nul().len() };
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_version_string(
    buffer: *mut c_char,
    bytes: usize,
) -> rocblas_status {
    let text = VERSION.to_bytes_with_nul();
    if buffer.is_null() {
        return INVALID_POINTER;
    }
    if bytes < text.len() {
        return INVALID_SIZE;
    }
    // SAFETY: the caller's buffer has room.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len()) };
    SUCCESS
}
