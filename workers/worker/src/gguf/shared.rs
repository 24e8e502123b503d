//! Bytes of weights that stay where they are.

use memmap2::{Advice, Mmap};
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that several hold: part of a mapped file, or memory. Cheap to clone.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    Map(Arc<Mmap>),
    Memory(Arc<Vec<u8>>),
}

impl SharedBytes {
    /// Part of a mapped file, which will be read often: the system is asked to have it at hand.
    ///
    /// # Panics
    /// If the range is not in the map.
    pub fn of_map(map: &Arc<Mmap>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= map.len());
        for advice in [Advice::Normal, Advice::WillNeed] {
            // Only hints.
            let _ = map.advise_range(advice, range.start, range.len());
        }
        Self {
            owner: Owner::Map(map.clone()),
            range,
        }
    }

    /// Part of these bytes.
    ///
    /// # Panics
    /// If the range is not in them.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len());
        Self {
            owner: self.owner.clone(),
            range: self.range.start + range.start..self.range.start + range.end,
        }
    }

    /// Whether they are part of a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Map(_))
    }

    /// Keeps their pages in memory until the process ends.
    ///
    /// # Errors
    /// The operating system's, mostly that the process may not lock so much (`ulimit -l`).
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is mapped; locking changes no content.
        match unsafe { libc::mlock(self.as_ptr().cast(), self.len()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            range: 0..bytes.len(),
            owner: Owner::Memory(Arc::new(bytes)),
        }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            Owner::Map(map) => map,
            Owner::Memory(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_mapped() { "a map" } else { "memory" };
        write!(f, "SharedBytes({} bytes of {place})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_parts_are_where_they_are() {
        let all = SharedBytes::from((0..100).collect::<Vec<u8>>());
        let part = all.slice(10..50).slice(5..8);
        assert_eq!(&*part, [15, 16, 17]);
        assert_eq!(part.as_ptr(), all[15..].as_ptr());
        assert!(!part.is_mapped());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7u8; 5000]).unwrap();
        let map = Arc::new(crate::file::map(&path).unwrap());
        let part = SharedBytes::of_map(&map, 4096..4200);
        drop(map);
        assert!(part.is_mapped() && part.iter().all(|&byte| byte == 7));
        assert_eq!(part.len(), 104);
        // A page at least may be locked everywhere.
        part.lock().unwrap();
    }
}
