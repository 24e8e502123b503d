//! libhipblaslt: matrix multiplication of 8-bit floats with scales.

use super::hip::HipStream;
use super::loader::{library, Sonames};
use std::ffi::{c_int, c_void};

/// `hipblasStatus_t`.
pub type HipBlasStatus = c_int;
/// `hipblasLtHandle_t`.
pub type Handle = *mut c_void;
/// `hipblasLtMatmulDesc_t`.
pub type MatmulDesc = *mut c_void;
/// `hipblasLtMatrixLayout_t`.
pub type MatrixLayout = *mut c_void;
/// `hipblasLtMatmulPreference_t`.
pub type Preference = *mut c_void;

/// `HIPBLAS_STATUS_SUCCESS`.
pub const SUCCESS: HipBlasStatus = 0;
/// `HIPBLAS_OP_N`.
pub const OPERATION_NONE: c_int = 111;
/// `HIPBLAS_OP_T`.
pub const OPERATION_TRANSPOSE: c_int = 112;
/// `HIPBLAS_COMPUTE_32F`.
pub const COMPUTE_F32: c_int = 2;

/// `HIP_R_32F`.
pub const DATATYPE_F32: c_int = 0;
/// `HIP_R_16F`.
pub const DATATYPE_F16: c_int = 2;
/// `HIP_R_16BF`.
pub const DATATYPE_BF16: c_int = 14;
/// `HIP_R_8F_E4M3`: bias 7, two zeros, ±448.
pub const DATATYPE_F8E4M3: c_int = 28;
/// `HIP_R_8F_E4M3_FNUZ`: bias 8, one zero, ±240.
pub const DATATYPE_F8E4M3_FNUZ: c_int = 1000;

/// `HIPBLASLT_EPILOGUE_BIAS`: a number is added to each row of the column-major result.
pub const EPILOGUE_BIAS: u32 = 4;

/// `HIPBLASLT_MATMUL_DESC_TRANSA`, an `int32_t`.
pub const DESC_TRANSPOSE_A: c_int = 0;
/// `HIPBLASLT_MATMUL_DESC_TRANSB`, an `int32_t`.
pub const DESC_TRANSPOSE_B: c_int = 1;
/// `HIPBLASLT_MATMUL_DESC_EPILOGUE`, a `uint32_t`.
pub const DESC_EPILOGUE: c_int = 2;
/// `HIPBLASLT_MATMUL_DESC_BIAS_POINTER`.
pub const DESC_BIAS: c_int = 3;
/// `HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE`, an `int32_t`.
pub const DESC_BIAS_TYPE: c_int = 4;
/// `HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER`, to f32 on the device.
pub const DESC_SCALE_A: c_int = 5;
/// `HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER`, to f32 on the device.
pub const DESC_SCALE_B: c_int = 6;
/// `HIPBLASLT_MATMUL_DESC_A_SCALE_MODE`, a `uint32_t`. ROCm 6 does not have it, and has scales of tensors only.
pub const DESC_SCALE_MODE_A: c_int = 31;
/// `HIPBLASLT_MATMUL_DESC_B_SCALE_MODE`, a `uint32_t`, likewise.
pub const DESC_SCALE_MODE_B: c_int = 32;

/// `HIPBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`: a number for each row of the first matrix, or column of the second.
pub const SCALE_OUTER_VECTOR: u32 = 3;

/// `HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`, a `uint64_t`.
pub const PREFERENCE_WORKSPACE: c_int = 1;

/// `hipblasLtMatmulAlgo_t`: a way to multiply, of one version of the library.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    data: [u8; 16],
    max_workspace_bytes: usize,
}

/// `hipblasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeuristicResult {
    /// The way.
    pub algorithm: Algorithm,
    /// Bytes of workspace that it takes.
    pub workspace_bytes: usize,
    /// Whether it is one.
    pub state: HipBlasStatus,
    waves: f32,
    reserved: [c_int; 4],
}

impl HeuristicResult {
    /// No result.
    pub const NONE: Self = HeuristicResult {
        algorithm: Algorithm {
            data: [0; 16],
            max_workspace_bytes: 0,
        },
        workspace_bytes: 0,
        state: -1,
        waves: 0.0,
        reserved: [0; 4],
    };
}

// As the header of ROCm 6.2 has it, and that of 7 does.
const _: () = assert!(size_of::<HeuristicResult>() == 56 && size_of::<Algorithm>() == 24);

library! {
    /// Functions of hipBLASLt.
    HipBlasLt = Sonames {
        stem: "libhipblaslt",
        package: "package hipblaslt; on Debian libhipblaslt1",
        is_on_runtime: true,
    };
    required {
        fn hipblasLtCreate(handle: *mut Handle) -> HipBlasStatus;
        fn hipblasLtDestroy(handle: Handle) -> HipBlasStatus;
        fn hipblasLtMatmulDescCreate(desc: *mut MatmulDesc, compute: c_int, scale_type: c_int) -> HipBlasStatus;
        fn hipblasLtMatmulDescDestroy(desc: MatmulDesc) -> HipBlasStatus;
        fn hipblasLtMatmulDescSetAttribute(
            desc: MatmulDesc, attribute: c_int, value: *const c_void, bytes: usize,
        ) -> HipBlasStatus;
        fn hipblasLtMatrixLayoutCreate(
            layout: *mut MatrixLayout, data_type: c_int, rows: u64, columns: u64, ld: i64,
        ) -> HipBlasStatus;
        fn hipblasLtMatrixLayoutDestroy(layout: MatrixLayout) -> HipBlasStatus;
        fn hipblasLtMatmulPreferenceCreate(preference: *mut Preference) -> HipBlasStatus;
        fn hipblasLtMatmulPreferenceDestroy(preference: Preference) -> HipBlasStatus;
        fn hipblasLtMatmulPreferenceSetAttribute(
            preference: Preference, attribute: c_int, value: *const c_void, bytes: usize,
        ) -> HipBlasStatus;
        fn hipblasLtMatmulAlgoGetHeuristic(
            handle: Handle, desc: MatmulDesc,
            a: MatrixLayout, b: MatrixLayout, c: MatrixLayout, d: MatrixLayout,
            preference: Preference, wanted: c_int, results: *mut HeuristicResult, found: *mut c_int,
        ) -> HipBlasStatus;
        fn hipblasLtMatmul(
            handle: Handle, desc: MatmulDesc, alpha: *const c_void,
            a: *const c_void, a_layout: MatrixLayout, b: *const c_void, b_layout: MatrixLayout,
            beta: *const c_void, c: *const c_void, c_layout: MatrixLayout, d: *mut c_void, d_layout: MatrixLayout,
            algorithm: *const Algorithm, workspace: *mut c_void, workspace_bytes: usize, stream: HipStream,
        ) -> HipBlasStatus;
    }
    optional {
        fn hipblasLtGetVersion(handle: Handle, version: *mut c_int) -> HipBlasStatus;
    }
}

/// Name of a status.
pub fn status_name(status: HipBlasStatus) -> &'static str {
    match status {
        0 => "HIPBLAS_STATUS_SUCCESS",
        1 => "HIPBLAS_STATUS_NOT_INITIALIZED",
        2 => "HIPBLAS_STATUS_ALLOC_FAILED",
        3 => "HIPBLAS_STATUS_INVALID_VALUE",
        4 => "HIPBLAS_STATUS_MAPPING_ERROR",
        5 => "HIPBLAS_STATUS_EXECUTION_FAILED",
        6 => "HIPBLAS_STATUS_INTERNAL_ERROR",
        7 => "HIPBLAS_STATUS_NOT_SUPPORTED",
        8 => "HIPBLAS_STATUS_ARCH_MISMATCH",
        9 => "HIPBLAS_STATUS_HANDLE_IS_NULLPTR",
        10 => "HIPBLAS_STATUS_INVALID_ENUM",
        11 => "HIPBLAS_STATUS_UNKNOWN",
        _ => "unknown hipBLAS status",
    }
}
