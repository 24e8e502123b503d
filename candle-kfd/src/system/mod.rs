//! What is asked of the operating system besides the driver: addresses, descriptors of files, and whether this process is
//! a copy of the one that opened the driver.
//!
//! The driver is Linux' own. Elsewhere everything compiles, so that programs can be built with it, and
//! [`Kfd::open`](crate::Kfd::open) says that there is none.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::{descriptor, driver, forks, page_bytes, release, reserve};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{descriptor, driver, forks, page_bytes, release, reserve};
