//! Statuses and their names.

use std::ffi::{c_char, c_int, CStr};

pub type rocblas_status = c_int;

pub const SUCCESS: rocblas_status = 0;
pub const INVALID_HANDLE: rocblas_status = 1;
pub const NOT_IMPLEMENTED: rocblas_status = 2;
pub const INVALID_POINTER: rocblas_status = 3;
pub const INVALID_SIZE: rocblas_status = 4;
pub const INTERNAL_ERROR: rocblas_status = 6;
pub const INVALID_VALUE: rocblas_status = 11;

const NAMES: &[&CStr] = &[
    c"rocblas_status_success",
    c"rocblas_status_invalid_handle",
    c"rocblas_status_not_implemented",
    c"rocblas_status_invalid_pointer",
    c"rocblas_status_invalid_size",
    c"rocblas_status_memory_error",
    c"rocblas_status_internal_error",
    c"rocblas_status_perf_degraded",
    c"rocblas_status_size_query_mismatch",
    c"rocblas_status_size_increased",
    c"rocblas_status_size_unchanged",
    c"rocblas_status_invalid_value",
    c"rocblas_status_continue",
    c"rocblas_status_check_numerics_fail",
    c"rocblas_status_excluded_from_build",
    c"rocblas_status_arch_mismatch",
];

#[no_mangle]
pub extern "C" fn rocblas_status_to_string(status: rocblas_status) -> *const c_char {
    let name = usize::try_from(status)
        .ok()
        .and_then(|i| NAMES.get(i))
        .copied();
    name.unwrap_or(c"unknown rocblas_status").as_ptr()
}
