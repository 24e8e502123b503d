//! Page-locked memory of the host that somebody owns.

use crate::pinned::Pinned;
use crate::sys::hip;
use crate::{Buffer, Device, Error, Result};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Memory of the host that a device reads and writes directly, at the full rate of its bus. Copies wait for their end,
/// so that the bytes are the caller's at any time.
///
/// [`Device::upload`] and [`Device::download`] do without: they pass everything through some of it that they keep.
pub struct HostBuffer {
    device: Device,
    memory: Pinned,
    bytes: usize,
}

impl Device {
    /// Page-locked memory, filled with zero bytes. `bytes` is positive.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] for no bytes; HIP's, if the host has no such memory.
    pub fn alloc_host(&self, bytes: usize) -> Result<HostBuffer> {
        self.enter()?;
        if bytes == 0 {
            return Err(Error::OutOfBounds {
                op: "alloc_host",
                offset: 0,
                bytes: 0,
                buffer_bytes: 0,
            });
        }
        let memory = Pinned::new(self.gpu(), bytes)?;
        // SAFETY: the memory has so many bytes, and nobody else knows it.
        unsafe { memory.as_ptr().write_bytes(0, bytes) };
        Ok(HostBuffer {
            device: self.clone(),
            memory,
            bytes,
        })
    }
}

impl HostBuffer {
    /// Copies its first bytes to the device and waits.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::DeviceMismatch`], and HIP's.
    pub fn copy_to(&self, buffer: &Buffer, byte_offset: usize, bytes: usize) -> Result<()> {
        let at = self.checked(buffer, byte_offset, bytes)?;
        let own = self.memory.as_ptr().cast();
        self.copy(at, own, bytes, hip::MEMCPY_HOST_TO_DEVICE)
    }

    /// Fills its first bytes from the device and waits.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::DeviceMismatch`], and HIP's.
    pub fn copy_from(&mut self, buffer: &Buffer, byte_offset: usize, bytes: usize) -> Result<()> {
        let at = self.checked(buffer, byte_offset, bytes)?;
        let own = self.memory.as_ptr().cast();
        self.copy(own, at, bytes, hip::MEMCPY_DEVICE_TO_HOST)
    }

    /// The device address of a range that lies in both buffers.
    fn checked(&self, buffer: &Buffer, byte_offset: usize, bytes: usize) -> Result<*mut c_void> {
        const OP: &str = "copy of host memory";
        self.device.enter()?;
        self.device
            .check_not_capturing(OP, "it would be waited for")?;
        if !self.device.same_device(buffer.device()) {
            return Err(Error::DeviceMismatch { op: OP });
        }
        buffer.check_range(OP, byte_offset, bytes)?;
        if bytes > self.bytes {
            return Err(Error::OutOfBounds {
                op: OP,
                offset: 0,
                bytes,
                buffer_bytes: self.bytes,
            });
        }
        Ok(buffer.as_ptr().wrapping_byte_add(byte_offset))
    }

    fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let gpu = self.device.gpu();
        let stream = self.device.stream();
        // SAFETY: both ranges were checked; the copy is waited for, so that neither is used after this call.
        let status = unsafe { (gpu.hip.hipMemcpyAsync)(to, from, bytes, kind, stream.as_raw()) };
        let enqueued = gpu.check("hipMemcpyAsync (page-locked)", status);
        let waited = stream.wait_idle();
        enqueued.and(waited)
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory has so many bytes, was filled when it was made, and no copy is under way.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostBuffer({} bytes on device {})",
            self.bytes,
            self.device.ordinal()
        )
    }
}
