//! What `hip-abi` asks for, which is not here: products and convolutions.

use hip_abi::miopen::{Backend, Failure, Outcome};
use hip_abi::rocblas::{rocblas_handle, rocblas_status, Call};
use hip_abi::Library;
use std::ffi::c_void;

/// `rocblas_status_not_implemented`.
const NOT_IMPLEMENTED: rocblas_status = 2;

struct NoProducts;

impl Library for NoProducts {
    unsafe fn gemm(&self, _handle: rocblas_handle, _call: Call) -> rocblas_status {
        NOT_IMPLEMENTED
    }

    fn convolutions(&self, _stream: *mut c_void) -> Outcome<Box<dyn Backend>> {
        Err(Failure::NotImplemented)
    }

    fn miopen_misused(&self, finding: String) {
        eprintln!("hip-on-kfd: {finding}");
    }
}

hip_abi::provide!(NoProducts);
