//! rocBLAS over cuBLAS.
#![allow(non_snake_case, clippy::too_many_arguments)]

use super::library::table;
use super::Cuda;
use crate::rocblas::rocblas_status;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

const NOT_IMPLEMENTED: rocblas_status = 2;
const INTERNAL_ERROR: rocblas_status = 6;
const INVALID_VALUE: rocblas_status = 11;
/// `CUBLAS_GEMM_DEFAULT`.
const ALGORITHM: c_int = -1;

table! {
    /// Functions of cuBLAS.
    Cublas {
        fn cublasCreate(handle: *mut *mut c_void) = "cublasCreate_v2";
        fn cublasDestroy(handle: *mut c_void) = "cublasDestroy_v2";
        fn cublasSetStream(handle: *mut c_void, stream: *mut c_void) = "cublasSetStream_v2";
        fn cublasSetPointerMode(handle: *mut c_void, mode: c_int) = "cublasSetPointerMode_v2";
        fn cublasSetAtomicsMode(handle: *mut c_void, mode: c_int);
        fn cublasSetWorkspace(handle: *mut c_void, address: *mut c_void, bytes: usize) = "cublasSetWorkspace_v2";
        fn cublasGemmStridedBatchedEx(
            handle: *mut c_void, transpose_a: c_int, transpose_b: c_int, m: c_int, n: c_int, k: c_int,
            alpha: *const c_void,
            a: *const c_void, a_type: c_int, lda: c_int, stride_a: i64,
            b: *const c_void, b_type: c_int, ldb: c_int, stride_b: i64,
            beta: *const c_void, c: *mut c_void, c_type: c_int, ldc: c_int, stride_c: i64,
            batch_count: c_int, compute: c_int, algorithm: c_int,
        );
    }
}

/// cuBLAS, opened by the first call.
fn cublas() -> Option<&'static Cublas> {
    static CUBLAS: OnceLock<Option<Cublas>> = OnceLock::new();
    CUBLAS
        .get_or_init(|| {
            match Cublas::open(&["libcublas.so.13", "libcublas.so.12", "libcublas.so"]) {
                Ok(cublas) => Some(cublas),
                Err(message) => {
                    eprintln!("hip-sim: {message}");
                    None
                }
            }
        })
        .as_ref()
}

/// rocBLAS's status for cuBLAS's.
fn status(status: c_int) -> rocblas_status {
    match status {
        0 => 0,
        1 => 1, // not initialised
        3 => 5, // allocation failed
        7 => INVALID_VALUE,
        15 => NOT_IMPLEMENTED,
        _ => INTERNAL_ERROR,
    }
}

/// `cudaDataType` and `cublasComputeType_t` for a rocBLAS type.
fn types(rocblas: c_int) -> Option<(c_int, c_int)> {
    Some(match rocblas {
        150 => (2, 64),  // f16
        151 => (0, 68),  // f32, without TF32
        152 => (1, 70),  // f64
        168 => (14, -1), // bf16, which nothing computes in
        _ => return None,
    })
}

fn transpose(rocblas: c_int) -> Option<c_int> {
    rocblas.checked_sub(111).filter(|op| (0..3).contains(op))
}

// SAFETY: as the functions of rocBLAS of these names ask.
impl Cuda {
    fn blas(&self, call: impl FnOnce(&Cublas) -> c_int) -> rocblas_status {
        let Some(cublas) = cublas() else {
            return INTERNAL_ERROR;
        };
        let mut answer = 0;
        // cuBLAS works in the thread's context.
        match self.call(|_| {
            answer = call(cublas);
            0
        }) {
            0 => status(answer),
            _ => INTERNAL_ERROR,
        }
    }

    pub unsafe fn rocblas_create_handle(&self, handle: *mut *mut c_void) -> rocblas_status {
        self.blas(|blas| unsafe { (blas.cublasCreate)(handle) })
    }

    pub unsafe fn rocblas_destroy_handle(&self, handle: *mut c_void) -> rocblas_status {
        self.blas(|blas| unsafe { (blas.cublasDestroy)(handle) })
    }

    pub unsafe fn rocblas_set_stream(
        &self,
        handle: *mut c_void,
        stream: *mut c_void,
    ) -> rocblas_status {
        self.blas(|blas| unsafe { (blas.cublasSetStream)(handle, stream) })
    }

    pub unsafe fn rocblas_set_pointer_mode(
        &self,
        handle: *mut c_void,
        mode: c_int,
    ) -> rocblas_status {
        self.blas(|blas| unsafe { (blas.cublasSetPointerMode)(handle, mode) })
    }

    pub unsafe fn rocblas_set_atomics_mode(
        &self,
        handle: *mut c_void,
        mode: c_int,
    ) -> rocblas_status {
        self.blas(|blas| unsafe { (blas.cublasSetAtomicsMode)(handle, mode) })
    }

    pub unsafe fn rocblas_set_workspace(
        &self,
        handle: *mut c_void,
        address: *mut c_void,
        bytes: usize,
    ) -> rocblas_status {
        self.blas(|blas| unsafe { (blas.cublasSetWorkspace)(handle, address, bytes) })
    }

    /// cuBLAS adds onto the output; rocBLAS takes what is added from elsewhere, which only the product's use of it (nothing is added) has in common.
    pub unsafe fn rocblas_gemm_strided_batched_ex(
        &self,
        handle: *mut c_void,
        transpose_a: c_int,
        transpose_b: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const c_void,
        (a, a_type, lda, stride_a): (*const c_void, c_int, c_int, i64),
        (b, b_type, ldb, stride_b): (*const c_void, c_int, c_int, i64),
        beta: *const c_void,
        c: *const c_void,
        (d, d_type, ldd, stride_d): (*mut c_void, c_int, c_int, i64),
        batch_count: c_int,
        compute_type: c_int,
    ) -> rocblas_status {
        let (Some(op_a), Some(op_b)) = (transpose(transpose_a), transpose(transpose_b)) else {
            return INVALID_VALUE;
        };
        let known = [a_type, b_type, d_type, compute_type].map(types);
        let [Some((a_type, _)), Some((b_type, _)), Some((d_type, _)), Some((_, compute))] = known
        else {
            return NOT_IMPLEMENTED;
        };
        if c != d.cast_const() || compute < 0 {
            return NOT_IMPLEMENTED;
        }
        self.blas(|blas| unsafe {
            (blas.cublasGemmStridedBatchedEx)(
                handle,
                op_a,
                op_b,
                m,
                n,
                k,
                alpha,
                a,
                a_type,
                lda,
                stride_a,
                b,
                b_type,
                ldb,
                stride_b,
                beta,
                d,
                d_type,
                ldd,
                stride_d,
                batch_count,
                compute,
                ALGORITHM,
            )
        })
    }
}
