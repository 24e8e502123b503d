//! libhiprtc: compiling device code at run time.

use super::loader::{library, Sonames};
use std::ffi::{c_char, c_int, c_void};

/// `hiprtcResult`.
pub type HiprtcResult = c_int;
/// `hiprtcProgram`.
pub type HiprtcProgram = *mut c_void;

/// `HIPRTC_SUCCESS`.
pub const SUCCESS: HiprtcResult = 0;

library! {
    /// Functions of hiprtc.
    Hiprtc = Sonames {
        stem: "libhiprtc",
        package: "package hip-runtime-amd; on Debian libhiprtc6 or newer",
        is_on_runtime: false,
    };
    required {
        fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> HiprtcResult;
        fn hiprtcGetErrorString(result: HiprtcResult) -> *const c_char;
        fn hiprtcCreateProgram(
            program: *mut HiprtcProgram, source: *const c_char, name: *const c_char,
            header_count: c_int, headers: *const *const c_char, include_names: *const *const c_char,
        ) -> HiprtcResult;
        fn hiprtcCompileProgram(program: HiprtcProgram, option_count: c_int, options: *const *const c_char) -> HiprtcResult;
        fn hiprtcGetProgramLogSize(program: HiprtcProgram, bytes: *mut usize) -> HiprtcResult;
        fn hiprtcGetProgramLog(program: HiprtcProgram, log: *mut c_char) -> HiprtcResult;
        fn hiprtcGetCodeSize(program: HiprtcProgram, bytes: *mut usize) -> HiprtcResult;
        fn hiprtcGetCode(program: HiprtcProgram, code: *mut c_char) -> HiprtcResult;
        fn hiprtcDestroyProgram(program: *mut HiprtcProgram) -> HiprtcResult;
    }
    optional {}
}
