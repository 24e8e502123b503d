//! What the engine asks of devices beyond tensors: memory, and what an error means.

use candle_core::rocm_backend::RocmError;
use candle_core::{Device, Error, Tensor};

/// What an error of a forward pass means for the engine.
#[derive(Debug)]
pub(super) enum DeviceFault {
    /// The device's memory does not suffice.
    OutOfMemory(String),
    /// The device answers no more.
    Lost(String),
    /// Something else.
    Other(String),
}

/// Finds out what an error means; asks the device whether it still answers.
pub(super) fn diagnose(device: &Device, error: Error) -> DeviceFault {
    if is_out_of_memory(&error) {
        return DeviceFault::OutOfMemory(error.to_string());
    }
    let answers = || Tensor::new(&[1u32], device)?.to_vec1::<u32>();
    match answers() {
        Ok(numbers) if numbers == [1] => DeviceFault::Other(error.to_string()),
        Ok(_) => DeviceFault::Lost(format!("{error}; then it copied wrongly")),
        Err(second) if is_out_of_memory(&second) => DeviceFault::Other(error.to_string()),
        Err(second) => DeviceFault::Lost(format!("{error}; then {second}")),
    }
}

/// Whether an error says that the device's memory does not suffice. The CPU's memory is the system's business.
pub(super) fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::Rocm(RocmError::Device(error)) => error.is_out_of_memory(),
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } => {
            is_out_of_memory(inner)
        }
        Error::WithPath { inner, .. } => is_out_of_memory(inner),
        _ => false,
    }
}

/// What was enqueued on a device so far; nothing for one that does not count.
pub(super) fn launches(device: &Device) -> u64 {
    match device {
        Device::Rocm(device) => device.device().launches(),
        _ => 0,
    }
}

/// Free and total bytes of a device's memory, where it is known.
pub(super) fn memory(device: &Device) -> Option<(u64, u64)> {
    match device {
        Device::Rocm(device) => {
            let (free, total) = device.device().memory_info().ok()?;
            Some((free as u64, total as u64))
        }
        _ => None,
    }
}

/// Bytes that the cache of keys and values may take: most of what is free, for there are activations as well.
pub(super) fn room_for_cache(device: &Device) -> Option<u64> {
    if device.is_cpu() {
        // The system lends what other programs may need: half of it.
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        return Some(kib * 1024 / 2);
    }
    memory(device).map(|(free, _)| free / 10 * 9)
}
