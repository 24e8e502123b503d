//! The simulator behind the functions of `hip-abi`.

use crate::hip::stream::hipStream_t;
use crate::miopen::{self, Simulated};
use crate::rocblas;
use crate::sim::sim;
use hip_abi::miopen::{miopenStatus_t, Backend, Outcome};
use hip_abi::rocblas::{rocblas_handle, rocblas_status, Call};
use hip_abi::Library;

struct Simulator;

impl Library for Simulator {
    unsafe fn gemm(&self, handle: rocblas_handle, call: Call) -> rocblas_status {
        // SAFETY: the caller's promise.
        unsafe { rocblas::submit(handle, call) }
    }

    fn convolutions(&self, stream: hipStream_t) -> Outcome<Box<dyn Backend>> {
        Ok(Box::new(Simulated::new(stream)?))
    }

    fn miopen_called(&self, function: &'static str) -> Option<miopenStatus_t> {
        miopen::count(function)
    }

    fn miopen_misused(&self, finding: String) {
        sim().reports.add(finding);
    }
}

hip_abi::provide!(Simulator);
