//! Results of hiprtc, their names, and how options come.
#![allow(missing_docs, non_snake_case)]

use std::ffi::{c_char, c_int, CStr};

/// The C type of an hiprtc status.
#[allow(non_camel_case_types)]
pub type hiprtcResult = c_int;

pub const SUCCESS: hiprtcResult = 0;
pub const INVALID_INPUT: hiprtcResult = 3;
pub const INVALID_PROGRAM: hiprtcResult = 4;
pub const INVALID_OPTION: hiprtcResult = 5;
pub const COMPILATION: hiprtcResult = 6;

const NAMES: &[(hiprtcResult, &CStr)] = &[
    (SUCCESS, c"HIPRTC_SUCCESS"),
    (1, c"HIPRTC_ERROR_OUT_OF_MEMORY"),
    (2, c"HIPRTC_ERROR_PROGRAM_CREATION_FAILURE"),
    (INVALID_INPUT, c"HIPRTC_ERROR_INVALID_INPUT"),
    (INVALID_PROGRAM, c"HIPRTC_ERROR_INVALID_PROGRAM"),
    (INVALID_OPTION, c"HIPRTC_ERROR_INVALID_OPTION"),
    (COMPILATION, c"HIPRTC_ERROR_COMPILATION"),
    (7, c"HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE"),
    (11, c"HIPRTC_ERROR_INTERNAL_ERROR"),
    (100, c"HIPRTC_ERROR_LINKING"),
];

/// C name of a result.
#[no_mangle]
pub extern "C" fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char {
    let named = NAMES.iter().find(|(code, _)| *code == result);
    named
        .map_or(c"HIPRTC_ERROR_UNKNOWN", |(_, name)| name)
        .as_ptr()
}

/// A copy of a C string; none for null.
///
/// # Safety
/// `text` is null or a C string.
pub unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| {
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    })
}

/// Copies of the C strings of a list; none if the list or one of them is null.
///
/// # Safety
/// `list` is null or has `count` C strings.
pub unsafe fn strings(list: *const *const c_char, count: c_int) -> Option<Vec<String>> {
    if count <= 0 {
        return Some(Vec::new());
    }
    if list.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    (0..count as usize)
        .map(|i| unsafe { string(*list.add(i)) })
        .collect()
}
