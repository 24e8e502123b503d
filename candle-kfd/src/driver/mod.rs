//! What a process asks of the driver.
//!
//! `Kernel` is the kernel's own, on Linux; tests put another in its place.

#[cfg(target_os = "linux")]
mod kernel;

use crate::uapi::Request;
use crate::{Error, Result};
#[cfg(target_os = "linux")]
pub use kernel::Kernel;
use std::fmt;
use std::fs::File;
use std::path::Path;

/// A number of `errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The calling thread's last one.
    pub fn last() -> Self {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// The file that is mapped.
#[derive(Clone, Copy, Debug)]
pub enum MappedFile<'a> {
    /// `/dev/kfd`: doorbells.
    Kfd,
    /// A render node: memory.
    Render(&'a File),
}

/// A driver with the interface of `/dev/kfd`.
pub trait Driver: fmt::Debug + Send + Sync {
    /// A request on `/dev/kfd`: its number, and the bytes of its structure, which the driver changes.
    ///
    /// # Safety
    /// Addresses in the structure must be those of memory that the request may read or write as the kernel's header says.
    ///
    /// # Errors
    /// The driver's reason.
    unsafe fn ioctl(&self, number: u32, argument: &mut [u8]) -> std::result::Result<(), Errno>;

    /// Opens `/dev/dri/renderD<minor>`.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open_render(&self, minor: u32) -> std::result::Result<File, Errno>;

    /// Maps `bytes` of a file from `offset` on, shared and writable, at an address that the caller has reserved.
    ///
    /// # Safety
    /// `address..address + bytes` must be a reservation of the caller's that nothing else refers to.
    ///
    /// # Errors
    /// Why it cannot be mapped.
    unsafe fn map(
        &self,
        file: MappedFile<'_>,
        offset: u64,
        address: usize,
        bytes: usize,
    ) -> std::result::Result<(), Errno>;

    /// The folder under which `sys/class/kfd` and `sys/bus/pci` are: `/` of the running system.
    fn root(&self) -> &Path;
}

impl dyn Driver + '_ {
    /// Makes a request that holds no addresses but those of device memory.
    ///
    /// # Safety
    /// As of [`Driver::ioctl`].
    ///
    /// # Errors
    /// [`Error::Ioctl`] with the request's name.
    pub unsafe fn request<R: Request>(&self, request: &mut R) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.ioctl(R::NUMBER, bytemuck::bytes_of_mut(request)) }.map_err(|errno| {
            Error::Ioctl {
                ioctl: R::NAME,
                errno,
            }
        })
    }
}

/// Checks that the trait has what callers of several threads need.
const _: fn() = || {
    fn shared<T: Send + Sync + ?Sized>() {}
    shared::<dyn Driver>();
};
