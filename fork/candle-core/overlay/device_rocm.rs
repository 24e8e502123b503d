//! [`Device`]'s methods for ROCm. Those that ask exist without the feature too, so that callers need no `cfg`.

use crate::{Device, Result};

impl Device {
    /// The AMD GPU with this ordinal, on the stream that all devices opened so share.
    #[cfg(feature = "rocm")]
    pub fn new_rocm(ordinal: usize) -> Result<Self> {
        use crate::backend::BackendDevice;
        Ok(Self::Rocm(crate::RocmDevice::new(ordinal)?))
    }

    /// The AMD GPU with this ordinal, on a stream of its own. Its tensors do not mix with those of other devices on the
    /// same GPU: move them with [`crate::Tensor::to_device`].
    #[cfg(feature = "rocm")]
    pub fn new_rocm_with_stream(ordinal: usize) -> Result<Self> {
        Ok(Self::Rocm(crate::RocmDevice::new_with_stream(ordinal)?))
    }

    /// The ROCm device, or an error that names what this device is.
    #[cfg(feature = "rocm")]
    pub fn as_rocm_device(&self) -> Result<&crate::RocmDevice> {
        match self {
            Self::Rocm(device) => Ok(device),
            other => crate::bail!("expected a rocm device, got {:?}", other.location()),
        }
    }

    /// Whether this is a ROCm device; false without the feature `rocm`.
    pub fn is_rocm(&self) -> bool {
        #[cfg(feature = "rocm")]
        if let Self::Rocm(_) = self {
            return true;
        }
        false
    }

    /// The AMD GPU with this ordinal if one answers, else the CPU; always the CPU without the feature `rocm`.
    pub fn rocm_if_available(ordinal: usize) -> Result<Self> {
        #[cfg(feature = "rocm")]
        if rocm_is_available() {
            return Self::new_rocm(ordinal);
        }
        let _ = ordinal;
        Ok(Self::Cpu)
    }
}

/// Whether an AMD GPU answers: the feature `rocm` is on, ROCm is found and lists at least one device.
pub fn rocm_is_available() -> bool {
    #[cfg(feature = "rocm")]
    let available = candle_rocm::Device::count().is_ok_and(|count| count > 0);
    #[cfg(not(feature = "rocm"))]
    let available = false;
    available
}
