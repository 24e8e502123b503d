//! A driver between a test and the mock.

use candle_kfd::driver::{Driver, Errno, MappedFile};
use candle_kfd::mock::Mock;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// The mock, whose requests go through `ioctl`, which has its promise from the caller of [`Driver::ioctl`].
pub struct Through<F> {
    pub mock: Arc<Mock>,
    pub ioctl: F,
}

impl<F> fmt::Debug for Through<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Through").finish_non_exhaustive()
    }
}

impl<F> Driver for Through<F>
where
    F: Fn(&Mock, u32, &mut [u8]) -> Result<(), Errno> + Send + Sync,
{
    unsafe fn ioctl(&self, number: u32, argument: &mut [u8]) -> Result<(), Errno> {
        (self.ioctl)(&self.mock, number, argument)
    }

    fn open_render(&self, minor: u32) -> Result<File, Errno> {
        self.mock.open_render(minor)
    }

    unsafe fn map(
        &self,
        file: MappedFile<'_>,
        offset: u64,
        address: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.mock.map(file, offset, address, bytes) }
    }

    fn root(&self) -> &Path {
        self.mock.root()
    }
}
