//! Device memory that somebody owns.

use crate::error_word;
use crate::pool::Block;
use crate::{Device, Error, Result};
use std::ffi::c_void;
use std::ptr;

/// Memory on a device. Dropping it returns the memory to the device's allocator in stream order: work
/// already enqueued may still use it.
pub struct Buffer {
    device: Device,
    ptr: *mut c_void,
    bytes: usize,
    /// What to give back; none for empty buffers and for memory that the device itself owns.
    block: Option<Block>,
}

// SAFETY: the pointer is only dereferenced by the device.
unsafe impl Send for Buffer {}
// SAFETY: as above; the device serialises accesses on its stream.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Uninitialised memory; zero bytes take none.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self::unowned(device, ptr::null_mut(), 0));
        }
        let block = device.pool().alloc(bytes, device.stream())?;
        Ok(Self::of_block(device, bytes, block))
    }

    /// Uninitialised memory that is likely to be kept, such as a model's weights: hardly rounded up.
    pub(crate) fn lasting(device: &Device, bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self::unowned(device, ptr::null_mut(), 0));
        }
        let block = device.pool().alloc_lasting(bytes, device.stream())?;
        Ok(Self::of_block(device, bytes, block))
    }

    fn of_block(device: &Device, bytes: usize, block: Block) -> Self {
        Buffer {
            device: device.clone(),
            ptr: block.ptr,
            bytes,
            block: Some(block),
        }
    }

    /// Memory that outlives the device's handles and is not given back.
    pub(crate) fn unowned(device: &Device, ptr: *mut c_void, bytes: usize) -> Self {
        Buffer {
            device: device.clone(),
            ptr,
            bytes,
            block: None,
        }
    }

    /// Size in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device address; null for an empty buffer.
    pub fn as_ptr(&self) -> *mut c_void {
        self.ptr
    }

    /// The device whose stream orders the use of this memory.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Fails unless `bytes` bytes from `offset` lie inside.
    pub(crate) fn check_range(&self, op: &'static str, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::OutOfBounds {
                op,
                offset,
                bytes,
                buffer_bytes: self.bytes,
            }),
        }
    }
}

impl Device {
    /// Uninitialised memory. Zero bytes is legal and allocates nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device is full even after the cache was emptied.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.enter()?;
        Buffer::new(self, bytes)
    }

    /// Memory filled with zero bytes.
    ///
    /// # Errors
    /// Those of [`Device::alloc`].
    pub fn alloc_zeroed(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.alloc(bytes)?;
        if bytes > 0 {
            // SAFETY: the buffer has `bytes` bytes.
            let status = unsafe {
                (self.gpu().hip.hipMemsetAsync)(buffer.as_ptr(), 0, bytes, self.stream().as_raw())
            };
            self.gpu().check("hipMemsetAsync", status)?;
        }
        Ok(buffer)
    }

    /// The word in which indexing kernels report an index that is out of range; hand it to them with
    /// [`Args::ptr`](crate::Args::ptr). See [`IndexOp`](crate::IndexOp) for its layout and codes.
    pub fn error_word(&self) -> Buffer {
        Buffer::unowned(self, self.error_state().ptr(), error_word::BYTES)
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Buffer({} bytes at {:?} on device {})",
            self.bytes,
            self.ptr,
            self.device.ordinal()
        )
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.device.pool().free(block, self.device.stream());
        }
    }
}
