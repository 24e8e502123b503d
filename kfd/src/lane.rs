//! Data to a GPU and back: a copy queue, and memory of the host that both see.

use crate::Result;
use candle_kfd::sdma::{Engine, SdmaQueue};
use candle_kfd::{Gpu, Kind, Memory};
use memory_pattern::{Mismatch, Pattern, WORD};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that go at a time.
pub const PIECE: usize = 4 << 20;

/// See the [module](self).
#[derive(Debug)]
pub struct Lane {
    /// The queue.
    pub queue: SdmaQueue,
    staging: Memory,
    timeout: Duration,
}

/// Words that are wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Byte in the memory.
    pub offset: u64,
    /// Its address.
    pub address: u64,
    /// What differs; its first word is counted from the memory's begin.
    pub mismatch: Mismatch,
}

impl Wrong {
    /// In a memory whose first word has this index in the pattern.
    pub fn of(memory: &Memory, first: u64, mut mismatch: Mismatch) -> Self {
        mismatch.first -= first;
        Wrong {
            offset: mismatch.byte(),
            address: memory.address() + mismatch.byte(),
            mismatch,
        }
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (address {:#x})", self.mismatch, self.address)
    }
}

impl Lane {
    /// A queue of the GPU.
    ///
    /// # Errors
    /// candle-kfd's, if there is no queue or no memory.
    pub fn new(gpu: &Arc<Gpu>, timeout: Duration) -> Result<Self> {
        Ok(Lane {
            queue: SdmaQueue::new(gpu, Engine::Any)?,
            staging: gpu.allocate(PIECE, Kind::Gtt)?,
            timeout,
        })
    }

    /// Sends bytes to a memory.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn send(&self, data: &[u8], to: &Memory, offset: u64) -> Result<()> {
        let mut at = offset;
        for piece in data.chunks(PIECE) {
            self.staging_write(piece)?;
            let bytes = piece.len() as u64;
            (self.queue).copy((to, at), (&self.staging, 0), bytes, self.timeout)?;
            at += bytes;
        }
        Ok(())
    }

    /// Fetches bytes of a memory.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn fetch(&self, from: &Memory, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut at = offset;
        for piece in into.chunks_mut(PIECE) {
            let bytes = piece.len() as u64;
            (self.queue).copy((&self.staging, 0), (from, at), bytes, self.timeout)?;
            self.staging_read(piece)?;
            at += bytes;
        }
        Ok(())
    }

    /// Fills a memory with the words of a pattern from `first` on.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn fill(&self, to: &Memory, pattern: Pattern, seed: u32, first: u64) -> Result<()> {
        let mut piece = Vec::new();
        for (at, bytes) in pieces(to.len()) {
            piece.resize(bytes, 0);
            pattern.fill(seed, first + (at / WORD) as u64, &mut piece);
            self.send(&piece, to, at as u64)?;
        }
        Ok(())
    }

    /// Fills words with one value, which the engine does alone.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn fill_value(&self, to: &Memory, offset: u64, value: u32, words: u64) -> Result<()> {
        Ok(self.queue.fill((to, offset), value, words, self.timeout)?)
    }

    /// Looks for words of a memory that differ from the pattern.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn check(
        &self,
        memory: &Memory,
        pattern: Pattern,
        seed: u32,
        first: u64,
    ) -> Result<Option<Wrong>> {
        let mut piece = Vec::new();
        for (at, bytes) in pieces(memory.len()) {
            piece.resize(bytes, 0);
            self.fetch(memory, at as u64, &mut piece)?;
            let here = first + (at / WORD) as u64;
            if let Some(mismatch) = pattern.compare(seed, here, &piece) {
                return Ok(Some(Wrong::of(memory, first, mismatch)));
            }
        }
        Ok(None)
    }

    fn staging_write(&self, piece: &[u8]) -> Result<()> {
        if let Some(host) = self.staging.host() {
            host.write(0, piece)?;
        }
        Ok(())
    }

    fn staging_read(&self, piece: &mut [u8]) -> Result<()> {
        if let Some(host) = self.staging.host() {
            host.read(0, piece)?;
        }
        Ok(())
    }
}

/// Where pieces of so many bytes begin, and how long each is.
pub fn pieces(bytes: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    let count = bytes.div_ceil(PIECE);
    (0..count).map(move |i| (i * PIECE, PIECE.min(bytes - i * PIECE)))
}
