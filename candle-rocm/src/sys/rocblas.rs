//! librocblas: matrix multiplication.

use super::hip::HipStream;
use super::loader::{library, Sonames};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `rocblas_status`.
pub type RocBlasStatus = c_int;
/// `rocblas_handle`.
pub type RocBlasHandle = *mut c_void;

/// `rocblas_status_success`.
pub const SUCCESS: RocBlasStatus = 0;
/// `rocblas_operation_none`.
pub const OPERATION_NONE: c_int = 111;
/// `rocblas_operation_transpose`.
pub const OPERATION_TRANSPOSE: c_int = 112;
/// `rocblas_datatype_f16_r`.
pub const DATATYPE_F16: c_int = 150;
/// `rocblas_datatype_f32_r`.
pub const DATATYPE_F32: c_int = 151;
/// `rocblas_datatype_f64_r`.
pub const DATATYPE_F64: c_int = 152;
/// `rocblas_datatype_bf16_r`.
pub const DATATYPE_BF16: c_int = 168;
/// `rocblas_gemm_algo_standard`.
pub const GEMM_ALGO_STANDARD: c_int = 0;
/// `rocblas_gemm_flags_none`.
pub const GEMM_FLAGS_NONE: c_uint = 0;
/// `rocblas_pointer_mode_host`.
pub const POINTER_MODE_HOST: c_int = 0;
/// `rocblas_atomics_not_allowed`: results do not depend on the order of execution.
pub const ATOMICS_NOT_ALLOWED: c_int = 0;

library! {
    /// Functions of rocBLAS.
    RocBlas = Sonames {
        stem: "librocblas",
        package: "package rocblas; on Debian librocblas4 or newer",
        is_on_runtime: true,
    };
    required {
        fn rocblas_create_handle(handle: *mut RocBlasHandle) -> RocBlasStatus;
        fn rocblas_destroy_handle(handle: RocBlasHandle) -> RocBlasStatus;
        fn rocblas_set_stream(handle: RocBlasHandle, stream: HipStream) -> RocBlasStatus;
        fn rocblas_set_pointer_mode(handle: RocBlasHandle, mode: c_int) -> RocBlasStatus;
        fn rocblas_set_workspace(handle: RocBlasHandle, address: *mut c_void, bytes: usize) -> RocBlasStatus;
        fn rocblas_gemm_strided_batched_ex(
            handle: RocBlasHandle, transpose_a: c_int, transpose_b: c_int,
            m: c_int, n: c_int, k: c_int,
            alpha: *const c_void,
            a: *const c_void, a_type: c_int, lda: c_int, stride_a: i64,
            b: *const c_void, b_type: c_int, ldb: c_int, stride_b: i64,
            beta: *const c_void,
            c: *const c_void, c_type: c_int, ldc: c_int, stride_c: i64,
            d: *mut c_void, d_type: c_int, ldd: c_int, stride_d: i64,
            batch_count: c_int, compute_type: c_int, algo: c_int, solution_index: i32, flags: c_uint,
        ) -> RocBlasStatus;
    }
    optional {
        fn rocblas_set_atomics_mode(handle: RocBlasHandle, mode: c_int) -> RocBlasStatus;
        fn rocblas_get_version_string_size(bytes: *mut usize) -> RocBlasStatus;
        fn rocblas_get_version_string(text: *mut c_char, bytes: usize) -> RocBlasStatus;
    }
}

/// Name of a status.
pub fn status_name(status: RocBlasStatus) -> &'static str {
    match status {
        0 => "rocblas_status_success",
        1 => "rocblas_status_invalid_handle",
        2 => "rocblas_status_not_implemented",
        3 => "rocblas_status_invalid_pointer",
        4 => "rocblas_status_invalid_size",
        5 => "rocblas_status_memory_error",
        6 => "rocblas_status_internal_error",
        7 => "rocblas_status_perf_degraded",
        8 => "rocblas_status_size_query_mismatch",
        9 => "rocblas_status_size_increased",
        10 => "rocblas_status_size_unchanged",
        11 => "rocblas_status_invalid_value",
        12 => "rocblas_status_continue",
        13 => "rocblas_status_check_numerics_fail",
        14 => "rocblas_status_excluded_from_build",
        15 => "rocblas_status_arch_mismatch",
        _ => "unknown rocBLAS status",
    }
}
