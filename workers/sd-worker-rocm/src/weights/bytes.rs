//! The bytes of a file: mapped, or part of the program.

use memmap2::Mmap;
use std::ops::Deref;
use std::path::Path;
use worker::{Error, Result};

/// Bytes that stay where they are.
#[derive(Debug)]
pub enum Bytes {
    /// A mapped file.
    Mapped(Mmap),
    /// Part of the program.
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps a file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn map(path: &Path) -> Result<Self> {
        let io = |source| Error::Io {
            path: path.to_path_buf(),
            source,
        };
        let file = std::fs::File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Ok(Self::Static(&[]));
        }
        // SAFETY: the mapping is read-only. As with every mapped model, the file must not be cut short by others while
        // it is in use.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self::Mapped(map))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}
