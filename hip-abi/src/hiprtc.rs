//! Results of hiprtc, their names, how options come, and programs: what was compiled is handed out here, how is the
//! library's.
#![allow(missing_docs, non_snake_case)]

use crate::Registry;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The C type of an hiprtc status.
#[allow(non_camel_case_types)]
pub type hiprtcResult = c_int;

pub const SUCCESS: hiprtcResult = 0;
pub const INVALID_INPUT: hiprtcResult = 3;
pub const INVALID_PROGRAM: hiprtcResult = 4;
pub const INVALID_OPTION: hiprtcResult = 5;
pub const COMPILATION: hiprtcResult = 6;

/// Handle of a program.
#[allow(non_camel_case_types)]
pub type hiprtcProgram = *mut c_void;

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

/// What a compilation left.
#[derive(Default)]
pub struct Built {
    pub log: String,
    pub code: Option<Vec<u8>>,
}

impl Built {
    /// The log's bytes with the zero at its end; an empty one has none.
    fn log_bytes(&self) -> usize {
        match self.log.len() {
            0 => 0,
            bytes => bytes + 1,
        }
    }
}

/// A program: what is compiled, in the library's own terms, and what the last compilation of it left.
pub struct Program<S> {
    pub source: S,
    built: Mutex<Built>,
}

impl<S> Program<S> {
    /// Of a source that was not compiled yet.
    pub fn new(source: S) -> Self {
        Program {
            source,
            built: Mutex::default(),
        }
    }

    /// What the last compilation left.
    pub fn built(&self) -> MutexGuard<'_, Built> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The programs of a library by their handles, and hiprtc's functions of them.
pub type Programs<S> = Registry<Program<S>>;

impl<S> Programs<S> {
    /// `hiprtcCreateProgram`, of a source that was taken from C already.
    ///
    /// # Safety
    /// `program` is null or writable.
    pub unsafe fn create(&self, program: *mut hiprtcProgram, source: S) -> hiprtcResult {
        if program.is_null() {
            return INVALID_INPUT;
        }
        let handle = self.insert(Arc::new(Program::new(source)));
        // SAFETY: not null; the caller's promise.
        unsafe { *program = handle };
        SUCCESS
    }

    /// Hands what a compilation left to `answer`, if the handle and the pointer for the answer are good.
    fn with_built<T>(
        &self,
        program: hiprtcProgram,
        out: *mut T,
        answer: impl FnOnce(&Built) -> hiprtcResult,
    ) -> hiprtcResult {
        let Some(program) = self.get(program) else {
            return INVALID_PROGRAM;
        };
        if out.is_null() {
            return INVALID_INPUT;
        }
        let built = program.built();
        answer(&built)
    }

    /// `hiprtcGetProgramLogSize`.
    ///
    /// # Safety
    /// `bytes` is null or writable.
    pub unsafe fn log_size(&self, program: hiprtcProgram, bytes: *mut usize) -> hiprtcResult {
        self.with_built(program, bytes, |built| {
            // SAFETY: not null; the caller's promise.
            unsafe { *bytes = built.log_bytes() };
            SUCCESS
        })
    }

    /// `hiprtcGetProgramLog`.
    ///
    /// # Safety
    /// `log` is null or has the bytes that [`log_size`](Self::log_size) told: the text and a zero.
    pub unsafe fn log(&self, program: hiprtcProgram, log: *mut c_char) -> hiprtcResult {
        self.with_built(program, log, |built| {
            let text = built.log.as_bytes();
            if built.log_bytes() > 0 {
                // SAFETY: not null; the caller's promise.
                unsafe {
                    std::ptr::copy_nonoverlapping(text.as_ptr(), log.cast(), text.len());
                    *log.add(text.len()) = 0;
                }
            }
            SUCCESS
        })
    }

    /// `hiprtcGetCodeSize`.
    ///
    /// # Safety
    /// `bytes` is null or writable.
    pub unsafe fn code_size(&self, program: hiprtcProgram, bytes: *mut usize) -> hiprtcResult {
        self.with_built(program, bytes, |built| match &built.code {
            Some(code) => {
                // SAFETY: not null; the caller's promise.
                unsafe { *bytes = code.len() };
                SUCCESS
            }
            None => INVALID_PROGRAM,
        })
    }

    /// `hiprtcGetCode`.
    ///
    /// # Safety
    /// `code` is null or has the bytes that [`code_size`](Self::code_size) told.
    pub unsafe fn code(&self, program: hiprtcProgram, code: *mut c_char) -> hiprtcResult {
        self.with_built(program, code, |built| match &built.code {
            Some(bytes) => {
                // SAFETY: not null; the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), code.cast(), bytes.len()) };
                SUCCESS
            }
            None => INVALID_PROGRAM,
        })
    }

    /// `hiprtcDestroyProgram`.
    ///
    /// # Safety
    /// `program` is null or points to a handle, which becomes null.
    pub unsafe fn destroy(&self, program: *mut hiprtcProgram) -> hiprtcResult {
        if program.is_null() {
            return INVALID_INPUT;
        }
        // SAFETY: not null; the caller's promise.
        let handle = unsafe { std::mem::replace(&mut *program, std::ptr::null_mut()) };
        match self.remove(handle) {
            Some(_) => SUCCESS,
            None => INVALID_PROGRAM,
        }
    }
}

/// `hiprtcVersion`, of a HIP runtime's version (`70200000` is 7.2).
///
/// # Safety
/// `major` and `minor` are null or writable.
pub unsafe fn version(runtime: c_int, major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    if major.is_null() || minor.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: not null; the caller's promise.
    unsafe {
        *major = runtime / 10_000_000;
        *minor = runtime / 100_000 % 100;
    }
    SUCCESS
}
