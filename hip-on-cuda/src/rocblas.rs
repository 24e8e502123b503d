//! rocBLAS over cuBLAS.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

pub use hip_abi::rocblas::*;

use crate::cuda::call;
use crate::table::table;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

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
                    eprintln!("hip-on-cuda: {message}");
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

fn blas(call_blas: impl FnOnce(&Cublas) -> c_int) -> rocblas_status {
    let Some(cublas) = cublas() else {
        return INTERNAL_ERROR;
    };
    let mut answer = 0;
    // cuBLAS works in the thread's context.
    match call(|_| {
        answer = call_blas(cublas);
        0
    }) {
        0 => status(answer),
        _ => INTERNAL_ERROR,
    }
}

/// Defines functions that cuBLAS has under another name: handles and modes are the same.
macro_rules! forward {
    ($(fn $rocblas:ident($($argument:ident: $type:ty),*) = $cublas:ident;)*) => {
        $(
            #[no_mangle]
            pub unsafe extern "C" fn $rocblas($($argument: $type),*) -> rocblas_status {
                // SAFETY: the caller promises what rocBLAS asks for (pointers are writable, handles and streams alive,
                // memory as large as said), and cuBLAS's function, which does the same, asks for no more.
                blas(|blas| unsafe { (blas.$cublas)($($argument),*) })
            }
        )*
    };
}

forward! {
    fn rocblas_create_handle(handle: *mut rocblas_handle) = cublasCreate;
    fn rocblas_destroy_handle(handle: rocblas_handle) = cublasDestroy;
    fn rocblas_set_stream(handle: rocblas_handle, stream: *mut c_void) = cublasSetStream;
    fn rocblas_set_pointer_mode(handle: rocblas_handle, mode: c_int) = cublasSetPointerMode;
    fn rocblas_set_atomics_mode(handle: rocblas_handle, mode: c_int) = cublasSetAtomicsMode;
    fn rocblas_set_workspace(handle: rocblas_handle, address: *mut c_void, bytes: usize) = cublasSetWorkspace;
}

/// Defines functions that candle-rocm does not call.
macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[no_mangle]
            pub extern "C" fn $name() -> rocblas_status {
                NOT_IMPLEMENTED
            }
        )*
    };
}

unsupported! {
    rocblas_get_stream
    rocblas_get_pointer_mode
    rocblas_get_atomics_mode
}

/// cuBLAS adds onto the output; rocBLAS takes what is added from elsewhere, which only the product's use of it (nothing
/// is added) has in common.
///
/// # Safety
/// Scalars and matrices lie where the handle's pointer mode says and are as large as the call says; the handle is
/// alive.
pub(crate) unsafe fn gemm(handle: rocblas_handle, product: &Call) -> rocblas_status {
    let (Some(op_a), Some(op_b)) = (transpose(product.trans_a), transpose(product.trans_b)) else {
        return INVALID_VALUE;
    };
    let Call { a, b, c, d, .. } = product;
    let known = [a.kind, b.kind, d.kind, product.compute].map(types);
    let [Some((a_type, _)), Some((b_type, _)), Some((d_type, _)), Some((_, compute))] = known
    else {
        return NOT_IMPLEMENTED;
    };
    if c.pointer != d.pointer || compute < 0 {
        return NOT_IMPLEMENTED;
    }
    // SAFETY: the caller's promise.
    blas(|blas| unsafe {
        (blas.cublasGemmStridedBatchedEx)(
            handle,
            op_a,
            op_b,
            product.m,
            product.n,
            product.k,
            product.alpha,
            a.pointer,
            a_type,
            a.ld,
            a.stride,
            b.pointer,
            b_type,
            b.ld,
            b.stride,
            product.beta,
            d.pointer.cast_mut(),
            d_type,
            d.ld,
            d.stride,
            product.batch,
            compute,
            ALGORITHM,
        )
    })
}
