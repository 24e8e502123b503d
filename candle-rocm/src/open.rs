//! Opening a device: where its settings come from, and how its kernels are verified.

use crate::config::Config;
use crate::shared::Shared;
use crate::verify::checks::CHECKS;
use crate::verify::install;
use crate::{Device, Result, Stream};
use std::ffi::c_void;

impl Device {
    /// A device with a stream and an allocator of its own, and the given settings.
    ///
    /// # Errors
    /// Those of [`Device::count`], and [`Error::InvalidOrdinal`].
    pub fn with_config(ordinal: usize, config: Config) -> Result<Self> {
        let shared = open(ordinal)?;
        Self::on(shared, Stream::new(&shared.gpu)?, config)
    }

    /// A device on a stream that the caller made, for working together with other users of HIP.
    ///
    /// # Safety
    /// `stream` is a `hipStream_t` of this ordinal, or null for its default stream, and outlives every
    /// clone of the device and every buffer made from it.
    ///
    /// # Errors
    /// Those of [`Device::new`].
    pub unsafe fn from_raw_stream(ordinal: usize, stream: *mut c_void) -> Result<Self> {
        let shared = open(ordinal)?;
        let config = Config::from_env()?;
        // SAFETY: as the caller promises.
        let stream = unsafe { Stream::borrowed(&shared.gpu, stream) };
        Self::on(shared, stream, config)
    }
}

/// The GPU, bound, with the checks of its kernels at hand.
fn open(ordinal: usize) -> Result<&'static Shared> {
    install(&CHECKS);
    let shared = Shared::get(ordinal)?;
    shared.gpu.enter()?;
    Ok(shared)
}
