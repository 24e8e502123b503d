//! Errors of the ROCm back end.

use crate::{DType, Error};

/// An error of the ROCm back end.
#[derive(Debug, thiserror::Error)]
pub enum RocmError {
    /// The device layer's error: a failed call, launch, or argument. Boxed, so that candle's results stay small.
    #[error(transparent)]
    Device(Box<candle_rocm::Error>),
    /// The operation has no ROCm implementation yet.
    #[error("{op} is not implemented on ROCm yet; move its inputs to the CPU with to_device(&Device::Cpu)")]
    NotImplemented {
        /// The operation.
        op: &'static str,
    },
    /// candle stores this dtype but no operation computes with it.
    #[error("{op} is not available for {dtype:?} on ROCm")]
    UnsupportedDType {
        /// The operation.
        op: &'static str,
        /// The dtype it lacks.
        dtype: DType,
    },
    /// Something else, in words.
    #[error("{0}")]
    Message(String),
}

impl From<String> for RocmError {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}

impl From<candle_rocm::Error> for RocmError {
    fn from(error: candle_rocm::Error) -> Self {
        Self::Device(Box::new(error))
    }
}

impl From<candle_rocm::Error> for Error {
    fn from(error: candle_rocm::Error) -> Self {
        Error::Rocm(error.into()).bt()
    }
}
