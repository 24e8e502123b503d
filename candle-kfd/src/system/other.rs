//! Systems without the driver.

use crate::driver::{Driver, Errno};
use crate::{Error, Result};
use std::fs::File;
use std::sync::Arc;

/// There is none.
pub(crate) fn driver() -> Result<Arc<dyn Driver>> {
    Err(Error::System {
        system: std::env::consts::OS,
    })
}

/// Files have no numbers that a driver would know.
pub(crate) fn descriptor(_: &File) -> std::result::Result<u32, Errno> {
    Err(Errno(libc::ENODEV))
}

/// Not known; nothing is mapped.
pub(crate) fn page_bytes() -> usize {
    0
}

/// No addresses can be shared with a GPU.
pub(crate) fn reserve(_: Option<usize>, _: usize) -> std::result::Result<usize, Errno> {
    Err(Errno(libc::ENODEV))
}

/// Nothing was reserved.
///
/// # Safety
/// None is needed; it is a promise elsewhere.
pub(crate) unsafe fn release(_: usize, _: usize) {}

/// Processes are not copied.
pub(crate) fn forks() -> u64 {
    0
}
