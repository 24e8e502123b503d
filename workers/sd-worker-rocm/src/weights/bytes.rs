//! The bytes of a file: mapped, or part of the program.

use memmap2::Mmap;
use std::ops::Deref;
use std::path::Path;
use worker::{file, Error, Result};

/// Bytes that stay where they are.
#[derive(Debug)]
pub enum Bytes {
    /// A mapped file.
    Mapped(Mmap),
    /// Part of the program.
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps a regular file.
    ///
    /// # Errors
    /// [`Error::Io`] if it is another kind of file or cannot be read.
    pub fn map(path: &Path) -> Result<Self> {
        file::map(path).map(Self::Mapped).map_err(Error::io(path))
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
