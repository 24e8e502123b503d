//! Copies of host memory that devices do not reach, by way of memory that they do.

use crate::lane::Transfer;
use crate::point::Point;
use crate::stream::Stream;
use crate::sync::lock;
use candle_kfd::{Kind, Memory};
use hip_abi::error::{HipError, HipResult};
use std::sync::Mutex;

/// Bytes of a chunk, of which one is filled while the other is copied.
const CHUNK: usize = 4 << 20;

struct Chunk {
    memory: Memory,
    /// The end of the last copy that uses it.
    used: Option<Point>,
}

/// A device's two chunks.
#[derive(Default)]
pub(crate) struct Staging(Mutex<[Option<Chunk>; 2]>);

/// A chunk that no copy uses.
fn free_chunk<'a>(slot: &'a mut Option<Chunk>, stream: &Stream) -> HipResult<&'a mut Chunk> {
    let device = stream.device;
    if let Some(used) = slot.as_mut().and_then(|chunk| chunk.used.take()) {
        device.wait(&used)?;
    }
    if slot.is_none() {
        let memory = device.gpu.allocate(CHUNK, Kind::Gtt);
        *slot = Some(Chunk {
            memory: memory.map_err(|error| device.failed(error))?,
            used: None,
        });
    }
    slot.as_mut().ok_or(HipError::OutOfMemory)
}

impl Staging {
    /// Enqueues a copy of host memory to `to`; `from` has been read when this returns.
    ///
    /// # Safety
    /// `from` has so many bytes; the device may write as many at `to` until the stream is done.
    pub unsafe fn upload(
        &self,
        stream: &Stream,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> HipResult {
        let mut chunks = lock(&self.0);
        for (piece, start) in (0..bytes).step_by(CHUNK).enumerate() {
            let count = CHUNK.min(bytes - start);
            let chunk = free_chunk(&mut chunks[piece % 2], stream)?;
            // SAFETY: the source has so many bytes.
            let source = unsafe { std::slice::from_raw_parts(from.add(start), count) };
            let host = chunk.memory.host().ok_or(HipError::Unknown)?;
            host.write(0, source)
                .map_err(|error| stream.device.failed(error))?;
            let transfer = Transfer::Copy {
                to: to + start as u64,
                from: chunk.memory.address(),
                bytes: count as u64,
            };
            // SAFETY: the chunk is as large; the destination is the caller's promise.
            chunk.used = Some(unsafe { stream.transfer(transfer)? });
        }
        Ok(())
    }

    /// Copies `from` into host memory, which is filled when this returns, and so all is done that was enqueued before.
    ///
    /// # Safety
    /// `to` has so many bytes; the device may read as many at `from`.
    pub unsafe fn download(
        &self,
        stream: &Stream,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> HipResult {
        let mut chunks = lock(&self.0);
        let mut read: Option<(usize, usize, Point)> = None;
        let starts = (0..bytes).step_by(CHUNK).map(Some).chain([None]);
        for (piece, start) in starts.enumerate() {
            let mut next = None;
            if let Some(start) = start {
                let chunk = free_chunk(&mut chunks[piece % 2], stream)?;
                let transfer = Transfer::Copy {
                    to: chunk.memory.address(),
                    from: from + start as u64,
                    bytes: CHUNK.min(bytes - start) as u64,
                };
                // SAFETY: the chunk is as large; the source is the caller's promise.
                next = Some((piece % 2, start, unsafe { stream.transfer(transfer)? }));
            }
            if let Some((index, start, point)) = std::mem::replace(&mut read, next) {
                stream.device.wait(&point)?;
                let chunk = chunks[index].as_ref().ok_or(HipError::Unknown)?;
                let host = chunk.memory.host().ok_or(HipError::Unknown)?;
                let count = CHUNK.min(bytes - start);
                // SAFETY: the destination has so many bytes.
                let place = unsafe { std::slice::from_raw_parts_mut(to.add(start), count) };
                host.read(0, place)
                    .map_err(|error| stream.device.failed(error))?;
            }
        }
        Ok(())
    }
}
