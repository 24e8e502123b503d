//! Memory as the host sees it, while the GPU may change it.

use crate::{Error, Result};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The host's view of memory.
///
/// The GPU may write at any time: every access is volatile or atomic, none makes a reference to plain data, and all are
/// checked against the memory's size.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    start: NonNull<u8>,
    bytes: usize,
    memory: PhantomData<&'a super::Memory>,
}

// SAFETY: accesses are volatile or atomic, as they must be with a GPU on the other side; another thread is no worse.
unsafe impl Send for Host<'_> {}
// SAFETY: likewise.
unsafe impl Sync for Host<'_> {}

/// Bytes that are read and written at a time.
const STEP: usize = 8;

impl<'a> Host<'a> {
    /// A view of mapped memory.
    ///
    /// # Safety
    /// The memory is readable and writable for `'a`, and no reference to it exists but through this type.
    pub(crate) unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Host {
            start,
            bytes,
            memory: PhantomData,
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte. Reading and writing through it is the caller's business: volatile, and within [`len`](Self::len).
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address of a range that must be within and aligned.
    fn at(&self, offset: usize, bytes: usize, alignment: usize) -> Result<*mut u8> {
        let end = offset.checked_add(bytes);
        let refused = Error::Range {
            offset: offset as u64,
            bytes: bytes as u64,
            memory: self.bytes as u64,
        };
        if end.is_none_or(|end| end > self.bytes) {
            return Err(refused);
        }
        // SAFETY: the offset is within the memory.
        let start = unsafe { self.start.as_ptr().add(offset) };
        if (start as usize).is_multiple_of(alignment) {
            Ok(start)
        } else {
            Err(Error::Alignment {
                address: start as u64,
                alignment: alignment as u64,
            })
        }
    }

    /// A word that GPU and host change.
    ///
    /// # Errors
    /// [`Error::Range`] beyond the memory, [`Error::Alignment`] between two words.
    pub fn word(&self, offset: usize) -> Result<&'a AtomicU32> {
        let word = self.at(offset, 4, 4)?;
        // SAFETY: it is within the memory, aligned, and lives as long as the memory is borrowed; others change it by atomic
        // or volatile accesses only.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// A word of 64 bits that GPU and host change.
    ///
    /// # Errors
    /// As of [`word`](Self::word).
    pub fn long(&self, offset: usize) -> Result<&'a AtomicU64> {
        let word = self.at(offset, 8, 8)?;
        // SAFETY: as in `word`.
        Ok(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not within the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let from = self.at(offset, into.len(), 1)?;
        let (head, body) = split(from, into.len());
        for (at, byte) in into[..head].iter_mut().enumerate() {
            // SAFETY: within the range that was checked.
            *byte = unsafe { from.add(at).read_volatile() };
        }
        let mut at = head;
        for step in into[head..head + body].chunks_exact_mut(STEP) {
            // SAFETY: likewise, and aligned as `split` says.
            let value: u64 = unsafe { from.add(at).cast::<u64>().read_volatile() };
            step.copy_from_slice(&value.to_ne_bytes());
            at += STEP;
        }
        for byte in &mut into[at..] {
            // SAFETY: within the range that was checked.
            *byte = unsafe { from.add(at).read_volatile() };
            at += 1;
        }
        Ok(())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not within the memory; then nothing is written.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let into = self.at(offset, from.len(), 1)?;
        let (head, body) = split(into, from.len());
        for (at, byte) in from[..head].iter().enumerate() {
            // SAFETY: within the range that was checked.
            unsafe { into.add(at).write_volatile(*byte) };
        }
        let mut at = head;
        for step in from[head..head + body].chunks_exact(STEP) {
            let mut bytes = [0; STEP];
            bytes.copy_from_slice(step);
            // SAFETY: likewise, and aligned as `split` says.
            unsafe {
                into.add(at)
                    .cast::<u64>()
                    .write_volatile(u64::from_ne_bytes(bytes))
            };
            at += STEP;
        }
        for byte in &from[at..] {
            // SAFETY: within the range that was checked.
            unsafe { into.add(at).write_volatile(*byte) };
            at += 1;
        }
        Ok(())
    }

    /// Writes the same byte everywhere in a range.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<()> {
        self.at(offset, bytes, 1)?;
        let page = [value; 4096];
        for done in (0..bytes).step_by(page.len()) {
            let some = page.len().min(bytes - done);
            self.write(offset + done, &page[..some])?;
        }
        Ok(())
    }
}

/// How many bytes come before the first aligned step, and how many are in steps.
fn split(address: *mut u8, bytes: usize) -> (usize, usize) {
    let head = (address as usize).wrapping_neg() % STEP;
    let head = head.min(bytes);
    (head, (bytes - head) / STEP * STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn with(bytes: usize, test: impl Fn(Host<'_>)) {
        let mut memory = vec![0u64; bytes.div_ceil(8)];
        let start = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector lives for as long as the view, and nothing else refers to it.
        test(unsafe { Host::new(start, bytes) });
    }

    #[test]
    fn bytes_arrive_at_any_offset_and_length() {
        with(64, |host| {
            for offset in 0..17 {
                for length in 0..40 {
                    let sent: Vec<u8> = (1..=length as u8).collect();
                    host.fill(0, 64, 0xee).unwrap();
                    host.write(offset, &sent).unwrap();
                    let mut all = [0; 64];
                    host.read(0, &mut all).unwrap();
                    assert_eq!(all[offset..offset + length], sent);
                    let around = all[..offset].iter().chain(&all[offset + length..]);
                    assert!(around.into_iter().all(|&byte| byte == 0xee));
                    let mut back = vec![0; length];
                    host.read(offset, &mut back).unwrap();
                    assert_eq!(back, sent);
                }
            }
        });
    }

    #[test]
    fn nothing_beyond_the_end_is_reached() {
        with(20, |host| {
            for (offset, bytes) in [(20, 1), (13, 8), (usize::MAX, 2), (21, 0)] {
                let refused = Error::Range {
                    offset: offset as u64,
                    bytes: bytes as u64,
                    memory: 20,
                };
                assert_eq!(host.write(offset, &vec![1; bytes]), Err(refused.clone()));
                assert_eq!(host.read(offset, &mut vec![1; bytes]), Err(refused.clone()));
                assert_eq!(host.fill(offset, bytes, 1), Err(refused));
            }
            assert!(host.write(20, &[]).is_ok());
            assert!(matches!(host.long(16), Err(Error::Range { .. })));
            assert!(matches!(host.long(4), Err(Error::Alignment { .. })));
            assert!(matches!(host.word(2), Err(Error::Alignment { .. })));
            host.word(16).unwrap().store(7, Ordering::Relaxed);
            let mut word = [0; 4];
            host.read(16, &mut word).unwrap();
            assert_eq!(u32::from_ne_bytes(word), 7);
        });
    }
}
