//! A model file mapped into memory, its tensors loaded onto a device.

use super::{not_implemented, Gguf, TensorInfo};
use crate::{Error, Result};
use candle_core::quantized::{QStorage, QTensor};
use candle_core::Device;
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
        let io = |source| Error::Io {
            path: path.to_path_buf(),
            source,
        };
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(bad("it is no regular file".to_string()));
        }
        // SAFETY: the map is only read, as bytes; see the type's documentation for files that shrink.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let gguf = Gguf::read(std::io::Cursor::new(&map[..])).map_err(|e| bad(e.to_string()))?;
        // Reading ahead is worth it where it is possible at all.
        let _ = map.advise(Advice::Sequential);
        Ok(Self {
            gguf,
            map,
            path: path.to_path_buf(),
        })
    }

    /// Header, metadata and tensor table.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The file's name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn start(&self, info: &TensorInfo) -> usize {
        // The header's check put the whole range into the file, and the file is mapped.
        (self.gguf.data_offset + info.offset) as usize
    }

    /// A tensor's blocks as they lie in the file.
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        let start = self.start(info);
        &self.map[start..start + info.bytes as usize]
    }

    /// Loads a tensor, outermost dimension first as candle has it.
    ///
    /// # Errors
    /// [`Error::BadModel`] if there is no such tensor or candle does not compute with its type, [`Error::Candle`] if the device has no room.
    pub fn load(&self, name: &str, device: &Device) -> Result<QTensor> {
        let info = self.gguf.tensor(name).ok_or_else(|| Error::BadModel {
            path: self.path.clone(),
            reason: format!("tensor {name} is missing"),
        })?;
        let dtype = info.ggml_type.dtype.ok_or_else(|| Error::BadModel {
            path: self.path.clone(),
            reason: format!("tensor {name}: {}", not_implemented(info.ggml_type)),
        })?;
        let dims: Vec<usize> = info.dims.iter().rev().map(|&d| d as usize).collect();
        let loaded = QStorage::from_data(Cow::Borrowed(self.bytes(info)), device, dtype)
            .and_then(|storage| QTensor::new(storage, dims));
        self.give_back(info);
        loaded.map_err(Error::candle("loading the model"))
    }

    /// Lets the system drop the pages of a tensor that will not be read again soon.
    pub fn give_back(&self, info: &TensorInfo) {
        let start = self.start(info);
        // SAFETY: the map is shared and read-only, so dropped pages are read from the file again when touched.
        let advised = unsafe {
            self.map
                .unchecked_advise_range(UncheckedAdvice::DontNeed, start, info.bytes as usize)
        };
        // Only a hint: without it the pages stay until memory gets scarce.
        drop(advised);
    }
}
