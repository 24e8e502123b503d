//! Copies between host and devices.

use crate::sync::lock;
use crate::sys::hip;
use crate::{Buffer, Device, Error, Event, Result};
use std::ffi::{c_int, c_void};

impl Device {
    /// A buffer with the given contents. The slice may be reused when this returns; the device may still
    /// be copying.
    ///
    /// # Errors
    /// Those of [`Device::alloc`].
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        self.enter()?;
        let buffer = Buffer::lasting(self, bytes.len())?;
        self.upload_into(bytes, &buffer, 0)?;
        Ok(buffer)
    }

    /// Overwrites part of a buffer of this device.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::DeviceMismatch`].
    pub fn upload_into(&self, bytes: &[u8], buffer: &Buffer, byte_offset: usize) -> Result<()> {
        self.enter()?;
        self.check_owner("upload", buffer)?;
        buffer.check_range("upload", byte_offset, bytes.len())?;
        self.check_not_capturing(
            "upload",
            "it would repeat an upload with stale bytes; upload before",
        )?;
        let dst = buffer.as_ptr().wrapping_byte_add(byte_offset);
        // SAFETY: the range was checked.
        unsafe { lock(self.uploads()).upload(self.stream(), bytes, dst) }
    }

    /// Waits for the stream and fills `bytes` from a buffer of this device.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::DeviceMismatch`], and those of [`Device::synchronize`].
    pub fn download(&self, buffer: &Buffer, byte_offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.enter()?;
        self.check_owner("download", buffer)?;
        buffer.check_range("download", byte_offset, bytes.len())?;
        self.check_not_capturing("download", "there is no result yet; download afterwards")?;
        let word = self.error_state().fetch(self.stream())?;
        let src = buffer.as_ptr().wrapping_byte_add(byte_offset);
        if bytes.is_empty() {
            self.stream().wait_idle()?;
        } else {
            // SAFETY: the range was checked.
            unsafe { lock(self.downloads()).download(self.stream(), src, bytes)? };
        }
        word.map_or(Ok(()), |word| word.finish())
    }

    /// Copies between buffers of any devices. Ranges within one buffer must not overlap. Both devices'
    /// streams see the copy in order; the host does not wait.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn copy(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        src.check_range("copy", src_offset, bytes)?;
        dst.check_range("copy", dst_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let from = src.as_ptr().wrapping_byte_add(src_offset);
        let to = dst.as_ptr().wrapping_byte_add(dst_offset);
        let (reader, writer) = (src.device(), dst.device());
        if reader.same_device(writer) {
            return writer.enqueue_copy(reader, from, to, bytes);
        }
        // The copy runs on the writer's stream, between everything that was enqueued on the reader's
        // before and everything that will be after.
        reader.enter()?;
        let ready = Event::untimed(reader.gpu())?;
        ready.record(reader.stream())?;
        writer.stream().wait(&ready)?;
        writer.enqueue_copy(reader, from, to, bytes)?;
        let done = Event::untimed(writer.gpu())?;
        done.record(writer.stream())?;
        reader.stream().wait(&done)
    }

    fn enqueue_copy(
        &self,
        reader: &Device,
        from: *mut c_void,
        to: *mut c_void,
        bytes: usize,
    ) -> Result<()> {
        self.enter()?;
        let gpu = self.gpu();
        let stream = self.stream().as_raw();
        // SAFETY: the caller checked both ranges.
        unsafe {
            if reader.ordinal() == self.ordinal() {
                let kind = hip::MEMCPY_DEVICE_TO_DEVICE;
                let status = (gpu.hip.hipMemcpyAsync)(to, from, bytes, kind, stream);
                gpu.check("hipMemcpyAsync (device to device)", status)
            } else {
                let (here, there) = (self.ordinal() as c_int, reader.ordinal() as c_int);
                let status = (gpu.hip.hipMemcpyPeerAsync)(to, here, from, there, bytes, stream);
                gpu.check("hipMemcpyPeerAsync", status)
            }
        }
    }

    fn check_owner(&self, op: &'static str, buffer: &Buffer) -> Result<()> {
        if self.same_device(buffer.device()) {
            Ok(())
        } else {
            Err(Error::DeviceMismatch { op })
        }
    }
}
