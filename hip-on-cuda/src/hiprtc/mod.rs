//! The C ABI of hiprtc over nvrtc: the same calls, other options, and a prelude in front of the source.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

mod translate;

pub use hip_abi::hiprtc::{hiprtcGetErrorString, hiprtcResult};

use crate::cuda::{cuda, device};
use crate::table::table;
use hip_abi::hiprtc::{string, strings, INVALID_INPUT};
use std::ffi::{c_char, c_int, c_void, CString};
use std::sync::OnceLock;

const PRELUDE: &str = include_str!("prelude.hpp");
/// `HIPRTC_ERROR_INTERNAL_ERROR`.
const INTERNAL_ERROR: hiprtcResult = 11;

table! {
    /// Functions of nvrtc.
    Nvrtc {
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int);
        fn nvrtcCreateProgram(
            program: *mut *mut c_void, source: *const c_char, name: *const c_char,
            header_count: c_int, headers: *const *const c_char, include_names: *const *const c_char,
        );
        fn nvrtcCompileProgram(program: *mut c_void, option_count: c_int, options: *const *const c_char);
        fn nvrtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize);
        fn nvrtcGetProgramLog(program: *mut c_void, log: *mut c_char);
        fn nvrtcGetCUBINSize(program: *mut c_void, bytes: *mut usize);
        fn nvrtcGetCUBIN(program: *mut c_void, code: *mut c_char);
        fn nvrtcDestroyProgram(program: *mut *mut c_void);
    }
}

/// nvrtc, opened by the first call.
fn nvrtc() -> Option<&'static Nvrtc> {
    static NVRTC: OnceLock<Option<Nvrtc>> = OnceLock::new();
    NVRTC
        .get_or_init(
            || match Nvrtc::open(&["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]) {
                Ok(nvrtc) => Some(nvrtc),
                Err(message) => {
                    eprintln!("hip-on-cuda: {message}");
                    None
                }
            },
        )
        .as_ref()
}

/// Runs a call of nvrtc, whose results have the numbers of hiprtc's.
fn call(call: impl FnOnce(&Nvrtc) -> c_int) -> hiprtcResult {
    nvrtc().map_or(INTERNAL_ERROR, call)
}

/// Defines functions that nvrtc has under another name: what they take is the same.
macro_rules! forward {
    ($(fn $hiprtc:ident($($argument:ident: $type:ty),*) = $nvrtc:ident;)*) => {
        $(
            #[no_mangle]
            pub unsafe extern "C" fn $hiprtc($($argument: $type),*) -> hiprtcResult {
                // SAFETY: the caller promises what hiprtc asks for (pointers are writable, with room for what the size
                // function told, programs alive), and nvrtc's function, which does the same, asks for no more.
                call(|rtc| unsafe { (rtc.$nvrtc)($($argument),*) })
            }
        )*
    };
}

forward! {
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) = nvrtcVersion;
    fn hiprtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize) = nvrtcGetProgramLogSize;
    fn hiprtcGetProgramLog(program: *mut c_void, log: *mut c_char) = nvrtcGetProgramLog;
    fn hiprtcGetCodeSize(program: *mut c_void, bytes: *mut usize) = nvrtcGetCUBINSize;
    fn hiprtcGetCode(program: *mut c_void, code: *mut c_char) = nvrtcGetCUBIN;
    fn hiprtcDestroyProgram(program: *mut *mut c_void) = nvrtcDestroyProgram;
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut *mut c_void,
    source: *const c_char,
    name: *const c_char,
    header_count: c_int,
    headers: *const *const c_char,
    include_names: *const *const c_char,
) -> hiprtcResult {
    // SAFETY: the caller's C string.
    let Some(source) = (unsafe { string(source) }) else {
        return INVALID_INPUT;
    };
    let Ok(whole) = CString::new(PRELUDE.to_string() + &translate::read_in_place(&source)) else {
        return INVALID_INPUT;
    };
    // SAFETY: the caller's pointer receives the program; the names and headers are as many C strings as said.
    call(|rtc| unsafe {
        (rtc.nvrtcCreateProgram)(
            program,
            whole.as_ptr(),
            name,
            header_count,
            headers,
            include_names,
        )
    })
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcCompileProgram(
    program: *mut c_void,
    option_count: c_int,
    options: *const *const c_char,
) -> hiprtcResult {
    // SAFETY: as many C strings as said.
    let Some(options) = (unsafe { strings(options, option_count) }) else {
        return INVALID_INPUT;
    };
    // For the arch that is named, or the thread's device.
    let own = || {
        let cuda = cuda()?;
        Some(cuda.capability(cuda.context(device())?))
    };
    let Some(capability) = translate::capability(&options).or_else(own) else {
        return INTERNAL_ERROR;
    };
    let translated: Vec<CString> = translate::options(&options, capability)
        .into_iter()
        .filter_map(|option| CString::new(option).ok())
        .collect();
    let pointers: Vec<*const c_char> = translated.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the program is alive; the options are as many C strings as said.
    call(|rtc| unsafe {
        (rtc.nvrtcCompileProgram)(program, pointers.len() as c_int, pointers.as_ptr())
    })
}
