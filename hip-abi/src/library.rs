//! The library behind the functions of this crate.

use crate::miopen::{self, miopenStatus_t};
use crate::rocblas::{rocblas_handle, rocblas_status, Call};
use std::ffi::c_void;

/// What computes.
pub trait Library: Sync {
    /// Enqueues a product of rocBLAS's on the handle's stream.
    ///
    /// # Safety
    /// `alpha` and `beta` are null or point to values of the compute type, in the memory that the handle's pointer mode
    /// says; matrices are as large as the call says.
    unsafe fn gemm(&self, handle: rocblas_handle, call: Call) -> rocblas_status;

    /// What computes convolutions on a stream, for a handle of MIOpen's.
    ///
    /// # Errors
    /// The status that making the handle answers.
    fn convolutions(&self, stream: *mut c_void) -> miopen::Outcome<Box<dyn miopen::Backend>>;

    /// Learns of a call of a function of MIOpen's; a status if the call is to fail with it.
    fn miopen_called(&self, _function: &'static str) -> Option<miopenStatus_t> {
        None
    }

    /// Learns of wrong use that the real library does not notice, or dies of.
    fn miopen_misused(&self, finding: String);
}

extern "Rust" {
    fn hip_abi_library() -> &'static dyn Library;
}

pub(crate) fn library() -> &'static dyn Library {
    // SAFETY: whatever links this crate defines the function by `provide!`, with this signature.
    unsafe { hip_abi_library() }
}

/// Names the [`Library`] that this crate's functions call: a constant of its type, once in each library.
#[macro_export]
macro_rules! provide {
    ($library:expr) => {
        #[no_mangle]
        fn hip_abi_library() -> &'static dyn $crate::Library {
            &$library
        }
    };
}
