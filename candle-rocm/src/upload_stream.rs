//! Uploads beside a device's own work.

use crate::pinned::Staging;
use crate::{Buffer, Device, Error, Event, Result, Stream};

/// A second stream of a device for uploads: weights arrive while the device computes with those before them.
///
/// The two streams know nothing of each other but for [`UploadStream::follow`] and [`UploadStream::lead`]. Uploads pass
/// through pinned memory of its own.
pub struct UploadStream {
    staging: Staging,
    mark: Event,
    stream: Stream,
    device: Device,
}

impl UploadStream {
    /// A stream beside that of `device`.
    ///
    /// # Errors
    /// HIP's.
    pub fn new(device: &Device) -> Result<Self> {
        device.enter()?;
        let gpu = device.gpu();
        Ok(Self {
            staging: Staging::default(),
            mark: Event::untimed(gpu)?,
            stream: Stream::new(gpu)?,
            device: device.clone(),
        })
    }

    /// Enqueues that part of a buffer of the device gets these bytes, which may be reused when this returns.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::DeviceMismatch`], [`Error::InvalidArgument`] while a graph is captured, and HIP's.
    pub fn upload(&mut self, bytes: &[u8], buffer: &Buffer, byte_offset: usize) -> Result<()> {
        const OP: &str = "upload beside other work";
        self.device.enter()?;
        if !self.device.same_device(buffer.device()) {
            return Err(Error::DeviceMismatch { op: OP });
        }
        buffer.check_range(OP, byte_offset, bytes.len())?;
        self.device
            .check_not_capturing(OP, "it would not be part of the graph")?;
        let to = buffer.as_ptr().wrapping_byte_add(byte_offset);
        // SAFETY: the range was checked.
        unsafe { self.staging.upload(&self.stream, bytes, to) }
    }

    /// Makes later uploads wait for the work that the device has been given so far: it may use the buffers.
    ///
    /// # Errors
    /// HIP's.
    pub fn follow(&self) -> Result<()> {
        self.mark.record(self.device.stream())?;
        self.stream.wait(&self.mark)
    }

    /// Makes the device's later work wait for the uploads so far.
    ///
    /// # Errors
    /// HIP's.
    pub fn lead(&self) -> Result<()> {
        self.mark.record(&self.stream)?;
        self.device.stream().wait(&self.mark)
    }

    /// Waits for the uploads so far.
    ///
    /// # Errors
    /// HIP's.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()
    }
}

impl Drop for UploadStream {
    fn drop(&mut self) {
        // The pinned memory goes next, and perhaps the buffers.
        self.device.gpu().defer(self.stream.wait_idle());
    }
}
