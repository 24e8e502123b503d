//! `hipError_t`: the values that are answered, their names and texts.

#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, CStr};

/// The C type of a HIP status.
#[allow(non_camel_case_types)]
pub type hipError_t = c_int;

/// Declares the error enum together with its C names and descriptions.
macro_rules! errors {
    ($($variant:ident = $value:literal, $name:literal, $text:literal;)*) => {
        /// A HIP error other than success.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        #[allow(missing_docs)]
        pub enum HipError { $($variant = $value,)* }

        const NAMES: &[(hipError_t, &CStr, &CStr)] = &[
            (0, c"hipSuccess", c"no error"),
            $(($value, $name, $text),)*
        ];
    };
}

errors! {
    InvalidValue = 1, c"hipErrorInvalidValue", c"invalid argument";
    OutOfMemory = 2, c"hipErrorOutOfMemory", c"out of memory";
    NotInitialized = 3, c"hipErrorNotInitialized", c"initialization error";
    InvalidConfiguration = 9, c"hipErrorInvalidConfiguration", c"invalid configuration argument";
    InvalidMemcpyDirection = 21, c"hipErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy";
    NoDevice = 100, c"hipErrorNoDevice", c"no ROCm-capable device is detected";
    InvalidDevice = 101, c"hipErrorInvalidDevice", c"invalid device ordinal";
    InvalidImage = 200, c"hipErrorInvalidImage", c"device kernel image is invalid";
    NoBinaryForGpu = 209, c"hipErrorNoBinaryForGpu", c"no kernel image is available for execution on the device";
    PeerAccessUnsupported = 217, c"hipErrorPeerAccessUnsupported", c"peer access is not supported between these two devices";
    InvalidHandle = 400, c"hipErrorInvalidHandle", c"invalid resource handle";
    IllegalState = 401, c"hipErrorIllegalState", c"the operation cannot be performed in the present state";
    NotFound = 500, c"hipErrorNotFound", c"named symbol not found";
    NotReady = 600, c"hipErrorNotReady", c"device not ready";
    IllegalAddress = 700, c"hipErrorIllegalAddress", c"an illegal memory access was encountered";
    PeerAccessAlreadyEnabled = 704, c"hipErrorPeerAccessAlreadyEnabled", c"peer access is already enabled";
    PeerAccessNotEnabled = 705, c"hipErrorPeerAccessNotEnabled", c"peer access has not been enabled";
    HostMemoryAlreadyRegistered = 712, c"hipErrorHostMemoryAlreadyRegistered", c"part or all of the requested memory range is already mapped";
    HostMemoryNotRegistered = 713, c"hipErrorHostMemoryNotRegistered", c"pointer does not correspond to a registered memory region";
    LaunchFailure = 719, c"hipErrorLaunchFailure", c"unspecified launch failure";
    NotSupported = 801, c"hipErrorNotSupported", c"operation not supported";
    StreamCaptureUnsupported = 900, c"hipErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing";
    StreamCaptureInvalidated = 901, c"hipErrorStreamCaptureInvalidated", c"operation failed due to a previous error during capture";
    StreamCaptureMerge = 902, c"hipErrorStreamCaptureMerge", c"operation would result in a merge of separate capture sequences";
    StreamCaptureUnmatched = 903, c"hipErrorStreamCaptureUnmatched", c"capture was not ended in the same stream as it began";
    StreamCaptureUnjoined = 904, c"hipErrorStreamCaptureUnjoined", c"capturing stream has unjoined work";
    StreamCaptureImplicit = 906, c"hipErrorStreamCaptureImplicit", c"operation would make the legacy stream depend on a capturing blocking stream";
    CapturedEvent = 907, c"hipErrorCapturedEvent", c"operation not permitted on an event last recorded in a capturing stream";
    StreamCaptureWrongThread = 908, c"hipErrorStreamCaptureWrongThread", c"attempt to terminate a thread-local capture sequence from another thread";
    GraphExecUpdateFailure = 910, c"hipErrorGraphExecUpdateFailure", c"the graph update was not performed";
    Unknown = 999, c"hipErrorUnknown", c"unknown error";
}

/// Result of what can fail with a HIP status.
pub type HipResult<T = ()> = Result<T, HipError>;

/// C name of a status, `hipErrorUnknown` for values that have none here.
#[no_mangle]
pub extern "C" fn hipGetErrorName(error: hipError_t) -> *const c_char {
    entry(error).1.as_ptr()
}

/// Description of a status.
#[no_mangle]
pub extern "C" fn hipGetErrorString(error: hipError_t) -> *const c_char {
    entry(error).2.as_ptr()
}

fn entry(code: hipError_t) -> &'static (hipError_t, &'static CStr, &'static CStr) {
    let known = NAMES.iter().find(|e| e.0 == code);
    known.unwrap_or(&NAMES[NAMES.len() - 1])
}
