//! Memory of arguments: each launch has its own until the kernel is done.
//!
//! Chunks are filled one after the other. A full one is closed by a barrier, whose completion says that all kernels with
//! arguments in it are done; it is filled again after that.

use crate::gpu::Gpu;
use crate::memory::{Kind, Memory};
use crate::signal::Signal;
use crate::{Error, Result};
use std::sync::Arc;

const CHUNKS: usize = 4;
/// Bytes of a chunk: some hundreds of launches.
const CHUNK_BYTES: usize = 64 << 10;
/// What the address of arguments is a multiple of: a line of the caches that they are read through.
const ALIGNMENT: usize = 64;

#[derive(Debug)]
pub(super) struct Kernarg {
    memory: Memory,
    /// Of each chunk: not zero while kernels may read it.
    busy: Vec<Signal>,
    chunk: usize,
    used: usize,
    /// Whether the barrier that ends the chunk is on the queue.
    is_closed: bool,
}

/// What has to be done before arguments have a place.
pub(super) enum Place {
    /// Nothing: they go to this offset.
    At(usize),
    /// The chunk is full: a barrier that completes this signal, then the next chunk's has to be zero.
    Full,
}

impl Kernarg {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Kernarg> {
        Ok(Kernarg {
            memory: gpu.allocate(CHUNKS * CHUNK_BYTES, Kind::Gtt)?,
            busy: Signal::several(gpu, CHUNKS, 0)?,
            chunk: 0,
            used: 0,
            is_closed: false,
        })
    }

    /// Finds a place for so many bytes.
    pub fn place(&mut self, bytes: usize) -> Result<Place> {
        if bytes > CHUNK_BYTES {
            return Err(Error::Range {
                offset: 0,
                bytes: bytes as u64,
                memory: CHUNK_BYTES as u64,
            });
        }
        if self.used + bytes > CHUNK_BYTES {
            return Ok(Place::Full);
        }
        let at = self.chunk * CHUNK_BYTES + self.used;
        self.used = (self.used + bytes).next_multiple_of(ALIGNMENT);
        Ok(Place::At(at))
    }

    /// The signal of the chunk that is filled now, set to busy; none if its barrier is on the queue already, behind a wait
    /// that was too short: a second one would count the signal down when kernels of the chunk's next turn are not done.
    pub fn close(&self) -> Option<&Signal> {
        let signal = (!self.is_closed).then(|| &self.busy[self.chunk])?;
        signal.store(1);
        Some(signal)
    }

    /// The barrier is on the queue.
    pub fn closed(&mut self) {
        self.is_closed = true;
    }

    /// The signal of the next chunk, which has to be zero before [`open_next`](Self::open_next).
    pub fn next(&self) -> &Signal {
        &self.busy[(self.chunk + 1) % CHUNKS]
    }

    pub fn open_next(&mut self) {
        self.chunk = (self.chunk + 1) % CHUNKS;
        self.used = 0;
        self.is_closed = false;
    }

    /// Writes arguments and returns their address.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<u64> {
        let host = self.memory.host().ok_or_else(|| Error::NotVisible {
            gpu: self.memory.gpu().node().pci_id.clone(),
        })?;
        host.write(at, bytes)?;
        Ok(self.memory.address() + at as u64)
    }
}
