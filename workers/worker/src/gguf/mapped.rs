//! Model files mapped into memory.

use super::{Gguf, TensorInfo, Weights};
use crate::{Error, Result};
use memmap2::{Advice, Mmap, UncheckedAdvice};
use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A checked GGUF file in the address space.
///
/// A tensor goes from the page cache straight to the device (through the device layer's pinned buffers), and its pages are
/// given back afterwards, so loading onto a GPU takes no more host memory than one tensor. The file must not be
/// truncated while it is mapped: reading pages that are gone ends the process, as for every program that maps files.
#[derive(Debug)]
pub struct MappedGguf {
    gguf: Gguf,
    map: Mmap,
    path: PathBuf,
}

impl MappedGguf {
    /// Maps a file and checks its header as [`Gguf::read`] does.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged or hostile.
    pub fn open(path: &Path) -> Result<Self> {
        let map = map_file(path)?;
        let gguf = Gguf::read(std::io::Cursor::new(&map[..])).map_err(|e| Error::BadModel {
            path: path.to_path_buf(),
            reason: e.to_string(),
        })?;
        Ok(Self {
            gguf,
            map,
            path: path.to_path_buf(),
        })
    }

    fn start(&self, info: &TensorInfo) -> usize {
        // The header's check put the whole range into the file, and the file is mapped.
        (self.gguf.data_offset + info.offset) as usize
    }
}

impl Weights for MappedGguf {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.gguf
    }

    fn bytes(&self, _name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        let start = self.start(info);
        Cow::Borrowed(&self.map[start..start + info.bytes as usize])
    }

    fn give_back(&self, _name: &str, info: &TensorInfo) {
        give_back(&self.map, self.start(info), info.bytes as usize);
    }
}

/// Drops pages of a map.
pub fn give_back(map: &Mmap, start: usize, bytes: usize) {
    // SAFETY: the map is shared and read-only, so dropped pages are read from the file again when touched.
    let advised = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, bytes) };
    // Only a hint: without it the pages stay until memory gets scarce.
    drop(advised);
}

/// Maps a regular file for reading.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is no regular file.
pub fn map_file(path: &Path) -> Result<Mmap> {
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        return Err(Error::BadModel {
            path: path.to_path_buf(),
            reason: "it is no regular file".to_string(),
        });
    }
    // SAFETY: the map is only read, as bytes; see `MappedGguf` for files that shrink.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    // Reading ahead is worth it where it is possible at all.
    let _ = map.advise(Advice::Sequential);
    Ok(map)
}
