//! CUDA behind the functions of `hip-abi`.

use crate::convolution::Convolutions;
use crate::rocblas;
use hip_abi::miopen::{Backend, Outcome};
use hip_abi::rocblas::{rocblas_handle, rocblas_status, Call};
use hip_abi::Library;
use std::ffi::c_void;

struct OnCuda;

impl Library for OnCuda {
    unsafe fn gemm(&self, handle: rocblas_handle, call: Call) -> rocblas_status {
        // SAFETY: the caller's promise.
        unsafe { rocblas::gemm(handle, &call) }
    }

    fn convolutions(&self, stream: *mut c_void) -> Outcome<Box<dyn Backend>> {
        Ok(Box::new(Convolutions::new(stream)?))
    }

    fn miopen_misused(&self, finding: String) {
        eprintln!("hip-on-cuda: {finding}");
    }
}

hip_abi::provide!(OnCuda);
