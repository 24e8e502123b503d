//! libMIOpen: convolutions.

use super::hip::HipStream;
use super::loader::{library, Sonames};
use std::ffi::{c_char, c_int, c_void};

/// `miopenStatus_t`.
pub type MiOpenStatus = c_int;
/// `miopenHandle_t`.
pub type MiOpenHandle = *mut c_void;
/// `miopenTensorDescriptor_t`.
pub type TensorDescriptor = *mut c_void;
/// `miopenConvolutionDescriptor_t`.
pub type ConvolutionDescriptor = *mut c_void;

/// `miopenStatusSuccess`.
pub const SUCCESS: MiOpenStatus = 0;
/// `miopenHalf`: IEEE f16, and never bf16.
pub const HALF: c_int = 0;
/// `miopenFloat`.
pub const FLOAT: c_int = 1;
/// `miopenBFloat16`.
pub const BFLOAT16: c_int = 5;
/// `miopenConvolution`.
pub const CONVOLUTION: c_int = 0;
/// `miopenTranspose`.
pub const TRANSPOSE: c_int = 1;
/// `MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL`: whether gfx90a computes f16 through bf16.
pub const ATTRIBUTE_FP16_ALTERNATIVE: c_int = 0;
/// `MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC`: only kernels whose results do not vary from run to run.
pub const ATTRIBUTE_DETERMINISTIC: c_int = 1;
/// `miopenConvolutionFindModeNormal`: every solution is measured.
pub const FIND_MODE_NORMAL: c_int = 1;
/// `miopenConvolutionAlgoGEMM`.
pub const ALGORITHM_GEMM: c_int = 0;
/// `miopenConvolutionAlgoDirect`.
pub const ALGORITHM_DIRECT: c_int = 1;
/// `miopenConvolutionAlgoWinograd`.
pub const ALGORITHM_WINOGRAD: c_int = 3;
/// `miopenConvolutionAlgoImplicitGEMM`.
pub const ALGORITHM_IMPLICIT_GEMM: c_int = 5;

/// `miopenConvSolution_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Solution {
    /// Milliseconds, measured or estimated; negative if only the order means something.
    pub time: f32,
    /// Bytes that it needs besides the tensors.
    pub workspace_size: usize,
    /// Which solver: a number that keeps its meaning over releases.
    pub solution_id: u64,
    /// `miopenConvAlgorithm_t`.
    pub algorithm: c_int,
}

/// `miopenConvAlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AlgorithmPerformance {
    /// `miopenConvFwdAlgorithm_t`, or that of the backward direction.
    pub algorithm: c_int,
    /// Milliseconds.
    pub time: f32,
    /// Bytes of workspace.
    pub memory: usize,
}

library! {
    /// Functions of MIOpen.
    MiOpen = Sonames {
        stem: "libMIOpen",
        package: "package miopen-hip; on Debian libmiopen1",
        is_on_runtime: true,
    };
    required {
        fn miopenGetVersion(major: *mut usize, minor: *mut usize, patch: *mut usize) -> MiOpenStatus;
        fn miopenGetErrorString(status: MiOpenStatus) -> *const c_char;
        fn miopenCreateWithStream(handle: *mut MiOpenHandle, stream: HipStream) -> MiOpenStatus;
        fn miopenDestroy(handle: MiOpenHandle) -> MiOpenStatus;
        fn miopenCreateTensorDescriptor(tensor: *mut TensorDescriptor) -> MiOpenStatus;
        fn miopenSetTensorDescriptor(
            tensor: TensorDescriptor, data_type: c_int, rank: c_int, dims: *const c_int, strides: *const c_int,
        ) -> MiOpenStatus;
        fn miopenDestroyTensorDescriptor(tensor: TensorDescriptor) -> MiOpenStatus;
        fn miopenCreateConvolutionDescriptor(convolution: *mut ConvolutionDescriptor) -> MiOpenStatus;
        fn miopenInitConvolutionDescriptor(
            convolution: ConvolutionDescriptor, mode: c_int,
            pad_h: c_int, pad_w: c_int, stride_h: c_int, stride_w: c_int, dilation_h: c_int, dilation_w: c_int,
        ) -> MiOpenStatus;
        fn miopenSetTransposeConvOutputPadding(
            convolution: ConvolutionDescriptor, adjustment_h: c_int, adjustment_w: c_int,
        ) -> MiOpenStatus;
        fn miopenSetConvolutionAttribute(
            convolution: ConvolutionDescriptor, attribute: c_int, value: c_int,
        ) -> MiOpenStatus;
        fn miopenSetConvolutionFindMode(convolution: ConvolutionDescriptor, mode: c_int) -> MiOpenStatus;
        fn miopenGetConvolutionForwardOutputDim(
            convolution: ConvolutionDescriptor, x: TensorDescriptor, w: TensorDescriptor,
            n: *mut c_int, c: *mut c_int, height: *mut c_int, width: *mut c_int,
        ) -> MiOpenStatus;
        fn miopenDestroyConvolutionDescriptor(convolution: ConvolutionDescriptor) -> MiOpenStatus;
        fn miopenConvolutionForwardGetSolutionCount(
            handle: MiOpenHandle, w: TensorDescriptor, x: TensorDescriptor,
            convolution: ConvolutionDescriptor, y: TensorDescriptor, count: *mut usize,
        ) -> MiOpenStatus;
        fn miopenConvolutionForwardGetSolution(
            handle: MiOpenHandle, w: TensorDescriptor, x: TensorDescriptor,
            convolution: ConvolutionDescriptor, y: TensorDescriptor,
            room: usize, count: *mut usize, solutions: *mut Solution,
        ) -> MiOpenStatus;
        fn miopenConvolutionForwardCompileSolution(
            handle: MiOpenHandle, w: TensorDescriptor, x: TensorDescriptor,
            convolution: ConvolutionDescriptor, y: TensorDescriptor, solution: u64,
        ) -> MiOpenStatus;
        fn miopenConvolutionForwardImmediate(
            handle: MiOpenHandle, w_desc: TensorDescriptor, w: *const c_void, x_desc: TensorDescriptor, x: *const c_void,
            convolution: ConvolutionDescriptor, y_desc: TensorDescriptor, y: *mut c_void,
            workspace: *mut c_void, workspace_size: usize, solution: u64,
        ) -> MiOpenStatus;
        fn miopenConvolutionForwardGetWorkSpaceSize(
            handle: MiOpenHandle, w: TensorDescriptor, x: TensorDescriptor,
            convolution: ConvolutionDescriptor, y: TensorDescriptor, bytes: *mut usize,
        ) -> MiOpenStatus;
        fn miopenFindConvolutionForwardAlgorithm(
            handle: MiOpenHandle, x_desc: TensorDescriptor, x: *const c_void, w_desc: TensorDescriptor, w: *const c_void,
            convolution: ConvolutionDescriptor, y_desc: TensorDescriptor, y: *mut c_void,
            room: c_int, count: *mut c_int, results: *mut AlgorithmPerformance,
            workspace: *mut c_void, workspace_size: usize, exhaustive: bool,
        ) -> MiOpenStatus;
    }
    optional {
        fn miopenGetTensorDescriptor(
            tensor: TensorDescriptor, data_type: *mut c_int, dims: *mut c_int, strides: *mut c_int,
        ) -> MiOpenStatus;
        fn miopenGetConvolutionDescriptor(
            convolution: ConvolutionDescriptor, mode: *mut c_int,
            pad_h: *mut c_int, pad_w: *mut c_int, stride_h: *mut c_int, stride_w: *mut c_int,
            dilation_h: *mut c_int, dilation_w: *mut c_int,
        ) -> MiOpenStatus;
    }
}

/// Name of a status.
pub fn status_name(status: MiOpenStatus) -> &'static str {
    match status {
        0 => "miopenStatusSuccess",
        1 => "miopenStatusNotInitialized",
        2 => "miopenStatusInvalidValue",
        3 => "miopenStatusBadParm",
        4 => "miopenStatusAllocFailed",
        5 => "miopenStatusInternalError",
        6 => "miopenStatusNotImplemented",
        7 => "miopenStatusUnknownError",
        8 => "miopenStatusUnsupportedOp",
        9 => "miopenStatusGpuOperationsSkipped",
        10 => "miopenStatusVersionMismatch",
        _ => "unknown MIOpen status",
    }
}
