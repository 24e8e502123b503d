//! libMIOpen: convolutions. Only what shows whether the library is usable; no operation needs it yet.

use super::hip::HipStream;
use super::loader::{library, Sonames};
use std::ffi::{c_char, c_int, c_void};

/// `miopenStatus_t`.
pub type MiOpenStatus = c_int;
/// `miopenHandle_t`.
pub type MiOpenHandle = *mut c_void;

/// `miopenStatusSuccess`.
pub const SUCCESS: MiOpenStatus = 0;

library! {
    /// Functions of MIOpen.
    MiOpen = Sonames {
        stem: "libMIOpen",
        files: &["libMIOpen.so.1", "libMIOpen.so"],
        package: "package miopen-hip; on Debian libmiopen1",
    };
    required {
        fn miopenGetVersion(major: *mut usize, minor: *mut usize, patch: *mut usize) -> MiOpenStatus;
        fn miopenGetErrorString(status: MiOpenStatus) -> *const c_char;
        fn miopenCreateWithStream(handle: *mut MiOpenHandle, stream: HipStream) -> MiOpenStatus;
        fn miopenDestroy(handle: MiOpenHandle) -> MiOpenStatus;
    }
    optional {}
}
