//! What a failed computation says about its device.

use candle_core::{Device, Error, Tensor};
use std::fmt::Display;
use std::path::Path;

/// What an error of a computation means for whoever runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceFault {
    /// The device's memory does not suffice for this computation; others go on.
    Memory(String),
    /// The device answers no more.
    Lost(String),
    /// Something else.
    Other(String),
}

/// An error that may say that a device's memory ran out.
pub trait OutOfMemory {
    /// Whether it says so. The CPU's memory is the system's business.
    fn is_out_of_memory(&self) -> bool;
}

impl OutOfMemory for Error {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Error::Rocm(candle_core::rocm_backend::RocmError::Device(error)) => {
                error.is_out_of_memory()
            }
            Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } => {
                inner.is_out_of_memory()
            }
            Error::WithPath { inner, .. } => inner.is_out_of_memory(),
            _ => false,
        }
    }
}

impl OutOfMemory for crate::Error {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, crate::Error::Candle { source, .. } if source.is_out_of_memory())
    }
}

/// Whether a device failed, rather than what it was to compute with.
pub fn is_of_device(error: &Error) -> bool {
    match error {
        Error::Rocm(_) => true,
        Error::WithBacktrace { inner, .. }
        | Error::Context { inner, .. }
        | Error::WithPath { inner, .. } => is_of_device(inner),
        _ => false,
    }
}

/// For `map_err` on computing with what a file says: unless the device failed, the file is at fault.
pub fn of_file(context: &'static str, path: &Path) -> impl Fn(Error) -> crate::Error {
    let path = path.to_path_buf();
    move |source| match is_of_device(&source) {
        true => crate::Error::Candle { context, source },
        false => crate::Error::BadModel {
            path: path.clone(),
            reason: format!("{context}: {source}"),
        },
    }
}

/// Finds out what an error means; asks the device whether it still answers.
pub fn diagnose(device: &Device, error: &(impl OutOfMemory + Display)) -> DeviceFault {
    let text = error.to_string();
    if error.is_out_of_memory() {
        return DeviceFault::Memory(text);
    }
    let answers = || Tensor::new(&[1u32], device)?.to_vec1::<u32>();
    match answers() {
        Ok(numbers) if numbers == [1] => DeviceFault::Other(text),
        Ok(_) => DeviceFault::Lost(format!("{text}; then it copied wrongly")),
        Err(second) if second.is_out_of_memory() => DeviceFault::Other(text),
        Err(second) => DeviceFault::Lost(format!("{text}; then {second}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_memory_are_no_proof() {
        let error = crate::Error::Runtime("out of memory, says a file".to_string());
        let fault = diagnose(&Device::Cpu, &error);
        assert_eq!(fault, DeviceFault::Other(error.to_string()));
    }

    #[test]
    fn the_device_layers_error_is_found_under_its_wrappings() {
        use candle_core::rocm_backend::RocmError;
        let device = candle_rocm::Error::OutOfMemory {
            ordinal: 0,
            requested: 5,
            free: 4,
            total: 9,
            cached: 0,
            live: 0,
        };
        let error = Error::Rocm(RocmError::Device(Box::new(device))).context("a layer");
        assert!(error.is_out_of_memory());
        assert!(is_of_device(&error));
        let other = of_file("a step", Path::new("x"))(Error::Msg("a shape".to_string()));
        assert_eq!(other.exit_code(), crate::error::EXIT_BAD_INPUT);
        let error = crate::Error::candle("a step")(error);
        assert!(matches!(
            diagnose(&Device::Cpu, &error),
            DeviceFault::Memory(_)
        ));
    }
}
