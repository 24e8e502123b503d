//! What can go wrong, with the values needed to act on it.

use crate::sys::LoadError;
use crate::DType;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the device layer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library of ROCm could not be used.
    #[error(transparent)]
    Load(#[from] LoadError),

    /// The libraries are there, but no AMD GPU answers.
    #[error("no AMD GPU is available: {reason}")]
    NoDevice {
        /// What was found instead, and what to do about it.
        reason: String,
    },

    /// A result could not be kept on disk.
    #[error("{}: {reason}; CANDLE_ROCM_CACHE_DIR names another folder", path.display())]
    Cache {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        reason: String,
    },

    /// The ordinal names no device.
    #[error("there is no device {ordinal}: {count} AMD GPU(s) are visible, numbered from 0 (HIP_VISIBLE_DEVICES chooses which)")]
    InvalidOrdinal {
        /// The ordinal asked for.
        ordinal: usize,
        /// Visible devices.
        count: usize,
    },

    /// A call into HIP failed.
    #[error("{call} failed on device {ordinal}: {name} ({code}): {description}")]
    Hip {
        /// The HIP function.
        call: &'static str,
        /// Device that was current.
        ordinal: usize,
        /// HIP's error number.
        code: i32,
        /// HIP's name for it.
        name: String,
        /// HIP's description of it.
        description: String,
    },

    /// A call into rocBLAS failed.
    #[error("{call} failed on {arch}: {status} ({code}); {context}")]
    Blas {
        /// The rocBLAS function.
        call: &'static str,
        /// Architecture of the device.
        arch: String,
        /// rocBLAS's status number.
        code: i32,
        /// Name of the status.
        status: &'static str,
        /// Operand shapes, or what to do.
        context: String,
    },

    /// A call into MIOpen failed.
    #[error("{call} failed on {arch}: {status} ({code}); {context}")]
    MiOpen {
        /// The MIOpen function.
        call: &'static str,
        /// Architecture of the device.
        arch: String,
        /// MIOpen's status number.
        code: i32,
        /// Name of the status.
        status: &'static str,
        /// The convolution, or what to do.
        context: String,
    },

    /// Device memory is exhausted, even after the cache was emptied.
    #[error(
        "out of device memory on device {ordinal}: {requested} bytes asked for, {free} of {total} bytes free, \
         {live} bytes in live buffers, {cached} bytes cached before the cache was emptied; \
         use a smaller model, batch or context, or another device"
    )]
    OutOfMemory {
        /// Device that is full.
        ordinal: usize,
        /// Bytes asked for.
        requested: usize,
        /// Free bytes on the device after the cache was emptied.
        free: usize,
        /// Memory of the device, in bytes.
        total: usize,
        /// Bytes that the cache held when the request first failed.
        cached: usize,
        /// Bytes in this device's live buffers.
        live: usize,
    },

    /// A kernel was not accepted for execution.
    #[error("launch of {kernel} on {arch} failed (grid {grid}, block {block}, {shared_bytes} bytes of shared memory): {name} ({code}): {description}")]
    Launch {
        /// Kernel's name.
        kernel: String,
        /// Architecture of the device.
        arch: String,
        /// Blocks.
        grid: u32,
        /// Threads of a block.
        block: u32,
        /// Dynamic shared memory of a block.
        shared_bytes: u32,
        /// HIP's error number.
        code: i32,
        /// HIP's name for it.
        name: String,
        /// HIP's description of it.
        description: String,
    },

    /// Arguments or sizes that no kernel can be launched with.
    #[error("invalid launch of {kernel}: {reason}")]
    InvalidLaunch {
        /// Kernel's name.
        kernel: String,
        /// What is wrong.
        reason: String,
    },

    /// A kernel could not be compiled or loaded.
    #[error("kernel {kernel} cannot be made for {arch}: {reason}")]
    Compile {
        /// Kernel or family.
        kernel: String,
        /// Architecture of the device.
        arch: String,
        /// The compiler's message.
        reason: String,
    },

    /// Verification found that the kernel gives wrong results on this GPU, and there is nothing to take its place.
    #[error(
        "{kernel} is switched off on {arch}, as it gave a wrong result when it was verified: {reason}; update ROCm and \
         the GPU's driver, and report this; CANDLE_ROCM_VERIFY=always verifies it again"
    )]
    SwitchedOff {
        /// The kernel, or the library's function.
        kernel: String,
        /// Architecture of the device.
        arch: String,
        /// What was found.
        reason: String,
    },

    /// An index operand pointed outside of the tensor.
    #[error("{op}: index {index} is out of range for a dimension of size {size}")]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The offending index.
        index: i64,
        /// Size of the indexed dimension.
        size: usize,
    },

    /// The operation does not exist for the element type.
    #[error(
        "{op} is not available for {dtype} on ROCm; convert the tensor to another dtype first"
    )]
    UnsupportedDType {
        /// The operation.
        op: &'static str,
        /// The dtype that it lacks.
        dtype: DType,
    },

    /// Operands whose element types should agree do not.
    #[error("{op}: operands have different dtypes, {lhs} and {rhs}; convert one of them")]
    DTypeMismatch {
        /// The operation.
        op: &'static str,
        /// First operand.
        lhs: DType,
        /// Second operand.
        rhs: DType,
    },

    /// Operands whose shapes do not fit together.
    #[error("{op}: shapes {lhs:?} and {rhs:?} do not fit together")]
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// First operand.
        lhs: Vec<usize>,
        /// Second operand.
        rhs: Vec<usize>,
    },

    /// An argument of an operation is out of its domain.
    #[error("{op}: {reason}")]
    InvalidArgument {
        /// The operation.
        op: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },

    /// A size is beyond what a kernel or library can address.
    #[error("{op}: {what} is {value}, more than the limit of {limit}; split the tensor")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// The quantity.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The largest supported value.
        limit: usize,
    },

    /// A view is malformed or leaves its buffer.
    #[error("{op}: a {dtype} view with offset {offset}, dims {dims:?} and strides {strides:?} does not fit its buffer of {buffer_bytes} bytes")]
    InvalidView {
        /// The operation.
        op: &'static str,
        /// Element type.
        dtype: DType,
        /// Offset in elements.
        offset: usize,
        /// Sizes.
        dims: Vec<usize>,
        /// Strides in elements.
        strides: Vec<usize>,
        /// Size of the buffer.
        buffer_bytes: usize,
    },

    /// A byte range leaves its buffer.
    #[error("{op}: bytes {offset}..{offset}+{bytes} leave a buffer of {buffer_bytes} bytes")]
    OutOfBounds {
        /// The operation.
        op: &'static str,
        /// First byte.
        offset: usize,
        /// Length.
        bytes: usize,
        /// Size of the buffer.
        buffer_bytes: usize,
    },

    /// Memory of one device was handed to another.
    #[error(
        "{op}: operands belong to different devices or streams; copy them to one device first"
    )]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
    },

    /// A call that freed something failed; it is reported by the next call on the device.
    #[error("an earlier release of device resources failed: {0}")]
    Deferred(Box<Error>),
}

impl Error {
    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. })
    }

    /// Whether a kernel was found to be wrong: then another way may lead to the result.
    pub fn is_switched_off(&self) -> bool {
        matches!(self, Error::SwitchedOff { .. })
    }

    /// Whether no device answers: no ROCm, no driver, or no GPU.
    pub fn is_no_device(&self) -> bool {
        matches!(
            self,
            Error::Load(_) | Error::NoDevice { .. } | Error::InvalidOrdinal { .. }
        )
    }
}
