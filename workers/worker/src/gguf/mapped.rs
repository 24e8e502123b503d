//! Model files mapped into memory.

use super::{Gguf, SharedBytes, TensorInfo, Weights};
use crate::file;
use crate::hub::split_of;
use crate::{Error, Result};
use memmap2::{Advice, Mmap, UncheckedAdvice};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A checked GGUF file, or all parts of one that is split, in the address space.
///
/// A tensor goes from the page cache straight to the device (through the device layer's pinned buffers), and its pages
/// are given back afterwards, so loading onto a GPU takes no more host memory than one tensor. On the CPU weights are
/// used where they lie ([`Weights::shared`]). That all tensors lie in the file is checked when it is opened. It must not be
/// truncated while it is mapped: reading pages that are gone [ends the process](crate::file::map).
#[derive(Debug)]
pub struct MappedGguf {
    /// Metadata of the first part, tensors of all.
    gguf: Gguf,
    parts: Vec<Part>,
    /// The part of each tensor that is not in the first.
    later: HashMap<String, usize>,
    path: PathBuf,
}

#[derive(Debug)]
struct Part {
    data_offset: u64,
    map: Arc<Mmap>,
}

impl MappedGguf {
    /// Maps a file and checks its header as [`Gguf::read`] does. A file named `…-00001-of-00003.gguf` stands for all
    /// parts, which lie beside it.
    ///
    /// # Errors
    /// [`Error::Io`] if a part cannot be read, [`Error::BadModel`] if it is damaged or hostile, or the parts do not
    /// belong together.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let files: Vec<PathBuf> = match split_of(name) {
            Some(split) => (1..=split.count)
                .map(|part| path.with_file_name(split.name(part)))
                .collect(),
            None => vec![path.to_path_buf()],
        };
        let (mut gguf, first) = open_part(&files[0])?;
        let mut parts = vec![first];
        let mut later = HashMap::new();
        for file in &files[1..] {
            let (part, opened) = open_part(file)?;
            gguf.file_bytes += part.file_bytes;
            for (name, info) in part.tensors {
                later.insert(name.clone(), parts.len());
                if gguf.tensors.insert(name.clone(), info).is_some() {
                    return Err(Error::BadModel {
                        path: file.clone(),
                        reason: format!("tensor {name} is in an earlier part, too"),
                    });
                }
            }
            parts.push(opened);
        }
        if parts.len() > 1 {
            // As a whole it is split no more.
            gguf.metadata.retain(|key, _| !key.starts_with("split."));
        }
        Ok(Self {
            gguf,
            parts,
            later,
            path: path.to_path_buf(),
        })
    }

    fn place(&self, name: &str, info: &TensorInfo) -> (&Arc<Mmap>, usize) {
        let part = &self.parts[self.later.get(name).copied().unwrap_or(0)];
        // The header's check put the whole range into the file, and the file is mapped.
        (&part.map, (part.data_offset + info.offset) as usize)
    }
}

fn open_part(path: &Path) -> Result<(Gguf, Part)> {
    let map = Arc::new(map_file(path)?);
    let gguf = Gguf::read(std::io::Cursor::new(&map[..])).map_err(|e| Error::BadModel {
        path: path.to_path_buf(),
        reason: e.to_string(),
    })?;
    let data_offset = gguf.data_offset;
    Ok((gguf, Part { data_offset, map }))
}

impl Weights for MappedGguf {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.gguf
    }

    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        let (map, start) = self.place(name, info);
        Cow::Borrowed(&map[start..start + info.bytes as usize])
    }

    fn shared(&self, name: &str, info: &TensorInfo) -> Option<SharedBytes> {
        let (map, start) = self.place(name, info);
        let range = start..start + info.bytes as usize;
        Some(SharedBytes::of_map(map, range))
    }

    fn shared_part(
        &self,
        name: &str,
        info: &TensorInfo,
        range: Range<usize>,
    ) -> Option<SharedBytes> {
        // The system reads ahead what it is asked to have at hand, and no more.
        let (map, start) = self.place(name, info);
        let range = start + range.start..start + range.end;
        Some(SharedBytes::of_map(map, range))
    }

    fn give_back(&self, name: &str, info: &TensorInfo) {
        let (map, start) = self.place(name, info);
        give_back(map, start, info.bytes as usize);
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
/// [`Error::Io`] if it cannot be read or is not a regular file.
pub fn map_file(path: &Path) -> Result<Mmap> {
    let map = file::map(path).map_err(Error::io(path))?;
    // Reading ahead is worth it where it is possible at all.
    let _ = map.advise(Advice::Sequential);
    Ok(map)
}
