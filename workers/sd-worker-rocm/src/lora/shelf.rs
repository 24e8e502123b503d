//! LoRA files that stay open between requests.

use super::LoraFile;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::{Error, Result};

/// Files that stay open.
const MOST: usize = 16;

/// What tells that a file is another one, or was written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Stamp {
    /// That of the file that [`LoraFile::open`] would open.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be looked at.
    pub fn of(path: &Path) -> Result<Self> {
        let path = LoraFile::file_of(path);
        let about = std::fs::metadata(&path).map_err(|source| Error::Io {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            device: about.dev(),
            inode: about.ino(),
            length: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
        })
    }
}

/// Open files, the one that was used last at the end.
#[derive(Default)]
pub struct Shelf {
    files: Vec<(PathBuf, Stamp, Arc<LoraFile>)>,
    #[cfg(test)]
    pub(crate) opened: usize,
}

impl Shelf {
    /// A file: the open one, unless it has changed since.
    ///
    /// # Errors
    /// Those of [`Stamp::of`] and [`LoraFile::open`].
    pub fn open(&mut self, path: &Path) -> Result<Arc<LoraFile>> {
        let stamp = Stamp::of(path)?;
        let known = self.files.iter().position(|(known, ..)| known == path);
        if let Some(known) = known {
            let entry = self.files.remove(known);
            if entry.1 == stamp {
                let file = entry.2.clone();
                self.files.push(entry);
                return Ok(file);
            }
        }
        let file = Arc::new(LoraFile::open(path)?);
        #[cfg(test)]
        {
            self.opened += 1;
        }
        if self.files.len() == MOST {
            self.files.remove(0);
        }
        self.files.push((path.to_path_buf(), stamp, file.clone()));
        Ok(file)
    }
}
