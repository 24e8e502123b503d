//! Copies between host and device through pinned memory.
//!
//! Each direction owns two chunks: while the device moves one, the host fills or empties the other. Uploads
//! are packed behind each other into a chunk, so a small one costs a `memcpy` and an enqueue, and the
//! source may be reused as soon as the call returns.

use crate::gpu::Gpu;
use crate::sys::hip;
use crate::{Event, Result, Stream};
use std::ffi::c_void;
use std::ptr;

/// Bytes of one chunk: long enough to reach the bus's full rate.
const CHUNK_BYTES: usize = 4 << 20;
/// Uploads start at multiples of this within a chunk.
const ALIGNMENT: usize = 64;

/// Page-locked host memory that the device reads and writes directly.
#[derive(Debug)]
pub(crate) struct Pinned {
    gpu: &'static Gpu,
    ptr: *mut c_void,
}

// SAFETY: plain host memory; whoever holds the `Pinned` mutably decides who touches it.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        let mut ptr = ptr::null_mut();
        // SAFETY: `ptr` receives the address.
        let status = unsafe { (gpu.hip.hipHostMalloc)(&mut ptr, bytes, hip::HOST_MALLOC_DEFAULT) };
        gpu.check("hipHostMalloc", status)?;
        Ok(Pinned { gpu, ptr })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.cast()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let freed = self.gpu.bind().and_then(|()| {
            // SAFETY: ours, and the device no longer uses it: owners wait for the stream before.
            let status = unsafe { (self.gpu.hip.hipHostFree)(self.ptr) };
            self.gpu.check("hipHostFree", status)
        });
        self.gpu.defer(freed);
    }
}

#[derive(Debug)]
struct Chunk {
    memory: Pinned,
    /// Marks the end of the device's use of the memory.
    done: Event,
    /// Bytes filled since the device was last waited for.
    used: usize,
    /// Whether `done` was recorded and not waited for.
    pending: bool,
}

impl Chunk {
    fn new(gpu: &'static Gpu) -> Result<Self> {
        Ok(Chunk {
            memory: Pinned::new(gpu, CHUNK_BYTES)?,
            done: Event::untimed(gpu)?,
            used: 0,
            pending: false,
        })
    }

    fn finish(&mut self) -> Result<()> {
        if self.pending {
            self.done.synchronize()?;
            self.pending = false;
        }
        Ok(())
    }

    fn submit(&mut self, stream: &Stream) -> Result<()> {
        self.done.record(stream)?;
        self.pending = true;
        Ok(())
    }
}

/// The chunks of one direction, made when first used.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    chunks: [Option<Chunk>; 2],
    current: usize,
}

impl Staging {
    fn chunk(&mut self, gpu: &'static Gpu, index: usize) -> Result<&mut Chunk> {
        let slot = &mut self.chunks[index];
        if slot.is_none() {
            *slot = Some(Chunk::new(gpu)?);
        }
        Ok(slot.as_mut().expect("filled above"))
    }

    /// Enqueues a copy to `dst`. The source has been read when this returns.
    ///
    /// # Safety
    /// `dst` is device memory with room for `src`.
    pub unsafe fn upload(&mut self, stream: &Stream, src: &[u8], dst: *mut c_void) -> Result<()> {
        let gpu = stream.gpu();
        let mut done = 0;
        while done < src.len() {
            let index = self.current;
            let chunk = self.chunk(gpu, index)?;
            if chunk.used >= CHUNK_BYTES {
                chunk.submit(stream)?;
                self.current = 1 - index;
                let next = self.chunk(gpu, 1 - index)?;
                next.finish()?;
                next.used = 0;
                continue;
            }
            let bytes = (src.len() - done).min(CHUNK_BYTES - chunk.used);
            let staged = chunk.memory.as_ptr().wrapping_add(chunk.used);
            // SAFETY: the chunk has `bytes` free bytes behind `used`, which no enqueued copy reads; `dst`
            // has room as the caller promises.
            let status = unsafe {
                ptr::copy_nonoverlapping(src[done..].as_ptr(), staged, bytes);
                (gpu.hip.hipMemcpyAsync)(
                    dst.wrapping_byte_add(done),
                    staged.cast(),
                    bytes,
                    hip::MEMCPY_HOST_TO_DEVICE,
                    stream.as_raw(),
                )
            };
            gpu.check("hipMemcpyAsync (host to device)", status)?;
            chunk.used += bytes.next_multiple_of(ALIGNMENT);
            done += bytes;
        }
        Ok(())
    }

    /// Copies from `src` and waits until `dst` is filled, and so for everything enqueued before.
    ///
    /// # Safety
    /// `src` is device memory of at least `dst.len()` bytes.
    pub unsafe fn download(
        &mut self,
        stream: &Stream,
        src: *const c_void,
        dst: &mut [u8],
    ) -> Result<()> {
        let gpu = stream.gpu();
        let pieces = dst.len().div_ceil(CHUNK_BYTES);
        for piece in 0..pieces.min(2) {
            // SAFETY: as the caller promises.
            unsafe { self.enqueue_download(stream, src, dst.len(), piece)? };
        }
        for piece in 0..pieces {
            let chunk = self.chunk(gpu, piece % 2)?;
            chunk.finish()?;
            let start = piece * CHUNK_BYTES;
            let bytes = (dst.len() - start).min(CHUNK_BYTES);
            // SAFETY: the device has filled `bytes` bytes of the chunk and is done with it.
            unsafe {
                let staged = chunk.memory.as_ptr();
                ptr::copy_nonoverlapping(staged, dst[start..].as_mut_ptr(), bytes);
            }
            if piece + 2 < pieces {
                // SAFETY: as the caller promises.
                unsafe { self.enqueue_download(stream, src, dst.len(), piece + 2)? };
            }
        }
        Ok(())
    }

    /// # Safety
    /// `src` is device memory of at least `total` bytes.
    unsafe fn enqueue_download(
        &mut self,
        stream: &Stream,
        src: *const c_void,
        total: usize,
        piece: usize,
    ) -> Result<()> {
        let gpu = stream.gpu();
        let chunk = self.chunk(gpu, piece % 2)?;
        let start = piece * CHUNK_BYTES;
        // SAFETY: the range lies in the source, and the chunk has room for it.
        let status = unsafe {
            (gpu.hip.hipMemcpyAsync)(
                chunk.memory.as_ptr().cast(),
                src.wrapping_byte_add(start),
                (total - start).min(CHUNK_BYTES),
                hip::MEMCPY_DEVICE_TO_HOST,
                stream.as_raw(),
            )
        };
        gpu.check("hipMemcpyAsync (device to host)", status)?;
        chunk.submit(stream)
    }
}
